/** Small pure parts: keys, codecs, encoding, merging, backoff, signals. */

import { decode } from '@msgpack/msgpack';
import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import { text, utf8 } from '../../src/bytes.ts';
import { canonical, fromWire, sameValue, textFault, toWire } from '../../src/codec.ts';
import { socketUrl } from '../../src/connection/address.ts';
import { backoffMs, renewalMs } from '../../src/connection/backoff.ts';
import { newInt64, newUuid } from '../../src/index.ts';
import { compareKeys, compareText, rowKey } from '../../src/key.ts';
import type { Mutation } from '../../src/outbox/entry.ts';
import { merge } from '../../src/outbox/merge.ts';
import { refusal } from '../../src/outbox/refusal.ts';
import { decodeRow } from '../../src/protocol/decode.ts';
import { encode, Float, type Wire } from '../../src/protocol/encode.ts';
import type { WireType } from '../../src/schema.ts';
import { Cell } from '../../src/signal.ts';

const column = (type: WireType, nullable = false) => ({ name: 'c', type, nullable });

describe('keys', () => {
  test('dt_02 integers are exact, and a number beyond the safe range is refused', () => {
    expect(rowKey(7)).toBe(7n);
    expect(rowKey(9007199254740993n)).toBe(9007199254740993n);
    expect(() => rowKey(2 ** 53)).toThrow(expect.objectContaining({ code: 'unsafe_integer' }));
    expect(
      new Map([
        [9007199254740992n, 'a'],
        [9007199254740993n, 'b'],
      ]).size,
    ).toBe(2);
  });

  test('dt_05 texts are ordered by code points and never normalized', () => {
    const sorted = ['\u{1f600}', '\uffee', 'e\u0301', '\u00e9', '', 'a'].sort(compareText);
    expect(sorted).toEqual(['', 'a', 'e\u0301', '\u00e9', '\uffee', '\u{1f600}']);
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), fc.string({ unit: 'binary' }), (a, b) => {
        expect(Math.sign(compareText(a, b))).toBe(Math.sign(Buffer.compare(Buffer.from(a), Buffer.from(b))));
      }),
    );
    expect([3n, -1n, 20n].sort(compareKeys)).toEqual([-1n, 3n, 20n]);
  });
});

