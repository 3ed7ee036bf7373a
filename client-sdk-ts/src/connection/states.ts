/** How a connection may go: a total table of state and event. What entering a state does is in `connection.ts`. */

import type { Transitions } from '../transitions.ts';

export type StateName =
  /** Nothing is wanted. */
  | 'idle'
  /** Asking the application for a token. */
  | 'authorizing'
  /** The socket is being opened. */
  | 'opening'
  /** `hello` was sent. */
  | 'greeting'
  | 'online'
  /** Until the next attempt. */
  | 'waiting'
  /** The application has no token that the server takes. */
  | 'needs-auth'
  /** Trying again would change nothing. */
  | 'failed'
  | 'closed';

export const EVENTS = [
  /** Something is to be synced. */
  'want',
  'unwant',
  /** The application gave a token, or null for an anonymous session. */
  'token',
  /** It has none, or the server refused the fresh one too. */
  'no-token',
  'opened',
  'welcome',
  /** The socket ended, went silent, or never opened; or `auth()` threw. */
  'lost',
  /** The server refused the token. */
  'rejected',
  /** The server or we found that it cannot work. */
  'refused',
  /** It is time for the next attempt. */
  'due',
  /** The application asks for a new attempt at once. */
  'again',
  'close',
] as const;
export type EventName = (typeof EVENTS)[number];

const IDLE = 'idle';
const AUTH = 'authorizing';
const OPEN = 'opening';
const GREET = 'greeting';
const LIVE = 'online';
const WAIT = 'waiting';
const NEED = 'needs-auth';
const FAIL = 'failed';
const END = 'closed';

// biome-ignore format: a table
export const STATES: Transitions<StateName, typeof EVENTS> = {
  //            want   unwant token  no-token opened welcome lost  rejected refused due    again  close
  idle:        [AUTH,  IDLE,  IDLE,  IDLE,    IDLE,  IDLE,   IDLE, IDLE,    FAIL,   IDLE,  IDLE,  END],
  authorizing: [AUTH,  IDLE,  OPEN,  NEED,    AUTH,  AUTH,   WAIT, AUTH,    FAIL,   AUTH,  AUTH,  END],
  opening:     [OPEN,  IDLE,  OPEN,  NEED,    GREET, OPEN,   WAIT, AUTH,    FAIL,   OPEN,  OPEN,  END],
  greeting:    [GREET, IDLE,  GREET, NEED,    GREET, LIVE,   WAIT, AUTH,    FAIL,   GREET, GREET, END],
  online:      [LIVE,  IDLE,  LIVE,  NEED,    LIVE,  LIVE,   WAIT, AUTH,    FAIL,   LIVE,  AUTH,  END],
  waiting:     [WAIT,  IDLE,  WAIT,  WAIT,    WAIT,  WAIT,   WAIT, WAIT,    FAIL,   AUTH,  AUTH,  END],
  'needs-auth':[NEED,  NEED,  NEED,  NEED,    NEED,  NEED,   NEED, NEED,    FAIL,   NEED,  AUTH,  END],
  failed:      [FAIL,  FAIL,  FAIL,  FAIL,    FAIL,  FAIL,   FAIL, FAIL,    FAIL,   FAIL,  AUTH,  END],
  closed:      [END,   END,   END,   END,     END,   END,    END,  END,     END,    END,   END,   END],
};

/** States that have a socket. */
export const HAS_SOCKET: ReadonlySet<StateName> = new Set([OPEN, GREET, LIVE]);
