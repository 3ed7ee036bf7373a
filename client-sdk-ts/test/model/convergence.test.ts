/**
 * Random histories: writers, capture, pages, cuts, rebuilds, losses, reloads and own writes in any order leave the client equal to
 * the model, and never show a state that was not a cut. A failing seed is printed and becomes a test.
 */

import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Effect, Scope } from '../../src/index.ts';
import { idle } from './clock.ts';
import { CARD, rowBytes, scopesOf, type Values } from './database.ts';
import { type AppTables, type Card, World } from './world.ts';

const LISTS = ['a', 'b', null] as const;
const NAMES = ['all', 'list:a', 'list:b'] as const;

const key = fc.integer({ min: 1, max: 6 }).map(BigInt);
const list = fc.constantFrom(...LISTS);
const name = fc.constantFrom(...NAMES);
const change = fc.record({ key, list, title: fc.string({ maxLength: 3 }), gone: fc.boolean() });
const seed = fc.nat({ max: 1_000 });

type Command =
  | {
      readonly do: 'source';
      readonly changes: readonly { key: bigint; list: string | null; title: string; gone: boolean }[];
    }
  | { readonly do: 'capture' | 'drop' | 'reload' | 'wait' | 'refuse push' | 'lose outcomes' | 'deliver all' }
  | { readonly do: 'step' | 'deliver'; readonly seed: number }
  | { readonly do: 'hold' | 'release'; readonly name: string }
  | {
      readonly do: 'update';
      readonly name: string;
      readonly key: bigint;
      readonly list: string | null;
      readonly title: string;
    }
  | { readonly do: 'insert' | 'delete'; readonly name: string; readonly key: bigint }
  | { readonly do: 'batch'; readonly name: string; readonly keys: readonly bigint[] };

const command: fc.Arbitrary<Command> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ do: fc.constant('source'), changes: fc.array(change, { minLength: 1, maxLength: 4 }) }),
  },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('capture') }) },
  { weight: 12, arbitrary: fc.record({ do: fc.constant('step'), seed }) },
  { weight: 12, arbitrary: fc.record({ do: fc.constant('deliver'), seed }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('deliver all') }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constantFrom('drop', 'wait') }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('reload', 'refuse push', 'lose outcomes') }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constantFrom('hold', 'release'), name }) },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant('update'), name, key, list, title: fc.constantFrom('mine', 'refused') }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constantFrom('insert', 'delete'), name, key }) },
  {
    weight: 1,
    arbitrary: fc.record({ do: fc.constant('batch'), name, keys: fc.uniqueArray(key, { minLength: 1, maxLength: 3 }) }),
  },
) as fc.Arbitrary<Command>;

/** What one scope's effects alone say that its confirmed rows are. */
type Mirror = Map<bigint, Card>;

class Run {
  readonly world: World;
  readonly held = new Map<string, { scope: Scope<AppTables>; mirror: Mirror }>();

  constructor(pageEffectsMax: number, useFin: boolean) {
    // Whoever asks last wins, or gives in, by the row's key.
    this.world = new World({
      onConflict: ({ key: id }) => (BigInt(id) % 3n === 0n ? 'theirs' : BigInt(id) % 3n === 1n ? 'mine' : 'park'),
    });
    this.world.server.pageEffectsMax = pageEffectsMax;
    this.world.server.useFin = useFin;
  }

  hold(id: string): void {
    if (this.held.has(id)) return;
    const scope = this.world.sync.scope(id);
    const mirror: Mirror = new Map();
    scope.effects(({ changes }: Effect<AppTables>) => {
      for (const one of changes) {
        if (one.op === 'upsert') mirror.set(one.row.id, one.row);
        else mirror.delete(BigInt(one.key));
      }
    });
    this.held.set(id, { scope, mirror });
    // What a query with subscribers makes of changed keys is what a new one finds.
    for (const query of [{}, { where: ({ title }: Card) => title !== 'mine', orderBy: 'title' as const }]) {
      const rows = scope.table('card').rows(query);
      rows.subscribe(() => {
        expect(rows.value).toEqual(scope.table('card').rows(query).value);
        this.atEveryNotification();
      });
    }
  }

