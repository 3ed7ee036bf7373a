/**
 * A scripted model of the gateway, in process: it speaks the protocol over fake sockets and moves only when a test tells it to.
 * For interleavings that cannot be forced with a real server; `test/server/` holds the tests against a real one.
 */

import { decode } from '@msgpack/msgpack';
import { hex, text, utf8 } from '../../src/bytes.ts';
import type { SocketLike } from '../../src/environment.ts';
import { encode, type Wire } from '../../src/protocol/encode.ts';
import type { ClientFrame, Hello, Push, ServerFrame, Subscribe } from '../../src/protocol/frames.ts';
import { Database, type LogTransaction, MANIFEST, type ModelEffect, rowBytes } from './database.ts';

/** Both ends of one connection. What the server sends waits until it is delivered. */
export class Connection implements SocketLike {
  binaryType = '';
  onopen: SocketLike['onopen'] = null;
  onmessage: SocketLike['onmessage'] = null;
  onclose: SocketLike['onclose'] = null;
  onerror: SocketLike['onerror'] = null;
  readonly received: ClientFrame<unknown>[] = [];
  readonly toClient: Uint8Array[] = [];
  readonly server: ModelServer;
  session: Session | null = null;
  open = false;
  ended = false;

  constructor(server: ModelServer) {
    this.server = server;
  }

  accept(): void {
    this.open = true;
    this.onopen?.(undefined as never);
  }

  send(data: Uint8Array): void {
    if (!this.open) throw new Error('the socket is not open');
    const frame = decode(data, { useBigInt64: true }) as ClientFrame<unknown>;
    this.received.push(frame);
    this.server.receive(this, frame);
  }

  /** By the client. */
  close(): void {
    this.open = false;
    this.ended = true;
  }

  /** By the server, or by the network. */
  end(code: number): void {
    if (this.ended) return;
    this.open = false;
    this.ended = true;
    this.onclose?.({ code });
  }

  /** Hands over one waiting frame. */
  deliver(): boolean {
    const bytes = this.toClient.shift();
    if (bytes === undefined || this.ended) return false;
    this.onmessage?.({ data: bytes.slice().buffer });
    return true;
  }

  answer(frame: ServerFrame): void {
    if (!this.ended) this.toClient.push(encode(withoutNil(frame as unknown as Wire)));
  }

  frames<T extends ClientFrame['t']>(t: T): Extract<ClientFrame<unknown>, { t: T }>[] {
    return this.received.filter((frame) => frame.t === t) as Extract<ClientFrame<unknown>, { t: T }>[];
  }
}

function withoutNil(frame: Wire): Wire {
  return Object.fromEntries(Object.entries(frame as object).filter(([, value]) => value !== null)) as Wire;
}

interface Subscription {
  readonly name: string;
  readonly number: number;
  joined: boolean;
  /** Everything up to here was sent: a transaction's number, and how many of its effects. */
  lsn: number;
  effects: number;
  /** Rebuild: rows not sent yet are those after this place. Null: no rows to send any more. */
  rows: { readonly from: number; after: string } | null;
  /** Where the latest range was read. */
  readAt: number;
}

export interface Session {
  readonly client: string;
  /** The last transaction delivered at a cut. */
  delivered: number;
  readonly subscriptions: Map<string, Subscription>;
  readonly awaited: Set<number>;
  /** Numbers whose fences hold the next operation back (V2); null: no operation is under way. */
  gate: Set<number> | null;
}

export class ModelServer {
  readonly database = new Database();
  readonly connections: Connection[] = [];
  /** Connections that the client opens are accepted at once. */
  accepting = true;
  pageEffectsMax = 2;
  heartbeatMs = 20_000;
  /** Whom a scope is granted to is not modelled: these are refused. */
  readonly forbidden = new Set<string>();
  /** Tokens that are refused. */
  readonly refusedTokens = new Set<string>();
  /** Answers the next pushes with this error, so many times. */
  failPushes: { code: string; retryable: boolean; times: number } | null = null;
  /** Outcomes are kept back while true; the mutations run. */
  loseOutcomes = false;
  /** A cut with one page may be that page with `fin`. */
  useFin = true;
  assigned: string[] = ['all'];
  #numbers = 0;

