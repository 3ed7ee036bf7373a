/** Byte strings: versions, digests, cursors, client ids. Compared and shown here; never altered in place. */

export function bytesEqual(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

export function hex(bytes: Uint8Array): string {
  let out = '';
  for (const byte of bytes) out += byte.toString(16).padStart(2, '0');
  return out;
}

const encoder = new TextEncoder();
// A byte order mark is part of the value, so it is kept; ill-formed UTF-8 is an error and not a replacement character.
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

/** Short texts are mostly ASCII, where a loop beats the call into the engine's decoder. */
const SHORT_BYTES = 32;

export function text(bytes: Uint8Array): string {
  if (bytes.length <= SHORT_BYTES) {
    let out = '';
    for (const byte of bytes) {
      if (byte > 0x7f) return decoder.decode(bytes);
      out += String.fromCharCode(byte);
    }
    return out;
  }
  return decoder.decode(bytes);
}
