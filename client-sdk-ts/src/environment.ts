/** Time, randomness, sockets and wake-ups: everything that the SDK takes from its platform, so that tests can give their own. */

import { SyncError } from './errors.ts';

/** Compared as methods are, so that a socket fits whose own events have what is read here, and more. */
type Handler<E> = { call(event: E): void }['call'] | null;

/** What the SDK uses of a WebSocket; the browser's and the `ws` package's both fit. */
export interface SocketLike {
  binaryType: string;
  onopen: Handler<never>;
  onmessage: Handler<{ data: unknown }>;
  onclose: Handler<{ code: number }>;
  onerror: Handler<never>;
  send(data: Uint8Array): void;
  close(code?: number): void;
}

export interface Environment {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Calls `fn` after `ms` milliseconds; gives what `clearTimer` takes. */
  setTimer(fn: () => void, ms: number): unknown;
  /** Nothing to do for null, undefined, or a timer that has fired. */
  clearTimer(timer: unknown): void;
  /** Fills the array with random bytes of cryptographic quality. */
  fillRandom(bytes: Uint8Array): void;
  /** Opens a WebSocket. */
  socket(url: string, subprotocol: string): SocketLike;
  /** Calls `fn` when the device may have slept or lost its network: tab visible, network back. Gives the end of it. */
  onWake(fn: () => void): () => void;
}

export function platform(): Environment {
  return {
    now: () => Date.now(),
    setTimer: (fn, ms) => {
      const timer = setTimeout(fn, ms);
      // In Node a waiting reconnect must not keep the process alive; browsers give a number.
      if (typeof timer === 'object') (timer as { unref?: () => void }).unref?.();
      return timer;
    },
    clearTimer: (timer) => clearTimeout(timer as ReturnType<typeof setTimeout>),
    // `crypto.randomUUID` does not exist on plain http origins; this does.
    fillRandom: (bytes) => void crypto.getRandomValues(bytes as Uint8Array<ArrayBuffer>),
    socket: (url, subprotocol) => {
      if (typeof WebSocket === 'undefined') {
        throw new SyncError('no_websocket', 'no WebSocket: pass environment.socket, as of the ws package');
      }
      return new WebSocket(url, subprotocol) as unknown as SocketLike;
    },
    onWake: (fn) => {
      if (typeof document === 'undefined') return () => {};
      const visible = () => document.visibilityState === 'visible' && fn();
      document.addEventListener('visibilitychange', visible);
      window.addEventListener('online', fn);
      return () => {
        document.removeEventListener('visibilitychange', visible);
        window.removeEventListener('online', fn);
      };
    },
  };
}

export function randomBytes(environment: Environment, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  environment.fillRandom(bytes);
  return bytes;
}

/** A number in [0, 1). */
export function randomFraction(environment: Environment): number {
  return new DataView(randomBytes(environment, 4).buffer).getUint32(0) / 2 ** 32;
}