  connect(): SocketLike {
    const connection = new Connection(this);
    this.connections.push(connection);
    if (this.accepting) queueMicrotask(() => connection.accept());
    return connection;
  }

  get last(): Connection {
    return this.connections.at(-1)!;
  }

  receive(connection: Connection, frame: ClientFrame<unknown>): void {
    switch (frame.t) {
      case 'hello':
        return this.#hello(connection, frame);
      case 'subscribe':
        return this.#subscribe(connection, frame);
      case 'unsubscribe':
        connection.session!.subscriptions.delete(frame.name);
        return;
      case 'push':
        return this.#push(connection, frame);
      case 'void': {
        const results = this.database.void(connection.session!.client, frame.numbers);
        return connection.answer({ t: 'outcome', ref: frame.ref, results });
      }
      case 'auth':
        return;
      case 'ping':
        return connection.answer({ t: 'pong', id: frame.id });
    }
  }

  #hello(connection: Connection, { client, new: isNew, acked, await: awaited, token, sv }: Hello): void {
    if (token !== undefined && this.refusedTokens.has(token)) {
      connection.answer(error('auth_invalid', false));
      while (connection.deliver());
      return connection.end(4002);
    }
    const id = hex(client);
    const known = this.database.clients.get(id);
    if ((known === undefined && !isNew) || acked > (known?.last ?? 0)) {
      return connection.answer(error('client_expired', false));
    }
    const { last } = this.database.client(id);
    connection.session = {
      client: id,
      delivered: this.database.log.length,
      subscriptions: new Map(),
      awaited: new Set(awaited),
      gate: null,
    };
    connection.answer({
      t: 'welcome',
      session: new Uint8Array(16),
      v: 3,
      sv: 1,
      schema: sv === 1 ? null : MANIFEST,
      limits: {
        frame_bytes_max: 1 << 20,
        batch_mutations_max: 100,
        scopes_max: 100,
        mutations_per_second: 1000,
        unmaterialized_max: 50,
      },
      heartbeat_ms: this.heartbeatMs,
      assigned: this.assigned,
      set: 1,
      last,
    });
  }

  #subscribe(connection: Connection, { ref, name = '', cursor, token, mismatch }: Subscribe): void {
    const session = connection.session!;
    if (this.forbidden.has(name))
      return connection.answer({ ...error('scope_forbidden', false), ref, of: 'subscribe' });
    this.#numbers += 1;
    const number = this.#numbers;
    const at = cursor === undefined ? null : readCursor(cursor);
    const run = token === undefined ? null : (JSON.parse(text(token)) as { from: number; after: string | null });
    if (at !== null && at.name !== name) {
      return connection.answer({ ...error('cursor_wrong_scope', false), ref, of: 'subscribe' });
    }
    const subscription: Subscription = {
      name,
      number,
      joined: false,
      readAt: 0,
      lsn: at?.lsn ?? run?.from ?? session.delivered,
      effects: at?.effects ?? 0,
      rows:
        at !== null
          ? null
          : run === null
            ? { from: session.delivered, after: '' }
            : run.after === null
              ? null
              : { from: run.from, after: run.after },
    };
    session.subscriptions.set(name, subscription);
    connection.answer({
      t: 'subscribed',
      ref,
      scope: number,
      name,
      mode: at === null ? 'rebuild' : 'resume',
      reason: at !== null ? null : run !== null ? 'continued' : mismatch === true ? 'digest_mismatch' : 'new',
    });
  }

  #push(connection: Connection, { ref, batch, atomic, mutations, acked }: Push): void {
    const session = connection.session!;
    const client = this.database.client(session.client);
    client.acked = Math.max(client.acked, acked);
    if (this.failPushes !== null && this.failPushes.times > 0) {
      this.failPushes.times -= 1;
      const { code, retryable } = this.failPushes;
      return connection.answer({ ...error(code, retryable), ref, of: 'push' });
    }
    const { results, error: code } = this.database.push(session.client, batch, atomic, mutations);
    for (const { n, status } of results) if (status === 'accepted') session.awaited.add(n);
    if (code !== null) return connection.answer({ ...error(code, code === 'gap'), ref, of: 'push' });
    if (!this.loseOutcomes) connection.answer({ t: 'outcome', ref, results });
  }

  /**
   * One step of one session: a part of a subscription's way, or the next cut; which one, `choose` says, given how many there are.
   * False: there is nothing to do, or V2 holds it.
   */
  step(connection: Connection, choose: (count: number) => number = () => 0): boolean {
    const { session } = connection;
    if (session === null || connection.ended) return false;
    session.gate ??= new Set(this.database.client(session.client).pending);
    for (const n of session.gate) if (!this.database.client(session.client).pending.has(n)) session.gate.delete(n);
    if (session.gate.size > 0) return false;
    session.gate = null;
    const steps = [...session.subscriptions.values()]
      .filter(({ joined }) => !joined)
      .map((subscription) => () => this.#advance(connection, session, subscription));
    if (session.delivered < this.database.log.length) steps.push(() => this.#cut(connection, session));
    return steps.length > 0 && steps[choose(steps.length)]!();
  }

  /** A page, rows, or `joined` of a subscription that is on its way. */
  #advance(connection: Connection, session: Session, subscription: Subscription): boolean {
    const { name, number, rows } = subscription;
    if (rows !== null) {
      const all = this.database.rowsOf(name).map((row) => ({ row, place: `${row.table}:${row.key}` }));
      const next = all
        .filter(({ place }) => place > rows.after)
        .sort((a, b) => (a.place < b.place ? -1 : 1))
        .slice(0, this.pageEffectsMax);
      const done = all.every(({ place }) => place <= (next.at(-1)?.place ?? rows.after));
      rows.after = next.at(-1)?.place ?? rows.after;
      subscription.readAt = this.database.log.length;
      const token = utf8(JSON.stringify({ from: rows.from, after: done ? null : rows.after }));
      connection.answer({
        t: 'rebuild',
        scope: number,
        sv: 1,
        rows: next.map(({ row }) => [row.table, row.key, row.version, rowBytes(row.table, row.values)]),
        token,
        done,
      });
      if (done) subscription.rows = null;
      return true;
    }
    // Ranges were read at later positions than the session's: first the session moves there.
    if (session.delivered < subscription.readAt) return this.#cut(connection, session);
    if (!this.#page(connection, subscription, session.delivered, false)) {
      subscription.joined = true;
      this.#materialized(connection, session, session.delivered);
      const { count, digest } = this.#state(name, session.delivered);
      const cursor = writeCursor({ name, lsn: session.delivered, effects: 0 });
      connection.answer({ t: 'joined', scope: number, cursor, count, digest });
    }
    return true;
  }

  /** One page towards a position. False: it is there already. */
  #page(connection: Connection, subscription: Subscription, until: number, fin: boolean): boolean {
    const { name, number } = subscription;
    const txs: [number, ModelEffect[]][] = [];
    let room = this.pageEffectsMax;
    let last: ModelEffect | null = null;
    let more = false;
    for (const { lsn, effects } of this.database.log) {
      if (lsn <= subscription.lsn || lsn > until || room === 0) continue;
      const mine = (effects.get(name) ?? []).slice(subscription.effects);
      const taken = mine.slice(0, room);
      if (taken.length > 0) txs.push([lsn, taken]);
      last = taken.at(-1) ?? last;
      room -= taken.length;
      more = taken.length < mine.length;
      subscription.effects = more ? subscription.effects + taken.length : 0;
      if (!more) subscription.lsn = lsn;
    }
    if (last === null) return false;
    const cursor = writeCursor({ name, lsn: subscription.lsn, effects: subscription.effects });
    const whole = !more && !this.#rest(subscription, until);
    connection.answer({
      t: 'page',
      scope: number,
      sv: 1,
      txs: txs.map(([tx, effects]) => [
        tx,
        effects.map(({ op, table, key, version, row }) => [op, table, key, version, row]),
      ]),
      more,
      cursor,
      count: last.count,
      digest: digestBytes(last.digest),
      fin: fin && whole,
    });
    return true;
  }

  #rest({ name, lsn }: Subscription, until: number): boolean {
    return this.database.log.some((tx) => tx.lsn > lsn && tx.lsn <= until && tx.effects.has(name));
  }

  /** The session moves by one transaction. */
  #cut(connection: Connection, session: Session): boolean {
    const transaction = this.database.log[session.delivered];
    if (transaction === undefined) return false;
    const joined = [...session.subscriptions.values()].filter((subscription) => subscription.joined);
    const concerned = joined.filter(({ name }) => transaction.effects.has(name));
    const effects = concerned.reduce((sum, { name }) => sum + transaction.effects.get(name)!.length, 0);
    const fin = this.useFin && concerned.length === 1 && effects <= this.pageEffectsMax;
    session.delivered = transaction.lsn;
    if (fin) this.#materialized(connection, session, transaction.lsn);
    for (const subscription of concerned) while (this.#page(connection, subscription, transaction.lsn, fin));
    for (const subscription of joined) {
      subscription.lsn = transaction.lsn;
      subscription.effects = 0;
    }
    if (!fin) {
      const some = this.#materialized(connection, session, transaction.lsn);
      if (some || concerned.length > 0) connection.answer({ t: 'cut' });
    }
    return true;
  }

  #materialized(connection: Connection, session: Session, until: number): boolean {
    const come = [...session.awaited].filter((n) => this.#come(session.client, n, until));
    for (const n of come) session.awaited.delete(n);
    if (come.length > 0) connection.answer({ t: 'materialized', numbers: come });
    return come.length > 0;
  }

  #come(client: string, n: number, until: number): boolean {
    return this.database.log.some(
      (tx: LogTransaction) => tx.lsn <= until && tx.mutations.some((m) => m.client === client && m.n === n),
    );
  }

  /** Count and digest of a scope at a position. */
  #state(name: string, lsn: number): { count: number; digest: Uint8Array } {
    const last = this.database.log
      .slice(0, lsn)
      .flatMap(({ effects }) => effects.get(name) ?? [])
      .at(-1);
    return { count: last?.count ?? 0, digest: digestBytes(last?.digest ?? 0n) };
  }

  /** Everything there is to do for a connection: steps until none is left. */
  stepAll(connection: Connection): void {
    while (this.step(connection));
  }
}

export function error(code: string, retryable: boolean): Extract<ServerFrame, { t: 'error' }> {
  return { t: 'error', code, message: code, retryable, retry_after_ms: null, ref: null, of: null };
}

interface Cursor {
  readonly name: string;
  readonly lsn: number;
  readonly effects: number;
}

function writeCursor(cursor: Cursor): Uint8Array {
  return utf8(JSON.stringify(cursor));
}

function readCursor(bytes: Uint8Array): Cursor {
  return JSON.parse(text(bytes)) as Cursor;
}

function digestBytes(digest: bigint): Uint8Array {
  const bytes = new Uint8Array(16);
  new DataView(bytes.buffer).setBigUint64(0, digest >> 64n);
  new DataView(bytes.buffer).setBigUint64(8, digest & 0xffff_ffff_ffff_ffffn);
  return bytes;
}
