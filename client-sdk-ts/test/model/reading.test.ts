/** Reading against the model server: cuts, rebuilds, digests, resuming. */

import { decode } from '@msgpack/msgpack';
import { describe, expect, test } from 'vitest';
import { digestFromBytes } from '../../src/digest.ts';
import type { Effect } from '../../src/index.ts';
import { encode, type Wire } from '../../src/protocol/encode.ts';
import type { ServerFrame } from '../../src/protocol/frames.ts';
import { idle } from './clock.ts';
import { CARD, NOTE, rowBytes, type Values } from './database.ts';
import { type AppTables, type Card, World } from './world.ts';

const card = (list: string | null, title: string, more: Values = {}): Values => ({
  list,
  title,
  note: null,
  rev: 1,
  ...more,
});
const put = (key: bigint, values: Values | null) => ({ table: CARD, key, values: values && { id: key, ...values } });
const titles = (rows: readonly Card[]) => rows.map(({ title }) => title);

async function withRows(): Promise<World> {
  const world = new World();
  for (let n = 1n; n <= 5n; n++) world.server.database.commit([put(n, card('a', `card ${n}`))]);
  world.server.database.captureAll();
  return world;
}

describe('a scope', () => {
  test('is inert until it is held, then connects, rebuilds and is live', async () => {
    const world = await withRows();
    expect(world.sync.status.value).toEqual({ state: 'idle' });
    expect(world.asked).toEqual([]);
    const scope = world.sync.scope('list:a');
    expect(scope.status.value).toEqual({ data: 'none', stale: true });
    await world.run();
    await scope.ready();
    expect(world.sync.status.value).toEqual({ state: 'online' });
    expect(scope.status.value).toMatchObject({ data: 'live', stale: false, syncedAt: world.clock.time });
    expect(titles(scope.table('card').rows().value)).toEqual(['card 1', 'card 2', 'card 3', 'card 4', 'card 5']);
  });

  test('v5 cl_05 shows nothing of a rebuild before it is joined', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    const seen: number[] = [];
    scope
      .table('card')
      .rows()
      .subscribe((rows) => seen.push(rows.length));
    await idle();
    while (world.connection.deliver());
    await idle();
    for (let step = 0; step < 3; step++) {
      world.server.step(world.connection);
      while (world.connection.deliver());
      await idle();
    }
    expect(scope.status.value).toMatchObject({ data: 'rebuilding', stale: true, progress: 5 });
    expect(seen).toEqual([0]);
    await world.run();
    expect(seen).toEqual([0, 5]);
  });

  test('v5 shows a transaction only at its cut, across pages and scopes', async () => {
    const world = await withRows();
    const [a, b] = [world.sync.scope('list:a'), world.sync.scope('list:b')];
    await world.run();
    const seen: string[] = [];
    const look = () => seen.push(`${a.table('card').rows().value.length}+${b.table('card').rows().value.length}`);
    a.table('card').rows().subscribe(look);
    b.table('card').rows().subscribe(look);
    seen.length = 0;
    // Three rows move and one arrives, in one transaction: more effects than a page holds.
    world.server.database.commit([1n, 2n, 3n].map((n) => put(n, card('b', `moved ${n}`))));
    await world.run();
    expect(new Set(seen)).toEqual(new Set(['2+3']));
    expect(titles(b.table('card').rows({ orderBy: 'title' }).value)).toEqual(['moved 1', 'moved 2', 'moved 3']);
  });

  test('v5 calls effects once for each source transaction, after all rows are in place', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    const effects: Effect<AppTables>[] = [];
    const counts: number[] = [];
    scope.effects((effect) => {
      effects.push(effect);
      counts.push(scope.table('card').rows().value.length);
    });
    await world.run();
    expect(effects.map(({ kind, changes }) => [kind, changes.length])).toEqual([['rebuild', 5]]);
    world.server.database.commit([put(6n, card('a', 'six')), put(7n, card('a', 'seven')), put(8n, card('a', 'eight'))]);
    world.server.database.commit([put(1n, null)]);
    await world.run();
    expect(effects.slice(1).map(({ kind, changes }) => [kind, changes.map(({ op, key }) => `${op} ${key}`)])).toEqual([
      ['transaction', ['upsert 6', 'upsert 7', 'upsert 8']],
      ['transaction', ['delete 1']],
    ]);
    expect(counts).toEqual([5, 8, 7]);
  });

  test('keeps rows that no generated table has, for its digest', async () => {
    const world = await withRows();
    world.server.database.commit([{ table: NOTE, key: 'n', values: { id: 'n', list: 'a' } }]);
    const scope = world.sync.scope('list:a');
    await world.run();
    world.server.database.commit([{ table: NOTE, key: 'n', values: null }]);
    await world.run();
    expect(scope.status.value).toMatchObject({ data: 'live' });
    expect(world.logged).toEqual([]);
  });

  test('row objects are frozen and keep their identity until they change', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    await world.run();
    const query = scope.table('card').rows();
    const before = query.value;
    world.server.database.commit([put(2n, card('a', 'changed'))]);
    await world.run();
    const after = query.value;
    expect(after[0]).toBe(before[0]);
    expect(after[1]).not.toBe(before[1]);
    expect(Object.isFrozen(after[1])).toBe(true);
    expect(scope.table('card').rows({ where: ({ title }) => title === 'changed' }).value).toEqual([after[1]]);
  });

  test('is counted: it ends with its last holder, and the connection lingers a little', async () => {
    const world = await withRows();
    const [first, second] = [world.sync.scope('list:a'), world.sync.scope('list:a')];
    await world.run();
    first.release();
    first.release();
    await world.run();
    expect(world.connection.frames('unsubscribe')).toEqual([]);
    second.release();
    expect(world.connection.frames('unsubscribe')).toMatchObject([{ name: 'list:a' }]);
    expect(world.sync.status.value).toEqual({ state: 'online' });
    await world.clock.advance(5_000);
    expect(world.sync.status.value).toEqual({ state: 'idle' });
    expect(world.clock.waiting).toBe(0);
  });

  test('that is refused says so and is asked for again once it is granted', async () => {
    const world = await withRows();
    world.server.forbidden.add('list:a');
    const scope = world.sync.scope('list:a');
    const ready = expect(scope.ready()).rejects.toMatchObject({ code: 'scope_forbidden' });
    await world.run();
    await ready;
    expect(scope.status.value).toMatchObject({ data: 'none', error: { code: 'scope_forbidden' } });
    world.server.forbidden.clear();
    world.connection.answer({ t: 'scopes', added: ['list:a'], removed: [], set: 2 });
    await world.run();
    expect(scope.status.value).toMatchObject({ data: 'live', stale: false });
    expect(world.sync.assigned.value).toContain('list:a');
  });

  test('cl_11 that is taken away loses its rows at once, in the store too, and not those of other scopes', async () => {
    const world = await withRows();
    const [list, all] = [world.sync.scope('list:a'), world.sync.scope('all')];
    await world.run();
    world.connection.answer({ t: 'scopes', added: [], removed: ['list:a'], set: 2 });
    world.connection.deliver();
    await idle();
    expect(list.table('card').rows().value).toEqual([]);
    expect(list.status.value).toMatchObject({ data: 'none', error: { code: 'scope_forbidden' } });
    expect(all.table('card').rows().value).toHaveLength(5);
    await world.sync.close();
    world.open();
    const again = world.sync.scope('list:a');
    await idle();
    expect(again.table('card').rows().value).toEqual([]);
  });

  test('cl_11 that was taken away while offline loses its rows with the next welcome', async () => {
    const world = await withRows();
    world.server.assigned = ['all', 'list:a'];
    world.sync.scope('list:a');
    await world.run();
    await world.sync.close();
    world.server.assigned = ['all'];
    world.server.receive = new Proxy(world.server.receive, {
      apply: (target, self, args) => {
        Reflect.apply(target, self, args);
        const connection = args[0] as typeof world.connection;
        // As a server that took a grant away says it.
        if (args[1].t === 'hello') connection.toClient[0] = encode({ ...WELCOME, set: 2, assigned: ['all'] });
      },
    });
    world.open();
    const scope = world.sync.scope('list:a');
    await idle();
    expect(scope.table('card').rows().value).toHaveLength(5);
    while (world.connection.deliver());
    await idle();
    expect(scope.table('card').rows().value).toEqual([]);
  });
});

