/**
 * Frames to MessagePack, in the smallest form, so that equal frames have equal bytes. Written here and not taken from the
 * library that decodes: that one cannot say "this number is a float" (3 and -0 would become integers), writes every bigint in
 * nine bytes, and turns a Map into `{}`. What has no wire form throws; texts are checked before they come here.
 */

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

const encoder = new TextEncoder();

class Writer {
  #bytes = new Uint8Array(256);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  finish(): Uint8Array {
    return this.#bytes.slice(0, this.#length);
  }

  put(value: Wire): void {
    if (value === null) return this.#uint(8, 0xc0);
    if (typeof value === 'boolean') return this.#uint(8, value ? 0xc3 : 0xc2);
    if (typeof value === 'number' || typeof value === 'bigint') return this.#integer(value);
    if (typeof value === 'string') {
      const bytes = encoder.encode(value);
      this.#head(bytes.length, 0xa0, 32, [0xd9, 0xda, 0xdb]);
      return this.#raw(bytes);
    }
    if (value instanceof Uint8Array) {
      this.#head(value.length, 0, 0, [0xc4, 0xc5, 0xc6]);
      return this.#raw(value);
    }
    if (value instanceof Float) return this.#float(value);
    if (Array.isArray(value)) {
      this.#head(value.length, 0x90, 16, [0, 0xdc, 0xdd]);
      for (const item of value as readonly Wire[]) this.put(item);
      return;
    }
    if (Object.getPrototypeOf(value) !== Object.prototype) throw new TypeError('no wire form for this object');
    const fields = Object.entries(value).filter(([, field]) => field !== undefined) as [string, Wire][];
    this.#head(fields.length, 0x80, 16, [0, 0xde, 0xdf]);
    for (const [name, field] of fields) {
      this.put(name);
      this.put(field);
    }
  }

  #integer(value: number | bigint): void {
    if (typeof value === 'number' && !Number.isSafeInteger(value)) throw new TypeError('not a safe integer');
    if (value >= 0) {
      if (value < 0x80) return this.#uint(8, Number(value));
      if (value <= 0xff) return this.#marked(0xcc, 8, Number(value));
      if (value <= 0xffff) return this.#marked(0xcd, 16, Number(value));
      if (value <= 0xffff_ffff) return this.#marked(0xce, 32, Number(value));
      this.#uint(8, 0xcf);
    } else {
      if (value >= -0x20) return this.#uint(8, Number(value));
      if (value >= -0x80) return this.#marked(0xd0, 8, Number(value));
      if (value >= -0x8000) return this.#marked(0xd1, 16, Number(value));
      if (value >= -0x8000_0000) return this.#marked(0xd2, 32, Number(value));
      this.#uint(8, 0xd3);
    }
    this.#room(8);
    this.#view.setBigInt64(this.#length, BigInt(value));
    this.#length += 8;
  }

  #float({ value, bytes }: Float): void {
    this.#uint(8, bytes === 4 ? 0xca : 0xcb);
    this.#room(bytes);
    if (bytes === 4) this.#view.setFloat32(this.#length, value);
    else this.#view.setFloat64(this.#length, value);
    this.#length += bytes;
  }

  /** Marker and length: `fixed` for lengths below `below`, else the smallest of the three markers for 8, 16, 32 bits (0: none). */
  #head(length: number, fixed: number, below: number, [b8, b16, b32]: readonly [number, number, number]): void {
    if (length < below) return this.#uint(8, fixed | length);
    if (length <= 0xff && b8 !== 0) return this.#marked(b8, 8, length);
    if (length <= 0xffff) return this.#marked(b16, 16, length);
    this.#uint(8, b32);
    this.#uint(32, length);
  }

  #marked(marker: number, bits: 8 | 16 | 32, value: number): void {
    this.#uint(8, marker);
    this.#uint(bits, value);
  }

  #uint(bits: 8 | 16 | 32, value: number): void {
    this.#room(4);
    if (bits === 8) this.#view.setUint8(this.#length, value);
    else if (bits === 16) this.#view.setUint16(this.#length, value);
    else this.#view.setUint32(this.#length, value);
    this.#length += bits / 8;
  }

  #raw(bytes: Uint8Array): void {
    this.#room(bytes.length);
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
  }

  #room(bytes: number): void {
    if (this.#length + bytes <= this.#bytes.length) return;
    const grown = new Uint8Array(Math.max(this.#bytes.length * 2, this.#length + bytes));
    grown.set(this.#bytes);
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}

export function encode(value: Wire): Uint8Array {
  const writer = new Writer();
  writer.put(value);
  return writer.finish();
}
