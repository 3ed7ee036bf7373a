/** A store that lives as long as the object: for Node, tests, and pages that need nothing kept. */

import type { RowKey } from '../key.ts';
import type { Entry } from '../outbox/entry.ts';
import type { Manifest } from '../protocol/frames.ts';
import type { Store, StoredClient, StoredRow, StoredScope, StoreSession, StoreStep } from './store.ts';

class Namespace {
  client: StoredClient | null = null;
  assigned: readonly string[] = [];
  readonly manifests = new Map<number, Manifest>();
  readonly heads = new Map<string, StoredScope>();
  readonly rows = new Map<string, Map<number, Map<RowKey, StoredRow>>>();
  readonly outbox = new Map<string, Entry>();

  apply(step: StoreStep): void {
    if (step.client !== undefined) this.client = step.client;
    if (step.assigned !== undefined) this.assigned = step.assigned;
    if (step.manifest !== undefined) this.manifests.set(step.manifest.sv, step.manifest.manifest);
    for (const [name, scope] of step.scopes ?? []) {
      if (scope.clear) this.rows.delete(name);
      const tables = this.rows.get(name) ?? new Map<number, Map<RowKey, StoredRow>>();
      this.rows.set(name, tables);
      for (const [table, key] of scope.remove) tables.get(table)?.delete(key);
      for (const row of scope.put) {
        const rows = tables.get(row.table) ?? new Map<RowKey, StoredRow>();
        tables.set(row.table, rows.set(row.key, row));
      }
      if (scope.head !== null) this.heads.set(name, scope.head);
      else this.heads.delete(name);
    }
    for (const id of step.remove ?? []) this.outbox.delete(id);
    for (const entry of step.put ?? []) this.outbox.set(entry.id, entry);
  }
}

/** Values in it are shared and never changed in place, so nothing is copied. */
export class MemoryStore implements Store {
  readonly #namespaces = new Map<string, Namespace>();

  async open(name: string): Promise<StoreSession> {
    const namespace = this.#namespaces.get(name) ?? new Namespace();
    this.#namespaces.set(name, namespace);
    return {
      load: async () => ({
        client: namespace.client,
        manifests: new Map(namespace.manifests),
        assigned: namespace.assigned,
        scopes: [...namespace.heads.values()],
        outbox: [...namespace.outbox.values()],
      }),
      loadRows: async (scope) => [...(namespace.rows.get(scope)?.values() ?? [])].flatMap((rows) => [...rows.values()]),
      apply: async (step) => namespace.apply(step),
      clear: async () => void this.#namespaces.delete(name),
      close: async () => {},
    };
  }
}
