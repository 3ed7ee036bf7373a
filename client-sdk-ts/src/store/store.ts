/**
 * Where rows, cursors and pending writes live between sessions. One interface, shaped for IndexedDB: every change is one step,
 * and a step is one transaction. What belongs together, such as a cut's rows, cursors and dropped writes (V5), is in one step.
 */

import type { RowKey } from '../key.ts';
import type { Entry } from '../outbox/entry.ts';
import type { Manifest } from '../protocol/frames.ts';

export interface Store {
  /** Opens what belongs to one user at one server. At most one session of a namespace may apply steps at a time. */
  open(namespace: string): Promise<StoreSession>;
}

export interface StoreSession {
  /** Everything but rows. */
  load(): Promise<StoredState>;
  /** The rows of one scope. */
  loadRows(scope: string): Promise<StoredRow[]>;
  /**
   * Applies one step, whole or not at all; durable when it resolves. Refuses when this session no longer owns the namespace (a
   * tab that was frozen, lost its lease and woke up), checked inside the same transaction.
   */
  apply(step: StoreStep): Promise<void>;
  /** Forgets everything of the namespace. */
  clear(): Promise<void>;
  close(): Promise<void>;
}

export interface StoredState {
  readonly client: StoredClient | null;
  /** By schema version; kept as long as a row of that version is stored. */
  readonly manifests: ReadonlyMap<number, Manifest>;
  readonly scopes: readonly StoredScope[];
  /** What the server last said is granted. */
  readonly assigned: readonly string[];
  /** In the order in which they are to be sent. */
  readonly outbox: readonly Entry[];
}

/** This installation, as the server counts its mutations (V3). */
export interface StoredClient {
  readonly id: Uint8Array;
  /** The server has given an outcome under this id, so it knows the id. */
  readonly proven: boolean;
  /** Number of the next mutation sent for the first time. */
  readonly next: number;
  /** Every number up to this one has an outcome that was stored. */
  readonly acked: number;
  /** Numbers above `acked` that have one too. */
  readonly answered: readonly number[];
}

export interface StoredScope {
  readonly name: string;
  readonly cursor: Uint8Array;
  /** When the rows were last known to be current: milliseconds since the epoch. */
  readonly syncedAt: number;
}

export interface StoredRow {
  readonly table: number;
  readonly key: RowKey;
  readonly version: Uint8Array;
  /** As received; under this schema version. */
  readonly row: Uint8Array;
  readonly sv: number;
  readonly digest: bigint;
}

export interface ScopeStep {
  /** Removes the scope and its rows first. */
  readonly clear: boolean;
  readonly put: readonly StoredRow[];
  readonly remove: readonly (readonly [table: number, key: RowKey])[];
  /** Null: the scope has no head any more (it was cleared). */
  readonly head: StoredScope | null;
}

export interface StoreStep {
  readonly client?: StoredClient;
  readonly manifest?: { readonly sv: number; readonly manifest: Manifest };
  readonly scopes?: ReadonlyMap<string, ScopeStep>;
  readonly assigned?: readonly string[];
  /** Replaces entries by id, keeping their place; new ones go to the end. */
  readonly put?: readonly Entry[];
  /** Ids. Removed before anything is put, so that an entry in both moves to the end. */
  readonly remove?: readonly string[];
}
