/** The SDK against a real server: SQL in, rows out, and back. */

import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Tables } from '../../../gateway/cli/demo/src/schema.ts';
import { type Effect, MemoryStore, newInt64, type Scope } from '../../src/index.ts';
import { BOARD, boardOf, code, IDEAS, PUBLIC, until, untilCard, WEEK, World } from './world.ts';

let world: World;
beforeAll(() => {
  world = new World();
});
afterAll(async () => {
  await world?.close();
});

const cards = (scope: Scope<Tables>) => scope.table('demo.card');

test('v4 a scope holds exactly the rows of the table', async () => {
  const scope = await boardOf(world.client('ada'));
  const there = await world.sql(
    'select id::text, title, note, position, rev from demo.card c where board_id = $1 order by c.id',
    [BOARD],
  );
  const shown = cards(scope)
    .rows({ orderBy: 'id' })
    .value.map(({ id, title, note, position, rev }) => ({ id: `${id}`, title, note, position, rev }));
  expect(shown).toEqual(there);
  expect(scope.table('demo.list').rows().value.length).toBe(4);
  expect(world.logged).toEqual([]);
});

test('v5 one transaction of an application is one call of effects', async () => {
  const id = await world.card(IDEAS, 'one transaction');
  const scope = await boardOf(world.client('ada'), id);
  const effects: Effect<Tables>[] = [];
  scope.effects((effect) => effects.push(effect));
  const client = await world.database.connect();
  await client.query('begin');
  await client.query('update demo.card set title = $2 where id = $1', [id, 'first']);
  await client.query('update demo.card set note = $2 where id = $1', [id, 'second']);
  await client.query("insert into demo.card (id, board_id, list_id, title, position) values ($1, 1, 2, 'third', 1)", [
    newInt64(),
  ]);
  await client.query('commit');
  client.release();
  await untilCard(scope, id, (card) => card?.note === 'second');
  const mine = effects.filter(({ changes }) => changes.some(({ key }) => key === id));
  expect(mine).toHaveLength(1);
  expect(mine[0]!.changes).toHaveLength(2);
  expect(mine[0]!.changes.find(({ key }) => key === id)).toMatchObject({
    op: 'upsert',
    row: { title: 'first', note: 'second', rev: 3 },
  });
});

test('v6 a write is saved, committed and visible, and everybody sees it', async () => {
  const [ada, ben] = [await boardOf(world.client('ada')), await boardOf(world.client('ben'))];
  const id = newInt64();
  const write = cards(ada).insert({
    id,
    board_id: BOARD,
    list_id: WEEK,
    title: 'from ada',
    note: null,
    position: 7,
    color: 'mint',
    rev: 1,
    public: false,
  });
  expect(cards(ada).get(id)?.title).toBe('from ada');
  expect(code(await write.saved)).toBe('ok');
  expect(code(await write.committed)).toBe('ok');
  expect(code(await write.visible)).toBe('ok');
  expect((await untilCard(ben, id, (card) => card !== undefined))?.title).toBe('from ada');
  const edit = cards(ben).update(id, { title: 'from ben' });
  expect(code(await edit.visible)).toBe('ok');
  // The database's trigger counts; what it made of the write is what is shown.
  expect(cards(ben).get(id)).toMatchObject({ title: 'from ben', rev: 2 });
  const gone = cards(ben).delete(id);
  expect(code(await gone.visible)).toBe('ok');
  await untilCard(ada, id, (card) => card === undefined);
});

test('v3 wr_03 typing fast on one row: each write builds on the one before, and no older one is shown', async () => {
  const id = await world.card(IDEAS, '_');
  const scope = await boardOf(world.client('ada'), id);
  const lengths: number[] = [];
  cards(scope)
    .rows()
    .subscribe(() => lengths.push(cards(scope).get(id)!.title.length));
  const writes = [...'tidegate'].map((_, at, all) => cards(scope).update(id, { title: all.slice(0, at + 1).join('') }));
  expect(cards(scope).get(id)?.title).toBe('tidegate');
  for (const write of writes) expect(code(await write.visible)).toBe('ok');
  expect(cards(scope).get(id)).toMatchObject({ title: 'tidegate', rev: 9 });
  expect(lengths).toEqual([...lengths].sort((a, b) => a - b));
});

