/** How a scope's subscription may go: a total table of phase and event. No I/O. */

import type { Transitions } from '../transitions.ts';

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

export const PHASE_EVENTS = [
  /** We send `subscribe` (again). */
  'ask',
  /** `subscribed` in mode resume. */
  'resume',
  /** `subscribed` in mode rebuild, asked or not. */
  'rebuild',
  /** A `rebuild` frame. */
  'rows',
  'page',
  'joined',
  /** The connection is gone, or the subscription was ended. */
  'lost',
  /** The server said no, or the digest failed again. */
  'refuse',
  /** Worth asking again: granted since, or the application wishes it. */
  'reset',
] as const;
export type PhaseEvent = (typeof PHASE_EVENTS)[number];

const OFF = 'off';
const ASKED = 'asked';
const RESUME = 'resuming';
const BUILD = 'rebuilding';
const JOINED = 'joined';
const NO = 'refused';
/** The server may not send this now. */
const BAD = 'violation';

// biome-ignore format: a table
export const PHASES: Transitions<Phase, typeof PHASE_EVENTS, Phase | 'violation'> = {
  //           ask    resume  rebuild rows   page    joined  lost refuse reset
  off:        [ASKED, BAD,    BAD,    BAD,   BAD,    BAD,    OFF, NO,    OFF],
  asked:      [ASKED, RESUME, BUILD,  BAD,   BAD,    BAD,    OFF, NO,    ASKED],
  resuming:   [ASKED, BAD,    BUILD,  BAD,   RESUME, JOINED, OFF, NO,    RESUME],
  rebuilding: [ASKED, BAD,    BUILD,  BUILD, BUILD,  JOINED, OFF, NO,    BUILD],
  joined:     [ASKED, BAD,    BUILD,  BAD,   JOINED, BAD,    OFF, NO,    JOINED],
  refused:    [BAD,   BAD,    BAD,    BAD,   BAD,    BAD,    NO,  NO,    OFF],
};
