/** How a scope's subscription may go: a total table of phase and event. No I/O. */

export type Phase =
  /** Not subscribed: offline, or not loaded yet. */
  | 'off'
  /** `subscribe` was sent. */
  | 'asked'
  /** Effects after the cursor arrive and are staged. */
  | 'resuming'
  /** A whole copy arrives and is staged. */
  | 'rebuilding'
  /** In lockstep with the session. */
  | 'joined'
  /** Ended with an error; asks again only when told to. */
  | 'refused';

export type PhaseEvent =
  /** We send `subscribe` (again). */
  | 'ask'
  /** `subscribed` in mode resume. */
  | 'resume'
  /** `subscribed` in mode rebuild, asked or not. */
  | 'rebuild'
  /** A `rebuild` frame. */
  | 'rows'
  | 'page'
  | 'joined'
  /** The connection is gone, or the subscription was ended. */
  | 'lost'
  /** The server said no, or the digest failed again. */
  | 'refuse'
  /** Worth asking again: granted since, or the application wishes it. */
  | 'reset';

/** `violation`: the server may not send this now. */
export const PHASES: Record<Phase, Record<PhaseEvent, Phase | 'violation'>> = {
  off: {
    ask: 'asked',
    resume: 'violation',
    rebuild: 'violation',
    rows: 'violation',
    page: 'violation',
    joined: 'violation',
    lost: 'off',
    refuse: 'refused',
    reset: 'off',
  },
  asked: {
    ask: 'asked',
    resume: 'resuming',
    rebuild: 'rebuilding',
    rows: 'violation',
    page: 'violation',
    joined: 'violation',
    lost: 'off',
    refuse: 'refused',
    reset: 'asked',
  },
  resuming: {
    ask: 'asked',
    resume: 'violation',
    rebuild: 'rebuilding',
    rows: 'violation',
    page: 'resuming',
    joined: 'joined',
    lost: 'off',
    refuse: 'refused',
    reset: 'resuming',
  },
  rebuilding: {
    ask: 'asked',
    resume: 'violation',
    rebuild: 'rebuilding',
    rows: 'rebuilding',
    page: 'rebuilding',
    joined: 'joined',
    lost: 'off',
    refuse: 'refused',
    reset: 'rebuilding',
  },
  joined: {
    ask: 'asked',
    resume: 'violation',
    rebuild: 'rebuilding',
    rows: 'violation',
    page: 'joined',
    joined: 'violation',
    lost: 'off',
    refuse: 'refused',
    reset: 'joined',
  },
  refused: {
    ask: 'violation',
    resume: 'violation',
    rebuild: 'violation',
    rows: 'violation',
    page: 'violation',
    joined: 'violation',
    lost: 'refused',
    refuse: 'refused',
    reset: 'off',
  },
};
