/** One table of a scope as an application sees it: confirmed rows with own writes laid over. Rows are frozen and keep their identity. */

import { fromWire } from './codec.ts';
import { SyncError } from './errors.ts';
import { compareKeys, compareText, type Key, type RowKey, rowKey } from './key.ts';
import type { Row } from './outbox/merge.ts';
import { type Layers, type Overlay, overlaid } from './outbox/overlay.ts';
import { decodeRow } from './protocol/decode.ts';
import type { ScopeState } from './replica/scope-state.ts';
import type { TableSpec } from './schema.ts';
import { call, callAll, type Signal } from './signal.ts';
import type { StoredRow } from './store/store.ts';

export interface RowsQuery<R> {
  readonly where?: (row: R) => boolean;
  /** Ascending, nulls last, ties by key. Without it: by key. */
  readonly orderBy?: keyof R & string;
}

/** Gives the place of a table's columns in rows of one schema version. */
export type Layout = (sv: number, spec: TableSpec) => readonly (readonly [name: string, index: number])[];

/** Rows are decoded when first looked at, and then once. */
export class RowDecoder {
  readonly #layout: Layout;
  readonly #decoded = new WeakMap<StoredRow, Row>();

  constructor(layout: Layout) {
    this.#layout = layout;
  }

  decode(spec: TableSpec, stored: StoredRow): Row {
    const known = this.#decoded.get(stored);
    if (known !== undefined) return known;
    const values = decodeRow(stored.row);
    const row: Record<string, unknown> = {};
    for (const [name, index] of this.#layout(stored.sv, spec)) {
      row[name] = fromWire(spec.columns.get(name)!.type, values[index]);
    }
    this.#decoded.set(stored, Object.freeze(row));
    return row;
  }
}

/** What a view looks at. */
export interface ViewSource {
  readonly scope: ScopeState;
  readonly overlay: Overlay;
  readonly decoder: RowDecoder;
  /** The server's id of a table; null while it is not known. */
  tableId(spec: TableSpec): number | null;
}

export class TableView {
  readonly spec: TableSpec;
  readonly #source: ViewSource;
  readonly #blank: Row;
  readonly #queries = new Set<Query>();
  /** Counts changes: a query whose count is older looks again. */
  version = 0;
  readonly #laid = new WeakMap<Layers, { readonly base: Row | undefined; readonly row: Row | undefined }>();

  constructor(spec: TableSpec, source: ViewSource) {
    this.spec = spec;
    this.#source = source;
    this.#blank = Object.fromEntries([...spec.columns.keys()].map((name) => [name, null]));
  }

  confirmed(key: RowKey): StoredRow | undefined {
    const id = this.#source.tableId(this.spec);
    return id === null ? undefined : this.#source.scope.rows.get(id, key);
  }

  find(key: Key): Row | undefined {
    return this.get(keyOf(this.spec, key));
  }

