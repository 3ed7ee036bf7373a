/** One task after the other. Frames, store steps and local writes go through one lane, so that each sees what the one before it left. */

export class Lane {
  readonly #tasks: (() => void | Promise<void>)[] = [];
  readonly #failed: (error: unknown) => void;
  #running = false;

  constructor(failed: (error: unknown) => void) {
    this.#failed = failed;
  }

  /** Begins at once if nothing is under way. A task that fails is reported, and the next one runs. */
  run(task: () => void | Promise<void>): void {
    this.#tasks.push(task);
    if (!this.#running) void this.#drain();
  }

  /** Resolves with what the task gives. */
  ask<V>(task: () => V | Promise<V>): Promise<V> {
    return new Promise((resolve, reject) => {
      this.run(async () => {
        try {
          resolve(await task());
        } catch (error) {
          reject(error);
        }
      });
    });
  }

  async #drain(): Promise<void> {
    this.#running = true;
    for (let task = this.#tasks.shift(); task !== undefined; task = this.#tasks.shift()) {
      try {
        const pending = task();
        if (pending !== undefined) await pending;
      } catch (error) {
        this.#failed(error);
      }
    }
    this.#running = false;
  }
}