  async do(command: Command): Promise<void> {
    const { world } = this;
    const { server } = world;
    switch (command.do) {
      case 'source':
        server.database.commit(
          command.changes.map(({ key: id, list: to, title, gone }) => ({
            table: CARD,
            key: id,
            values: gone ? null : { id, list: to, title, note: null, rev: 1 },
          })),
        );
        break;
      case 'capture':
        server.database.capture();
        break;
      case 'step':
        server.step(world.connection, (count) => command.seed % count);
        break;
      case 'deliver':
        for (let n = 0; n <= command.seed % 3; n++) world.connection.deliver();
        break;
      case 'deliver all':
        while (world.connection.deliver());
        break;
      case 'drop':
        world.connection.end(1006);
        break;
      case 'wait':
        await world.clock.advance(2_000);
        break;
      case 'refuse push':
        server.failPushes = { code: 'unavailable', retryable: true, times: 1 };
        break;
      case 'lose outcomes':
        server.loseOutcomes = !server.loseOutcomes;
        break;
      case 'reload': {
        const names = [...this.held.keys()];
        await world.sync.close();
        this.held.clear();
        world.open({ onConflict: () => 'park' });
        for (const id of names) this.hold(id);
        break;
      }
      case 'hold':
        this.hold(command.name);
        break;
      case 'release': {
        const held = this.held.get(command.name);
        this.held.delete(command.name);
        held?.scope.release();
        break;
      }
      case 'update':
        this.held
          .get(command.name)
          ?.scope.table('card')
          .update(command.key, { title: command.title, list: command.list });
        break;
      case 'insert':
        this.held
          .get(command.name)
          ?.scope.table('card')
          .insert({ id: command.key, list: 'a', title: 'inserted', note: null, rev: 1 });
        break;
      case 'delete':
        this.held.get(command.name)?.scope.table('card').delete(command.key);
        break;
      case 'batch': {
        const cards = this.held.get(command.name)?.scope.table('card');
        if (cards === undefined) break;
        world.sync.batch(() => {
          for (const id of command.keys) cards.update(id, { note: 'batched' });
        });
        break;
      }
    }
    await idle();
  }

  /** V5: scopes that are live together show one cut. */
  atEveryNotification(): void {
    if (this.world.sync.pending.value.length > 0) return;
    const rows = (id: string): readonly Card[] | null => {
      const scope = this.held.get(id)?.scope;
      if (scope === undefined || scope.status.value.data !== 'live' || scope.status.value.stale) return null;
      return scope.table('card').rows().value;
    };
    const all = rows('all');
    for (const id of ['a', 'b']) {
      const part = rows(`list:${id}`);
      if (part !== null && all !== null) expect(part).toEqual(all.filter((row) => row.list === id));
    }
  }

  async finish(): Promise<void> {
    const { world } = this;
    world.server.failPushes = null;
    world.server.loseOutcomes = false;
    for (const id of NAMES) this.hold(id);
    for (let round = 0; round < 12; round++) {
      await world.run();
      await world.clock.advance(19_000);
    }
    // Outcomes that were lost on an open connection come with the next one.
    world.connection.end(1006);
    for (let round = 0; round < 4; round++) {
      await world.clock.advance(19_000);
      await world.run();
    }
    expect(world.sync.status.value).toEqual({ state: 'online' });
    expect(world.logged.filter((event) => event !== 'server_error')).toEqual([]);
    expect(world.sync.pending.value.filter(({ state }) => state !== 'parked')).toEqual([]);
    for (const { id } of world.sync.pending.value) await world.sync.discard(id);
    for (const id of NAMES) {
      const { scope } = this.held.get(id)!;
      expect(scope.status.value).toMatchObject({ data: 'live', stale: false });
      const shown = scope.table('card').rows().value;
      const there = [...world.server.database.source.values()].filter((row) => scopesOf(row).includes(id));
      const bytes = (values: Values) => [...rowBytes(CARD, values)].join();
      expect(shown.map((row) => bytes(row)).sort()).toEqual(there.map(({ values }) => bytes(values)).sort());
    }
  }
}

test('v4 v5 v6 any interleaving leaves the client equal to the model, and shows cuts only', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(command, { minLength: 10, maxLength: 120, size: 'max' }),
      fc.integer({ min: 1, max: 4 }),
      fc.boolean(),
      async (commands, pageEffectsMax, useFin) => {
        const run = new Run(pageEffectsMax, useFin);
        run.hold('all');
        run.hold('list:a');
        await idle();
        for (const one of commands) await run.do(one);
        await run.finish();
        // Effects alone rebuild the rows, from where this session's first one began.
        for (const { scope, mirror } of run.held.values()) {
          for (const row of mirror.values()) expect(scope.table('card').get(row.id)).toEqual(row);
        }
        await run.world.sync.close();
      },
    ),
    {
      numRuns: Number(process.env.RUNS ?? 200),
      // What a failure printed, to see it again.
      ...(process.env.SEED === undefined ? {} : { seed: Number(process.env.SEED), path: process.env.SEED_PATH ?? '' }),
    },
  );
}, 120_000);
