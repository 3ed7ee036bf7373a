/**
 * Owns the awaits and their order: frames, store steps, local writes. What is decided is decided in the pure parts around it
 * (`replica/`, `outbox/`, `connection/states.ts`); here it is saved, then applied, then shown, then told, always in that order.
 */

import { Catalog } from './catalog.ts';
import { backoffMs } from './connection/backoff.ts';
import { type AuthReason, Connection } from './connection/connection.ts';
import { type Environment, randomFraction } from './environment.ts';
import { type ClientCode, SyncError, transient } from './errors.ts';
import { HeldScope } from './held-scope.ts';
import { Lane } from './lane.ts';
import type { Log } from './log.ts';
import type { Entry } from './outbox/entry.ts';
import { Outbox } from './outbox/outbox.ts';
import { Pusher } from './outbox/pusher.ts';
import { type Answer, type ConflictCase, Resolver } from './outbox/resolver.ts';
import type { FrameOf } from './protocol/decode.ts';
import type { Manifest, ServerFrame, SessionLimits } from './protocol/frames.ts';
import { Replica, type ScopeChange } from './replica/replica.ts';
import type { RowChange } from './replica/rows.ts';
import type { ScopeState } from './replica/scope-state.ts';
import type { TableSpec } from './schema.ts';
import { Cell } from './signal.ts';
import type { ScopeStep, Store, StoredScope, StoreSession, StoreStep } from './store/store.ts';
import { RowDecoder } from './table-view.ts';

export interface EngineOptions {
  readonly url: string;
  readonly user: string;
  readonly specs: ReadonlyMap<string, TableSpec>;
  readonly auth: (why: AuthReason) => Promise<string | null>;
  readonly store: Store;
  readonly environment: Environment;
  /** An entry as the application sees it in `pending`. */
  readonly describe: (entry: Entry) => object;
  readonly ask: ((conflict: ConflictCase) => Promise<Answer>) | null;
  readonly log: Log;
}

/** How long a connection is kept when nothing needs it any more: pages of an application come and go. */
const LINGER_MS = 5_000;

const DROPPED: ScopeStep = { clear: true, put: [], remove: [], head: null };

export class Engine {
  readonly catalog: Catalog;
  readonly outbox: Outbox;
  readonly connection: Connection;
  readonly held = new Map<string, HeldScope>();
  readonly replica = new Replica();
  readonly pending = new Cell<readonly unknown[]>([]);
  readonly assigned = new Cell<readonly string[]>([]);
  readonly decoder: RowDecoder;
  readonly pusher: Pusher;
  /** Why nothing can be written any more; null: it can. */
  ended: SyncError | null = null;
  readonly #options: EngineOptions;
  readonly #environment: Environment;
  readonly #lane: Lane;
  readonly #resolver: Resolver;
  #session: StoreSession | null = null;
  #heads = new Map<string, StoredScope>();
  #limits: SessionLimits | null = null;
  /** Numbers that the next cut makes visible. */
  #come: number[] = [];
  #shown: readonly Entry[] = [];
  readonly #described = new WeakMap<Entry, object>();
  #linger: unknown = null;
  /** Why the connection does not try again by itself; null: it does. */
  #stopped: SyncError | null = null;
  #reported: SyncError | null = null;
  #started = false;

