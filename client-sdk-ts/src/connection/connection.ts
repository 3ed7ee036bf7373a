/**
 * Owns the one socket: tokens, opening, heartbeats, reconnecting. Hands over frames in order and knows nothing of rows. When a
 * socket is given up its handlers are detached first, so nothing of it arrives afterwards.
 */

import { hex } from '../bytes.ts';
import type { Environment, SocketLike } from '../environment.ts';
import { randomFraction } from '../environment.ts';
import { SyncError, transient } from '../errors.ts';
import { decodeFrame, type FrameOf } from '../protocol/decode.ts';
import { encode, type Wire } from '../protocol/encode.ts';
import {
  CLOSE_CODES,
  type ClientFrame,
  type Hello,
  PROTOCOL_VERSION,
  type ServerFrame,
  SUBPROTOCOL,
} from '../protocol/frames.ts';
import { Cell } from '../signal.ts';
import { after } from '../transitions.ts';
import { backoffMs, longBackoffMs, renewalMs } from './backoff.ts';
import { EVENTS, type EventName, HAS_SOCKET, STATES, type StateName } from './states.ts';

export type AuthReason = 'connect' | 'expiring' | 'rejected';

export type Status =
  | { readonly state: 'idle' | 'online' | 'closed' }
  | { readonly state: 'connecting' | 'offline'; readonly retryAt?: number; readonly cause?: SyncError | undefined }
  /** Never retried by itself: `reconnect()` does. */
  | { readonly state: 'needs-auth' | 'failed'; readonly cause: SyncError };

/** What the connection serves. Every call comes in the order in which things happened on the socket. */
export interface ConnectionHandler {
  /** The socket is open: what `hello` says of the client and its store. */
  hello(): Promise<Omit<Hello, 't' | 'v' | 'token' | 'user'>>;
  frame(frame: ServerFrame): void;
  /** The session is over. */
  lost(): void;
}

/** Until `welcome`, from the first try to open. */
const CONNECT_TIMEOUT_MS = 15_000;
/** A connection that lasted this long was a success: the next loss starts with a short delay again. */
const LASTING_MS = 30_000;
/** After a wake-up the server must answer within this. */
const PROBE_MS = 5_000;

export class Connection {
  readonly status = new Cell<Status>({ state: 'idle' });
  readonly #environment: Environment;
  readonly #url: string;
  readonly #auth: (why: AuthReason) => Promise<string | null>;
  readonly #user: string;
  readonly #handler: ConnectionHandler;
  readonly #endWake: () => void;
  #state: StateName = 'idle';
  #socket: SocketLike | null = null;
  #token: string | null = null;
  #why: AuthReason = 'connect';
  /** A token was refused since the last welcome. */
  #refusedOnce = false;
  #attempt = 0;
  #cause: SyncError | undefined;
  #retryInMs: number | null = null;
  #retryAt: number | undefined;
  #onlineSince = 0;
  #heardAt = 0;
  /** Messages received, to tell whether one came since. */
  #heard = 0;
  #heartbeatMs = 0;
  #pings = 0;
  #ref = 0;
  #session: string | undefined;
  /** Counts attempts, so that an answer of `auth()` for an earlier one is not taken for this one. */
  #epoch = 0;
  readonly #timers = new Map<string, unknown>();

  constructor(
    environment: Environment,
    url: string,
    user: string,
    auth: (why: AuthReason) => Promise<string | null>,
    handler: ConnectionHandler,
  ) {
    this.#environment = environment;
    this.#url = url;
    this.#user = user;
    this.#auth = auth;
    this.#handler = handler;
    this.#endWake = environment.onWake(() => this.#wake());
  }

  get online(): boolean {
    return this.#state === 'online';
  }

  /** The session's id, for errors. */
  get session(): string | undefined {
    return this.#session;
  }

  /** A number for a request; answers carry it. */
  nextRef(): number {
    this.#ref += 1;
    return this.#ref;
  }

  want(): void {
    this.#on('want');
  }

  unwant(): void {
    this.#on('unwant');
  }

  again(): void {
    this.#attempt = 0;
    this.#refusedOnce = false;
    this.#why = 'connect';
    this.#on('again');
  }

  close(): void {
    this.#on('close');
    this.#endWake();
  }

  /** Gives the session up and tries again with backoff. */
  drop(cause: SyncError): void {
    this.#lost(cause);
  }

  /** Gives up for good: another attempt would end the same. */
  refuse(cause: SyncError): void {
    this.#cause = cause;
    this.#on('refused');
  }

