/** A write on its way: one entry per `Write`, with one mutation or the mutations of a batch. Values, never changed in place. */

import type { RowKey } from '../key.ts';
import type { StoredRow } from '../store/store.ts';
import type { Transitions } from '../transitions.ts';

export type Op = 'insert' | 'update' | 'delete';

/** What must hold for a mutation to run. Null: nothing (an insert always requires that the row does not exist). */
export type Base =
  | null
  | { readonly version: Uint8Array }
  /** The version that an earlier write of ours produces. */
  | { readonly after: { readonly entry: string; readonly index: number } };

export interface Mutation {
  /** The table's name in the generated schema. */
  readonly table: string;
  /** The scope through which it was written: an inserted row is shown there until the server's own effects are. */
  readonly scope: string;
  readonly op: Op;
  readonly key: RowKey;
  /** Canonical values by column; null for a delete. Omitted columns stay as they are. */
  readonly cols: Readonly<Record<string, unknown>> | null;
  readonly base: Base;
  /** The row as the writer saw it: what a three-way merge compares with. Null for an insert. */
  readonly before: Readonly<Record<string, unknown>> | null;
}

/** How it was sent: frozen at the first send, so that a resend is the same to the byte (V3). */
export interface Sent {
  readonly batch: Uint8Array;
  /** Number of the first mutation; the others follow without gap. */
  readonly first: number;
  readonly sv: number;
  readonly bases: readonly (null | Uint8Array | { readonly after: number })[];
}

export type Result =
  | { readonly status: 'accepted'; readonly version: Uint8Array | null }
  | { readonly status: 'conflict'; readonly fault: Fault; readonly theirs: StoredRow | null }
  | { readonly status: 'rejected' | 'discarded'; readonly fault: Fault };

export interface Fault {
  readonly code: string;
  readonly message: string;
}

export type EntryState =
  /** Saved, not sent. */
  | 'queued'
  /** Sent, without outcome. */
  | 'sent'
  /** Accepted, not yet come round. */
  | 'committed'
  /** Somebody else's change came first; being merged or decided. */
  | 'conflict'
  /** Refused, or put aside: kept until `retry` or `discard`. */
  | 'parked';

export interface Entry {
  readonly id: string;
  readonly createdAt: number;
  readonly state: EntryState;
  readonly mutations: readonly Mutation[];
  /** Null while it has no number. */
  readonly sent: Sent | null;
  /** By mutation, as far as known. */
  readonly results: readonly (Result | null)[];
  /** Give up the number instead of sending it again: `void`. */
  readonly voiding: boolean;
  /** Come round already, although the outcome is not here yet: no longer laid over the rows. */
  readonly shown: boolean;
  /** The server holds pages back until it has come round. */
  readonly delayed: boolean;
  /** Merges tried so far. */
  readonly attempts: number;
  readonly fault: Fault | null;
}

export const ENTRY_EVENTS = [
  'send',
  'accepted',
  'conflict',
  /** The server, or we before sending, refused it; or its fate cannot be known. */
  'park',
  /** Again, under a new number: merged, re-pointed, or by the application's wish. */
  'requeue',
  'materialized',
  /** Given up, or settled otherwise. */
  'drop',
] as const;
export type EntryEvent = (typeof ENTRY_EVENTS)[number];

const QUEUED = 'queued';
const SENT = 'sent';
const DONE = 'committed';
const CLASH = 'conflict';
const PARKED = 'parked';
/** No entry any more. */
const GONE = 'gone';
/** A fault in this SDK or the server. */
const BAD = 'violation';

// biome-ignore format: a table
export const ENTRIES: Transitions<EntryState, typeof ENTRY_EVENTS, EntryState | 'gone' | 'violation'> = {
  //          send  accepted conflict park    requeue materialized drop
  queued:    [SENT, BAD,     BAD,     PARKED, QUEUED, BAD,         GONE],
  sent:      [SENT, DONE,    CLASH,   PARKED, QUEUED, SENT,        GONE],
  committed: [BAD,  DONE,    BAD,     BAD,    BAD,    GONE,        GONE],
  conflict:  [BAD,  BAD,     CLASH,   PARKED, QUEUED, BAD,         GONE],
  parked:    [BAD,  BAD,     BAD,     PARKED, QUEUED, BAD,         GONE],
};

/** Whether it is laid over the confirmed rows. A parked write is not: the row shows what the server has (WR-04). */
export function overlays(entry: Entry): boolean {
  return entry.state !== 'parked' && !entry.shown;
}

/** The entries on whose versions this one builds. */
export function dependencies(entry: Entry): Set<string> {
  const ids = new Set<string>();
  for (const { base } of entry.mutations) if (base !== null && 'after' in base) ids.add(base.after.entry);
  ids.delete(entry.id);
  return ids;
}