  constructor(options: EngineOptions) {
    this.#options = options;
    this.#environment = options.environment;
    this.catalog = new Catalog(options.specs);
    this.decoder = new RowDecoder((sv, spec) => this.catalog.layout(sv, spec));
    this.outbox = new Outbox(options.environment);
    this.#lane = new Lane((error) => this.#failed(error));
    this.connection = new Connection(options.environment, options.url, options.user, options.auth, {
      hello: () => this.#lane.ask(() => this.#hello()),
      frame: (frame) => this.#lane.run(() => this.#frame(frame)),
      lost: () => this.#lane.run(() => this.#lost()),
    });
    this.connection.status.subscribe((status) => {
      this.#stopped = status.state === 'needs-auth' || status.state === 'failed' ? status.cause : null;
      if (this.#stopped !== null) this.#report(this.#stopped);
      this.#lane.run(() => this.#giveUp());
    });
    this.pusher = new Pusher(options.environment, this.outbox, this.catalog, {
      send: (frame) => this.connection.send(frame),
      ref: () => this.connection.nextRef(),
      flush: () => this.#flush(),
      later: (task) => this.#lane.run(task),
    });
    this.#resolver = new Resolver(this.outbox, {
      spec: (table) => this.catalog.spec(table),
      theirs: (mutation, { theirs }) => {
        if (theirs === null) return this.held.get(mutation.scope)?.theirs(mutation);
        return { version: theirs.version, row: this.decoder.decode(this.catalog.spec(mutation.table), theirs) };
      },
      ask: options.ask,
      run: (task) =>
        this.#lane.run(async () => {
          task();
          await this.settle();
        }),
    });
  }

  hold(name: string): HeldScope {
    const state = this.replica.hold(name);
    const held = this.held.get(name) ?? new HeldScope(state, this.catalog, this.outbox.overlay, this.decoder);
    this.held.set(name, held);
    this.start();
    if (!state.loaded) this.#lane.run(() => this.#load(held));
    this.#demand();
    return held;
  }

  ready(held: HeldScope): Promise<void> {
    // Behind what the store is still reading for it.
    this.#lane.run(() => held.settle(this.ended ?? this.#stopped));
    return held.ready();
  }

  release(held: HeldScope): void {
    const { name, number, phase } = held.state;
    if (!this.replica.release(held.state)) return;
    this.held.delete(name);
    held.settle(new SyncError('scope_released', 'the scope was released'));
    if (number !== null || phase === 'asked')
      this.connection.send({ t: 'unsubscribe', ref: this.connection.nextRef(), name });
    this.#demand();
  }

  /** After a change of the outbox: shown at once, then saved, then sent. */
  written(): void {
    this.start();
    this.#publish([]);
    this.#lane.run(() => this.settle());
  }

  /** Runs in order with frames. */
  inOrder<V>(task: () => V | Promise<V>): Promise<V> {
    this.start();
    return this.#lane.ask(task);
  }

  again(): void {
    this.#lane.run(() => {
      for (const { state } of this.held.values()) {
        state.on('reset');
        state.failures = [];
        if (state.phase === 'off') {
          state.error = null;
          if (this.#limits !== null) this.#subscribe(state);
        }
      }
    });
    this.connection.again();
  }

  async close(clear: boolean): Promise<void> {
    if (this.ended?.code === 'closed') return;
    const error = new SyncError('closed', 'this Sync is closed');
    this.ended = error;
    this.#environment.clearTimer(this.#linger);
    this.pusher.stop();
    this.connection.close();
    await this.#lane.ask(async () => {
      if (this.#session === null) return;
      if (clear) await this.#session.clear();
      else await this.#flush();
      await this.#session.close();
    });
    this.outbox.close(error);
    this.#giveUp();
  }

  start(): void {
    if (this.#started) return;
    this.#started = true;
    this.#lane.run(async () => {
      this.#session = await this.#store(() => this.#options.store.open(`${this.#options.url} ${this.#options.user}`));
      const stored = await this.#store(() => this.#session!.load());
      for (const [sv, manifest] of stored.manifests) this.catalog.add(sv, manifest);
      this.catalog.sv = stored.manifests.size === 0 ? null : Math.max(...stored.manifests.keys());
      this.#heads = new Map(stored.scopes.map((scope) => [scope.name, scope]));
      this.assigned.set(stored.assigned);
      this.outbox.restore(stored.client, stored.outbox);
      await this.settle();
    });
  }

  /** Who waits for rows hears if none will come. In the lane, behind rows of the store that may be on their way. */
  #giveUp(): void {
    for (const held of this.held.values()) held.settle(this.ended ?? this.#stopped);
  }

  /** Connected while something is held or under way. */
  #demand(): void {
    this.#environment.clearTimer(this.#linger);
    this.#linger = null;
    if (this.ended !== null) return;
    if (this.held.size > 0 || this.outbox.active) this.connection.want();
    else this.#linger = this.#environment.setTimer(() => this.connection.unwant(), LINGER_MS);
  }

  async #load(held: HeldScope): Promise<void> {
    const { state } = held;
    if (state.loaded || state.holders === 0) return;
    const head = this.#heads.get(state.name);
    let changes: RowChange[] = [];
    if (head !== undefined) {
      const rows = await this.#store(() => this.#session!.loadRows(state.name));
      changes = rows.map((row) => ({ table: row.table, key: row.key, row }));
      for (const change of changes) state.rows.change(change);
      state.cursor = head.cursor;
      state.syncedAt = head.syncedAt;
      state.usable = true;
    }
    state.loaded = true;
    this.#publish([{ scope: state, kind: 'cached', transactions: [{ tx: 0, changes }] }]);
    if (this.#limits !== null) this.#subscribe(state);
  }

  #hello() {
    const { id, proven, acked } = this.outbox.client;
    const { sv } = this.catalog;
    return { client: id, new: !proven, sv: sv ?? undefined, await: this.outbox.awaited, acked };
  }

  async #frame(frame: ServerFrame): Promise<void> {
    switch (frame.t) {
      case 'welcome':
        return this.#welcome(frame);
      case 'schema':
        await this.#manifest(frame.sv, frame.schema);
        return;
      case 'subscribed':
        this.replica.subscribed(frame);
        return this.#publish([]);
      case 'rebuild':
        this.replica.rebuild(frame);
        return this.#publish([]);
      case 'page': {
        const page = this.replica.page(frame);
        if (page?.failed) return this.#mismatch(page.scope, 'digest_mismatch');
        return page?.cut ? this.#cut() : undefined;
      }
      case 'joined': {
        const joined = this.replica.joined(frame);
        if (joined?.failed) return this.#mismatch(joined.scope, 'digest_mismatch');
        return joined === null ? undefined : this.#cut();
      }
      case 'cut':
        return this.#cut();
      case 'materialized':
        this.#come.push(...frame.numbers);
        return;
      case 'outcome':
        this.outbox.outcome(frame.results);
        this.pusher.answered(frame.ref);
        return this.settle();
      case 'capture_pending':
        this.outbox.delayed(frame.numbers);
        return this.settle();
      case 'scopes':
        return this.#scopes(frame.added, frame.removed);
      case 'error':
        return this.#error(frame);
      case 'pong':
      case 'bye':
        return;
    }
  }

  async #welcome(frame: FrameOf<'welcome'>): Promise<void> {
    this.#limits = frame.limits;
    if (frame.schema !== null) {
      if (await this.#manifest(frame.sv, frame.schema)) return;
    } else if (!this.catalog.has(frame.sv)) {
      throw transient('protocol_violation', 'no manifest');
    }
    this.catalog.sv = frame.sv;
    const removed = this.assigned.value.filter((name) => !frame.assigned.includes(name));
    const added = frame.assigned.filter((name) => !this.assigned.value.includes(name));
    await this.#scopes(added, removed);
    // First what has no outcome, in order of number; then the scopes; then what was never sent.
    this.pusher.online(frame.limits);
    for (const { state } of this.held.values()) this.#subscribe(state);
    await this.settle();
  }

  /** True: it does not fit the generated schema, and the connection is given up. */
  async #manifest(sv: number, manifest: Manifest): Promise<boolean> {
    this.catalog.add(sv, manifest);
    this.catalog.sv = sv;
    await this.#apply({ manifest: { sv, manifest } });
    const mismatch = this.catalog.mismatch(manifest);
    if (mismatch !== null) this.connection.refuse(mismatch);
    return mismatch !== null;
  }

  #subscribe(scope: ScopeState): void {
    if (!scope.loaded || scope.phase === 'refused' || (scope.phase !== 'off' && scope.ref !== null)) return;
    scope.on('ask');
    scope.ref = this.connection.nextRef();
    const token = scope.staged?.kind === 'rebuild' ? scope.staged.token : null;
    this.connection.send({
      t: 'subscribe',
      ref: scope.ref,
      kind: 'scope',
      name: scope.name,
      cursor: token === null ? (scope.cursor ?? undefined) : undefined,
      token: token ?? undefined,
      mismatch: scope.mismatch || undefined,
    });
    scope.mismatch = false;
  }

  /** Everything staged in joined scopes, and the own writes that have come round with it: one step, one moment (V5, V6). */
  async #cut(): Promise<void> {
    const plan = this.replica.plan(this.#environment.now());
    const come = this.outbox.materialized(this.#come);
    const some = this.#come.length > 0;
    this.#come = [];
    if (some || plan.step.size > 0) await this.#apply({ ...come.step, scopes: plan.step });
    const changes = plan.apply();
    const tell = come.apply();
    this.#publish(changes);
    tell();
    if (some) this.pusher.progressed();
    await this.settle();
  }

  /** V4: discarded, rebuilt once, reported. A second time in a row it ends with an error, and nothing loops. */
  async #mismatch(scope: ScopeState, code: ClientCode | string): Promise<void> {
    this.#options.log('error', code, { scope: scope.name });
    const error = new SyncError(code, 'the rows did not match what the server said', {
      requestId: this.connection.session,
    });
    const wrong = code === 'digest_mismatch';
    await this.#apply({ scopes: new Map([[scope.name, DROPPED]]) });
    const again = this.replica.fail(scope, error, this.#environment.now());
    const change = wrong ? this.replica.discard(scope) : null;
    if (again) {
      scope.mismatch = wrong;
      scope.ref = null;
      this.#subscribe(scope);
    } else {
      this.connection.send({ t: 'unsubscribe', ref: this.connection.nextRef(), name: scope.name });
    }
    this.#publish(change === null ? [] : [change]);
  }

  async #scopes(added: readonly string[], removed: readonly string[]): Promise<void> {
    const names = [...this.assigned.value.filter((name) => !removed.includes(name) && !added.includes(name)), ...added];
    // CL-11: gone from the store and from sight before anything else is shown.
    await this.#apply({ assigned: names, scopes: new Map(removed.map((name) => [name, DROPPED])) });
    const changes = removed.flatMap((name): ScopeChange[] => {
      const held = this.held.get(name);
      if (held === undefined) return [];
      return [this.replica.revoke(held.state, new SyncError('scope_forbidden', 'access has ended'))];
    });
    this.#publish(changes);
    this.assigned.set(names);
    for (const name of added) {
      const state = this.held.get(name)?.state;
      if (state?.phase !== 'refused') continue;
      state.on('reset');
      state.error = null;
      if (this.#limits !== null) this.#subscribe(state);
    }
  }

  async #error(frame: FrameOf<'error'>): Promise<void> {
    const { code, message, retryable, ref, retry_after_ms } = frame;
    this.#options.log('warn', 'server_error', { code, of: frame.of ?? '' });
    if (code === 'client_expired' || code === 'client_forked') {
      this.outbox.forget({ code, message });
      await this.settle();
      return this.connection.drop(transient(code, message));
    }
    if (ref === null) return;
    if (this.pusher.refused(frame)) return this.settle();
    const scope = this.replica.byRef(ref);
    if (scope === undefined) return;
    const error = new SyncError(code, message, { retryable });
    switch (code) {
      case 'scope_forbidden':
        await this.#apply({ scopes: new Map([[scope.name, DROPPED]]) });
        return this.#publish([this.replica.revoke(scope, error)]);
      case 'cursor_invalid':
      case 'cursor_wrong_scope':
        return this.#mismatch(scope, code);
      case 'token_invalid':
        scope.staged = null;
        scope.ref = null;
        return this.#subscribe(scope);
      case 'cursor_ahead':
        return this.connection.drop(error);
      default:
        if (!retryable) {
          this.replica.refuse(scope, error);
          return this.#publish([]);
        }
        return this.#subscribeLater(scope, retry_after_ms);
    }
  }

  #subscribeLater(scope: ScopeState, afterMs: number | null): void {
    const ref = scope.ref;
    scope.retries += 1;
    const ms = Math.max(afterMs ?? 0, 100) + backoffMs(scope.retries, randomFraction(this.#environment));
    this.#environment.setTimer(() => {
      this.#lane.run(() => {
        // Asked again meanwhile, by a new connection.
        if (scope.ref !== ref || scope.holders === 0 || scope.phase !== 'asked') return;
        scope.ref = null;
        this.#subscribe(scope);
      });
    }, ms);
  }

  #lost(): void {
    this.#limits = null;
    this.#come = [];
    this.pusher.offline();
    this.replica.lost();
    this.#publish([]);
  }

  /** Saves what the outbox changed, decides conflicts, sends what is due, and shows it. */
  async settle(): Promise<void> {
    this.#resolver.advance();
    await this.#flush();
    if (this.#limits !== null) await this.pusher.pump();
    this.#publish([]);
    this.#demand();
  }

  async #flush(): Promise<void> {
    const saving = this.outbox.takeSaving();
    if (saving === null) return;
    await this.#apply(saving.step);
    this.#publish([]);
    saving.done();
  }

  async #apply(step: StoreStep): Promise<void> {
    for (const [name, { head }] of step.scopes ?? []) {
      if (head === null) this.#heads.delete(name);
      else this.#heads.set(name, head);
    }
    await this.#store(() => this.#session!.apply(step));
  }

  async #store<V>(use: () => Promise<V>): Promise<V> {
    try {
      return await use();
    } catch {
      throw new SyncError('store_failed', 'the local store refused');
    }
  }

  /** First everything is in place, then everybody hears of it: statuses and rows, then effects by transaction. */
  #publish(changes: readonly ScopeChange[]): void {
    for (const { table, key } of this.outbox.takeTouched()) {
      for (const held of this.held.values()) held.invalidate(table, [key]);
    }
    for (const change of changes) this.held.get(change.scope.name)?.changed(change);
    for (const { state } of this.held.values()) state.show();
    this.#showPending();
    for (const held of [...this.held.values()]) held.notify();
    this.pending.tell();
    changes
      .flatMap((change) => this.held.get(change.scope.name)?.effects(change) ?? [])
      .sort((a, b) => a.tx - b.tx)
      .forEach(({ deliver }) => {
        deliver();
      });
  }

  /** Entries are values: the same ones are shown as the same list. */
  #showPending(): void {
    const entries = this.outbox.entries.filter(({ shown }) => !shown);
    const same = entries.length === this.#shown.length && entries.every((entry, index) => entry === this.#shown[index]);
    if (same) return;
    this.#shown = entries;
    this.pending.put(entries.map((entry) => this.#describe(entry)));
  }

  /** The same entry is shown as the same object. */
  #describe(entry: Entry): object {
    const known = this.#described.get(entry) ?? this.#options.describe(entry);
    this.#described.set(entry, known);
    return known;
  }

  /** Once for each error, whichever way it comes. */
  #report(error: SyncError): void {
    if (this.#reported === error) return;
    this.#reported = error;
    this.#options.log('error', error.code, { message: error.message });
  }

  #failed(error: unknown): void {
    const known =
      error instanceof SyncError ? error : new SyncError('internal', String((error as Error)?.message ?? error));
    this.#report(known);
    if (known.code === 'store_failed') {
      // What cannot be saved is not promised.
      this.ended ??= known;
      this.outbox.close(known);
    }
    if (known.retryable) this.connection.drop(known);
    else this.connection.refuse(known);
  }
}
