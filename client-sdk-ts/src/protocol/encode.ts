/**
 * Frames to MessagePack, in the smallest form, so that equal frames have equal bytes. Written here and not taken from the
 * library that decodes: that one cannot say "this number is a float" (3 and -0 would become integers), writes every bigint in
 * nine bytes, and turns a Map into `{}`. What has no wire form throws; texts are checked before they come here.
 */

import { utf8 } from '../bytes.ts';

/** A number of a float column: written as a float although it may be whole. */
export class Float {
  readonly value: number;
  readonly bytes: 4 | 8;
  constructor(value: number, bytes: 4 | 8) {
    this.value = value;
    this.bytes = bytes;
  }
}

/** What can be written. A plain number is an integer; fields that are undefined or null are left out of maps of frames. */
export type Wire =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | Float
  | readonly Wire[]
  | { readonly [field: string]: Wire | undefined };

/** Bytes on their way, as numbers: frames from a client are small. */
type Bytes = number[];

export function encode(value: Wire): Uint8Array {
  const out: Bytes = [];
  put(out, value);
  return Uint8Array.from(out);
}

function put(out: Bytes, value: Wire): void {
  if (value === null) out.push(0xc0);
  else if (typeof value === 'boolean') out.push(value ? 0xc3 : 0xc2);
  else if (typeof value === 'number' || typeof value === 'bigint') integer(out, value);
  else if (typeof value === 'string') {
    const bytes = utf8(value);
    head(out, bytes.length, 0xa0, 32, 0xd9);
    append(out, bytes);
  } else if (value instanceof Uint8Array) {
    head(out, value.length, 0, 0, 0xc4);
    append(out, value);
  } else if (value instanceof Float) {
    const view = new DataView(new ArrayBuffer(value.bytes));
    if (value.bytes === 4) view.setFloat32(0, value.value);
    else view.setFloat64(0, value.value);
    out.push(value.bytes === 4 ? 0xca : 0xcb);
    append(out, new Uint8Array(view.buffer));
  } else if (Array.isArray(value)) {
    head(out, value.length, 0x90, 16, 0xdb);
    for (const item of value as readonly Wire[]) put(out, item);
  } else {
    if (Object.getPrototypeOf(value) !== Object.prototype) throw new TypeError('no wire form');
    const fields = Object.entries(value).filter(([, field]) => field !== undefined) as [string, Wire][];
    head(out, fields.length, 0x80, 16, 0xdd);
    for (const [name, field] of fields) {
      put(out, name);
      put(out, field);
    }
  }
}

/** A marker, or none, and an integer of so many bytes, big-endian. */
function fixed(out: Bytes, marker: number, value: number | bigint, bytes: number): void {
  out.push(marker);
  const view = new DataView(new ArrayBuffer(8));
  view.setBigInt64(0, BigInt(value));
  append(out, new Uint8Array(view.buffer, 8 - bytes));
}

function integer(out: Bytes, value: number | bigint): void {
  if (typeof value === 'number' && !Number.isSafeInteger(value)) throw new TypeError('not a safe integer');
  if (value >= -0x20 && value < 0x80) out.push(Number(value) & 0xff);
  else {
    // Markers follow each other for 1, 2, 4 and 8 bytes; negative numbers give one bit to the sign.
    const [marker, magnitude] = value < 0 ? [0xd0, -2n * BigInt(value) - 1n] : [0xcc, BigInt(value)];
    const size = [0xff, 0xffff, 0xffff_ffff].filter((most) => magnitude > most).length;
    fixed(out, marker + size, value, 2 ** size);
  }
}

/** A length: in the marker below `below`, else after one of the markers from `first` on, for 1, 2 and 4 bytes. */
function head(out: Bytes, length: number, marker: number, below: number, first: number): void {
  if (length < below) out.push(marker | length);
  // Arrays and maps have no form of one byte: there `first` itself is another marker.
  else if (length <= 0xff && first !== 0xdb && first !== 0xdd) fixed(out, first, length, 1);
  else if (length <= 0xffff) fixed(out, first + 1, length, 2);
  else fixed(out, first + 2, length, 4);
}

function append(out: Bytes, bytes: Uint8Array): void {
  for (const byte of bytes) out.push(byte);
}
