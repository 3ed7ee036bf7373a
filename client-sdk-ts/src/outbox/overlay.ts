/** Own writes laid over confirmed rows until they have come round. Knows writes and keys, not rows. */

import type { RowKey } from '../key.ts';
import { type Entry, type Mutation, overlays } from './entry.ts';
import type { Row } from './merge.ts';

interface Layer {
  readonly entry: string;
  readonly index: number;
  readonly mutation: Mutation;
}

/** In the order in which they were written. A changed list is a new array. */
export type Layers = readonly Layer[];

export class Overlay {
  readonly #tables = new Map<string, Map<RowKey, Layers>>();

  get(table: string, key: RowKey): Layers | undefined {
    return this.#tables.get(table)?.get(key);
  }

  /** Keys with layers. */
  keys(table: string): Iterable<RowKey> {
    return this.#tables.get(table)?.keys() ?? [];
  }

  /** Replaces what an entry lays over rows; layers that stay keep their place. Gives the rows that changed. */
  replace(before: Entry | undefined, after: Entry | undefined): Mutation[] {
    const touched: Mutation[] = [];
    const old = before !== undefined && overlays(before) ? before : undefined;
    const now = after !== undefined && overlays(after) ? after : undefined;
    if (old?.mutations === now?.mutations) return touched;
    const same = (index: number) => {
      const [was, is] = [old?.mutations[index], now?.mutations[index]];
      return old?.id === now?.id && was?.table === is?.table && was?.key === is?.key;
    };
    old?.mutations.forEach((mutation, index) => {
      const replacement = same(index) ? now?.mutations[index] : undefined;
      this.#edit(mutation, (layers) =>
        layers.flatMap((layer) => {
          if (layer.entry !== old.id || layer.index !== index) return [layer];
          return replacement === undefined ? [] : [{ ...layer, mutation: replacement }];
        }),
      );
      touched.push(mutation);
    });
    now?.mutations.forEach((mutation, index) => {
      if (same(index)) return;
      this.#edit(mutation, (layers) => [...layers, { entry: now.id, index, mutation }]);
      touched.push(mutation);
    });
    return touched;
  }

  #edit({ table, key }: Mutation, change: (layers: Layers) => Layers): void {
    const keys = this.#tables.get(table) ?? new Map<RowKey, Layers>();
    const layers = change(keys.get(key) ?? []);
    if (layers.length === 0) keys.delete(key);
    else keys.set(key, layers);
    if (keys.size === 0) this.#tables.delete(table);
    else this.#tables.set(table, keys);
  }
}

/**
 * A row as a scope shows it. Rows inserted through another scope are not shown here before the server says that they belong:
 * membership is the server's to decide.
 */
export function overlaid(confirmed: Row | undefined, layers: Layers, scope: string, blank: Row): Row | undefined {
  let row = confirmed;
  for (const { mutation } of layers) {
    if (mutation.op === 'delete') row = undefined;
    else if (mutation.op === 'update') row = row && { ...row, ...mutation.cols };
    else if (row !== undefined || mutation.scope === scope) row = { ...blank, ...row, ...mutation.cols };
  }
  return row;
}
