/** The one reactive shape: a value, and a way to hear of its changes. Also a Svelte store. */

export interface Signal<V> {
  readonly value: V;
  /** Calls `fn` at once and then after each change. Gives the function that ends it. */
  subscribe(fn: (value: V) => void): () => void;
}

/** What a subscriber throws must not keep others from hearing, nor stop the sync: it surfaces as an unhandled error. */
export function call<V>(fn: (value: V) => void, value: V): void {
  try {
    fn(value);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

interface Subscriber<V> {
  readonly fn: (value: V) => void;
}

/** Calls all of them; not those that another one ends meanwhile. */
export function callAll<V>(subscribers: ReadonlySet<Subscriber<V>>, value: V): void {
  for (const subscriber of [...subscribers]) if (subscribers.has(subscriber)) call(subscriber.fn, value);
}

/** A signal that its owner sets. Where several change together, all are put before anybody is told. */
export class Cell<V> implements Signal<V> {
  #value: V;
  #told: V;
  readonly #subscribers = new Set<{ fn: (value: V) => void }>();
  readonly #same: (a: V, b: V) => boolean;

  constructor(value: V, same: (a: V, b: V) => boolean = Object.is) {
    this.#value = value;
    this.#told = value;
    this.#same = same;
  }

  get value(): V {
    return this.#value;
  }

  put(value: V): void {
    if (!this.#same(this.#value, value)) this.#value = value;
  }

  tell(): void {
    if (this.#told === this.#value) return;
    this.#told = this.#value;
    callAll(this.#subscribers, this.#value);
  }

  set(value: V): void {
    this.put(value);
    this.tell();
  }

  subscribe(fn: (value: V) => void): () => void {
    const subscriber = { fn };
    this.#subscribers.add(subscriber);
    call(fn, this.#value);
    return () => void this.#subscribers.delete(subscriber);
  }
}

/** Equality of small flat records, such as statuses. */
export function sameFields<V extends object>(a: V, b: V): boolean {
  const left = Object.entries(a);
  return (
    left.length === Object.keys(b).length &&
    left.every(([name, value]) => Object.is(value, (b as Record<string, unknown>)[name]))
  );
}
