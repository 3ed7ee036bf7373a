/**
 * MessagePack into values that keep what the wire told apart: str from bin, float from integer, integers exact. Written here
 * because a library's decoder does not: the usual one drops a byte order mark from longer texts, takes ill-formed UTF-8, gives 1.0
 * as 1, and lets the later of two equal keys win. Trusts no length: each is compared with the bytes that are really there.
 * `test/unit/msgpack.test.ts` holds it against that library.
 */

import { text } from '../bytes.ts';
import { type SyncError, transient } from '../errors.ts';
import { Float } from './encode.ts';

/** Bytes are not what they should be. Says nothing of their content. */
export function malformed(what: string): SyncError {
  return transient('protocol_violation', `malformed frame: ${what}`);
}

/** An extension: skipped where nobody looks, fits no shape where somebody does. */
export const EXTENSION = Object.freeze({});

/** Integers beyond the safe range are bigint, others number; floats are `Float`; maps have text keys only. */
export type Packed =
  | null
  | boolean
  | number
  | bigint
  | string
  | Float
  | Uint8Array
  | readonly Packed[]
  | ReadonlyMap<string, Packed>
  | typeof EXTENSION;

/** Deeper than any frame of the table, with room for unknown fields. */
const DEPTH_MAX = 24;

/** One value that fills the bytes. Byte strings in it are views of them. */
export function unpack(bytes: Uint8Array): Packed {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;

  /** Goes on by so many bytes; gives where they began. */
  const take = (length: number): number => {
    const from = at;
    if (length > bytes.length - at) throw malformed('truncated');
    at += length;
    return from;
  };
  const slice = (length: number) => bytes.subarray(take(length), at);
  const uint = (width: number): number => {
    const from = take(width);
    return width === 1 ? view.getUint8(from) : width === 2 ? view.getUint16(from) : view.getUint32(from);
  };
  const str = (length: number): string => {
    try {
      return text(slice(length));
    } catch {
      throw malformed('text is not UTF-8');
    }
  };
  const exact = (value: bigint) => (BigInt.asIntN(54, value) === value ? Number(value) : value);
  const extension = (length: number) => {
    take(1 + length);
    return EXTENSION;
  };
  const array = (length: number, depth: number): Packed[] => {
    if (length > bytes.length - at) throw malformed('truncated');
    return Array.from({ length }, () => value(depth + 1));
  };
  const map = (length: number, depth: number): Map<string, Packed> => {
    const out = new Map<string, Packed>();
    for (let n = 0; n < length; n++) {
      const key = value(depth + 1);
      if (typeof key !== 'string' || out.has(key)) throw malformed('map key');
      out.set(key, value(depth + 1));
    }
    return out;
  };
  const value = (depth: number): Packed => {
    if (depth > DEPTH_MAX) throw malformed('nested too deep');
    const head = uint(1);
    if (head < 0x80) return head;
    if (head < 0x90) return map(head & 15, depth);
    if (head < 0xa0) return array(head & 15, depth);
    if (head < 0xc0) return str(head & 31);
    if (head >= 0xe0) return head - 0x100;
    // Families of markers differ in the width of what follows: 1, 2, 4 (and 8) bytes.
    const width = (first: number) => 1 << (head - first);
    switch (head) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return head === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return slice(uint(width(0xc4)));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return extension(uint(width(0xc7)));
      case 0xca:
        return new Float(view.getFloat32(take(4)), 4);
      case 0xcb:
        return new Float(view.getFloat64(take(8)), 8);
      case 0xcc:
      case 0xcd:
      case 0xce:
        return uint(width(0xcc));
      case 0xcf:
        return exact(view.getBigUint64(take(8)));
      case 0xd0:
        return view.getInt8(take(1));
      case 0xd1:
        return view.getInt16(take(2));
      case 0xd2:
        return view.getInt32(take(4));
      case 0xd3:
        return exact(view.getBigInt64(take(8)));
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return extension(width(0xd4));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return str(uint(width(0xd9)));
      case 0xdc:
      case 0xdd:
        return array(uint(2 * width(0xdc)), depth);
      case 0xde:
      case 0xdf:
        return map(uint(2 * width(0xde)), depth);
      default:
        throw malformed('not MessagePack');
    }
  };

  const whole = value(0);
  if (at !== bytes.length) throw malformed('bytes follow');
  return whole;
}
