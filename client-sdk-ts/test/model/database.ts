/**
 * A model of the source database and of capture: transactions commit first and become effects later, one by one, when a test says
 * so. Positions, versions, digests and outcomes as the contract has them; nothing else.
 */

import { bytesEqual } from '../../src/bytes.ts';
import { digestMinus, digestPlus, rowDigest } from '../../src/digest.ts';
import type { RowKey } from '../../src/key.ts';
import { encode, type Wire } from '../../src/protocol/encode.ts';
import type { Manifest, Mutation, MutationResult } from '../../src/protocol/frames.ts';

export const CARD = 1;
export const NOTE = 2;

/** Two tables, so that scopes hold rows of several. `note` belongs to the scopes of nobody's schema but the manifest's. */
export const MANIFEST: Manifest = {
  tables: [
    {
      id: CARD,
      name: 'app.card',
      key: 0,
      cols: [
        ['id', 'int64', false],
        ['list', 'string', true],
        ['title', 'string', false],
        ['note', 'string', true],
        ['rev', 'int', false],
      ],
      write: true,
    },
    {
      id: NOTE,
      name: 'app.note',
      key: 0,
      cols: [
        ['id', 'string', false],
        ['list', 'string', true],
      ],
      write: false,
    },
  ],
};

export type Values = Record<string, Wire>;
export interface ModelRow {
  readonly table: number;
  readonly key: RowKey;
  readonly version: Uint8Array;
  readonly values: Values;
}
export interface ModelEffect {
  readonly op: 1 | 2;
  readonly table: number;
  readonly key: RowKey;
  readonly version: Uint8Array;
  readonly row: Uint8Array | null;
  /** Of the scope, after this effect. */
  readonly count: number;
  readonly digest: bigint;
}
export interface LogTransaction {
  readonly lsn: number;
  readonly effects: Map<string, ModelEffect[]>;
  /** Mutations of clients that this transaction carried: client id and number. */
  readonly mutations: readonly { readonly client: string; readonly n: number }[];
}
/** Null values: deleted. */
export interface Write {
  readonly table: number;
  readonly key: RowKey;
  readonly values: Values | null;
}

const at = (table: number, key: RowKey) => `${table}:${typeof key}:${key}`;

export function rowBytes(table: number, values: Values): Uint8Array {
  const columns = MANIFEST.tables.find(({ id }) => id === table)!.cols;
  return encode(columns.map(([name]) => values[name] ?? null));
}

/** A row belongs to the scope of its list, and to `all`. */
export function scopesOf(row: ModelRow | undefined): string[] {
  if (row === undefined) return [];
  const { list } = row.values;
  return list == null ? ['all'] : ['all', `list:${list}`];
}

interface Client {
  last: number;
  acked: number;
  readonly outcomes: Map<number, { readonly result: MutationResult; readonly print: string }>;
  /** Accepted and not materialized. */
  readonly pending: Set<number>;
}

export class Database {
  /** As committed. */
  readonly source = new Map<string, ModelRow>();
  /** As captured. */
  readonly projected = new Map<string, ModelRow>();
  readonly wal: {
    readonly changes: readonly { readonly row: ModelRow; readonly gone: boolean }[];
    readonly mutations: LogTransaction['mutations'];
  }[] = [];
  readonly log: LogTransaction[] = [];
  readonly scopes = new Map<string, { count: number; digest: bigint }>();
  readonly clients = new Map<string, Client>();
  #versions = 0;

