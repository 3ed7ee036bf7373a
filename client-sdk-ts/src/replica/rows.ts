/**
 * A scope's rows: what is shown, and what is staged beside it until a cut. Each scope has its own entries, and its count and
 * digest are kept from them alone, never from a row that another scope shares (V4).
 */

import { digestMinus, digestPlus, rowDigest } from '../digest.ts';
import type { RowKey } from '../key.ts';
import type { StoredRow } from '../store/store.ts';

/** Makes a row of received bytes. Copies them, so that a row does not keep its whole frame in memory. */
export function receivedRow(table: number, key: RowKey, version: Uint8Array, row: Uint8Array, sv: number): StoredRow {
  return { table, key, version: version.slice(), row: row.slice(), sv, digest: rowDigest(table, key, version, row) };
}

/** What a row became: null, it left the scope. */
export interface RowChange {
  readonly table: number;
  readonly key: RowKey;
  readonly row: StoredRow | null;
}

export class Rows {
  readonly tables = new Map<number, Map<RowKey, StoredRow>>();
  count = 0;
  digest = 0n;

  get(table: number, key: RowKey): StoredRow | undefined {
    return this.tables.get(table)?.get(key);
  }

  change({ table, key, row }: RowChange): void {
    const rows = this.tables.get(table) ?? new Map<RowKey, StoredRow>();
    const before = rows.get(key);
    if (before !== undefined) {
      this.count -= 1;
      this.digest = digestMinus(this.digest, before.digest);
    }
    if (row === null) {
      rows.delete(key);
      return;
    }
    this.count += 1;
    this.digest = digestPlus(this.digest, row.digest);
    this.tables.set(table, rows.set(key, row));
  }

  *all(): Generator<StoredRow> {
    for (const rows of this.tables.values()) yield* rows.values();
  }
}

/** One source transaction's part in a scope. */
export interface Transaction {
  readonly tx: number;
  readonly changes: RowChange[];
}

/** What a cut will change in a scope whose rows stay: a layer over them. */
export class Delta {
  readonly kind = 'delta';
  readonly changed = new Map<number, Map<RowKey, RowChange>>();
  readonly transactions: Transaction[] = [];
  count: number;
  digest: bigint;
  /** Where the scope stands after this; null: nothing was added yet. */
  cursor: Uint8Array | null = null;
  /** The last transaction goes on in the next page. */
  open = false;
  readonly #base: Rows;

  constructor(base: Rows) {
    this.#base = base;
    this.count = base.count;
    this.digest = base.digest;
  }

  change(change: RowChange): void {
    const { table, key, row } = change;
    const rows = this.changed.get(table) ?? new Map<RowKey, RowChange>();
    const staged = rows.get(key);
    const before = staged === undefined ? this.#base.get(table, key) : staged.row;
    if (before) {
      this.count -= 1;
      this.digest = digestMinus(this.digest, before.digest);
    }
    if (row !== null) {
      this.count += 1;
      this.digest = digestPlus(this.digest, row.digest);
    }
    this.changed.set(table, rows.set(key, change));
  }

  /** Adds one transaction's changes. `tx` means something only within one cut, so only an open one goes on. */
  transaction(tx: number, changes: readonly RowChange[]): void {
    const last = this.transactions.at(-1);
    if (this.open && last?.tx === tx) last.changes.push(...changes);
    else this.transactions.push({ tx, changes: [...changes] });
    this.open = false;
    for (const change of changes) this.change(change);
  }
}

/** A whole new set of rows, to be swapped in. Rows and effects converge on it in any overlap: rows are always whole. */
export class Rebuild {
  readonly kind = 'rebuild';
  readonly rows = new Rows();
  cursor: Uint8Array | null = null;
  /** Continues the run on another connection. */
  token: Uint8Array | null = null;
  open = false;

  get count(): number {
    return this.rows.count;
  }

  get digest(): bigint {
    return this.rows.digest;
  }

  transaction(_tx: number, changes: readonly RowChange[]): void {
    for (const change of changes) this.rows.change(change);
  }
}

export type Staged = Delta | Rebuild;

/** What differs between two sets of rows, as changes that lead from the first to the second. */
export function difference(from: Rows, to: Rows): RowChange[] {
  const changes: RowChange[] = [];
  for (const { table, key } of from.all()) {
    if (to.get(table, key) === undefined) changes.push({ table, key, row: null });
  }
  for (const row of to.all()) {
    if (from.get(row.table, row.key)?.digest !== row.digest) changes.push({ table: row.table, key: row.key, row });
  }
  return changes;
}
