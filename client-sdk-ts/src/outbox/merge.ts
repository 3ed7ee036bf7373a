/** Conflicts: what can be merged without asking, and what an answer means. Pure. */

import { sameValue } from '../codec.ts';
import type { Mutation } from './entry.ts';

export type Row = Readonly<Record<string, unknown>>;
/** The row that came first; null: it is gone. */
export type Theirs = { readonly version: Uint8Array; readonly row: Row } | null;

export type Verdict =
  /** Write it again like this. */
  | { readonly kind: 'again'; readonly mutation: Mutation }
  /** Nothing is left to do: what was wanted is so already. */
  | { readonly kind: 'done' }
  /** Only the application can tell. */
  | { readonly kind: 'ask' };

/** Three-way merge: if the columns that they changed and those that we set are disjoint, both changes hold. */
export function merge(mutation: Mutation, theirs: Theirs): Verdict {
  if (mutation.op === 'delete') return theirs === null ? { kind: 'done' } : { kind: 'ask' };
  if (mutation.op === 'insert' || theirs === null) return { kind: 'ask' };
  const before = mutation.before!;
  const cols: Record<string, unknown> = {};
  for (const [column, value] of Object.entries(mutation.cols!)) {
    if (sameValue(value, theirs.row[column])) continue;
    const changedByUs = !sameValue(value, before[column]);
    const changedByThem = !sameValue(theirs.row[column], before[column]);
    if (changedByUs && changedByThem) return { kind: 'ask' };
    // A column that we set to what it was before is not a change of ours: theirs stays.
    if (changedByUs) cols[column] = value;
  }
  if (Object.keys(cols).length === 0) return { kind: 'done' };
  return { kind: 'again', mutation: onto(mutation, theirs, cols) };
}

/** The same wish, on top of their row. */
export function mine(mutation: Mutation, theirs: Theirs, keyColumn: string): Mutation | null {
  if (mutation.op === 'delete') return theirs === null ? null : onto(mutation, theirs, null);
  const { [keyColumn]: _key, ...cols } = mutation.cols!;
  if (theirs !== null)
    return onto({ ...mutation, op: 'update' }, theirs, mutation.op === 'insert' ? cols : mutation.cols!);
  // They deleted it, or hide it: an update becomes an insert of the whole row; an insert that met an invisible row cannot win.
  if (mutation.op === 'insert') return null;
  return { ...mutation, op: 'insert', cols: { ...mutation.before, ...mutation.cols }, base: null, before: null };
}

/** What the application made of both, on top of their row. */
export function merged(mutation: Mutation, theirs: Theirs, cols: Row, keyColumn: string): Mutation | null {
  return mine({ ...mutation, op: 'update', cols, before: mutation.before ?? mutation.cols }, theirs, keyColumn);
}

function onto(mutation: Mutation, theirs: NonNullable<Theirs>, cols: Row | null): Mutation {
  return { ...mutation, cols, base: { version: theirs.version }, before: theirs.row };
}