const WELCOME = {
  t: 'welcome',
  session: new Uint8Array(16),
  v: 3,
  sv: 1,
  limits: {
    frame_bytes_max: 1 << 20,
    batch_mutations_max: 100,
    scopes_max: 100,
    mutations_per_second: 1000,
    unmaterialized_max: 50,
  },
  heartbeat_ms: 20_000,
  last: 0,
};

describe('digests', () => {
  /** Alters the next page on its way. */
  function spoil(world: World): void {
    const row = world.server.database.projected.get(`${CARD}:bigint:1`)!;
    world.connection.answer({
      t: 'page',
      scope: 1,
      sv: 1,
      txs: [[99, [[2, CARD, row.key, row.version, null]]]],
      more: false,
      cursor: new Uint8Array(),
      count: 5,
      digest: new Uint8Array(16),
      fin: true,
    });
  }

  test('v4 a mismatch discards the scope, rebuilds it once, and is reported', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    await world.run();
    spoil(world);
    world.connection.deliver();
    await idle();
    expect(scope.table('card').rows().value).toEqual([]);
    expect(world.connection.frames('subscribe').at(-1)).toMatchObject({ name: 'list:a', mismatch: true });
    expect(world.connection.frames('subscribe').at(-1)).not.toHaveProperty('cursor');
    expect(world.logged).toEqual(['digest_mismatch']);
    await world.run();
    expect(scope.status.value).toMatchObject({ data: 'live', stale: false });
    expect(scope.table('card').rows().value).toHaveLength(5);
  });

  test('v4 a row that arrives damaged in one scope is not taken for right by the copy in another', async () => {
    const world = await withRows();
    const [all, list] = [world.sync.scope('all'), world.sync.scope('list:a')];
    await world.run();
    world.server.database.commit([put(1n, card('a', 'changed'))]);
    world.server.database.captureAll();
    world.server.stepAll(world.connection);
    // Both pages carry the row under one key and version; the later one arrives with other values.
    const pages = world.connection.toClient.flatMap((bytes, at) => {
      const frame = decode(bytes, { useBigInt64: true }) as ServerFrame;
      return frame.t === 'page' ? [{ at, frame }] : [];
    });
    expect(pages).toHaveLength(2);
    const { at, frame } = pages[1]!;
    const damaged = rowBytes(CARD, put(1n, card('a', 'damaged')).values!);
    world.connection.toClient[at] = encode({
      ...frame,
      txs: frame.txs.map(([tx, effects]) => [
        tx,
        effects.map(([op, table, key, version]) => [op, table, key, version, damaged]),
      ]),
    } as unknown as Wire);
    while (world.connection.deliver());
    await idle();
    expect(world.logged).toEqual(['digest_mismatch']);
    expect(world.connection.frames('subscribe').at(-1)).toMatchObject({ mismatch: true });
    await world.run();
    for (const scope of [all, list]) {
      expect(scope.status.value).toMatchObject({ data: 'live', stale: false });
      expect(scope.table('card').get(1n)?.title).toBe('changed');
    }
  });

  test('v4 a second mismatch ends the scope with an error, and nothing loops', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    await world.run();
    world.server.database.scope('list:a').digest += 1n;
    world.server.database.commit([put(9n, card('a', 'nine'))]);
    await world.run();
    expect(scope.status.value).toMatchObject({ data: 'none', error: { code: 'digest_mismatch' } });
    expect(world.connection.frames('subscribe')).toHaveLength(2);
    // Not by a reconnect either, only when the application asks.
    world.connection.end(1006);
    await world.clock.advance(60_000);
    await world.run();
    expect(world.connection.frames('subscribe')).toHaveLength(0);
    world.server.database.scope('list:a').digest -= 1n;
    world.server.database.commit([put(9n, card('a', 'nine again'))]);
    world.server.database.captureAll();
    world.sync.reconnect();
    await world.run();
    expect(scope.status.value).toMatchObject({ data: 'live' });
    expect(scope.table('card').get(9n)?.title).toBe('nine again');
  });

  test('v4 rows that rot in the store are found before they are shown as current', async () => {
    const world = await withRows();
    world.sync.scope('list:a');
    await world.run();
    await world.sync.close();
    const session = await world.store.open('ws://model/v3/socket ada');
    const [row] = await session.loadRows('list:a');
    const { scopes } = await session.load();
    await session.apply({
      scopes: new Map([
        ['list:a', { clear: false, put: [{ ...row!, digest: row!.digest ^ 1n }], remove: [], head: scopes[0]! }],
      ]),
    });
    world.open();
    const scope = world.sync.scope('list:a');
    const states: string[] = [];
    scope.status.subscribe(({ data, stale }) => states.push(`${data} ${stale}`));
    await world.run();
    expect(world.logged).toEqual(['digest_mismatch']);
    expect(states).not.toContain('live true');
    expect(states.at(-1)).toBe('live false');
    expect(digestFromBytes(new Uint8Array(16))).toBe(0n);
  });
});

