/** Time that moves when a test says so. */

import type { Environment } from '../../src/environment.ts';

export class ManualClock {
  time = Date.UTC(2026, 0, 1);
  #timers: { readonly at: number; readonly fn: () => void }[] = [];
  #random = 1;

  readonly environment: Pick<Environment, 'now' | 'setTimer' | 'clearTimer' | 'fillRandom'> = {
    now: () => this.time,
    setTimer: (fn, ms) => {
      const timer = { at: this.time + ms, fn };
      this.#timers.push(timer);
      return timer;
    },
    clearTimer: (timer) => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    },
    // A fixed sequence: runs are the same every time.
    fillRandom: (bytes) => {
      for (let i = 0; i < bytes.length; i++) {
        this.#random = (Math.imul(this.#random, 1_103_515_245) + 12_345) >>> 0;
        bytes[i] = this.#random >>> 16;
      }
    },
  };

  /** Fires what is due until then, in order of time; each timer is followed by everything that it set going. */
  async advance(ms: number): Promise<void> {
    const until = this.time + ms;
    for (;;) {
      const due = this.#timers.filter(({ at }) => at <= until).sort((a, b) => a.at - b.at)[0];
      if (due === undefined) break;
      this.#timers = this.#timers.filter((timer) => timer !== due);
      this.time = Math.max(this.time, due.at);
      due.fn();
      await idle();
    }
    this.time = until;
    await idle();
  }

  get waiting(): number {
    return this.#timers.length;
  }
}

/** Resolves when every promise that can go on has gone on: a macrotask comes after all microtasks. */
export function idle(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}
