/** Keys for new rows, made by the client: an insert has its key before the server has seen it. */

import { hex } from './bytes.ts';

/**
 * A random positive int8, never seen before for all practical purposes: 53 to 63 bits, so that no two clients meet and no
 * value is mistaken for a small hand-made number.
 */
export function newInt64(): bigint {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  const random = new DataView(bytes.buffer).getBigUint64(0) >> 1n;
  return random | (1n << 53n);
}

/** A random uuid (version 4). Works on plain http origins too, where `crypto.randomUUID` does not exist. */
export function newUuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  return hex(bytes).replace(/(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}