describe('resuming', () => {
  test('after a loss goes on at its cursor, and rows stay shown as stale meanwhile', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    await world.run();
    world.connection.end(1006);
    expect(world.sync.status.value).toMatchObject({ state: 'offline', cause: { code: 'connection_closed' } });
    await idle();
    expect(scope.status.value).toMatchObject({ data: 'live', stale: true });
    world.server.database.commit([put(2n, card('a', 'while away'))]);
    world.server.database.commit([put(1n, null)]);
    world.server.database.captureAll();
    await world.clock.advance(1_000);
    await world.run();
    expect(world.connection.frames('subscribe')[0]).toHaveProperty('cursor');
    expect(titles(scope.table('card').rows().value)).toEqual(['while away', 'card 3', 'card 4', 'card 5']);
    expect(scope.status.value).toMatchObject({ data: 'live', stale: false });
  });

  test('a reload shows cached rows before there is a connection, then catches up', async () => {
    const world = await withRows();
    world.sync.scope('list:a');
    await world.run();
    await world.sync.close();
    world.server.database.commit([put(3n, card('a', 'newer'))]);
    world.server.database.captureAll();
    world.server.accepting = false;
    world.open();
    const scope = world.sync.scope('list:a');
    await scope.ready();
    expect(scope.status.value).toMatchObject({ data: 'cached', stale: true });
    expect(scope.table('card').get(3n)?.title).toBe('card 3');
    world.connection.accept();
    await world.run();
    expect(world.connection.frames('hello')[0]).toMatchObject({ sv: 1, new: true });
    expect(scope.table('card').get(3n)?.title).toBe('newer');
  });

  test('an interrupted rebuild goes on with its token, and converges over changes in between', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    await idle();
    while (world.connection.deliver());
    await idle();
    world.server.step(world.connection);
    while (world.connection.deliver());
    await idle();
    expect(scope.status.value).toMatchObject({ data: 'rebuilding', progress: 2 });
    world.connection.end(1006);
    world.server.database.commit([
      put(1n, card('a', 'after the range was read')),
      put(2n, null),
      put(9n, card('a', 'nine')),
    ]);
    world.server.database.captureAll();
    await world.clock.advance(1_000);
    await world.run();
    expect(world.connection.frames('subscribe')[0]).toHaveProperty('token');
    expect(titles(scope.table('card').rows().value)).toEqual([
      'after the range was read',
      'card 3',
      'card 4',
      'card 5',
      'nine',
    ]);
  });

  test('cl_06 a cursor that is refused rebuilds once, keeping the rows until it is joined', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    await world.run();
    const query = scope.table('card').rows();
    const rows = query.value;
    world.connection.end(1006);
    await world.clock.advance(1_000);
    world.connection.deliver();
    await idle();
    const { ref } = world.connection.frames('subscribe')[0]!;
    world.connection.toClient.length = 0;
    world.connection.answer({
      t: 'error',
      code: 'cursor_invalid',
      message: '',
      retryable: false,
      retry_after_ms: null,
      ref,
      of: 'subscribe',
    });
    world.connection.deliver();
    await idle();
    expect(query.value).toBe(rows);
    expect(world.connection.frames('subscribe')[1]).not.toHaveProperty('cursor');
    await world.run();
    expect(scope.status.value).toMatchObject({ data: 'live', stale: false });
    expect(world.logged).toEqual(['server_error', 'cursor_invalid']);
  });

  test('cl_06 a scope that must rebuild unasked keeps its rows until the new ones are verified', async () => {
    const world = await withRows();
    const scope = world.sync.scope('list:a');
    await world.run();
    const seen: number[] = [];
    scope
      .table('card')
      .rows()
      .subscribe((rows) => seen.push(rows.length));
    const { session } = world.connection;
    const subscription = session!.subscriptions.get('list:a')!;
    session!.subscriptions.set('list:a', {
      ...subscription,
      number: 77,
      joined: false,
      rows: { from: session!.delivered, after: '' },
    });
    world.connection.answer({
      t: 'subscribed',
      ref: null,
      scope: 77,
      name: 'list:a',
      mode: 'rebuild',
      reason: 'below_floor',
    });
    world.connection.deliver();
    await idle();
    expect(scope.status.value).toMatchObject({ data: 'rebuilding', stale: true });
    await world.run();
    expect(scope.status.value).toMatchObject({ data: 'live', stale: false });
    expect(seen).toEqual([5]);
  });
});