  get(key: RowKey): Row | undefined {
    const stored = this.confirmed(key);
    const base = stored && this.#source.decoder.decode(this.spec, stored);
    const layers = this.#source.overlay.get(this.spec.alias, key);
    if (layers === undefined) return base;
    const known = this.#laid.get(layers);
    if (known !== undefined && known.base === base) return known.row;
    const laid = overlaid(base, layers, this.#source.scope.name, this.#blank);
    const row = laid && Object.freeze(laid);
    this.#laid.set(layers, { base, row });
    return row;
  }

  keys(): Set<RowKey> {
    const id = this.#source.tableId(this.spec);
    const keys = new Set<RowKey>(id === null ? [] : this.#source.scope.rows.tables.get(id)?.keys());
    for (const key of this.#source.overlay.keys(this.spec.alias)) keys.add(key);
    return keys;
  }

  query(query: RowsQuery<Row>): Signal<readonly Row[]> {
    return new Query(this, query, this.#queries);
  }

  /** Rows with these keys may have changed. Nobody is told before `notify`: first everything is in place, then everybody hears of it. */
  invalidate(keys: Iterable<RowKey>): void {
    this.version += 1;
    for (const query of this.#queries) query.invalidate(keys);
  }

  notify(): void {
    for (const query of [...this.#queries]) query.notify();
  }
}

interface Found {
  readonly key: RowKey;
  readonly row: Row;
}

/**
 * Rows in order. With subscribers it hears which keys have changed and looks at these only: a change of one row in many costs a
 * pass over the result, without reading or sorting it. Without subscribers it is known to nobody and looks anew when asked.
 */
class Query implements Signal<readonly Row[]> {
  readonly #view: TableView;
  readonly #query: RowsQuery<Row>;
  /** The view's queries that have subscribers. */
  readonly #active: Set<Query>;
  readonly #subscribers = new Set<{ fn: (rows: readonly Row[]) => void }>();
  readonly #dirty = new Set<RowKey>();
  #seen = -1;
  #found: Found[] = [];
  #value: readonly Row[] = [];
  #told: readonly Row[] = [];

  constructor(view: TableView, query: RowsQuery<Row>, active: Set<Query>) {
    this.#view = view;
    this.#query = query;
    this.#active = active;
  }

  get value(): readonly Row[] {
    if (this.#seen !== this.#view.version) {
      this.#found = this.#active.has(this) ? this.#refresh() : this.#select(this.#view.keys());
      this.#seen = this.#view.version;
      this.#dirty.clear();
      const rows = this.#found.map(({ row }) => row);
      const same = rows.length === this.#value.length && rows.every((row, index) => row === this.#value[index]);
      if (!same) this.#value = Object.freeze(rows);
    }
    return this.#value;
  }

  subscribe(fn: (rows: readonly Row[]) => void): () => void {
    const subscriber = { fn };
    if (this.#subscribers.size === 0) this.#told = this.value;
    this.#subscribers.add(subscriber);
    this.#active.add(this);
    call(fn, this.value);
    return () => {
      this.#subscribers.delete(subscriber);
      if (this.#subscribers.size === 0) this.#active.delete(this);
    };
  }

  invalidate(keys: Iterable<RowKey>): void {
    for (const key of keys) this.#dirty.add(key);
  }

  notify(): void {
    const value = this.value;
    if (value === this.#told) return;
    this.#told = value;
    callAll(this.#subscribers, value);
  }

  #select(keys: Iterable<RowKey>): Found[] {
    const found: Found[] = [];
    for (const key of keys) {
      const row = this.#view.get(key);
      if (row !== undefined && (this.#query.where?.(row) ?? true)) found.push({ key, row });
    }
    return found.sort((a, b) => this.#compare(a, b));
  }

  /** What stays, in order as it was, merged with what changed. */
  #refresh(): Found[] {
    const changed = this.#select(this.#dirty);
    const merged: Found[] = [];
    let next = 0;
    for (const kept of this.#found) {
      if (this.#dirty.has(kept.key)) continue;
      while (next < changed.length && this.#compare(changed[next]!, kept) < 0) merged.push(changed[next++]!);
      merged.push(kept);
    }
    return merged.concat(changed.slice(next));
  }

  #compare(a: Found, b: Found): number {
    const { orderBy } = this.#query;
    const order = orderBy === undefined ? 0 : compareValues(a.row[orderBy], b.row[orderBy]);
    return order === 0 ? compareKeys(a.key, b.key) : order;
  }
}

function compareValues(a: unknown, b: unknown): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (typeof a === 'string' && typeof b === 'string') return compareText(a, b);
  const [x, y] = [a as number, b as number];
  return x < y ? -1 : x > y ? 1 : 0;
}

/** The row's identity from what an application passes; a uuid is taken in any case. */
export function keyOf(spec: TableSpec, key: Key): RowKey {
  const given = rowKey(key);
  const integers = spec.key.type === 'int' || spec.key.type === 'int64';
  if ((typeof given === 'bigint') !== integers) {
    throw new SyncError('invalid_value', `${spec.alias}: keys are of type ${spec.key.type}`);
  }
  return spec.key.type === 'uuid' ? (given as string).toLowerCase() : given;
}

/** The key as the application's rows have it. */
export function givenKey(spec: TableSpec, key: RowKey): Key {
  return spec.key.type === 'int' ? Number(key) : key;
}