describe('values', () => {
  test('dt_05 half a surrogate pair and NUL are found, wherever they are', () => {
    for (const bad of ['\ud83d', '\ude00x', 'x\ud83dx', 'a\0b', `${'x'.repeat(65_535)}\ud83d`])
      expect(textFault(bad)).not.toBeNull();
    for (const good of ['', '\u{1f600}', `${'x'.repeat(65_535)}\u{1f600}`, 'e\u0301'])
      expect(textFault(good)).toBeNull();
  });

  test('dt_02 every type has one JavaScript type, whatever the size', () => {
    const through = (type: WireType, value: unknown) =>
      fromWire(type, decodeRow(encode([toWire(type, canonical(column(type, true), value))]))[0]);
    fc.assert(
      fc.property(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), (value) => {
        expect(through('int64', value)).toBe(value);
      }),
    );
    fc.assert(
      fc.property(fc.integer(), (value) => {
        expect(through('int', value)).toBe(value);
      }),
    );
    fc.assert(
      fc.property(fc.double(), (value) => {
        expect(through('float64', value)).toBe(value);
      }),
    );
    fc.assert(
      fc.property(fc.float(), (value) => {
        expect(through('float32', value)).toBe(value);
      }),
    );
    fc.assert(
      fc.property(
        fc.string({ unit: 'binary' }).filter((s) => !s.includes('\0')),
        (value) => {
          expect(through('string', value)).toBe(value);
        },
      ),
    );
    fc.assert(
      fc.property(fc.uint8Array(), (value) => {
        expect(through('bytes', value)).toEqual(value);
      }),
    );
    expect(through('array:int64', [1n, null, 2n ** 60n])).toEqual([1n, null, 2n ** 60n]);
    expect(through('array:string', '{{a},{b}}')).toBe('{{a},{b}}');
    expect(through('int64', 5)).toBe(5n);
  });

  test('a byte order mark is part of the value, also in long texts', () => {
    for (const value of ['\ufeffx', `\ufeff${'x'.repeat(1_000)}`]) {
      expect(text(utf8(value))).toBe(value);
      expect(fromWire('string', decodeRow(encode([value]))[0])).toBe(value);
    }
  });

  test('what a column cannot hold is refused by name, without the value', () => {
    const bad: [WireType, unknown][] = [
      ['bool', 1],
      ['int', 2 ** 31],
      ['int', '1'],
      ['int', 1.5],
      ['int64', 2n ** 63n],
      ['int64', 2 ** 53],
      ['float64', 1n],
      ['string', 5],
      ['uuid', 'secret-7f3a'],
      ['bytes', 'secret-7f3a'],
      ['array:int', [1, 'secret-7f3a']],
      ['array:int', 5],
      ['string', new Map()],
    ];
    for (const [type, value] of bad) {
      expect(() => canonical(column(type), value)).toThrow(/^column c \(/);
      expect(() => canonical(column(type), value)).not.toThrow('7f3a');
    }
    expect(canonical(column('uuid'), 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11')).toBe(
      'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
    );
  });

  test('floats are written as floats, and what has no wire form throws', () => {
    expect([...encode(new Float(3, 8))]).toEqual([0xcb, 0x40, 8, 0, 0, 0, 0, 0, 0]);
    expect(Object.is(decode(encode(new Float(-0, 8))) as number, -0)).toBe(true);
    for (const bad of [new Map(), new Set(), new Date(), 2 ** 53, 0.5, Number.NaN]) {
      expect(() => encode(bad as unknown as Wire)).toThrow(TypeError);
    }
  });
});

test('a base url gets the path of the socket, and another path stays', () => {
  for (const [given, url] of [
    ['ws://127.0.0.1:8787', 'ws://127.0.0.1:8787/v3/socket'],
    ['http://127.0.0.1:8787/', 'ws://127.0.0.1:8787/v3/socket'],
    ['https://a.example', 'wss://a.example/v3/socket'],
    ['wss://a.example?region=1', 'wss://a.example/v3/socket?region=1'],
    ['https://a.example/sync/v3/socket', 'wss://a.example/sync/v3/socket'],
    ['ws://[::1]:8787/v3/socket', 'ws://[::1]:8787/v3/socket'],
  ] as const) {
    expect(socketUrl(given)).toBe(url);
  }
  for (const bad of ['', 'localhost:8787', '/v3/socket', 'ftp://secret-7f3a']) {
    expect(() => socketUrl(bad)).toThrow(expect.objectContaining({ code: 'invalid_url' }));
    expect(() => socketUrl(bad)).not.toThrow('7f3a');
  }
});

test('a refusal is a sentence, with what the server adds', () => {
  expect(refusal('row_refused', 'SQLSTATE 42501')).toBe('refused by row-level security: SQLSTATE 42501');
  expect(refusal('constraint_unique', null)).toBe('another row has this value');
  expect(refusal('permission_denied', 'SQLSTATE 42501')).toBe('permission denied: SQLSTATE 42501');
  expect(refusal('of_a_newer_server', null)).toBe('of a newer server');
});

describe('merging', () => {
  const update = (cols: object): Mutation => ({
    table: 't',
    scope: 's',
    op: 'update',
    key: 1n,
    cols: { ...cols },
    base: { version: new Uint8Array(16) },
    before: { a: 1, b: 1, c: null },
  });
  const theirs = (row: object) => ({ version: Uint8Array.of(9), row: { a: 1, b: 1, c: null, ...row } });

  test('disjoint columns merge; the same column asks; the same value is done', () => {
    expect(merge(update({ a: 2 }), theirs({ b: 2 }))).toMatchObject({
      kind: 'again',
      mutation: { cols: { a: 2 }, base: { version: Uint8Array.of(9) } },
    });
    expect(merge(update({ a: 2 }), theirs({ a: 3 }))).toEqual({ kind: 'ask' });
    expect(merge(update({ a: 2 }), theirs({ a: 2 }))).toEqual({ kind: 'done' });
    expect(merge(update({ a: 2 }), null)).toEqual({ kind: 'ask' });
  });

  test('a column set to what it was is no change of ours', () => {
    expect(merge(update({ a: 1, b: 5 }), theirs({ a: 7 }))).toMatchObject({
      kind: 'again',
      mutation: { cols: { b: 5 } },
    });
    expect(merge(update({ c: null }), theirs({ c: 'x' }))).toEqual({ kind: 'done' });
  });

  test('bytes and arrays are compared by value', () => {
    expect(sameValue(Uint8Array.of(1, 2), Uint8Array.of(1, 2))).toBe(true);
    expect(sameValue([1n, null], [1n, null])).toBe(true);
    expect(sameValue([1n], [1])).toBe(false);
    expect(sameValue('', null)).toBe(false);
  });
});

test('backoff is fully jittered and bounded', () => {
  fc.assert(
    fc.property(fc.nat(200), fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), (attempt, fraction) => {
      const ms = backoffMs(attempt, fraction);
      expect(ms).toBeGreaterThanOrEqual(0);
      expect(ms).toBeLessThan(Math.min(30_000, 500 * 2 ** attempt));
    }),
  );
});

test('a token says when it is to be renewed, also to a clock that is wrong', () => {
  const token = (claims: object) => `x.${btoa(JSON.stringify(claims)).replace(/=+$/, '')}.y`;
  expect(renewalMs(token({ iat: 1_000, exp: 1_600 }), 1_000_000)).toBe(540_000);
  expect(renewalMs(token({ iat: 1_000, exp: 1_600 }), 0)).toBe(540_000);
  expect(renewalMs(token({ iat: 1_000, exp: 1_600 }), 2_000_000)).toBe(540_000);
  expect(renewalMs(token({ exp: 1_600 }), 1_000_000)).toBe(540_000);
  expect(renewalMs(token({ exp: 1_600 }), 1_599_000)).toBe(10_000);
  expect(renewalMs(token({ exp: 1_600 }), 2_000_000)).toBeNull();
  for (const other of ['opaque', token({}), 'a.b.c']) expect(renewalMs(other, 0)).toBeNull();
});

test('new ids are positive, beyond 2^53 and within int8; uuids are version 4', () => {
  for (let n = 0; n < 1_000; n++) {
    const id = newInt64();
    expect(id >= 2n ** 53n && id < 2n ** 63n).toBe(true);
  }
  expect(newUuid()).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
});

test('a signal tells at once and after changes, and one that throws keeps nobody from hearing', () => {
  const cell = new Cell(1);
  const seen: number[] = [];
  const errors: unknown[] = [];
  const caught = vi.fn((error: unknown) => errors.push(error));
  const queued = vi.spyOn(globalThis, 'queueMicrotask').mockImplementation((fn) => {
    try {
      fn();
    } catch (error) {
      caught(error);
    }
  });
  cell.subscribe(() => {
    throw new Error('mine');
  });
  const end = cell.subscribe((value) => seen.push(value));
  cell.set(2);
  cell.set(2);
  end();
  cell.set(3);
  expect(seen).toEqual([1, 2]);
  expect(errors).toHaveLength(3);
  queued.mockRestore();
});
