/**
 * Column values, both ways. One declared JavaScript type per column, whatever the value's size (DT-02):
 * bool → boolean; int, float32, float64 → number; int64 → bigint; bytes → Uint8Array; arrays → array, or PostgreSQL's text form
 * where an array has more dimensions or other bounds; everything else → string, PostgreSQL's text form, lossless.
 * What no column can hold is refused here, before it is queued, with an error that names the column and never the value.
 */

import { SyncError } from './errors.ts';
import { Float, type Wire } from './protocol/encode.ts';
import type { Packed } from './protocol/msgpack.ts';
import type { ColumnSpec, ScalarType, WireType } from './schema.ts';

/** Reads a value of a received row. */
export function fromWire(type: WireType, value: Packed | undefined): unknown {
  if (value == null) return null;
  if (Array.isArray(value)) return value.map((item) => fromWire(type.slice(6) as ScalarType, item));
  if (value instanceof Float) return value.value;
  if (value instanceof Uint8Array) return value.slice();
  return type === 'int64' ? BigInt(value as number | bigint) : value;
}

/** Checks a value that an application writes and gives its canonical JavaScript form: what a row with it would hold. */
export function canonical(column: ColumnSpec, value: unknown): unknown {
  if (value === null) {
    if (column.nullable) return null;
    throw refuse(column, 'null in a column that requires a value');
  }
  if (!column.type.startsWith('array:')) return scalar(column, column.type as ScalarType, value);
  if (typeof value === 'string') return string(column, value);
  if (!Array.isArray(value)) throw refuse(column, 'expected an array');
  const element = column.type.slice(6) as ScalarType;
  return value.map((item) => (item === null ? null : scalar(column, element, item)));
}

function scalar(column: ColumnSpec, type: ScalarType, value: unknown): unknown {
  switch (type) {
    case 'bool':
      if (typeof value !== 'boolean') throw refuse(column, 'expected a boolean');
      return value;
    case 'int':
      return Number(integer(column, value, 32));
    case 'int64':
      return integer(column, value, 64);
    case 'float32':
      return Math.fround(number(column, value));
    case 'float64':
      return number(column, value);
    case 'bytes':
      if (!(value instanceof Uint8Array)) throw refuse(column, 'expected a Uint8Array');
      return value.slice();
    case 'uuid': {
      const lower = string(column, value).toLowerCase();
      if (!UUID.test(lower)) throw refuse(column, 'expected a uuid');
      return lower;
    }
    default:
      return string(column, value);
  }
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

function number(column: ColumnSpec, value: unknown): number {
  if (typeof value !== 'number') throw refuse(column, 'expected a number');
  return value;
}

function integer(column: ColumnSpec, value: unknown, bits: 32 | 64): bigint {
  if (typeof value === 'number' && !Number.isSafeInteger(value)) {
    throw refuse(column, 'not a safe integer: pass a bigint', 'unsafe_integer');
  }
  if (typeof value !== 'number' && typeof value !== 'bigint') throw refuse(column, 'expected an integer');
  const exact = BigInt(value);
  if (BigInt.asIntN(bits, exact) !== exact) throw refuse(column, `beyond ${bits} bits`);
  return exact;
}

function string(column: ColumnSpec, value: unknown): string {
  if (typeof value !== 'string') throw refuse(column, 'expected a string');
  const fault = textFault(value);
  if (fault !== null) throw refuse(column, fault);
  return value;
}

/** Half a surrogate pair, where the text is read by code points. */
const LONE_SURROGATE = /\p{Surrogate}/u;

/** Why PostgreSQL could not hold a text; null if it can. */
export function textFault(value: string): string | null {
  if (value.includes('\0')) return 'text holds a NUL character';
  return LONE_SURROGATE.test(value) ? 'text holds half a surrogate pair' : null;
}

function refuse(
  column: ColumnSpec,
  why: string,
  code: 'invalid_value' | 'unsafe_integer' = 'invalid_value',
): SyncError {
  return new SyncError(code, `column ${column.name} (${column.type}): ${why}`);
}

/** The wire form of a canonical value. */
export function toWire(type: WireType, value: unknown): Wire {
  if (value === null) return null;
  if (Array.isArray(value)) return value.map((item) => toWire(type.slice(6) as ScalarType, item));
  if (type === 'float64' || type === 'float32') return new Float(value as number, type === 'float32' ? 4 : 8);
  return value as Wire;
}

/** Equality of two canonical values of one column. */
export function sameValue(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  const left = a as ArrayLike<unknown>;
  const right = b as ArrayLike<unknown>;
  if (left.length !== right.length) return false;
  for (let i = 0; i < left.length; i++) if (!sameValue(left[i], right[i])) return false;
  return true;
}
