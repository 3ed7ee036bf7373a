/** Local writes: checked, laid over the rows at once, handed to the outbox. What cannot be written ends as an outcome, never as a throw. */

import type { Engine } from './engine.ts';
import type { Environment } from './environment.ts';
import { SyncError } from './errors.ts';
import type { Key, RowKey } from './key.ts';
import { composeDelete, composeInsert, composeUpdate, type Seen } from './outbox/compose.ts';
import type { Entry, Mutation } from './outbox/entry.ts';
import { mine, type Row, type Theirs } from './outbox/merge.ts';
import { failed, PendingWrite, refusedWrite, type Write } from './outbox/writes.ts';
import { keyOf, type TableView } from './table-view.ts';

interface Draft {
  entry: Entry;
  readonly pending: PendingWrite;
  /** The first thing that could not be written: then nothing of the batch is. */
  error: SyncError | null;
}

export class Writer {
  readonly #engine: Engine;
  readonly #environment: Environment;
  #draft: Draft | null = null;

  constructor(engine: Engine, environment: Environment) {
    this.#engine = engine;
    this.#environment = environment;
  }

  insert(view: TableView, scope: string, row: Row): Write {
    return this.#write(view, () => {
      const given = row[view.spec.key.name];
      if (given === undefined || given === null) {
        throw new SyncError(
          'invalid_value',
          `${view.spec.alias}: a new row needs its key; newInt64() and newUuid() make one`,
        );
      }
      const key = keyOf(view.spec, given as Key);
      return composeInsert(view.spec, scope, key, row, this.#seen(view, key));
    });
  }

  update(view: TableView, scope: string, key: Key, patch: Row): Write {
    return this.#write(view, () => {
      const at = keyOf(view.spec, key);
      return composeUpdate(view.spec, scope, at, patch, this.#seen(view, at));
    });
  }

  delete(view: TableView, scope: string, key: Key): Write {
    return this.#write(view, () => {
      const at = keyOf(view.spec, key);
      return composeDelete(view.spec, scope, at, this.#seen(view, at));
    });
  }

  batch(fn: () => void): Write {
    if (this.#draft !== null) throw new TypeError('a batch inside a batch');
    const { outbox } = this.#engine;
    const entry = this.#entry([]);
    this.#draft = { entry, pending: new PendingWrite(entry.id), error: this.#engine.ended };
    let draft: Draft;
    try {
      fn();
    } catch (error) {
      outbox.lay(this.#draft.entry, undefined);
      this.#engine.written();
      throw error;
    } finally {
      draft = this.#draft;
      this.#draft = null;
    }
    if (draft.error !== null || draft.entry.mutations.length === 0) {
      outbox.lay(draft.entry, undefined);
      this.#engine.written();
      draft.pending.end(failed(draft.error ?? new SyncError('invalid_value', 'the batch is empty')));
      return draft.pending.write;
    }
    const write = outbox.add(draft.entry, draft.entry, draft.pending);
    this.#engine.written();
    return write;
  }

  retry(id: string): Write {
    const { outbox, catalog, held, decoder } = this.#engine;
    const entry = outbox.get(id);
    if (this.#engine.ended !== null) return refusedWrite(id, this.#engine.ended);
    if (entry?.state !== 'parked' || entry.voiding) {
      return refusedWrite(id, new SyncError('row_not_found', 'no such parked write'));
    }
    const mutations: Mutation[] = [];
    for (const [index, mutation] of entry.mutations.entries()) {
      const view = held.get(mutation.scope)?.view(mutation.table);
      const seen = view && this.#seen(view, mutation.key);
      const result = entry.results[index];
      const spec = catalog.spec(mutation.table);
      // Best what the scope shows now; without it, what the server said when it refused.
      let theirs: Theirs = null;
      if (seen?.row !== undefined && seen.version !== null) theirs = { version: seen.version, row: seen.row };
      else if (seen === undefined && result?.status === 'conflict' && result.theirs !== null) {
        theirs = { version: result.theirs.version, row: decoder.decode(spec, result.theirs) };
      }
      const unmet = mutation.op === 'insert' && theirs === null;
      const again = unmet ? { ...mutation, base: null } : mine(mutation, theirs, spec.key.name);
      if (again === null) continue;
      mutations.push(seen?.last == null ? again : { ...again, base: { after: seen.last } });
    }
    if (mutations.length === 0) {
      // Everything that it deletes is gone already.
      void this.discard(id);
      return refusedWrite(id, new SyncError('row_not_found', 'nothing is left to do'));
    }
    const write = outbox.retry(id, mutations);
    this.#engine.written();
    return write;
  }

  discard(id: string): Promise<void> {
    return this.#engine.inOrder(async () => {
      const { outbox } = this.#engine;
      const entry = outbox.get(id);
      if (entry === undefined || entry.state === 'committed') return;
      if (entry.state === 'sent' || entry.voiding) {
        outbox.abandon(id, null);
        this.#engine.pusher.voidNow();
      } else {
        outbox.drop(id, { ok: false, error: new SyncError('discarded', 'given up') });
      }
      await this.#engine.settle();
    });
  }

  #write(view: TableView, compose: () => Mutation): Write {
    const draft = this.#draft;
    const { outbox, ended } = this.#engine;
    let mutation: Mutation;
    try {
      if (ended !== null) throw ended;
      if (!view.spec.write) throw new SyncError('not_writable', `${view.spec.alias} takes no writes from clients`);
      mutation = compose();
    } catch (error) {
      if (!(error instanceof SyncError)) throw error;
      if (draft === null) return refusedWrite(outbox.newId(), error);
      draft.error ??= error;
      return draft.pending.write;
    }
    if (draft === null) {
      const write = outbox.add(this.#entry([mutation]), undefined);
      this.#engine.written();
      return write;
    }
    const { entry } = draft;
    draft.entry = { ...entry, mutations: [...entry.mutations, mutation] };
    outbox.lay(entry, draft.entry);
    view.invalidate([mutation.key]);
    return draft.pending.write;
  }

  #entry(mutations: readonly Mutation[]): Entry {
    return {
      id: this.#engine.outbox.newId(),
      createdAt: this.#environment.now(),
      state: 'queued',
      mutations,
      sent: null,
      results: [],
      voiding: false,
      shown: false,
      delayed: false,
      attempts: 0,
      fault: null,
    };
  }

  #seen(view: TableView, key: RowKey): Seen {
    return {
      row: view.get(key),
      version: view.confirmed(key)?.version ?? null,
      last: this.#engine.outbox.last(view.spec.alias, key),
    };
  }
}
