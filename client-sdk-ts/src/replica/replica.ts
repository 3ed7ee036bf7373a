/**
 * The scopes of one session: frames in, plans out. Pages are staged and verified as they come; a plan says what one cut changes in
 * the store and, once that is saved, applies the same in memory (V5). No socket, no store, no clock of its own.
 */

import { digestFromBytes } from '../digest.ts';
import { type SyncError, transient } from '../errors.ts';
import type { RowKey } from '../key.ts';
import type { FrameOf } from '../protocol/decode.ts';
import type { ScopeStep, StoredRow } from '../store/store.ts';
import { Delta, difference, Rebuild, type RowChange, Rows, receivedRow, type Transaction } from './rows.ts';
import { ScopeState } from './scope-state.ts';

/** Two failed digests within this time end a scope's attempts: a fault that comes back at once is not mended by rebuilding. */
const FAILURE_WINDOW_MS = 10 * 60_000;

/** What changed in a scope at a cut. */
export interface ScopeChange {
  readonly scope: ScopeState;
  /** `cached`: rows of the local store, which are no news to anybody. */
  readonly kind: 'transactions' | 'rebuild' | 'cached';
  /** In commit order; of others, one that leads from the old rows to the new. */
  readonly transactions: readonly Transaction[];
}

/** One cut: first saved, then applied. Showing is the caller's, once everything is in place. */
export interface CutPlan {
  readonly step: Map<string, ScopeStep>;
  apply(): ScopeChange[];
}

export class Replica {
  readonly scopes = new Map<string, ScopeState>();
  readonly #byNumber = new Map<number, ScopeState>();

  hold(name: string): ScopeState {
    const scope = this.scopes.get(name) ?? new ScopeState(name);
    this.scopes.set(name, scope);
    scope.holders += 1;
    return scope;
  }

  /** True when the last holder left: the scope is forgotten here, not in the store. */
  release(scope: ScopeState): boolean {
    scope.holders -= 1;
    if (scope.holders > 0) return false;
    this.scopes.delete(scope.name);
    this.#detach(scope);
    return true;
  }

  lost(): void {
    this.#byNumber.clear();
    for (const scope of this.scopes.values()) {
      scope.lose();
    }
  }

  byRef(ref: number): ScopeState | undefined {
    return [...this.scopes.values()].find((scope) => scope.ref === ref);
  }

  subscribed(frame: FrameOf<'subscribed'>): void {
    const scope = this.scopes.get(frame.name);
    // Answers to a subscription that was since replaced or ended.
    if (scope === undefined || (frame.ref !== null && frame.ref !== scope.ref)) return;
    if (frame.ref === null && scope.number === null) return;
    this.#detach(scope);
    scope.number = frame.scope;
    this.#byNumber.set(frame.scope, scope);
    scope.on(frame.mode);
    scope.joining = false;
    if (frame.mode === 'resume') scope.staged = new Delta(scope.rows);
    else if (frame.reason !== 'continued' || scope.staged?.kind !== 'rebuild') scope.staged = new Rebuild();
  }

  rebuild(frame: FrameOf<'rebuild'>): void {
    const scope = this.#byNumber.get(frame.scope);
    if (scope === undefined) return;
    scope.on('rows');
    const staged = scope.staged as Rebuild;
    for (const [table, key, version, row] of frame.rows) {
      staged.rows.change({ table, key, row: kept(scope, receivedRow(table, key, version, row, frame.sv)) });
    }
    staged.token = frame.token.slice();
  }

  /** Stages a page. Gives the scope if its digest failed. */
  page(frame: FrameOf<'page'>): { scope: ScopeState; failed: boolean; cut: boolean } | null {
    const scope = this.#byNumber.get(frame.scope);
    if (scope === undefined) return null;
    scope.on('page');
    scope.staged ??= new Delta(scope.rows);
    const staged = scope.staged;
    for (const [tx, effects] of frame.txs) {
      staged.transaction(
        tx,
        effects.map(([op, table, key, version, row]): RowChange => {
          if (op === 2) return { table, key, row: null };
          if (row === null) throw transient('protocol_violation', 'an upsert without row');
          return { table, key, row: kept(scope, receivedRow(table, key, version, row, frame.sv)) };
        }),
      );
    }
    staged.open = frame.more;
    staged.cursor = frame.cursor.slice();
    // While a rebuild converges its rows are of different positions, so only `joined` can tell. Everything else is exact (V4).
    const exact = scope.phase !== 'rebuilding';
    return { scope, failed: exact && !matches(staged, frame), cut: frame.fin && scope.phase === 'joined' };
  }