test('wr_04 refusals have a code, roll back, and block nothing', async () => {
  const id = await world.card(IDEAS, 'steady');
  const scope = await boardOf(world.client('ada'), id);
  const [check, elsewhere, missing, fine] = [
    cards(scope).update(id, { color: 'no such colour' }),
    cards(scope).insert({ ...cards(scope).get(id)!, id: newInt64(), list_id: 999n }),
    cards(scope).update(id, { list_id: 999n }),
    cards(scope).insert({ ...cards(scope).get(1n)!, id: newInt64(), title: 'fine' }),
  ];
  expect(code(await check.committed)).toBe('constraint_check');
  // The trigger finds no such list, so the card would belong to no board.
  expect(['row_refused', 'constraint_not_null', 'constraint_foreign_key']).toContain(code(await elsewhere.committed));
  expect(code(await missing.committed)).not.toBe('ok');
  expect(code(await fine.visible)).toBe('ok');
  expect(cards(scope).get(id)).toMatchObject({ title: 'steady', color: null, rev: 1 });
});

test('a batch is made whole or not at all', async () => {
  const [a, b] = [await world.card(IDEAS, 'a'), await world.card(IDEAS, 'b')];
  const sync = world.client('ada');
  const scope = await boardOf(sync, a, b);
  const good = sync.batch(() => {
    cards(scope).update(a, { title: 'a2' });
    cards(scope).update(b, { title: 'b2' });
  });
  expect(code(await good.visible)).toBe('ok');
  const bad = sync.batch(() => {
    cards(scope).update(a, { title: 'a3' });
    cards(scope).update(b, { color: 'no such colour' });
  });
  expect(code(await bad.committed)).toBe('constraint_check');
  expect([cards(scope).get(a)?.title, cards(scope).get(b)?.title]).toEqual(['a2', 'b2']);
});

test('conflicts: disjoint changes merge; the same column is parked, and kept or given up', async () => {
  const id = await world.card(IDEAS, 'calm');
  const [ada, ben] = [world.client('ada'), world.client('ben')];
  const [hers, his] = [await boardOf(ada, id), await boardOf(ben, id)];
  // Both write on the same version: the second one to commit is in conflict.
  const both = [cards(hers).update(id, { title: 'hers' }), cards(his).update(id, { note: 'his' })];
  for (const write of both) expect(code(await write.visible)).toBe('ok');
  await untilCard(hers, id, (card) => card?.title === 'hers' && card.note === 'his');

  const outcomes = await Promise.all(
    [cards(hers).update(id, { title: 'ada was here' }), cards(his).update(id, { title: 'ben was here' })].map(
      (write) => write.committed,
    ),
  );
  // One of them was first; or the other had seen it already, and wrote on top.
  const loser = outcomes.findIndex(({ ok }) => !ok);
  if (loser === -1) return;
  expect(code(outcomes[loser]!)).toBe('conflict');
  const [sync, scope] = loser === 0 ? [ada, hers] : [ben, his];
  const [parked] = await until(sync.pending, (pending) => pending.some(({ state }) => state === 'parked'));
  await untilCard(scope, id, (card) => card?.title === (loser === 0 ? 'ben was here' : 'ada was here'));
  expect(code(await sync.retry(parked!.id).visible)).toBe('ok');
  expect(cards(scope).get(id)?.title).toBe(loser === 0 ? 'ada was here' : 'ben was here');
});

test('f10 an edit on a version that is gone is merged over a change from outside', async () => {
  const id = await world.card(IDEAS, 'before');
  const sync = world.client('ada');
  const scope = await boardOf(sync, id);
  for (const socket of world.sockets.get(sync)!) socket.terminate();
  await until(sync.status, ({ state }) => state === 'offline');
  const write = cards(scope).update(id, { title: 'edited offline' });
  await world.sql('update demo.card set note = $2 where id = $1', [id, 'from outside']);
  expect(code(await write.visible)).toBe('ok');
  expect(cards(scope).get(id)).toMatchObject({ title: 'edited offline', note: 'from outside' });
});

test('a visitor sees the public list only, and cards as they enter and leave it', async () => {
  const id = await world.card(IDEAS, 'secret');
  const scope = world.client(null).scope('public');
  await until(scope.status, ({ data }) => data === 'live');
  expect(
    scope
      .table('demo.list')
      .rows()
      .value.map(({ name }) => name),
  ).toEqual(['Announced']);
  expect(cards(scope).get(id)).toBeUndefined();
  await world.sql('update demo.card set list_id = $2 where id = $1', [id, PUBLIC]);
  await untilCard(scope, id, (card) => card?.public === true);
  await world.sql('update demo.card set list_id = $2 where id = $1', [id, IDEAS]);
  await untilCard(scope, id, (card) => card === undefined);
});

