/** Our MessagePack and SHA-256 against those of others. */

import { createHash } from 'node:crypto';
import { decode as libraryDecode, encode as libraryEncode } from '@msgpack/msgpack';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { hex } from '../../src/bytes.ts';
import { encode, Float, type Wire } from '../../src/protocol/encode.ts';
import { type Packed, unpack } from '../../src/protocol/msgpack.ts';
import { sha256 } from '../../src/sha256.ts';

const integer = fc.oneof(
  fc.maxSafeInteger(),
  fc.integer(),
  fc.integer({ min: -40, max: 300 }),
  fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
);
const tree = fc.letrec<{ value: Wire }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    fc.constant(null),
    fc.boolean(),
    integer,
    fc.string({ unit: 'binary', maxLength: 300 }),
    fc.uint8Array({ maxLength: 300 }),
    fc.double().map((value) => new Float(value, 8)),
    fc.array(tie('value'), { maxLength: 40 }),
    fc.dictionary(
      fc.string({ maxLength: 6 }).filter((name) => name !== '__proto__'),
      tie('value'),
      { maxKeys: 40, noNullPrototype: true },
    ),
  ),
})).value;

/** One form for values of both decoders: integers as bigint, floats marked. */
function plain(value: Packed | Wire): unknown {
  if (typeof value === 'number') return BigInt(value);
  if (value instanceof Float) return { float: value.value };
  if (value instanceof Uint8Array) return [...value];
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Map) return Object.fromEntries([...value].map(([name, field]) => [name, plain(field)]));
  if (typeof value === 'object' && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, plain(field as Wire)]));
  }
  return value;
}

describe('MessagePack', () => {
  test('what is written is read back', () => {
    fc.assert(
      fc.property(tree, (value) => {
        expect(plain(unpack(encode(value)))).toEqual(plain(value));
      }),
    );
  });

  test('a library reads what we write, and we read what it writes', () => {
    const simple = fc.array(fc.oneof(fc.constant(null), fc.boolean(), fc.integer(), fc.string({ maxLength: 300 })), {
      maxLength: 70_000,
      size: 'medium',
    });
    fc.assert(
      fc.property(simple, (value) => {
        expect(libraryDecode(encode(value))).toEqual(value);
        expect(unpack(libraryEncode(value))).toEqual(value);
        expect(encode(value)).toEqual(libraryEncode(value));
      }),
    );
  });

  test('lengths at every edge', () => {
    for (const length of [0, 15, 16, 31, 32, 255, 256, 65_535, 65_536]) {
      const array = Array.from({ length }, () => 1);
      const map = Object.fromEntries(array.map((_, index) => [`k${index}`, 1]));
      for (const value of ['x'.repeat(length), array, map, new Uint8Array(length)]) {
        const bytes = encode(value);
        expect(Buffer.compare(bytes, libraryEncode(value))).toBe(0);
        const back = unpack(bytes);
        expect(back instanceof Map ? back.size : (back as string).length).toBe(length);
      }
    }
  });

  test('bytes that are cut off, or not MessagePack at all, are malformed and nothing else', () => {
    fc.assert(
      fc.property(tree, fc.nat(), (value, cut) => {
        const bytes = encode(value);
        expect(() => unpack(bytes.subarray(0, cut % bytes.length))).toThrow('malformed frame');
      }),
    );
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        try {
          unpack(bytes);
        } catch (error) {
          expect(error).toMatchObject({ code: 'protocol_violation', retryable: true });
        }
      }),
    );
  });

  test('no length is believed: nothing is reserved for bytes that are not there', () => {
    for (const marker of [0xdd, 0xdf, 0xdb, 0xc6, 0xc9]) {
      expect(() => unpack(Uint8Array.of(marker, 0xff, 0xff, 0xff, 0xff))).toThrow('malformed frame');
    }
    expect(() => unpack(new Uint8Array(100_000).fill(0x91))).toThrow('nested too deep');
  });
});

test('SHA-256 is SHA-256', () => {
  const lengths = [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1_000, 100_001];
  fc.assert(
    fc.property(fc.oneof(fc.constantFrom(...lengths), fc.nat(300)), fc.nat(255), (length, fill) => {
      // A view into the middle of a buffer, as rows of a frame are.
      const bytes = new Uint8Array(length + 3)
        .fill(fill)
        .subarray(3)
        .map((byte, index) => byte ^ index);
      expect(hex(sha256(bytes))).toBe(createHash('sha256').update(bytes).digest('hex'));
    }),
  );
});
