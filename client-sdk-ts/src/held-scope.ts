/** A held scope together with what an application hangs on it: table views, effect listeners, and who waits for rows. */

import { bytesEqual } from './bytes.ts';
import type { Catalog } from './catalog.ts';
import type { SyncError } from './errors.ts';
import type { Key, RowKey } from './key.ts';
import type { Mutation } from './outbox/entry.ts';
import type { Row, Theirs } from './outbox/merge.ts';
import type { Overlay } from './outbox/overlay.ts';
import type { ScopeChange } from './replica/replica.ts';
import type { RowChange } from './replica/rows.ts';
import type { ScopeState } from './replica/scope-state.ts';
import { callAll } from './signal.ts';
import { givenKey, type RowDecoder, TableView, type ViewSource } from './table-view.ts';

/** One confirmed change; own writes come as changes only when they have come round. */
export type AnyChange =
  | { readonly op: 'upsert'; readonly table: string; readonly key: Key; readonly row: Row }
  | { readonly op: 'delete'; readonly table: string; readonly key: Key };

export interface AnyEffect {
  /** One source transaction's part in the scope; or a rebuild, as what leads from the old rows to the new. */
  readonly kind: 'transaction' | 'rebuild';
  readonly changes: readonly AnyChange[];
}

export class HeldScope {
  readonly state: ScopeState;
  readonly #views = new Map<string, TableView>();
  readonly #listeners = new Set<{ fn: (effect: AnyEffect) => void }>();
  readonly #catalog: Catalog;
  readonly #decoder: RowDecoder;
  readonly #source: ViewSource;
  #waiters: ((error: SyncError | null) => void)[] = [];

  constructor(state: ScopeState, catalog: Catalog, overlay: Overlay, decoder: RowDecoder) {
    this.state = state;
    this.#catalog = catalog;
    this.#decoder = decoder;
    this.#source = { scope: state, overlay, decoder, tableId: (spec) => catalog.id(spec) };
  }

  view(alias: string): TableView {
    const known = this.#views.get(alias);
    if (known !== undefined) return known;
    const view = new TableView(this.#catalog.spec(alias), this.#source);
    this.#views.set(alias, view);
    return view;
  }

  invalidate(alias: string, keys: Iterable<RowKey>): void {
    this.#views.get(alias)?.invalidate(keys);
  }

  /** The rows of a cut. */
  changed({ transactions }: ScopeChange): void {
    for (const view of this.#views.values()) {
      const id = this.#catalog.id(view.spec);
      view.invalidate(
        transactions.flatMap(({ changes }) => changes.filter(({ table }) => table === id).map(({ key }) => key)),
      );
    }
  }

  notify(): void {
    this.state.status.tell();
    for (const view of this.#views.values()) view.notify();
    this.settle(null);
  }

  /** Ends the waiting if there are rows, or if none will come: the scope has ended, or `cause` says why not. */
  settle(cause: SyncError | null): void {
    const { usable } = this.state;
    const error = this.state.error ?? cause;
    if (usable || error !== null) for (const waiter of this.#waiters.splice(0)) waiter(usable ? null : error);
  }

  ready(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiters.push((error) => (error === null ? resolve() : reject(error)));
    });
  }

  /** The row that came before a write of ours, if it is here already; undefined: it is on its way, as a page. */
  theirs(mutation: Mutation): Theirs | undefined {
    const { phase, joining } = this.state;
    if (phase === 'refused') return null;
    if (phase !== 'joined' || joining) return undefined;
    const { op, base, table, key } = mutation;
    const stored = this.view(table).confirmed(key);
    const row =
      stored === undefined
        ? null
        : { version: stored.version, row: this.#decoder.decode(this.#catalog.spec(table), stored) };
    // Of an insert it is whatever is here: a row in no scope of ours never comes.
    if (op === 'insert') return row;
    if (base !== null && 'after' in base) return undefined;
    const unchanged = row !== null && base !== null && bytesEqual(base.version, row.version);
    return unchanged ? undefined : row;
  }

  listen(fn: (effect: AnyEffect) => void): () => void {
    const listener = { fn };
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** The calls that a cut owes its listeners, each with its transaction. */
  effects(change: ScopeChange): { readonly tx: number; deliver(): void }[] {
    if (this.#listeners.size === 0 || change.kind === 'cached') return [];
    return change.transactions.flatMap(({ tx, changes }) => {
      const effect: AnyEffect = {
        kind: change.kind === 'rebuild' ? 'rebuild' : 'transaction',
        changes: changes.flatMap((one) => this.#change(one)),
      };
      if (effect.changes.length === 0) return [];
      return [{ tx, deliver: () => callAll(this.#listeners, effect) }];
    });
  }

  #change({ table, key, row }: RowChange): AnyChange[] {
    const spec = this.#catalog.byId(table);
    if (spec === undefined) return [];
    const at = { table: spec.alias, key: givenKey(spec, key) };
    return [row === null ? { op: 'delete', ...at } : { op: 'upsert', ...at, row: this.#decoder.decode(spec, row) }];
  }
}