  /** Lost when there is no session: what must arrive is sent again by the next one. */
  send(frame: ClientFrame<Wire>): void {
    if (this.#state === 'online' || frame.t === 'hello') this.#socket?.send(encode(frame as unknown as Wire));
  }

  #on(event: EventName): void {
    const from = this.#state;
    const to = after(STATES, EVENTS, from, event);
    if (to === from) return;
    this.#state = to;
    if (HAS_SOCKET.has(from) && !HAS_SOCKET.has(to)) this.#drop();
    this.#enter(to);
  }

  #enter(state: StateName): void {
    switch (state) {
      case 'idle':
      case 'closed':
        this.#stopTimers();
        this.status.set({ state });
        return;
      case 'needs-auth':
      case 'failed':
        this.#stopTimers();
        // Both are entered with a cause: a token was refused, or `refuse` was called.
        this.status.set({ state, cause: this.#cause! });
        return;
      case 'authorizing':
        this.#stopTimers();
        this.status.set({ state: 'connecting', cause: this.#cause });
        void this.#authorize();
        return;
      case 'opening':
        this.#open();
        return;
      case 'greeting':
        void this.#greet();
        return;
      case 'online':
        this.#cause = undefined;
        this.#retryInMs = null;
        this.status.set({ state: 'online' });
        return;
      case 'waiting':
        this.#stopTimers();
        this.#wait(this.#retryInMs ?? backoffMs(this.#attempt, randomFraction(this.#environment)));
        this.#attempt += 1;
        return;
    }
  }

  #wait(ms: number): void {
    this.#retryInMs = null;
    this.#retryAt = this.#environment.now() + ms;
    this.#timer('retry', ms, () => this.#on('due'));
    this.status.set({
      state: 'offline',
      retryAt: this.#retryAt,
      cause: this.#cause,
    });
  }

  async #authorize(): Promise<void> {
    this.#epoch += 1;
    const epoch = this.#epoch;
    const why = this.#why;
    let token: string | null;
    try {
      token = await this.#auth(why);
    } catch {
      if (epoch === this.#epoch) this.#lost(transient('auth_failed', 'auth() threw'));
      return;
    }
    if (epoch !== this.#epoch || this.#state !== 'authorizing') return;
    if (why === 'rejected' && (token === null || token === this.#token)) return this.#on('no-token');
    this.#token = token;
    this.#why = 'connect';
    this.#on('token');
  }

  #open(): void {
    this.#timer('connect', CONNECT_TIMEOUT_MS, () => this.#lost(transient('connect_timeout', 'no answer in time')));
    let socket: SocketLike;
    try {
      socket = this.#environment.socket(this.#url, SUBPROTOCOL);
    } catch (error) {
      if (error instanceof SyncError) return this.refuse(error);
      return this.#lost(transient('connection_closed', 'no socket'));
    }
    socket.binaryType = 'arraybuffer';
    socket.onopen = () => this.#on('opened');
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code }) => this.#closed(code);
    // A close follows an error, always.
    socket.onerror = () => {};
    this.#socket = socket;
  }

  async #greet(): Promise<void> {
    const socket = this.#socket;
    // Who cannot say hello has refused the connection already.
    const hello = await this.#handler.hello().catch(() => null);
    if (hello === null || socket !== this.#socket || this.#state !== 'greeting') return;
    const token = this.#token;
    this.send({
      t: 'hello',
      v: [PROTOCOL_VERSION],
      token: token ?? undefined,
      user: token === null ? undefined : this.#user,
      ...hello,
    });
  }

  #receive(data: unknown): void {
    this.#heardAt = this.#environment.now();
    this.#heard += 1;
    let frame: ServerFrame | null;
    try {
      if (!(data instanceof ArrayBuffer)) throw transient('protocol_violation', 'expected a binary frame');
      frame = decodeFrame(new Uint8Array(data));
    } catch (error) {
      return this.#lost(error as SyncError);
    }
    if (frame === null) return;
    switch (frame.t) {
      case 'welcome':
        return this.#welcome(frame);
      case 'pong':
        return;
      case 'bye':
        this.#retryInMs = frame.reconnect_ms ?? this.#retryInMs;
        return;
      case 'error':
        this.#note(frame);
        break;
      default:
        break;
    }
    this.#handler.frame(frame);
  }

  #welcome(frame: FrameOf<'welcome'>): void {
    if (this.#state !== 'greeting') return;
    this.#clear('connect');
    this.#refusedOnce = false;
    this.#onlineSince = this.#environment.now();
    this.#heartbeatMs = frame.heartbeat_ms;
    this.#session = hex(frame.session);
    this.#on('welcome');
    this.#beat();
    this.#renewLater();
    this.#handler.frame(frame);
  }

  /** Remembers why the socket may be about to close: every error that answers no request of an open session. */
  #note({ code, message, retryable, retry_after_ms, ref }: FrameOf<'error'>): void {
    if (ref !== null && this.#state === 'online') return;
    this.#cause = new SyncError(code, message, {
      retryable,
      requestId: this.#session,
    });
    this.#retryInMs = retry_after_ms;
  }

  #closed(code: number): void {
    const cause = this.#cause ?? transient('connection_closed', `closed with code ${code}`);
    if (code === CLOSE_CODES.auth_failed || code === CLOSE_CODES.auth_expired) return this.#rejected(cause);
    if (code === CLOSE_CODES.protocol && !cause.retryable) return this.refuse(cause);
    if (code === CLOSE_CODES.protocol || code === CLOSE_CODES.limit) {
      this.#retryInMs ??= longBackoffMs(randomFraction(this.#environment));
    }
    this.#lost(cause);
  }

  /** A fresh token at once, one time; a second refusal needs a person. Never a tight loop of short sessions. */
  #rejected(cause: SyncError): void {
    this.#cause = cause;
    this.#why = 'rejected';
    if (this.#state === 'online') {
      return this.#lasted() ? this.#on('rejected') : this.#lost(cause);
    }
    if (this.#refusedOnce) return this.#on('no-token');
    this.#refusedOnce = true;
    this.#on('rejected');
  }

  #lasted(): boolean {
    return this.#environment.now() - this.#onlineSince >= LASTING_MS;
  }

  #lost(cause: SyncError): void {
    this.#cause = cause;
    if (this.#state === 'online' && this.#lasted()) this.#attempt = 0;
    this.#on('lost');
  }

  /** Lets go of the socket. Handlers first: what it may still deliver belongs to a session that is over. */
  #drop(): void {
    const socket = this.#socket;
    if (socket === null) return;
    this.#socket = null;
    socket.onopen = null;
    socket.onmessage = null;
    socket.onclose = null;
    socket.onerror = () => {};
    this.#stopTimers();
    try {
      socket.close(1000);
    } catch {
      // It was never open, or is closed already.
    }
    this.#handler.lost();
  }

  /** Sent whatever else is sent or heard, so that proxies and the server see life; two silent intervals end the session. */
  #beat(): void {
    this.#timer('beat', this.#heartbeatMs, () => {
      if (this.#environment.now() - this.#heardAt >= 2 * this.#heartbeatMs) return this.#silent();
      this.#ping();
      this.#beat();
    });
  }

  #ping(): void {
    this.#pings += 1;
    this.send({ t: 'ping', id: this.#pings });
  }

  #silent(): void {
    this.#lost(transient('connection_silent', 'the server is silent'));
  }

  /** The device may have slept: look at once whether the connection is alive, or try again soon. */
  #wake(): void {
    if (this.#state === 'online' && !this.#timers.has('probe')) {
      const heard = this.#heard;
      this.#ping();
      this.#timer('probe', PROBE_MS, () => {
        if (this.#heard === heard) this.#silent();
      });
    } else if (this.#state === 'waiting') {
      const soon = Math.floor(randomFraction(this.#environment) * 1_000);
      if (this.#environment.now() + soon < this.#retryAt!) this.#wait(soon);
    }
  }

  #renewLater(): void {
    const token = this.#token;
    const ms = token === null ? null : renewalMs(token, this.#environment.now());
    if (ms === null) return;
    // Timers hold 31 bits; a token that lives longer is looked at again on the next connect.
    this.#timer('renew', Math.min(ms, 2 ** 31 - 1), () => void this.#renew(token!));
  }

  async #renew(old: string): Promise<void> {
    const socket = this.#socket;
    // Without a fresh token the session goes on until the server ends it, which asks again.
    const token = await this.#auth('expiring').catch(() => null);
    if (socket !== this.#socket || !this.online || token === null || token === old) return;
    this.#token = token;
    this.send({ t: 'auth', ref: this.nextRef(), token });
    this.#renewLater();
  }

  #timer(name: string, ms: number, fn: () => void): void {
    this.#clear(name);
    this.#timers.set(
      name,
      this.#environment.setTimer(() => {
        this.#timers.delete(name);
        fn();
      }, ms),
    );
  }

  #clear(name: string): void {
    this.#environment.clearTimer(this.#timers.get(name));
    this.#timers.delete(name);
  }

  #stopTimers(): void {
    for (const name of [...this.#timers.keys()]) this.#clear(name);
  }
}
