/**
 * Writes on their way: numbers, order, outcomes (V3), dropped when they have come round (V6). Memory first; what changed is taken
 * as a store step, and what an application is told waits until that step is saved. Knows frames and values, no socket, no rows.
 */

import { hex } from '../bytes.ts';
import { type Environment, randomBytes } from '../environment.ts';
import { SyncError } from '../errors.ts';
import type { RowKey } from '../key.ts';
import type { MutationResult } from '../protocol/frames.ts';
import { receivedRow } from '../replica/rows.ts';
import type { StoredClient, StoreStep } from '../store/store.ts';
import { after } from '../transitions.ts';
import {
  dependencies,
  ENTRIES,
  ENTRY_EVENTS,
  type Entry,
  type EntryEvent,
  type Fault,
  type Mutation,
  type Result,
} from './entry.ts';
import { Overlay } from './overlay.ts';
import { refusal } from './refusal.ts';
import { failed, OK, type Outcome, PendingWrite, type Write } from './writes.ts';

/** Pushes without answer at one time: enough to hide a round trip, few enough to send again after a loss. */
const UNANSWERED_MAX = 32;

const DEPENDENCY_REJECTED: Fault = {
  code: 'dependency_rejected',
  message: refusal('dependency_rejected', null),
};

/** A store step, and what may be told once it is saved. */
export interface Saving {
  readonly step: StoreStep;
  done(): void;
}

export class Outbox {
  readonly overlay = new Overlay();
  readonly #environment: Environment;
  readonly #entries = new Map<string, Entry>();
  readonly #writes = new Map<string, PendingWrite>();
  #client: StoredClient;
  #clientDirty = false;
  readonly #dirty = new Set<string>();
  readonly #moved = new Set<string>();
  #tell: (() => void)[] = [];
  #touched: Mutation[] = [];

  constructor(environment: Environment) {
    this.#environment = environment;
    this.#client = newClient(environment);
    this.#clientDirty = true;
  }

