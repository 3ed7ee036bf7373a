/** The public API: four nouns, Sync, Scope, Table, Write, over the engine. Types here; decisions elsewhere. */

import { socketUrl } from './connection/address.ts';
import type { AuthReason, Status } from './connection/connection.ts';
import { Engine } from './engine.ts';
import { type Environment, platform } from './environment.ts';
import { SyncError } from './errors.ts';
import type { HeldScope } from './held-scope.ts';
import type { Key } from './key.ts';
import { type Level, type LogEvent, logTo } from './log.ts';
import type { EntryState, Op } from './outbox/entry.ts';
import type { Answer, ConflictCase } from './outbox/resolver.ts';
import type { Write } from './outbox/writes.ts';
import type { ScopeStatus } from './replica/scope-state.ts';
import { readSchema, type Schema, type Tables } from './schema.ts';
import type { Signal } from './signal.ts';
import { MemoryStore } from './store/memory.ts';
import type { Store } from './store/store.ts';
import { givenKey } from './table-view.ts';
import { Writer } from './writer.ts';

export interface SyncOptions<T extends Tables> {
  /**
   * Of the server: http, https, ws or wss. Without a path, as `https://sync.example.com`, the socket's is added: `/v3/socket`. Behind
   * another path give the whole one, such as `https://example.com/sync/v3/socket`. Anything else throws `invalid_url`.
   */
  readonly url: string;
  readonly schema: Schema<T>;
  /** Who this is: the local store is kept apart for each user, and the server checks it against the token. */
  readonly user: string;
  /**
   * Gives a token, or null for an anonymous session. Asked on every connect, before a token expires, and once more when one was
   * rejected.
   */
  auth(why: AuthReason): Promise<string | null>;
  /** Default: `memory`. `indexeddb` is not there yet and is refused with `store_unsupported`. */
  readonly store?: 'indexeddb' | 'memory' | Store;
  /** Asked when somebody else changed a row first and both changes touch the same columns. Without it such writes are parked. */
  onConflict?(conflict: Conflict<T>): Resolution<T> | Promise<Resolution<T>>;
  /** Default: `error`, to the console. */
  readonly log?: Level | ((event: LogEvent) => void);
  /** Replaces parts of the platform: time, randomness, sockets (in Node: `ws`), wake-ups. */
  readonly environment?: Partial<Environment>;
}

export interface Sync<T extends Tables> {
  readonly status: Signal<Status>;
  /** Writes that are queued, unconfirmed or parked. */
  readonly pending: Signal<readonly Pending<T>[]>;
  /** Scopes that the server grants. */
  readonly assigned: Signal<readonly string[]>;
  /** Holds a scope until it is released as often as it was held. The first one opens the connection. */
  scope(id: string): Scope<T>;
  /** Everything written inside is one atomic push: all of it is accepted or nothing. */
  batch(fn: () => void): Write;
  /** A parked write again, on top of the row as it is now. */
  retry(id: string): Write;
  /** Gives a write up. One that was sent and not answered is settled with the server; one that is committed stays. */
  discard(id: string): Promise<void>;
  /** Tries at once, also after `needs-auth` and `failed`, and asks again for scopes that ended with an error. */
  reconnect(): void;
  /** Forgets this user's data here. Refuses with `pending_writes` while work would be lost. The Sync is closed then. */
  signOut(options?: { readonly discardPending?: boolean }): Promise<void>;
  inspect(): Promise<Inspection>;
  /** Ends the session; the store stays. */
  close(): Promise<void>;
}

export interface Scope<T extends Tables> {
  readonly id: string;
  readonly status: Signal<ScopeStatus>;
  /**
   * Resolves when there are rows to show. Rejects if the scope ends with an error before, and with the cause of `sync.status`
   * if that is `needs-auth` or `failed`: after `reconnect()` ask again.
   */
  ready(): Promise<void>;
  table<K extends keyof T & string>(name: K): Table<T[K]>;
  /** Called once for each source transaction that changes the scope, after all rows are in place; a rebuild is one call. */
  effects(fn: (effect: Effect<T>) => void): () => void;
  release(): void;
}

export interface Table<R extends object> {
  /** Rows with own writes laid over; frozen, and the same objects as long as they do not change. */
  rows(query?: { readonly where?: (row: R) => boolean; readonly orderBy?: keyof R & string }): Signal<readonly R[]>;
  get(key: Key): R | undefined;
  /** Columns that are undefined take the database's default. */
  insert(row: R): Write;
  /** Sets the columns of the patch; others stay as they are. */
  update(key: Key, patch: Partial<R>): Write;
  delete(key: Key): Write;
}

/** A confirmed change. Own writes come as changes only when they have come round. */
export type Change<T extends Tables> = {
  [K in keyof T & string]:
    | { readonly op: 'upsert'; readonly table: K; readonly key: Key; readonly row: T[K] }
    | { readonly op: 'delete'; readonly table: K; readonly key: Key };
}[keyof T & string];

export interface Effect<T extends Tables> {
  /** One source transaction's part in the scope; or a rebuild, as what leads from the old rows to the new. */
  readonly kind: 'transaction' | 'rebuild';
  readonly changes: readonly Change<T>[];
}

export type PendingMutation<T extends Tables> = {
  [K in keyof T & string]: {
    readonly table: K;
    readonly op: Op;
    readonly key: Key;
    /** What is written; null for a delete. */
    readonly columns: Partial<T[K]> | null;
  };
}[keyof T & string];

