/**
 * Sends pushes and voids in order of number, and again after a transient refusal. What the server durably decided is the outbox's
 * matter; here is only what was not decided: pauses and resends.
 */

import type { Catalog } from '../catalog.ts';
import { toWire } from '../codec.ts';
import { backoffMs } from '../connection/backoff.ts';
import { type Environment, randomFraction } from '../environment.ts';
import type { FrameOf } from '../protocol/decode.ts';
import { encode, type Wire } from '../protocol/encode.ts';
import type { ClientFrame, Push, SessionLimits } from '../protocol/frames.ts';
import type { Entry } from './entry.ts';
import type { Outbox } from './outbox.ts';

export interface PusherWorld {
  send(frame: ClientFrame<Wire>): void;
  ref(): number;
  /** Saves the outbox. */
  flush(): Promise<void>;
  /** Runs in order with frames. */
  later(task: () => Promise<void>): void;
}

export class Pusher {
  readonly #environment: Environment;
  readonly #outbox: Outbox;
  readonly #catalog: Catalog;
  readonly #world: PusherWorld;
  #limits: SessionLimits | null = null;
  /** Requests without answer, by `ref`. */
  readonly #asked = new Map<number, string>();
  /** Transient refusals in a row. */
  #refusals = 0;
  #pause: { readonly timer: unknown; readonly code: string } | null = null;

  constructor(environment: Environment, outbox: Outbox, catalog: Catalog, world: PusherWorld) {
    this.#environment = environment;
    this.#outbox = outbox;
    this.#catalog = catalog;
    this.#world = world;
  }

  online(limits: SessionLimits): void {
    this.#limits = limits;
    this.#resend();
  }

  offline(): void {
    this.#limits = null;
    this.stop();
  }

  stop(): void {
    this.#asked.clear();
    this.#environment.clearTimer(this.#pause?.timer);
    this.#pause = null;
  }

  answered(ref: number): void {
    this.#asked.delete(ref);
    this.#refusals = 0;
  }

  /** Own writes have come round, so there is room again. */
  progressed(): void {
    if (this.#pause?.code === 'capture_behind') this.#resume();
  }

  /** An `error` that answers a push or void. False: it answers something else. */
  refused({ code, message, retryable, retry_after_ms, ref, of }: FrameOf<'error'>): boolean {
    const id = this.#asked.get(ref!);
    if (id === undefined) return of === 'push' || of === 'void';
    this.#asked.delete(ref!);
    if (retryable) {
      this.#wait(code, retry_after_ms);
    } else if (of === 'push' && this.#outbox.get(id)?.state === 'sent') {
      // Nothing ran, and sending it again would not help. Its numbers are used up, so they are voided; later ones met the gap.
      this.#outbox.abandon(id, { code, message });
      this.#void(this.#outbox.get(id)!);
    }
    return true;
  }

  /** Sends what was never sent, as far as there is room. */
  async pump(): Promise<void> {
    const sent: Entry[] = [];
    while (this.#limits !== null && this.#pause === null) {
      const entry = this.#outbox.next(this.#limits.unmaterialized_max);
      if (entry === null) break;
      const hidden = entry.mutations.find(
        ({ table }) => this.#catalog.current(this.#catalog.spec(table)) === undefined,
      );
      if (hidden !== undefined) {
        this.#outbox.park(entry.id, { code: 'unknown_table', message: `${hidden.table} is not there` });
        continue;
      }
      const prepared = this.#outbox.prepare(entry, this.#catalog.sv!);
      if (encode(this.#frame(prepared, 0) as unknown as Wire).length > this.#limits.frame_bytes_max) {
        this.#outbox.park(entry.id, { code: 'frame_too_large', message: 'too large for the server' });
        continue;
      }
      this.#outbox.send(prepared);
      sent.push(prepared);
    }
    // The numbers are durable before they are used (V3).
    await this.#world.flush();
    if (this.#limits !== null) for (const entry of sent) this.#push(entry);
  }

  /** Numbers that were given up since. */
  voidNow(): void {
    if (this.#limits === null) return;
    for (const entry of this.#outbox.unanswered) if (entry.voiding) this.#void(entry);
  }

  #wait(code: string, afterMs: number | null): void {
    if (this.#pause !== null) return;
    const ms = (afterMs ?? 0) + backoffMs(this.#refusals, randomFraction(this.#environment));
    this.#refusals += 1;
    this.#pause = { code, timer: this.#environment.setTimer(() => this.#resume(), ms) };
  }

  #resume(): void {
    this.#environment.clearTimer(this.#pause?.timer);
    this.#pause = null;
    this.#world.later(async () => {
      if (this.#limits === null) return;
      this.#resend();
      await this.pump();
    });
  }

  #resend(): void {
    this.#asked.clear();
    for (const entry of this.#outbox.unanswered) {
      if (entry.voiding) this.#void(entry);
      else this.#push(entry);
    }
  }

  #push(entry: Entry): void {
    const ref = this.#world.ref();
    this.#asked.set(ref, entry.id);
    this.#world.send(this.#frame(entry, ref));
  }

  #void(entry: Entry): void {
    const ref = this.#world.ref();
    this.#asked.set(ref, entry.id);
    const { first } = entry.sent!;
    this.#world.send({ t: 'void', ref, numbers: entry.mutations.map((_, index) => first + index) });
  }

  #frame({ sent, mutations }: Entry, ref: number): Push<Wire> {
    const { batch, first, sv, bases } = sent!;
    return {
      t: 'push',
      ref,
      batch,
      atomic: mutations.length > 1,
      sv,
      acked: this.#outbox.client.acked,
      mutations: mutations.map(({ table, op, key, cols }, index) => {
        const spec = this.#catalog.spec(table);
        const wire = Object.entries(cols ?? {}).filter(([name]) => name !== spec.key.name);
        return {
          n: first + index,
          table: this.#catalog.id(spec)!,
          op,
          key,
          base: bases[index] ?? undefined,
          cols:
            cols === null
              ? undefined
              : Object.fromEntries(wire.map(([name, value]) => [name, toWire(spec.columns.get(name)!.type, value)])),
        };
      }),
    };
  }
}
