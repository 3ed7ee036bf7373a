/** One task after the other. Frames, store steps and local writes go through one lane, so that each sees what the one before it left. */

export class Lane {
  readonly #failed: (error: unknown) => void;
  #last: Promise<unknown> = Promise.resolve();

  constructor(failed: (error: unknown) => void) {
    this.#failed = failed;
  }

  /** A task that fails is reported, and the next one runs. */
  run(task: () => void | Promise<void>): void {
    this.ask(task).catch(this.#failed);
  }

  /** Resolves or rejects as the task does. */
  ask<V>(task: () => V | Promise<V>): Promise<V> {
    const done = this.#last.then(task);
    this.#last = done.catch(() => {});
    return done;
  }
}
