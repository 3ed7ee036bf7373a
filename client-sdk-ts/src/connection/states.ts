/** How a connection may go: a total table of state and event. What entering a state does is in `connection.ts`. */

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

export type EventName =
  /** Something is to be synced. */
  | 'want'
  | 'unwant'
  /** The application gave a token, or null for an anonymous session. */
  | 'token'
  /** It has none, or the server refused the fresh one too. */
  | 'no-token'
  | 'opened'
  | 'welcome'
  /** The socket ended, went silent, or never opened; or `auth()` threw. */
  | 'lost'
  /** The server refused the token. */
  | 'rejected'
  /** The server or we found that it cannot work. */
  | 'refused'
  /** It is time for the next attempt. */
  | 'due'
  /** The application asks for a new attempt at once. */
  | 'again'
  | 'close';

export const STATES: Record<StateName, Record<EventName, StateName>> = {
  idle: {
    want: 'authorizing',
    unwant: 'idle',
    token: 'idle',
    'no-token': 'idle',
    opened: 'idle',
    welcome: 'idle',
    lost: 'idle',
    rejected: 'idle',
    refused: 'failed',
    due: 'idle',
    again: 'idle',
    close: 'closed',
  },
  authorizing: {
    want: 'authorizing',
    unwant: 'idle',
    token: 'opening',
    'no-token': 'needs-auth',
    opened: 'authorizing',
    welcome: 'authorizing',
    lost: 'waiting',
    rejected: 'authorizing',
    refused: 'failed',
    due: 'authorizing',
    again: 'authorizing',
    close: 'closed',
  },
  opening: {
    want: 'opening',
    unwant: 'idle',
    token: 'opening',
    'no-token': 'needs-auth',
    opened: 'greeting',
    welcome: 'opening',
    lost: 'waiting',
    rejected: 'authorizing',
    refused: 'failed',
    due: 'opening',
    again: 'opening',
    close: 'closed',
  },
  greeting: {
    want: 'greeting',
    unwant: 'idle',
    token: 'greeting',
    'no-token': 'needs-auth',
    opened: 'greeting',
    welcome: 'online',
    lost: 'waiting',
    rejected: 'authorizing',
    refused: 'failed',
    due: 'greeting',
    again: 'greeting',
    close: 'closed',
  },
  online: {
    want: 'online',
    unwant: 'idle',
    token: 'online',
    'no-token': 'needs-auth',
    opened: 'online',
    welcome: 'online',
    lost: 'waiting',
    rejected: 'authorizing',
    refused: 'failed',
    due: 'online',
    again: 'authorizing',
    close: 'closed',
  },
  waiting: {
    want: 'waiting',
    unwant: 'idle',
    token: 'waiting',
    'no-token': 'waiting',
    opened: 'waiting',
    welcome: 'waiting',
    lost: 'waiting',
    rejected: 'waiting',
    refused: 'failed',
    due: 'authorizing',
    again: 'authorizing',
    close: 'closed',
  },
  'needs-auth': {
    want: 'needs-auth',
    unwant: 'needs-auth',
    token: 'needs-auth',
    'no-token': 'needs-auth',
    opened: 'needs-auth',
    welcome: 'needs-auth',
    lost: 'needs-auth',
    rejected: 'needs-auth',
    refused: 'failed',
    due: 'needs-auth',
    again: 'authorizing',
    close: 'closed',
  },
  failed: {
    want: 'failed',
    unwant: 'failed',
    token: 'failed',
    'no-token': 'failed',
    opened: 'failed',
    welcome: 'failed',
    lost: 'failed',
    rejected: 'failed',
    refused: 'failed',
    due: 'failed',
    again: 'authorizing',
    close: 'closed',
  },
  closed: {
    want: 'closed',
    unwant: 'closed',
    token: 'closed',
    'no-token': 'closed',
    opened: 'closed',
    welcome: 'closed',
    lost: 'closed',
    rejected: 'closed',
    refused: 'closed',
    due: 'closed',
    again: 'closed',
    close: 'closed',
  },
};

/** States that have a socket. */
export const HAS_SOCKET: ReadonlySet<StateName> = new Set(['opening', 'greeting', 'online']);
