/** The golden vectors of the protocol, which the server's tests read too. */

import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { hex } from '../../src/bytes.ts';
import { canonical, fromWire, toWire } from '../../src/codec.ts';
import { digestPlus, rowDigest } from '../../src/digest.ts';
import { decodeFrame, decodeRow } from '../../src/protocol/decode.ts';
import { encode, Float, type Wire } from '../../src/protocol/encode.ts';
import type { WireType } from '../../src/schema.ts';

// biome-ignore lint/suspicious/noExplicitAny: vectors are plain JSON of many shapes
type Json = any;

function vectors(file: string): Json[] {
  const url = new URL(`../../../gateway/protocol/vectors/${file}.json`, import.meta.url);
  return JSON.parse(readFileSync(url, 'utf8')).vectors;
}

function bytes(text: string): Uint8Array {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

/** The notation of PROTOCOL.md, "Golden vectors". */
function read(value: Json): Json {
  if (Array.isArray(value)) return value.map(read);
  if (typeof value !== 'object' || value === null) return value;
  if ('$bin' in value) return bytes(value.$bin);
  if ('$int' in value) return BigInt(value.$int);
  if ('$f64' in value) return new Float(Number(value.$f64), 8);
  if ('$f32' in value) return new Float(Number(value.$f32), 4);
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, read(field)]));
}

const unwritable = (value: Json): boolean => JSON.stringify(value).includes('$str');

/** Frames with nil for absent fields and keys as bigint, as `decodeFrame` gives them. */
function normal(value: Json): Json {
  if (Array.isArray(value)) return value.map(normal);
  if (value instanceof Uint8Array) return `bin ${hex(value)}`;
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : `${value}`;
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, field]) => field !== null && field !== undefined)
      .map(([name, field]) => [name, normal(field)]),
  );
}

describe('frames from the client', () => {
  for (const { name, frame, hex: expected } of vectors('frames_client')) {
    // A client never writes text that is not UTF-8: nothing to encode.
    if (unwritable(frame)) continue;
    test(`${name} has its canonical bytes`, () => {
      expect(hex(encode(read(frame) as Wire))).toBe(expected);
    });
  }
});

describe('frames from the server', () => {
  for (const { name, frame, hex: encoded } of vectors('frames_server')) {
    test(`${name} is read`, () => {
      expect(normal(decodeFrame(bytes(encoded)))).toEqual(normal(read(frame)));
    });
  }
  for (const { name, direction, frame, hex: encoded } of vectors('frames_accepted')) {
    if (direction !== 'to_client') continue;
    test(`${name} is read although it is not canonical`, () => {
      expect(normal(decodeFrame(bytes(encoded)))).toEqual(normal(read(frame)));
    });
  }
  for (const { name, direction, hex: encoded, code } of vectors('frames_refused')) {
    if (direction !== 'to_client') continue;
    test(`${name} is ${code === 'unknown_frame' ? 'ignored' : 'refused'}`, () => {
      if (code === 'unknown_frame') expect(decodeFrame(bytes(encoded))).toBeNull();
      else expect(() => decodeFrame(bytes(encoded))).toThrow('malformed');
    });
  }
});

describe('values', () => {
  for (const { name, type, value, hex: encoded } of vectors('values')) {
    test(`dt_02 dt_03 ${name} is read as the type of its column and written back the same`, () => {
      const [wire] = decodeRow(Uint8Array.of(0x91, ...bytes(encoded)));
      const js = fromWire(type as WireType, wire);
      const expected = read(value);
      if (expected instanceof Float)
        expect(js).toBe(expected.bytes === 4 ? Math.fround(expected.value) : expected.value);
      else if (!Array.isArray(expected)) expect(normal(js)).toEqual(normal(expected));
      if (js !== null) {
        const declared = { bool: 'boolean', int: 'number', int64: 'bigint', float32: 'number', float64: 'number' };
        if (type in declared) expect(typeof js).toBe(declared[type as keyof typeof declared]);
      }
      const again = canonical({ name: 'c', type, nullable: true }, js);
      expect(hex(encode(toWire(type, again)))).toBe(encoded);
    });
  }
});

describe('digests', () => {
  for (const { name, table, key, version, row, digest } of vectors('row_digests')) {
    test(`v4 row digest of ${name}`, () => {
      const typed = typeof key === 'string' ? key : BigInt(read(key));
      const sum = rowDigest(table, typed, bytes(version), bytes(row));
      expect(sum.toString(16).padStart(32, '0')).toBe(digest);
    });
  }
  for (const { name, rows, digest } of vectors('scope_digests')) {
    test(`v4 scope digest of ${name}`, () => {
      const sum = rows.reduce((total: bigint, row: string) => digestPlus(total, BigInt(`0x${row}`)), 0n);
      expect(sum.toString(16).padStart(32, '0')).toBe(digest);
    });
  }
});
