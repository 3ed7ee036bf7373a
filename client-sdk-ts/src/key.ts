/**
 * Primary keys. Inside the SDK an integer key is always a bigint and never a double, so that 9007199254740992 and
 * 9007199254740993 stay two rows; text keys are compared by code points and never normalized (DT-02, DT-05).
 */

import { utf8 } from './bytes.ts';
import { SyncError } from './errors.ts';

/** What applications pass as a key: a number only for integers within the safe range. */
export type Key = string | number | bigint;
/** A row's identity within its table. */
export type RowKey = string | bigint;

export function rowKey(key: Key): RowKey {
  if (typeof key !== 'number') return key;
  if (!Number.isSafeInteger(key)) {
    throw new SyncError('unsafe_integer', 'key: not a safe integer: pass a bigint');
  }
  return BigInt(key);
}

/** Integers numerically, texts by code points; integers come first (a table has only one kind). */
export function compareKeys(a: RowKey, b: RowKey): number {
  if (typeof a === 'bigint') return typeof b === 'bigint' ? (a < b ? -1 : a > b ? 1 : 0) : -1;
  return typeof b === 'bigint' ? 1 : compareText(a, b);
}

/** By code points, as PostgreSQL's "C" collation orders UTF-8. JavaScript's own `<` compares UTF-16 units. */
export function compareText(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x !== y) {
      // A surrogate stands for a code point above every other unit.
      const high = (unit: number) => (unit >= 0xd800 && unit <= 0xdfff ? unit + 0x10000 : unit);
      return high(x) - high(y);
    }
  }
  return a.length - b.length;
}

/** The key's part of a row digest: 0x01 and 8 bytes big-endian, or 0x02 and UTF-8. */
export function keyDigestBytes(key: RowKey): Uint8Array {
  if (typeof key === 'bigint') {
    const out = new Uint8Array(9);
    out[0] = 1;
    new DataView(out.buffer).setBigInt64(1, key);
    return out;
  }
  const bytes = utf8(key);
  const out = new Uint8Array(1 + bytes.length);
  out[0] = 2;
  out.set(bytes, 1);
  return out;
}