test('a visitor is granted no board', async () => {
  const scope = world.client(null).scope(`board:${BOARD}`);
  await expect(scope.ready()).rejects.toMatchObject({ code: 'scope_forbidden' });
});

test('v7 cl_11 membership comes and goes with a row, and the board with it', async () => {
  const sync = world.client('ben');
  const scope = await boardOf(sync);
  await world.sql("delete from demo.board_member where user_id = 'ben'");
  try {
    await until(scope.status, ({ error }) => error?.code === 'scope_forbidden');
    expect(cards(scope).rows().value).toEqual([]);
    await until(sync.assigned, (names) => !names.includes(`board:${BOARD}`));
  } finally {
    await world.sql("insert into demo.board_member (user_id, board_id) values ('ben', 1)");
  }
  await until(scope.status, ({ data, stale }) => data === 'live' && !stale);
  expect(cards(scope).get(1n)).toBeDefined();
});

test('dt_02 dt_05 dt_08 values go through exactly', async () => {
  const scope = await boardOf(world.client('ada'));
  const ids = [9007199254740992n, 9007199254740993n, -9223372036854775808n].map(
    (base) => base + (newInt64() % 1_000n) * 4n,
  );
  const notes = ['', 'NULL', 'e\u0301 \u00e9 \u{1f600} \ufeff', `\ufeff${'x'.repeat(100_000)}`];
  for (const [index, id] of ids.entries()) {
    const write = cards(scope).insert({ ...cards(scope).get(1n)!, id, title: `at ${id}`, note: notes[index]! });
    expect(code(await write.visible)).toBe('ok');
  }
  for (const [index, id] of ids.entries()) {
    const [row] = await world.sql('select id::text, note from demo.card where id = $1', [id]);
    expect(row).toEqual({ id: `${id}`, note: notes[index] });
    expect(cards(scope).get(id)?.note).toBe(notes[index]);
  }
  // A large value that an update does not touch stays.
  const [big] = ids;
  expect(code(await cards(scope).update(big!, { note: notes[3]! }).visible)).toBe('ok');
  await world.sql('update demo.card set title = $2 where id = $1', [big, 'touched']);
  const touched = await untilCard(scope, big!, (card) => card?.title === 'touched');
  expect(touched?.note).toBe(notes[3]);
  expect(code(await cards(scope).update(big!, { note: null }).visible)).toBe('ok');
  expect(cards(scope).get(big!)?.note).toBeNull();
});

test('p9 a reload resumes at its cursor, with what happened meanwhile', async () => {
  const store = new MemoryStore();
  const before = world.client('ada', { store });
  const id = await world.card(IDEAS, 'before the reload');
  await boardOf(before, id);
  await before.close();
  await world.sql('update demo.card set title = $2 where id = $1', [id, 'meanwhile']);
  const after = world.client('ada', { store });
  const scope = after.scope(`board:${BOARD}`);
  const kinds: string[] = [];
  scope.effects(({ kind }) => kinds.push(kind));
  await scope.ready();
  expect(scope.status.value).toMatchObject({ data: 'cached', stale: true });
  await untilCard(scope, id, (card) => card?.title === 'meanwhile');
  expect(kinds).not.toContain('rebuild');
});

test('v5 cl_05 no half transaction is ever shown, whatever is cut in between', async () => {
  const moved = await Promise.all(['one', 'two', 'three', 'four'].map((title) => world.card(IDEAS, title)));
  const sync = world.client('ada');
  const scope = await boardOf(sync, ...moved);
  const seen = new Set<number>();
  cards(scope)
    .rows({ where: ({ id }) => moved.includes(id) })
    .subscribe((rows) => seen.add(new Set(rows.map(({ list_id }) => list_id)).size));
  for (let round = 0; round < 30; round++) {
    const list = round % 2 === 0 ? WEEK : IDEAS;
    await world.sql('update demo.card set list_id = $2 where id = any($1)', [moved, list]);
    if (round % 10 === 5) for (const socket of world.sockets.get(sync)!) socket.terminate();
  }
  await world.sql('update demo.card set position = 1 where id = $1', [moved[0]]);
  await untilCard(scope, moved[0]!, (card) => card?.position === 1);
  expect(seen).toEqual(new Set([1]));
});

test('a token for somebody else is refused before anything else', async () => {
  const sync = world.client('ada', { auth: () => world.token('ben') });
  sync.scope(`board:${BOARD}`);
  const status = await until(sync.status, ({ state }) => state === 'needs-auth');
  expect(status).toMatchObject({ cause: { code: 'user_mismatch' } });
});