  commit(writes: readonly Write[], mutations: LogTransaction['mutations'] = []): Uint8Array[] {
    const versions: Uint8Array[] = [];
    const changes: { row: ModelRow; gone: boolean }[] = [];
    for (const { table, key, values } of writes) {
      this.#versions += 1;
      const version = new Uint8Array(16);
      new DataView(version.buffer).setUint32(12, this.#versions);
      versions.push(version);
      const row = { table, key, version, values: values ?? {} };
      changes.push({ row, gone: values === null });
      if (values === null) this.source.delete(at(table, key));
      else this.source.set(at(table, key), row);
    }
    this.wal.push({ changes, mutations });
    return versions;
  }

  row(table: number, key: RowKey): ModelRow | undefined {
    return this.source.get(at(table, key));
  }

  /** Materializes the oldest transaction of the WAL. */
  capture(): LogTransaction | null {
    const transaction = this.wal.shift();
    if (transaction === undefined) return null;
    const effects = new Map<string, ModelEffect[]>();
    // Net: what each row is in the end.
    const touched = new Map(transaction.changes.map((one) => [at(one.row.table, one.row.key), one]));
    for (const [id, { row, gone }] of touched) {
      const before = this.projected.get(id);
      const after = gone ? undefined : row;
      const [left, there] = [scopesOf(before), scopesOf(after)];
      for (const name of left) {
        if (!there.includes(name)) this.#effect(effects, name, before, undefined, row.version);
      }
      for (const name of there)
        this.#effect(effects, name, left.includes(name) ? before : undefined, after, row.version);
      if (after === undefined) this.projected.delete(id);
      else this.projected.set(id, after);
    }
    const lsn = this.log.length + 1;
    this.log.push({ lsn, effects, mutations: transaction.mutations });
    for (const { client, n } of transaction.mutations) this.clients.get(client)?.pending.delete(n);
    return this.log.at(-1)!;
  }

  captureAll(): void {
    while (this.capture() !== null);
  }

  #effect(
    effects: Map<string, ModelEffect[]>,
    name: string,
    before: ModelRow | undefined,
    after: ModelRow | undefined,
    version: Uint8Array,
  ): void {
    const scope = this.scope(name);
    if (before !== undefined) {
      scope.count -= 1;
      scope.digest = digestMinus(scope.digest, digestOf(before));
    }
    const touched = (after ?? before)!;
    if (after !== undefined) {
      scope.count += 1;
      scope.digest = digestPlus(scope.digest, digestOf(after));
    }
    const { table, key } = touched;
    const row = after === undefined ? null : rowBytes(table, after.values);
    const list = effects.get(name) ?? [];
    list.push({ op: row === null ? 2 : 1, table, key, version, row, count: scope.count, digest: scope.digest });
    effects.set(name, list);
  }

  scope(name: string): { count: number; digest: bigint } {
    const known = this.scopes.get(name) ?? { count: 0, digest: 0n };
    this.scopes.set(name, known);
    return known;
  }

  /** Rows of a scope as captured, in key order. */
  rowsOf(name: string): ModelRow[] {
    return [...this.projected.values()]
      .filter((row) => scopesOf(row).includes(name))
      .sort((a, b) => (at(a.table, a.key) < at(b.table, b.key) ? -1 : 1));
  }

  client(id: string): Client {
    const known = this.clients.get(id) ?? { last: 0, acked: 0, outcomes: new Map(), pending: new Set() };
    this.clients.set(id, known);
    return known;
  }

  /** V3. Gives results, and an error code for the rest. */
  push(
    id: string,
    batch: Uint8Array,
    atomic: boolean,
    mutations: readonly Mutation<unknown>[],
  ): { results: MutationResult[]; error: string | null } {
    const client = this.client(id);
    const results: MutationResult[] = [];
    const print = (m: Mutation<unknown>) =>
      JSON.stringify([[...batch], m, mutations.length], (_, v) =>
        typeof v === 'bigint' ? `${v}n` : v instanceof Uint8Array ? [...v] : v,
      );
    const first = mutations[0]!.n;
    if (first <= client.last) {
      for (const mutation of mutations) {
        const known = client.outcomes.get(mutation.n);
        if (known !== undefined && known.print !== 'void' && known.print !== print(mutation))
          return { results: [], error: 'client_forked' };
        results.push(known?.result ?? rejected(mutation.n, 'outcome_expired'));
      }
      return { results, error: null };
    }
    if (first !== client.last + 1) return { results: [], error: 'gap' };
    const decided = atomic ? this.#run(id, mutations) : mutations.flatMap((mutation) => this.#run(id, [mutation]));
    for (const [index, result] of decided.entries())
      client.outcomes.set(result.n, { result, print: print(mutations[index]!) });
    client.last = mutations.at(-1)!.n;
    return { results: decided, error: null };
  }