  /** The scope is at the session's cut. */
  joined(frame: FrameOf<'joined'>): { scope: ScopeState; failed: boolean } | null {
    const scope = this.#byNumber.get(frame.scope);
    if (scope === undefined) return null;
    scope.on('joined');
    const staged = scope.staged!;
    staged.cursor = frame.cursor.slice();
    scope.joining = true;
    return { scope, failed: !matches(staged, frame) };
  }

  /** Everything staged in joined scopes. */
  plan(now: number): CutPlan {
    const due = [...this.scopes.values()].filter((scope) => scope.phase === 'joined' && scope.staged !== null);
    const parts = due.map((scope) => planScope(scope, now));
    return {
      step: new Map(parts.map(({ scope, step }) => [scope.name, step])),
      apply: () => parts.map(({ apply }) => apply()),
    };
  }

  /**
   * A digest did not match, or the cursor was refused: the staged pages, the cursor and the stored copy go. False: it has happened before, and the scope ends with an error.
   */
  fail(scope: ScopeState, error: SyncError, now: number): boolean {
    this.#detach(scope);
    scope.staged = null;
    scope.joining = false;
    scope.cursor = null;
    scope.failures = [...scope.failures.filter((at) => now - at < FAILURE_WINDOW_MS), now];
    if (scope.failures.length < 2) return true;
    this.refuse(scope, error);
    return false;
  }

  refuse(scope: ScopeState, error: SyncError): void {
    this.#detach(scope);
    scope.on('refuse');
    scope.staged = null;
    scope.joining = false;
    scope.error = error;
  }

  /** Access has ended: the rows go at once. */
  revoke(scope: ScopeState, error: SyncError): ScopeChange {
    this.refuse(scope, error);
    return this.discard(scope);
  }

  /** The rows go: they may not be seen any more, or are known to be wrong. */
  discard(scope: ScopeState): ScopeChange {
    const changes = difference(scope.rows, new Rows());
    scope.rows = new Rows();
    scope.cursor = null;
    scope.usable = false;
    scope.verified = false;
    scope.syncedAt = null;
    return { scope, kind: 'rebuild', transactions: [{ tx: 0, changes }] };
  }

  #detach(scope: ScopeState): void {
    if (scope.number !== null) this.#byNumber.delete(scope.number);
    scope.number = null;
  }
}

/** A row that is the same as before stays the same object, so that a rebuild tells nobody of rows that did not change. */
function kept(scope: ScopeState, row: StoredRow): StoredRow {
  const before = scope.rows.get(row.table, row.key);
  return before?.digest === row.digest && before.sv === row.sv ? before : row;
}

function matches(staged: Delta | Rebuild, frame: { readonly count: number; readonly digest: Uint8Array }): boolean {
  return staged.count === frame.count && staged.digest === digestFromBytes(frame.digest);
}

function planScope(scope: ScopeState, now: number): { scope: ScopeState; step: ScopeStep; apply(): ScopeChange } {
  const staged = scope.staged!;
  const cursor = staged.cursor!;
  const put: StoredRow[] = [];
  const remove: (readonly [number, RowKey])[] = [];
  if (staged.kind === 'rebuild') put.push(...staged.rows.all());
  else {
    for (const rows of staged.changed.values()) {
      for (const { table, key, row } of rows.values()) {
        if (row === null) remove.push([table, key]);
        else put.push(row);
      }
    }
  }
  const step = { clear: staged.kind === 'rebuild', put, remove, head: { name: scope.name, cursor, syncedAt: now } };
  return {
    scope,
    step,
    apply() {
      const change: ScopeChange =
        staged.kind === 'delta'
          ? { scope, kind: 'transactions', transactions: staged.transactions }
          : { scope, kind: 'rebuild', transactions: [{ tx: 0, changes: difference(scope.rows, staged.rows) }] };
      if (staged.kind === 'rebuild') scope.rows = staged.rows;
      else for (const rows of staged.changed.values()) for (const row of rows.values()) scope.rows.change(row);
      // The store step was awaited; pages that came meanwhile wait in the lane, so nothing was staged on top.
      scope.staged = null;
      scope.joining = false;
      scope.cursor = cursor;
      scope.syncedAt = now;
      scope.usable = true;
      scope.verified = true;
      scope.error = null;
      return change;
    },
  };
}
