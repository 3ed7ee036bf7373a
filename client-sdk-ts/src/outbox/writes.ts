/** What an application holds of a write: three promises that resolve to outcomes and never reject. */

import type { SyncError } from '../errors.ts';

export type Outcome = { readonly ok: true } | { readonly ok: false; readonly error: SyncError };

export interface Write {
  readonly id: string;
  /** Durable in the local store. */
  readonly saved: Promise<Outcome>;
  /** The server's outcome. Not ok: refused, parked as a conflict, or given up; `pending` and `retry` tell more. */
  readonly committed: Promise<Outcome>;
  /** Come round through the database's log: the rows show it as everybody else sees it. */
  readonly visible: Promise<Outcome>;
}

export const OK: Outcome = { ok: true };

export function failed(error: SyncError): Outcome {
  return { ok: false, error };
}

type Stage = 'saved' | 'committed' | 'visible';
const STAGES: readonly Stage[] = ['saved', 'committed', 'visible'];

/** A write whose stages are settled one by one, each once. */
export class PendingWrite {
  readonly write: Write;
  readonly #resolve: Record<Stage, (outcome: Outcome) => void>;

  constructor(id: string) {
    const resolve = {} as Record<Stage, (outcome: Outcome) => void>;
    const stage = (name: Stage) =>
      new Promise<Outcome>((settle) => {
        resolve[name] = settle;
      });
    this.write = { id, saved: stage('saved'), committed: stage('committed'), visible: stage('visible') };
    this.#resolve = resolve;
  }

  settle(stage: Stage, outcome: Outcome): void {
    this.#resolve[stage](outcome);
  }

  /** Nothing more comes: stages that are open end with this. */
  end(outcome: Outcome): void {
    for (const stage of STAGES) this.#resolve[stage](outcome);
  }
}

/** A write that never began. */
export function refusedWrite(id: string, error: SyncError): Write {
  const pending = new PendingWrite(id);
  pending.end(failed(error));
  return pending.write;
}