  void(id: string, numbers: readonly number[]): MutationResult[] {
    const client = this.client(id);
    return numbers.map((n) => {
      const known = client.outcomes.get(n);
      if (known !== undefined) return known.result;
      const result = { ...rejected(n, 'discarded'), status: 'discarded' as const };
      client.outcomes.set(n, { result, print: 'void' });
      client.last = Math.max(client.last, n);
      return result;
    });
  }

  #run(id: string, mutations: readonly Mutation<unknown>[]): MutationResult[] {
    const client = this.client(id);
    const writes: Write[] = [];
    const staged = new Map<string, { version: 'own' | Uint8Array; values: Values | null; n: number }>();
    const faults = new Map<number, MutationResult>();
    for (const { n, table, op, key: given, base, cols } of mutations) {
      const key = (typeof given === 'number' ? BigInt(given) : given) as RowKey;
      const own = staged.get(at(table, key));
      const row = this.row(table, key);
      const values = own === undefined ? row?.values : (own.values ?? undefined);
      const conflict = (code: string) =>
        faults.set(n, { n, status: 'conflict', version: null, code, message: code, row: this.#visible(row) });
      if (op === 'insert' && values !== undefined) conflict('row_exists');
      else if (op !== 'insert' && values === undefined) {
        if (base === undefined) faults.set(n, rejected(n, 'row_not_found'));
        else conflict('conflict');
      } else if (op !== 'insert' && base !== undefined && base !== null) {
        if ('after' in base) {
          const result = client.outcomes.get(base.after)?.result;
          const inBatch = own?.n === base.after;
          if (!inBatch && result?.status !== 'accepted') faults.set(n, rejected(n, 'dependency_rejected'));
          else if (!inBatch && (row === undefined || !bytesEqual(row.version, result!.version!))) conflict('conflict');
        } else if (own !== undefined || !bytesEqual(row!.version, base)) conflict('conflict');
      }
      if (String((cols as Values | undefined)?.title ?? '').startsWith('refused'))
        faults.set(n, rejected(n, 'constraint_check'));
      const keyColumn = MANIFEST.tables.find(({ id: table_id }) => table_id === table)!.cols[0]![0];
      const next = op === 'delete' ? null : { rev: 0, ...values, ...(cols as Values | undefined), [keyColumn]: key };
      staged.set(at(table, key), { version: 'own', values: next, n });
      writes.push({ table, key, values: next });
    }
    if (faults.size > 0) {
      return mutations.map(({ n }) => faults.get(n) ?? rejected(n, 'batch_rejected'));
    }
    const numbers = mutations.map(({ n }) => ({ client: id, n }));
    const versions = this.commit(writes, numbers);
    for (const { n } of mutations) client.pending.add(n);
    return mutations.map(({ n }, index) => ({
      n,
      status: 'accepted',
      version: versions[index]!,
      code: null,
      message: null,
      row: null,
    }));
  }

  /** V1: the projected row, if it is the source's current one. */
  #visible(row: ModelRow | undefined): MutationResult['row'] {
    if (row === undefined) return null;
    const projected = this.projected.get(at(row.table, row.key));
    if (projected === undefined || !bytesEqual(projected.version, row.version)) return null;
    return [row.table, row.key, row.version, rowBytes(row.table, row.values)];
  }
}

function rejected(n: number, code: string): MutationResult {
  return { n, status: 'rejected', version: null, code, message: code, row: null };
}

function digestOf(row: ModelRow): bigint {
  return rowDigest(row.table, row.key, row.version, rowBytes(row.table, row.values));
}
