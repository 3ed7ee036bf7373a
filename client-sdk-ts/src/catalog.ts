/** The server's tables (manifests by schema version) beside the application's generated schema. */

import { SyncError } from './errors.ts';
import type { Manifest, TableSpec as WireTable } from './protocol/frames.ts';
import type { TableSpec } from './schema.ts';

export class Catalog {
  readonly specs: ReadonlyMap<string, TableSpec>;
  readonly #manifests = new Map<number, Manifest>();
  readonly #ids = new Map<string, number>();
  readonly #aliases = new Map<number, TableSpec>();
  readonly #layouts = new Map<string, readonly (readonly [string, number])[]>();
  /** The current schema version: what pushes are written under. */
  sv: number | null = null;

  constructor(specs: ReadonlyMap<string, TableSpec>) {
    this.specs = specs;
  }

  has(sv: number): boolean {
    return this.#manifests.has(sv);
  }

  add(sv: number, manifest: Manifest): void {
    this.#manifests.set(sv, manifest);
    const byName = new Map([...this.specs.values()].map((spec) => [spec.name, spec]));
    for (const { id, name } of manifest.tables) {
      // A table has one id for ever, so older manifests can be added in any order.
      this.#ids.set(name, id);
      const spec = byName.get(name);
      if (spec !== undefined) this.#aliases.set(id, spec);
    }
  }

  spec(alias: string): TableSpec {
    const spec = this.specs.get(alias);
    if (spec === undefined) throw new SyncError('unknown_table', `the generated schema has no table ${alias}`);
    return spec;
  }

  /** The application's table with this id; undefined for tables that it was not written for. */
  byId(id: number): TableSpec | undefined {
    return this.#aliases.get(id);
  }

  id(spec: TableSpec): number | null {
    return this.#ids.get(spec.name) ?? null;
  }

  /** The table as the current schema version has it; undefined: this user cannot reach it. */
  current(spec: TableSpec): WireTable | undefined {
    return this.sv === null ? undefined : this.#table(this.sv, spec);
  }

  layout(sv: number, spec: TableSpec): readonly (readonly [string, number])[] {
    const id = `${sv}:${spec.alias}`;
    const known = this.#layouts.get(id);
    if (known !== undefined) return known;
    const names = this.#table(sv, spec)?.cols.map(([name]) => name) ?? [];
    const layout = [...spec.columns.keys()].map((name) => [name, names.indexOf(name)] as const);
    this.#layouts.set(id, layout);
    return layout;
  }

  /** Why the generated schema does not fit a manifest; null if it does. More tables and columns there are no harm. */
  mismatch(manifest: Manifest): SyncError | null {
    for (const spec of this.specs.values()) {
      const table = manifest.tables.find(({ name }) => name === spec.name);
      if (table === undefined) continue;
      for (const { name, type } of spec.columns.values()) {
        const there = table.cols.find(([column]) => column === name)?.[1];
        if (there === type) continue;
        return new SyncError(
          'schema_mismatch',
          `${spec.name}.${name} is ${type} in the schema, ${there ?? 'missing'} on the server: run tidegate gen types`,
        );
      }
    }
    return null;
  }

  #table(sv: number, spec: TableSpec): WireTable | undefined {
    return this.#manifests.get(sv)?.tables.find(({ name }) => name === spec.name);
  }
}
