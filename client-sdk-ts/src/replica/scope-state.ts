/** One held scope: its subscription, what is shown, what is staged. Changes no rows by itself: `replica.ts` applies cuts. */

import { type SyncError, transient } from '../errors.ts';
import { Cell, sameFields } from '../signal.ts';
import { after } from '../transitions.ts';
import { PHASE_EVENTS, PHASES, type Phase, type PhaseEvent } from './phase.ts';
import { Rows, type Staged } from './rows.ts';

export interface ScopeStatus {
  /**
   * What the rows are. `none`: there are none to show; `cached`: from the local store, of an earlier session; `rebuilding`: a
   * whole new copy is on its way (older rows, if any, stay shown until it is there); `live`: verified at a cut of this session.
   */
  readonly data: 'none' | 'cached' | 'rebuilding' | 'live';
  /** True while the server may know newer rows than are shown: not connected, or not caught up. */
  readonly stale: boolean;
  /** When the rows were last known to be current: milliseconds since the epoch. */
  readonly syncedAt?: number | undefined;
  /** Rows received so far by the rebuild under way. */
  readonly progress?: number | undefined;
  readonly error?: SyncError | undefined;
}

export class ScopeState {
  readonly name: string;
  holders = 0;
  phase: Phase = 'off';
  /** Read from the store. Before, nothing is asked. */
  loaded = false;
  /** There are rows to show: cached ones, or a cut of this session. */
  usable = false;
  /** Some cut of this Sync has verified the rows. */
  verified = false;
  rows = new Rows();
  cursor: Uint8Array | null = null;
  syncedAt: number | null = null;
  /** The server's number for the subscription. */
  number: number | null = null;
  /** Our number of the last `subscribe`. */
  ref: number | null = null;
  staged: Staged | null = null;
  /** `joined` has come and was verified, but its cut has not. */
  joining = false;
  /** The next `subscribe` says that the digest failed. */
  mismatch = false;
  /** When digests or cursors failed: milliseconds since the epoch. */
  failures: number[] = [];
  /** Transient refusals of `subscribe` in a row. */
  retries = 0;
  error: SyncError | null = null;
  readonly status = new Cell<ScopeStatus>({ data: 'none', stale: true }, sameFields);

  constructor(name: string) {
    this.name = name;
  }

  /** Moves on; throws where the server broke the protocol. */
  on(event: PhaseEvent): void {
    const next = after(PHASES, PHASE_EVENTS, this.phase, event);
    if (next === 'violation') {
      throw transient('protocol_violation', `${event} while a scope is ${this.phase}`);
    }
    this.phase = next;
  }

  /** The subscription is over: what it staged is dropped, except rebuild rows that a token continues. */
  lose(): void {
    this.on('lost');
    this.number = null;
    this.ref = null;
    this.joining = false;
    if (this.staged?.kind !== 'rebuild' || this.staged.token === null) this.staged = null;
  }

  /** Puts into `status` what the fields above say; nobody is told yet. */
  show(): void {
    const live = this.phase === 'joined' && !this.joining;
    const rebuilding = this.phase === 'rebuilding' || (this.joining && this.staged?.kind === 'rebuild');
    this.status.put({
      data: rebuilding ? 'rebuilding' : !this.usable ? 'none' : this.verified ? 'live' : 'cached',
      stale: !live,
      syncedAt: this.syncedAt ?? undefined,
      progress: rebuilding ? this.staged?.count : undefined,
      error: this.error ?? undefined,
    });
  }
}
