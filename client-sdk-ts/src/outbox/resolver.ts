/**
 * Decides conflicts: merges what can be merged, asks the application for the rest, parks what nobody decides. Bounded: a row that
 * keeps moving parks in the end.
 */

import { SyncError } from '../errors.ts';
import type { TableSpec } from '../schema.ts';
import { columns } from './compose.ts';
import type { Entry, Mutation, Op, Result } from './entry.ts';
import { merge, merged, mine, type Row, type Theirs } from './merge.ts';
import type { Outbox } from './outbox.ts';
import { refusal } from './refusal.ts';
import { failed } from './writes.ts';

const ATTEMPTS_MAX = 5;

/** A conflict as the application is asked about it. */
export interface ConflictCase {
  readonly id: string;
  readonly table: string;
  readonly op: Op;
  readonly mutation: Mutation;
  readonly theirs: Row | null;
}

export type Answer = 'theirs' | 'mine' | 'park' | { readonly merge: Row };

export interface ResolverSource {
  spec(table: string): TableSpec;
  /** The row that came first; undefined: it is on its way. */
  theirs(mutation: Mutation, result: Result & { status: 'conflict' }): Theirs | undefined;
  /** Null: the application leaves conflicts to `pending`. */
  ask: ((conflict: ConflictCase) => Promise<Answer>) | null;
  /** Runs in order with frames, then saves and publishes. */
  run(task: () => void): void;
}

/** What to do with one mutation: write it again like this, or leave it out, because the row is so already, at this version. */
type Decision = { readonly again: Mutation } | { readonly done: Uint8Array | null };

export class Resolver {
  readonly #outbox: Outbox;
  readonly #source: ResolverSource;
  readonly #asking = new Set<string>();

  constructor(outbox: Outbox, source: ResolverSource) {
    this.#outbox = outbox;
    this.#source = source;
  }

  /** Goes as far as possible with every conflict. Called after outcomes and cuts. */
  advance(): void {
    for (const entry of this.#outbox.entries) {
      if (entry.state === 'conflict' && !this.#asking.has(entry.id)) this.#advance(entry);
    }
  }

  #advance(entry: Entry): void {
    const theirs = entry.mutations.map((mutation, index) => {
      const result = entry.results[index];
      return result?.status === 'conflict' ? this.#source.theirs(mutation, result) : null;
    });
    if (theirs.includes(undefined)) return;
    if (entry.attempts >= ATTEMPTS_MAX) return this.#outbox.park(entry.id, fault(entry));
    const decisions = new Map<number, Decision>();
    const open: number[] = [];
    entry.mutations.forEach((mutation, index) => {
      if (entry.results[index]?.status !== 'conflict') return;
      const verdict = merge(mutation, theirs[index]!);
      if (verdict.kind === 'ask') open.push(index);
      else
        decisions.set(
          index,
          verdict.kind === 'again' ? { again: verdict.mutation } : { done: theirs[index]?.version ?? null },
        );
    });
    if (open.length === 0) return this.#decide(entry, decisions);
    if (this.#source.ask === null) return this.#outbox.park(entry.id, fault(entry));
    this.#asking.add(entry.id);
    void this.#ask(entry, theirs as Theirs[], open, decisions);
  }

  async #ask(entry: Entry, theirs: Theirs[], open: number[], decisions: Map<number, Decision>): Promise<void> {
    let end: 'decide' | 'theirs' | 'park' = 'decide';
    try {
      for (const index of open) {
        const mutation = entry.mutations[index]!;
        const { table, op } = mutation;
        const answer = await this.#source.ask!({
          id: entry.id,
          table,
          op,
          mutation,
          theirs: theirs[index]?.row ?? null,
        });
        if (answer === 'theirs' || answer === 'park') {
          end = answer;
          break;
        }
        const spec = this.#source.spec(table);
        const key = spec.key.name;
        const again =
          answer === 'mine'
            ? mine(mutation, theirs[index]!, key)
            : merged(mutation, theirs[index]!, columns(spec, answer.merge), key);
        if (again === null) {
          end = 'park';
          break;
        }
        decisions.set(index, { again });
      }
    } catch {
      // An application that fails to decide has not decided.
      end = 'park';
    }
    this.#source.run(() => {
      this.#asking.delete(entry.id);
      // As it is now: what it builds on may have come round meanwhile, and it may have been given up.
      const now = this.#outbox.get(entry.id);
      if (now?.state !== 'conflict') return;
      const { code, message } = fault(entry);
      if (end === 'park') this.#outbox.park(entry.id, { code, message });
      else if (end === 'theirs') this.#outbox.drop(entry.id, failed(new SyncError(code, message)));
      else this.#decide(now, decisions);
    });
  }

  #decide(entry: Entry, decisions: Map<number, Decision>): void {
    const place: (number | null)[] = [];
    const kept: Mutation[] = [];
    const versions: (Uint8Array | null)[] = [];
    for (const [index, mutation] of entry.mutations.entries()) {
      const decision = decisions.get(index) ?? { again: mutation };
      place.push('again' in decision ? kept.length : null);
      if ('again' in decision) kept.push(decision.again);
      else versions.push(decision.done);
    }
    if (kept.length === 0) return this.#outbox.done(entry.id, versions);
    // References within the batch follow their mutations.
    const mutations = kept.map((mutation): Mutation => {
      const { base } = mutation;
      if (base === null || !('after' in base) || base.after.entry !== entry.id) return mutation;
      const index = place[base.after.index] ?? null;
      return { ...mutation, base: index === null ? null : { after: { entry: entry.id, index } } };
    });
    this.#outbox.requeue(entry.id, mutations);
  }
}

function fault(entry: Entry): { code: string; message: string } {
  for (const result of entry.results) if (result?.status === 'conflict') return result.fault;
  return { code: 'conflict', message: refusal('conflict', null) };
}