export interface Pending<T extends Tables> {
  readonly id: string;
  /** `committed`: the server has it, and it is not visible yet. `parked`: waits for `retry` or `discard`. */
  readonly state: EntryState;
  /** Committed, and the server holds pages back until it has come round. */
  readonly delayed: boolean;
  readonly createdAt: number;
  readonly mutations: readonly PendingMutation<T>[];
  /** Why it is parked. */
  readonly error?: SyncError | undefined;
}

export type Conflict<T extends Tables> = {
  [K in keyof T & string]: {
    /** The write's id. */
    readonly id: string;
    readonly table: K;
    readonly op: Op;
    readonly key: Key;
    /** What this client writes; null for a delete. */
    readonly mine: Partial<T[K]> | null;
    /** The row that came first; null: it is gone. */
    readonly theirs: T[K] | null;
    /** The row as the writer saw it; null for an insert. */
    readonly base: T[K] | null;
  };
}[keyof T & string];

/** `theirs`: give the write up. `mine`: write it on top. `park`: keep it for later. `merge`: write these columns on top. */
export type Resolution<T extends Tables> = 'theirs' | 'mine' | 'park' | { readonly merge: Partial<T[keyof T]> };

/** For support: what this client is and where it stands. No row values. */
export interface Inspection {
  readonly user: string;
  readonly schema: string;
  readonly schemaVersion: number | null;
  readonly session: string | null;
  readonly client: { readonly next: number; readonly acked: number };
  readonly scopes: readonly {
    readonly id: string;
    readonly phase: string;
    readonly rows: number;
    readonly status: ScopeStatus;
  }[];
  /** Writes that are not settled. */
  readonly writes: readonly { readonly id: string; readonly state: EntryState; readonly number: number | null }[];
}

export function createSync<T extends Tables>(options: SyncOptions<T>): Sync<T> {
  const environment: Environment = { ...platform(), ...options.environment };
  const specs = readSchema(options.schema as unknown as Schema<Tables>);
  const { onConflict } = options;
  const conflictOf = ({ id, table, op, mutation, theirs }: ConflictCase) =>
    ({
      id,
      table,
      op,
      key: givenKey(specs.get(table)!, mutation.key),
      mine: mutation.cols,
      theirs,
      base: mutation.before,
    }) as unknown as Conflict<T>;
  const engine = new Engine({
    url: socketUrl(options.url),
    user: options.user,
    specs,
    environment,
    auth: (why) => options.auth(why),
    describe: ({ id, state, delayed, createdAt, mutations, fault }) => ({
      id,
      state,
      delayed,
      createdAt,
      mutations: mutations.map(({ table, op, key, cols }) => ({
        table,
        op,
        key: givenKey(specs.get(table)!, key),
        columns: cols,
      })),
      error: fault === null ? undefined : new SyncError(fault.code, fault.message),
    }),
    store: storeOf(options.store ?? 'memory'),
    ask: onConflict === undefined ? null : async (c) => (await onConflict.call(options, conflictOf(c))) as Answer,
    log: logTo(options.log ?? 'error'),
  });
  const writer = new Writer(engine, environment);
  return {
    status: engine.connection.status,
    pending: engine.pending as Signal<readonly Pending<T>[]>,
    assigned: engine.assigned,
    scope: (id) => {
      if (engine.ended !== null) throw engine.ended;
      return scopeOf<T>(engine, writer, engine.hold(id));
    },
    batch: (fn) => writer.batch(fn),
    retry: (id) => writer.retry(id),
    discard: (id) => writer.discard(id),
    reconnect: () => engine.again(),
    async signOut({ discardPending = false } = {}) {
      await engine.inOrder(() => {
        if (!discardPending && engine.outbox.unsettled) {
          throw new SyncError('pending_writes', 'writes would be lost: pass discardPending');
        }
      });
      await engine.close(true);
    },
    inspect: async () => inspect(options, engine),
    close: () => engine.close(false),
  };
}

function scopeOf<T extends Tables>(engine: Engine, writer: Writer, held: HeldScope): Scope<T> {
  let released = false;
  return {
    id: held.state.name,
    status: held.state.status,
    ready: () => engine.ready(held),
    table: <K extends keyof T & string>(name: K): Table<T[K]> => {
      const view = held.view(name);
      const table = {
        rows: (query = {}) => view.query(query),
        get: (key: Key) => view.find(key),
        insert: (row: Record<string, unknown>) => writer.insert(view, held.state.name, row),
        update: (key: Key, patch: Record<string, unknown>) => writer.update(view, held.state.name, key, patch),
        delete: (key: Key) => writer.delete(view, held.state.name, key),
      };
      return table as unknown as Table<T[K]>;
    },
    effects: (fn) => held.listen(fn as unknown as Parameters<HeldScope['listen']>[0]),
    release: () => {
      if (released) return;
      released = true;
      engine.release(held);
    },
  };
}

function inspect<T extends Tables>(options: SyncOptions<T>, engine: Engine): Inspection {
  const { next, acked } = engine.outbox.client;
  return {
    user: options.user,
    schema: options.schema.hash,
    schemaVersion: engine.catalog.sv,
    session: engine.connection.session ?? null,
    client: { next, acked },
    scopes: [...engine.replica.scopes.values()].map(({ name, phase, rows, status }) => ({
      id: name,
      phase,
      rows: rows.count,
      status: status.value,
    })),
    writes: engine.outbox.entries.map(({ id, state, sent }) => ({ id, state, number: sent?.first ?? null })),
  };
}

function storeOf(store: 'indexeddb' | 'memory' | Store): Store {
  if (store === 'memory') return new MemoryStore();
  if (store === 'indexeddb') {
    throw new SyncError('store_unsupported', 'no IndexedDB store yet: pass a Store');
  }
  return store;
}
