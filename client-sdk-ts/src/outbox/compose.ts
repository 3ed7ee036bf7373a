/** A mutation from what an application passes: checked against the schema, based on what the writer saw. Pure. */

import { canonical, sameValue } from '../codec.ts';
import { SyncError } from '../errors.ts';
import type { RowKey } from '../key.ts';
import type { TableSpec } from '../schema.ts';
import type { Base, Mutation } from './entry.ts';
import type { Row } from './merge.ts';

/** What a scope knows of the row that is written. */
export interface Seen {
  /** As shown, own pending writes included. */
  readonly row: Row | undefined;
  /** Version of the confirmed row. */
  readonly version: Uint8Array | null;
  /** The last pending write on it. */
  readonly last: { readonly entry: string; readonly index: number } | null;
}

export function composeInsert(spec: TableSpec, scope: string, key: RowKey, row: Row, seen: Seen): Mutation {
  const cols = columns(spec, row);
  if (seen.row !== undefined)
    throw new SyncError('row_exists', `${spec.alias}: the scope has a row with this key already`);
  // A pending delete of the same key comes first. It has no version to build on, only its place in the queue.
  const base = seen.last === null ? null : ({ after: seen.last } as const);
  return { table: spec.alias, scope, op: 'insert', key, cols, base, before: null };
}

export function composeUpdate(spec: TableSpec, scope: string, key: RowKey, patch: Row, seen: Seen): Mutation {
  const { [spec.key.name]: newKey, ...cols } = columns(spec, patch);
  if (newKey !== undefined && !sameValue(newKey, existing(spec, seen)[spec.key.name])) {
    throw new SyncError('key_change', `${spec.alias}: keys never change: delete the row and insert another`);
  }
  return { table: spec.alias, scope, op: 'update', key, cols, base: baseOf(seen), before: existing(spec, seen) };
}

export function composeDelete(spec: TableSpec, scope: string, key: RowKey, seen: Seen): Mutation {
  return { table: spec.alias, scope, op: 'delete', key, cols: null, base: baseOf(seen), before: existing(spec, seen) };
}

/** Canonical values; columns that are undefined are left out. */
export function columns(spec: TableSpec, values: Row): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined) continue;
    const column = spec.columns.get(name);
    if (column === undefined) throw new SyncError('unknown_column', `${spec.alias} has no column ${name}`);
    out[name] = canonical(column, value);
  }
  return out;
}

function existing(spec: TableSpec, seen: Seen): Row {
  if (seen.row === undefined) throw new SyncError('row_not_found', `${spec.alias}: the scope has no row with this key`);
  return seen.row;
}

function baseOf(seen: Seen): Base {
  if (seen.last !== null) return { after: seen.last };
  return seen.version === null ? null : { version: seen.version };
}