  /** What an earlier session left. Writes of this session that came before stay behind it. */
  restore(client: StoredClient | null, entries: readonly Entry[]): void {
    if (client !== null) {
      this.#client = client;
      this.#clientDirty = false;
    }
    const later = [...this.#entries.values()];
    for (const entry of later) this.#remove(entry);
    for (const entry of [...entries, ...later]) this.#place(entry, undefined);
  }

  get client(): StoredClient {
    return this.#client;
  }

  get entries(): readonly Entry[] {
    return [...this.#entries.values()];
  }

  get(id: string): Entry | undefined {
    return this.#entries.get(id);
  }

  /** Work that would be lost with the store. */
  get unsettled(): boolean {
    return this.#entries.size > 0;
  }

  /** Work that needs a connection. */
  get active(): boolean {
    return this.entries.some((entry) => entry.state !== 'parked' || entry.voiding);
  }

  /** Accepted mutations that the server is to tell of. */
  get awaited(): number[] {
    return this.entries
      .filter((entry) => entry.state === 'committed' && !entry.shown)
      .flatMap((entry) => numbers(entry));
  }

  /** The last write that a new one on this row builds upon. */
  last(table: string, key: RowKey): { entry: string; index: number } | null {
    const layer = this.overlay.get(table, key)?.at(-1);
    return layer === undefined ? null : { entry: layer.entry, index: layer.index };
  }

  newId(): string {
    return hex(randomBytes(this.#environment, 16));
  }

  add(entry: Entry, drafted: Entry | undefined, pending = new PendingWrite(entry.id)): Write {
    this.#place(entry, drafted);
    this.#dirty.add(entry.id);
    this.#writes.set(entry.id, pending);
    this.#tell.push(() => pending.settle('saved', OK));
    return pending.write;
  }

  /** Mutations whose rows may look different now. */
  takeTouched(): Mutation[] {
    return this.#touched.splice(0);
  }

  /** What has changed since the last step; null: nothing. */
  takeSaving(): Saving | null {
    if (this.#dirty.size === 0 && this.#tell.length === 0 && !this.#clientDirty) return null;
    const changed = [...this.#dirty];
    const step: StoreStep = {
      ...(this.#clientDirty ? { client: this.#client } : {}),
      put: changed.flatMap((id) => this.#entries.get(id) ?? []),
      remove: changed.filter((id) => this.#moved.has(id) || !this.#entries.has(id)),
    };
    const tell = this.#tell;
    this.#tell = [];
    this.#clientDirty = false;
    this.#dirty.clear();
    this.#moved.clear();
    return {
      step,
      done: () => {
        for (const fn of tell) fn();
      },
    };
  }

  /**
   * The next entry to send for the first time; null: none, or enough is under way. One that builds on a write which is being
   * decided waits for it; others pass it by.
   */
  next(unmaterializedMax: number): Entry | null {
    const entries = this.entries;
    if (entries.filter((entry) => entry.state === 'sent').length >= UNANSWERED_MAX) return null;
    const underWay = entries
      .filter((entry) => entry.state === 'sent' || entry.state === 'committed')
      .reduce((sum, entry) => sum + entry.mutations.length, 0);
    for (const entry of entries) {
      if (entry.state !== 'queued') continue;
      const ready = [...dependencies(entry)].every((id) => {
        const state = this.#entries.get(id)?.state;
        return state === 'sent' || state === 'committed';
      });
      if (!ready) continue;
      const fits = underWay === 0 || underWay + entry.mutations.length <= unmaterializedMax;
      return fits ? entry : null;
    }
    return null;
  }

  /** As it would be sent: numbered, its bases frozen. */
  prepare(entry: Entry, sv: number): Entry {
    const first = this.#client.next;
    const bases = entry.mutations.map(({ op, base }) => {
      // An insert only waits for what came before: it has no version to build on.
      if (base === null || op === 'insert') return null;
      if ('version' in base) return base.version;
      if (base.after.entry === entry.id) return { after: first + base.after.index };
      const earlier = this.#entries.get(base.after.entry)!;
      const result = earlier.results[base.after.index];
      if (result?.status === 'accepted' && result.version !== null) return result.version;
      return { after: earlier.sent!.first + base.after.index };
    });
    const sent = { batch: randomBytes(this.#environment, 16), first, sv, bases };
    return { ...entry, sent, results: entry.mutations.map(() => null) };
  }

  /** Gives the numbers away. To be saved before the push leaves. */
  send(prepared: Entry): void {
    this.#client = { ...this.#client, next: prepared.sent!.first + prepared.mutations.length };
    this.#clientDirty = true;
    this.#move(prepared, 'send');
  }

  /** What was sent and has no outcome, in order of number: to be sent again, or to be given up. */
  get unanswered(): Entry[] {
    return this.entries
      .filter((entry) => entry.sent !== null && (entry.state === 'sent' || entry.voiding) && !answered(entry))
      .sort((a, b) => a.sent!.first - b.sent!.first);
  }

  outcome(results: readonly MutationResult[]): void {
    for (const result of results) {
      const entry = this.entries.find((candidate) => numbers(candidate).includes(result.n));
      this.#answer(result.n);
      if (entry === undefined || (entry.state !== 'sent' && !entry.voiding)) continue;
      const index = result.n - entry.sent!.first;
      const read = readResult(result, entry.sent!.sv);
      const updated = { ...entry, results: entry.results.map((other, at) => (at === index ? read : other)) };
      this.#put(updated);
      if (answered(updated)) this.#decide(updated);
    }
  }

  #decide(entry: Entry): void {
    const results = entry.results as readonly Result[];
    const fault = worst(results);
    if (fault === null) {
      const accepted: Entry = {
        ...entry,
        state: 'committed',
        fault: null,
        voiding: false,
      };
      this.#put(accepted);
      this.#settle(entry.id, 'committed', OK);
      if (entry.shown) this.#gone(accepted, 'materialized', OK);
      return;
    }
    if (entry.voiding) {
      if (entry.fault !== null) this.#put({ ...entry, sent: null, voiding: false });
      else this.drop(entry.id, failed(new SyncError('discarded', 'given up')));
      return;
    }
    const conflict = results.some((result) => result.status === 'conflict');
    const earlier = [...dependencies(entry)].map((id) => this.#entries.get(id));
    if (!conflict && fault.code !== 'dependency_rejected') this.park(entry.id, fault);
    else if (earlier.some((other) => other === undefined || other.state === 'parked')) {
      this.park(entry.id, DEPENDENCY_REJECTED);
    } else if (earlier.some((other) => (other!.sent?.first ?? Infinity) > entry.sent!.first)) {
      // What it builds on did not run, and goes again under a new number: then so does this.
      this.#move({ ...entry, sent: null }, 'requeue');
    } else if (conflict) this.#move({ ...entry, sent: null }, 'conflict');
    else this.park(entry.id, fault);
  }

  /** `conflict` was decided: again like this, under a new number. What builds on it met an attempt that did not run, and follows. */
  requeue(id: string, mutations: readonly Mutation[]): void {
    const entry = this.#entries.get(id)!;
    this.#move({ ...entry, mutations, sent: null, results: [], attempts: entry.attempts + 1 }, 'requeue');
    for (const other of this.entries) {
      if (other.state === 'conflict' && dependencies(other).has(id)) this.#move({ ...other, results: [] }, 'requeue');
    }
  }

  /** Refused or undecided: kept for the application, with everything that builds on it. */
  park(id: string, fault: Fault, voiding = false): void {
    const entry = this.#entries.get(id)!;
    const sent = voiding ? entry.sent : null;
    this.#move(
      {
        ...entry,
        fault,
        sent,
        voiding,
        results: sent === null ? entry.results : entry.mutations.map(() => null),
        delayed: false,
      },
      'park',
    );
    this.#end(id, failed(new SyncError(fault.code, fault.message)));
    this.#parkDependants(id);
  }

  /** A conflict that left nothing to do: the rows are as wanted, at these versions. */
  done(id: string, versions: readonly (Uint8Array | null)[]): void {
    const entry = this.#entries.get(id)!;
    const results = versions.map((version): Result => ({ status: 'accepted', version }));
    this.#gone({ ...entry, results }, 'drop', OK);
  }

  /** Settled without the server, or given up. */
  drop(id: string, outcome: Outcome): void {
    const entry = this.#entries.get(id)!;
    this.#gone(entry, 'drop', outcome);
    if (!outcome.ok) this.#parkDependants(id);
  }

  #parkDependants(id: string): void {
    for (const entry of this.entries) {
      // What was sent gets its own outcome, `dependency_rejected`.
      if ((entry.state !== 'queued' && entry.state !== 'conflict') || !dependencies(entry).has(id)) continue;
      this.park(entry.id, DEPENDENCY_REJECTED);
    }
  }

  /** Gives its number up: `void` is to be sent. */
  abandon(id: string, fault: Fault | null): void {
    const entry = this.#entries.get(id)!;
    if (fault !== null) this.park(id, fault, true);
    else this.#put({ ...entry, fault: null, voiding: true });
  }

  /** A parked write again, at the end of the queue. */
  retry(id: string, mutations: readonly Mutation[]): Write {
    const entry = this.#entries.get(id)!;
    const again: Entry = {
      ...entry,
      mutations,
      sent: null,
      results: [],
      fault: null,
      attempts: 0,
      createdAt: this.#environment.now(),
    };
    this.#remove(entry);
    this.#moved.add(id);
    return this.add({ ...again, state: move(entry, 'requeue') }, undefined);
  }

  delayed(list: readonly number[]): void {
    for (const entry of this.entries) {
      if (entry.delayed || !numbers(entry).some((n) => list.includes(n))) continue;
      this.#put({ ...entry, delayed: true });
    }
  }

  /**
   * What has come round. The step belongs into the cut's; `apply` drops the layers in the moment in which the cut's rows are
   * shown, and gives what is to be told after that.
   */
  materialized(list: readonly number[]): { step: StoreStep; apply(): () => void } {
    const come = new Set(list);
    const due = () =>
      this.entries.filter(
        ({ state, shown, sent, mutations }) =>
          (state === 'committed' || (state === 'sent' && !shown)) &&
          mutations.some((_, index) => come.has(sent!.first + index)),
      );
    const now = due();
    const gone = now.filter((entry) => entry.state === 'committed');
    return {
      step: {
        remove: gone.map((entry) => entry.id),
        put: this.entries.flatMap((entry) => {
          if (gone.includes(entry)) return [];
          const rebased = gone.reduce(rebase, entry);
          const shown = entry.state === 'sent' && now.includes(entry);
          return shown ? [{ ...rebased, shown }] : rebased === entry ? [] : [rebased];
        }),
      },
      apply: () => {
        // All of this is in the step; what other writes have to save and tell stays as it is.
        const [dirty, tell] = [new Set(this.#dirty), this.#tell];
        this.#tell = [];
        for (const entry of due()) {
          if (entry.state === 'committed') this.#gone(entry, 'materialized', OK);
          else this.#put({ ...entry, shown: true });
        }
        const told = this.#tell;
        this.#tell = tell;
        for (const id of this.#dirty) if (!dirty.has(id)) this.#dirty.delete(id);
        return () => {
          for (const fn of told) fn();
        };
      },
    };
  }

  /**
   * The server does not know this client, or two stores share it: a new id. What was sent and never answered may have run or not,
   * so the application decides; what was accepted can no longer be waited for.
   */
  forget(fault: Fault): void {
    for (const entry of this.entries) {
      if (entry.state === 'committed') this.#gone(entry, 'drop', failed(new SyncError(fault.code, fault.message)));
      else if (entry.state === 'sent') this.park(entry.id, fault);
      else if (entry.voiding) this.#put({ ...entry, sent: null, voiding: false });
    }
    this.#client = newClient(this.#environment);
    this.#clientDirty = true;
  }

  /** Nothing more will happen to any write in this session. */
  close(error: SyncError): void {
    for (const pending of this.#writes.values()) pending.end(failed(error));
    this.#writes.clear();
    this.#tell = [];
  }

  /** Outcomes up to `acked` are stored, without gap; later ones wait beside it. */
  #answer(n: number): void {
    const known = new Set(this.#client.answered).add(n);
    let { acked } = this.#client;
    while (known.delete(acked + 1)) acked += 1;
    const answered = [...known].filter((number) => number > acked);
    this.#client = { ...this.#client, proven: true, acked, answered };
    this.#clientDirty = true;
  }

  #gone(entry: Entry, event: 'materialized' | 'drop', outcome: Outcome): void {
    move(entry, event);
    this.#remove(entry);
    this.#dirty.add(entry.id);
    this.#end(entry.id, outcome);
    for (const other of this.entries) {
      const rebased = rebase(other, entry);
      if (rebased !== other) this.#put(rebased);
    }
  }

  #settle(id: string, stage: 'committed', outcome: Outcome): void {
    const pending = this.#writes.get(id);
    this.#tell.push(() => pending?.settle(stage, outcome));
  }

  #end(id: string, outcome: Outcome): void {
    const pending = this.#writes.get(id);
    this.#writes.delete(id);
    this.#tell.push(() => pending?.end(outcome));
  }

  #move(entry: Entry, event: EntryEvent): void {
    const state = move(entry, event);
    this.#put({ ...entry, state });
  }

  #put(entry: Entry): void {
    this.lay(this.#entries.get(entry.id), entry);
    this.#entries.set(entry.id, entry);
    this.#dirty.add(entry.id);
  }

  #place(entry: Entry, drafted: Entry | undefined): void {
    this.lay(drafted, entry);
    this.#entries.set(entry.id, entry);
  }

  #remove(entry: Entry): void {
    this.lay(this.#entries.get(entry.id), undefined);
    this.#entries.delete(entry.id);
  }

  /** Lays an entry over the rows, or takes it away. A draft is laid over, but neither saved nor sent until `add`. */
  lay(before: Entry | undefined, after: Entry | undefined): void {
    this.#touched.push(...this.overlay.replace(before, after));
  }
}

function newClient(environment: Environment): StoredClient {
  return { id: randomBytes(environment, 16), proven: false, next: 1, acked: 0, answered: [] };
}

/** The state after an event; of events that end the write there is none. */
function move(entry: Entry, event: EntryEvent): Entry['state'] {
  const state = after(ENTRIES, ENTRY_EVENTS, entry.state, event);
  if (state === 'violation') throw new Error(`${event} of a write that is ${entry.state}`);
  return state as Entry['state'];
}

function numbers({ sent, mutations }: Entry): number[] {
  return sent === null ? [] : mutations.map((_, index) => sent.first + index);
}

function answered(entry: Entry): boolean {
  return entry.results.length === entry.mutations.length && entry.results.every((result) => result !== null);
}

/** The fault that explains an entry best; null: all was accepted. In a batch many only say that another one failed. */
function worst(results: readonly Result[]): Fault | null {
  const faults = results.flatMap((result) => (result.status === 'accepted' ? [] : [result.fault]));
  const secondary = ['batch_rejected', 'dependency_rejected'];
  return (
    faults.find(({ code }) => !secondary.includes(code)) ??
    faults.find(({ code }) => code === 'dependency_rejected') ??
    faults[0] ??
    null
  );
}

function readResult({ status, version, code, message, row }: MutationResult, sv: number): Result {
  if (status === 'accepted') return { status, version: version?.slice() ?? null };
  const why = code ?? status;
  const fault = { code: why, message: refusal(why, message) };
  if (status !== 'conflict') return { status, fault };
  const theirs = row === null ? null : receivedRow(row[0], row[1], row[2], row[3], sv);
  return { status, fault, theirs };
}

/** Points what builds on a settled write at the version that it left. */
function rebase(entry: Entry, settled: Entry): Entry {
  if (entry.id === settled.id || !dependencies(entry).has(settled.id)) return entry;
  const mutations = entry.mutations.map((mutation): Mutation => {
    const { base } = mutation;
    if (base === null || !('after' in base) || base.after.entry !== settled.id) return mutation;
    const { index } = base.after;
    const result = settled.results[index];
    const version = result?.status === 'accepted' ? result.version : null;
    return { ...mutation, base: version === null ? null : { version } };
  });
  return { ...entry, mutations };
}
