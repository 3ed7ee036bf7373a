/** Writing against the model server: outcomes, order, the overlay, conflicts, resends. */

import { describe, expect, test } from 'vitest';
import type { Conflict, Outcome, Scope, SyncOptions, Write } from '../../src/index.ts';
import { idle } from './clock.ts';
import { CARD, type Values } from './database.ts';
import { type AppTables, World } from './world.ts';

const card = (list: string | null, title: string, more: Values = {}): Values => ({
  list,
  title,
  note: null,
  rev: 1,
  ...more,
});
const put = (key: bigint, values: Values | null) => ({ table: CARD, key, values: values && { id: key, ...values } });
const fresh = (id: bigint, title: string) => ({ id, list: 'a', title, note: null, rev: 1 });

/** What is known of a write by now. */
interface Fate {
  saved?: string;
  committed?: string;
  visible?: string;
}
function follow(write: Write): Fate {
  const fate: Fate = {};
  const name = (outcome: Outcome) => (outcome.ok ? 'ok' : outcome.error.code);
  for (const stage of ['saved', 'committed', 'visible'] as const) {
    void write[stage].then((outcome) => {
      fate[stage] = name(outcome);
    });
  }
  return fate;
}

async function live(options: Partial<SyncOptions<AppTables>> = {}): Promise<{ world: World; scope: Scope<AppTables> }> {
  const world = new World(options);
  for (let n = 1n; n <= 3n; n++) world.server.database.commit([put(n, card('a', `card ${n}`))]);
  world.server.database.captureAll();
  const scope = world.sync.scope('list:a');
  await world.run();
  return { world, scope };
}

const titleOf = (scope: Scope<AppTables>, id: bigint) => scope.table('card').get(id)?.title;
const pendingStates = (world: World) => world.sync.pending.value.map(({ state }) => state);

describe('a write', () => {
  test('v6 wr_03 is shown at once, saved, committed, and dropped from the overlay at its cut', async () => {
    const { world, scope } = await live();
    const seen: (string | undefined)[] = [];
    scope
      .table('card')
      .rows()
      .subscribe(() => seen.push(titleOf(scope, 1n)));
    const fate = follow(scope.table('card').update(1n, { title: 'mine' }));
    expect(titleOf(scope, 1n)).toBe('mine');
    expect(pendingStates(world)).toEqual(['queued']);
    await idle();
    expect(fate).toEqual({ saved: 'ok' });
    expect(pendingStates(world)).toEqual(['sent']);
    await world.flow();
    expect(fate).toEqual({ saved: 'ok', committed: 'ok' });
    expect(pendingStates(world)).toEqual(['committed']);
    world.server.database.commit([put(2n, card('a', 'by others'))]);
    await world.run();
    expect(fate).toEqual({ saved: 'ok', committed: 'ok', visible: 'ok' });
    expect(pendingStates(world)).toEqual([]);
    expect(titleOf(scope, 1n)).toBe('mine');
    expect(seen.slice(1)).toEqual(seen.slice(1).map(() => 'mine'));
  });

  test('wr_03 typing while capture stands still is never shown as it was before, through reconnect and reload', async () => {
    const { world, scope } = await live();
    const typed = ['m', 'mi', 'min', 'mine'];
    const seen: (string | undefined)[] = [];
    const watch = (of: Scope<AppTables>) =>
      of
        .table('card')
        .rows()
        .subscribe(() => seen.push(titleOf(of, 1n)));
    watch(scope);
    for (const title of typed) {
      scope.table('card').update(1n, { title });
      await world.flow();
    }
    expect(pendingStates(world)).toEqual(typed.map(() => 'committed'));
    world.connection.end(1006);
    await world.clock.advance(1_000);
    await world.flow();
    await world.sync.close();
    world.open();
    const again = world.sync.scope('list:a');
    await idle();
    watch(again);
    await world.flow();
    expect(pendingStates(world)).toEqual(typed.map(() => 'committed'));
    expect(titleOf(again, 1n)).toBe('mine');
    // It comes round write by write, each of them an older row than the one shown.
    await world.run();
    expect(pendingStates(world)).toEqual([]);
    const shown = seen.map((title) => typed.indexOf(title ?? '')).slice(1);
    expect(shown).toEqual([...shown].sort((a, b) => a - b));
    expect(seen.at(-1)).toBe('mine');
  });

  test('v2 capture_pending shows as committed, not yet visible', async () => {
    const { world, scope } = await live();
    scope.table('card').update(1n, { title: 'mine' });
    await world.flow();
    world.connection.answer({ t: 'capture_pending', numbers: [1], retry_ms: 100 });
    await world.flow();
    expect(world.sync.pending.value).toMatchObject([{ state: 'committed', delayed: true }]);
  });

  test('v6 is dropped also when it has no effect in any scope that is held', async () => {
    const { world, scope } = await live();
    const fate = follow(scope.table('card').update(1n, { list: 'elsewhere' }));
    expect(titleOf(scope, 1n)).toBe('card 1');
    await world.run();
    expect(fate.visible).toBe('ok');
    expect(titleOf(scope, 1n)).toBeUndefined();
    const inserted = follow(scope.table('card').insert({ ...fresh(50n, 'nowhere'), list: 'b' }));
    expect(titleOf(scope, 50n)).toBe('nowhere');
    await world.run();
    expect(inserted.visible).toBe('ok');
    expect(titleOf(scope, 50n)).toBeUndefined();
  });

  test('v6 that comes round before its outcome is dropped once and ends well', async () => {
    const { world, scope } = await live();
    world.server.loseOutcomes = true;
    const fate = follow(scope.table('card').update(1n, { title: 'mine' }));
    await world.run();
    expect(fate).toEqual({ saved: 'ok' });
    expect(world.sync.pending.value).toEqual([]);
    expect(titleOf(scope, 1n)).toBe('mine');
    world.server.loseOutcomes = false;
    world.connection.end(1006);
    await world.clock.advance(1_000);
    await world.run();
    expect(fate).toEqual({ saved: 'ok', committed: 'ok', visible: 'ok' });
    expect(world.connection.frames('push')).toHaveLength(1);
    expect((await world.sync.inspect()).client).toEqual({ next: 2, acked: 1 });
  });

  test('of a batch is one atomic push: all of it or nothing', async () => {
    const { world, scope } = await live();
    const cards = scope.table('card');
    let inner: Write | undefined;
    const write = world.sync.batch(() => {
      inner = cards.insert(fresh(10n, 'ten'));
      cards.update(10n, { title: 'ten, edited' });
      cards.delete(1n);
    });
    expect(inner?.id).toBe(write.id);
    expect(titleOf(scope, 10n)).toBe('ten, edited');
    expect(titleOf(scope, 1n)).toBeUndefined();
    const fate = follow(write);
    await world.run();
    expect(fate).toEqual({ saved: 'ok', committed: 'ok', visible: 'ok' });
    expect(world.connection.frames('push')).toMatchObject([
      { atomic: true, mutations: [{ n: 1 }, { n: 2, base: { after: 1 } }, { n: 3 }] },
    ]);

    const refused = follow(
      world.sync.batch(() => {
        cards.update(2n, { title: 'fine' });
        cards.update(3n, { title: 'refused' });
      }),
    );
    await world.run();
    expect(refused).toEqual({ saved: 'ok', committed: 'constraint_check', visible: 'constraint_check' });
    expect([titleOf(scope, 2n), titleOf(scope, 3n)]).toEqual(['card 2', 'card 3']);
  });

  test('of a batch that throws or holds a bad value leaves nothing', async () => {
    const { world, scope } = await live();
    const cards = scope.table('card');
    expect(() =>
      world.sync.batch(() => {
        cards.update(1n, { title: 'x' });
        throw new Error('the application');
      }),
    ).toThrow('the application');
    const fate = follow(
      world.sync.batch(() => {
        cards.update(1n, { title: 'x' });
        cards.update(2n, { title: 'a\0b' });
      }),
    );
    await world.run();
    expect(fate).toEqual({ saved: 'invalid_value', committed: 'invalid_value', visible: 'invalid_value' });
    expect(titleOf(scope, 1n)).toBe('card 1');
    expect(world.connection.frames('push')).toEqual([]);
  });

  test('dt_02 dt_05 that its column cannot hold is refused before it is sent, with a code and never the value', async () => {
    const { world, scope } = await live();
    const cards = scope.table('card');
    const refusals: [Write, string][] = [
      [cards.update(1n, { title: '\ud83d' }), 'invalid_value'],
      [cards.update(1n, { title: 'a\u0000b' }), 'invalid_value'],
      [cards.update(1n, { rev: 2 ** 31 }), 'invalid_value'],
      [cards.update(1n, { rev: 0.5 }), 'unsafe_integer'],
      [cards.update(1n, { title: null as unknown as string }), 'invalid_value'],
      [cards.update(2 ** 53, { title: 'x' }), 'unsafe_integer'],
      [cards.insert({ ...fresh(1n, 'x'), id: (2 ** 53) as unknown as bigint }), 'unsafe_integer'],
      [cards.update(1n, { nope: 1 } as object), 'unknown_column'],
      [cards.update(1n, { id: 2n }), 'key_change'],
      [cards.update(99n, { title: 'x' }), 'row_not_found'],
      [cards.delete(99n), 'row_not_found'],
      [cards.insert(fresh(1n, 'x')), 'row_exists'],
    ];
    for (const [write, code] of refusals) expect(await write.committed).toMatchObject({ ok: false, error: { code } });
    await world.run();
    expect(world.connection.frames('push')).toEqual([]);
  });

  test('dt_08 tells null, empty and omitted apart', async () => {
    const { world, scope } = await live();
    scope.table('card').update(1n, { note: null });
    scope.table('card').update(2n, { note: '' });
    scope.table('card').update(3n, { title: 'only this' });
    await world.run();
    expect(world.connection.frames('push').map(({ mutations }) => mutations[0]!.cols)).toEqual([
      { note: null },
      { note: '' },
      { title: 'only this' },
    ]);
    expect([1n, 2n, 3n].map((id) => scope.table('card').get(id)?.note)).toEqual([null, '', null]);
  });

  test('dt_02 names exactly its row beyond 2^53', async () => {
    const { world, scope } = await live();
    const ids = [9007199254740992n, 9007199254740993n, -9223372036854775808n];
    world.server.database.commit(ids.map((id) => put(id, card('a', `at ${id}`))));
    await world.run();
    scope.table('card').update(9007199254740993n, { title: 'edited' });
    await world.run();
    expect(ids.map((id) => titleOf(scope, id))).toEqual(['at 9007199254740992', 'edited', 'at -9223372036854775808']);
    expect(typeof scope.table('card').get(1)?.id).toBe('bigint');
  });
});

describe('order and resends', () => {
  test('v3 a write on a row with a pending write builds on it', async () => {
    const { world, scope } = await live();
    const cards = scope.table('card');
    const fates = ['a', 'ab', 'abc'].map((title) => follow(cards.update(1n, { title })));
    await world.run();
    expect(world.connection.frames('push').map(({ mutations }) => mutations[0])).toMatchObject([
      { n: 1, base: expect.any(Uint8Array) },
      { n: 2, base: { after: 1 } },
      { n: 3, base: { after: 2 } },
    ]);
    expect(fates.map(({ visible }) => visible)).toEqual(['ok', 'ok', 'ok']);
    expect(titleOf(scope, 1n)).toBe('abc');
  });

  test('wr_01 a push whose answer was lost is sent again to the byte, and runs once', async () => {
    const { world, scope } = await live();
    world.server.loseOutcomes = true;
    const fate = follow(scope.table('card').update(1n, { title: 'once' }));
    await world.flow();
    const [first] = world.connection.frames('push');
    world.server.loseOutcomes = false;
    world.connection.end(1006);
    await world.clock.advance(1_000);
    await world.run();
    const [again] = world.connection.frames('push');
    expect({ ...again, ref: 0 }).toEqual({ ...first, ref: 0 });
    expect(fate).toEqual({ saved: 'ok', committed: 'ok', visible: 'ok' });
    expect(world.server.database.log).toHaveLength(4);
  });

  test('wr_01 a reload settles what was sent and what was accepted', async () => {
    const { world, scope } = await live();
    scope.table('card').update(1n, { title: 'accepted' });
    await world.flow();
    world.server.loseOutcomes = true;
    scope.table('card').update(2n, { title: 'answer lost' });
    await world.flow();
    await world.sync.close();
    world.server.loseOutcomes = false;
    world.open();
    const again = world.sync.scope('list:a');
    await idle();
    expect(pendingStates(world)).toEqual(['committed', 'sent']);
    expect([titleOf(again, 1n), titleOf(again, 2n)]).toEqual(['accepted', 'answer lost']);
    await world.run();
    expect(world.connection.frames('hello')[0]).toMatchObject({ await: [1], acked: 1, new: false });
    expect(pendingStates(world)).toEqual([]);
    expect([titleOf(again, 1n), titleOf(again, 2n)]).toEqual(['accepted', 'answer lost']);
  });

  test('wr_04 a transient refusal is tried again, in order, with a pause, and without another local write', async () => {
    const { world, scope } = await live();
    world.server.failPushes = { code: 'unavailable', retryable: true, times: 1 };
    const fates = [1n, 2n, 3n].map((id) => follow(scope.table('card').update(id, { title: `new ${id}` })));
    await world.flow();
    expect(fates.map(({ committed }) => committed)).toEqual([undefined, undefined, undefined]);
    await world.clock.advance(2_000);
    await world.run();
    expect(fates.map(({ visible }) => visible)).toEqual(['ok', 'ok', 'ok']);
    const sent = world.connection.frames('push').map(({ mutations }) => mutations[0]!.n);
    expect(sent).toEqual([1, 2, 3, 1, 2, 3]);
  });

  test('wr_04 a refusal rolls back, parks what builds on it, survives a reload, and blocks nothing else', async () => {
    const { world, scope } = await live();
    const cards = scope.table('card');
    const [bad, on, other] = [
      follow(cards.update(1n, { title: 'refused: bad' })),
      follow(cards.update(1n, { note: 'builds on it' })),
      follow(cards.update(2n, { title: 'fine' })),
    ];
    await world.run();
    expect(bad.committed).toBe('constraint_check');
    expect(on.committed).toBe('dependency_rejected');
    expect(other.visible).toBe('ok');
    expect(titleOf(scope, 1n)).toBe('card 1');
    await world.sync.close();
    world.open();
    const again = world.sync.scope('list:a');
    await world.run();
    expect(world.sync.pending.value).toMatchObject([
      {
        state: 'parked',
        error: { code: 'constraint_check' },
        mutations: [{ table: 'card', key: 1n, columns: { title: 'refused: bad' } }],
      },
      { state: 'parked', error: { code: 'dependency_rejected' } },
    ]);
    for (const { id } of world.sync.pending.value) await world.sync.discard(id);
    expect(world.sync.pending.value).toEqual([]);
    expect(titleOf(again, 1n)).toBe('card 1');
  });

  test('v3 a push that the server will never take is voided, so that later ones run', async () => {
    const { world, scope } = await live();
    world.server.failPushes = { code: 'batch_too_large', retryable: false, times: 1 };
    const [first, second] = [
      follow(scope.table('card').update(1n, { title: 'x' })),
      follow(scope.table('card').update(2n, { title: 'y' })),
    ];
    await world.flow();
    await world.clock.advance(2_000);
    await world.run();
    expect(first.committed).toBe('batch_too_large');
    expect(second.visible).toBe('ok');
    expect(world.connection.frames('void')).toMatchObject([{ numbers: [1] }]);
    expect((await world.sync.inspect()).client).toEqual({ next: 3, acked: 2 });
  });

  test('v3 discard of a sent write asks the server, and takes its word', async () => {
    const { world, scope } = await live();
    world.server.loseOutcomes = true;
    const ran = follow(scope.table('card').update(1n, { title: 'ran' }));
    await world.flow();
    world.server.failPushes = { code: 'unavailable', retryable: true, times: 1 };
    const never = follow(scope.table('card').update(2n, { title: 'never' }));
    await world.flow();
    world.server.loseOutcomes = false;
    for (const { id } of world.sync.pending.value) await world.sync.discard(id);
    await world.run();
    expect(ran).toEqual({ saved: 'ok', committed: 'ok', visible: 'ok' });
    expect(never.committed).toBe('discarded');
    expect([titleOf(scope, 1n), titleOf(scope, 2n)]).toEqual(['ran', 'card 2']);
  });

  for (const code of ['client_forked', 'client_expired']) {
    test(`v3 ${code}: a new client id; what was unanswered is parked; what was never sent goes on`, async () => {
      const { world, scope } = await live();
      scope.table('card').update(3n, { title: 'before' });
      await world.run();
      const { client } = world.connection.frames('hello')[0]!;
      world.server.failPushes = { code, retryable: false, times: 1 };
      const unanswered = follow(scope.table('card').update(1n, { title: 'unanswered' }));
      await idle();
      const later = follow(scope.table('card').update(1n, { note: 'builds on it' }));
      world.connection.toClient.splice(1);
      await world.flow();
      expect(unanswered.committed).toBe(code);
      expect(later.committed).toMatch(code);
      const offline = follow(scope.table('card').update(2n, { title: 'goes on' }));
      await world.clock.advance(1_000);
      await world.run();
      const hello = world.connection.frames('hello')[0]!;
      expect(hello).toMatchObject({ new: true, acked: 0, await: [] });
      expect(hello.client).not.toEqual(client);
      expect(offline.visible).toBe('ok');
      expect(world.connection.frames('push')[0]!.mutations[0]!.n).toBe(1);
      expect(pendingStates(world)).toEqual(['parked', 'parked']);
      const again = follow(world.sync.retry(world.sync.pending.value[0]!.id));
      await world.run();
      expect(again.visible).toBe('ok');
      expect(titleOf(scope, 1n)).toBe('unanswered');
    });
  }

  test('signOut refuses while work would be lost, and forgets everything when told to', async () => {
    const { world, scope } = await live();
    world.connection.end(1006);
    scope.table('card').update(1n, { title: 'unsent' });
    await expect(world.sync.signOut()).rejects.toMatchObject({ code: 'pending_writes' });
    await world.sync.signOut({ discardPending: true });
    expect(world.sync.status.value).toEqual({ state: 'closed' });
    world.open();
    const again = world.sync.scope('list:a');
    await idle();
    expect(again.table('card').rows().value).toEqual([]);
    expect(world.sync.pending.value).toEqual([]);
  });
});

describe('conflicts', () => {
  test('changes of disjoint columns are merged without asking, and nothing flickers', async () => {
    const asked: unknown[] = [];
    const { world, scope } = await live({
      onConflict: (conflict) => {
        asked.push(conflict);
        return 'park';
      },
    });
    const seen: (string | undefined)[] = [];
    scope
      .table('card')
      .rows()
      .subscribe(() => seen.push(titleOf(scope, 1n)));
    world.server.database.commit([put(1n, card('a', 'card 1', { note: 'theirs' }))]);
    const fate = follow(scope.table('card').update(1n, { title: 'mine' }));
    const on = follow(scope.table('card').update(1n, { title: 'mine, again' }));
    await world.run();
    expect(asked).toEqual([]);
    expect([fate.visible, on.visible]).toEqual(['ok', 'ok']);
    expect(scope.table('card').get(1n)).toMatchObject({ title: 'mine, again', note: 'theirs' });
    expect(seen.filter((title) => title === 'card 1')).toHaveLength(1);
    expect(world.server.database.row(CARD, 1n)?.values).toMatchObject({ title: 'mine, again', note: 'theirs' });
  });

  async function clash(options: Partial<SyncOptions<AppTables>>) {
    const { world, scope } = await live(options);
    world.server.database.commit([put(1n, card('a', 'theirs'))]);
    const fate = follow(scope.table('card').update(1n, { title: 'mine' }));
    await world.run();
    return { world, scope, fate };
  }

  test('the same column: the application is asked, with both rows and the one before', async () => {
    const asked: Conflict<AppTables>[] = [];
    const { fate, scope } = await clash({
      onConflict: (conflict) => {
        asked.push(conflict);
        return 'mine';
      },
    });
    expect(asked).toMatchObject([
      {
        table: 'card',
        op: 'update',
        key: 1n,
        mine: { title: 'mine' },
        theirs: { title: 'theirs' },
        base: { title: 'card 1' },
      },
    ]);
    expect(fate.visible).toBe('ok');
    expect(titleOf(scope, 1n)).toBe('mine');
  });

  test('theirs: the write ends as a conflict and the row shows theirs', async () => {
    const { fate, scope, world } = await clash({ onConflict: () => 'theirs' });
    expect(fate).toMatchObject({ committed: 'conflict', visible: 'conflict' });
    expect(titleOf(scope, 1n)).toBe('theirs');
    expect(world.sync.pending.value).toEqual([]);
  });

  test('merge: what the application made of both is written', async () => {
    const { fate, scope } = await clash({ onConflict: async () => ({ merge: { title: 'ours' } }) });
    expect(fate.visible).toBe('ok');
    expect(titleOf(scope, 1n)).toBe('ours');
  });

  test('nobody asked, or nobody answers: parked and kept, with what builds on it; retry writes it on top', async () => {
    for (const onConflict of [
      undefined,
      () => {
        throw new Error('no idea');
      },
    ]) {
      const { fate, scope, world } = await clash(onConflict === undefined ? {} : { onConflict });
      expect(fate.committed).toBe('conflict');
      expect(titleOf(scope, 1n)).toBe('theirs');
      expect(world.sync.pending.value).toMatchObject([{ state: 'parked', error: { code: 'conflict' } }]);
      const again = follow(world.sync.retry(world.sync.pending.value[0]!.id));
      expect(titleOf(scope, 1n)).toBe('mine');
      await world.run();
      expect(again.visible).toBe('ok');
      expect(titleOf(scope, 1n)).toBe('mine');
      expect(world.sync.pending.value).toEqual([]);
    }
  });

  test('a write on a row that is gone: mine brings it back whole', async () => {
    const { world, scope } = await live({ onConflict: ({ theirs }) => (theirs === null ? 'mine' : 'park') });
    world.server.database.commit([put(1n, null)]);
    const fate = follow(scope.table('card').update(1n, { title: 'mine' }));
    await world.run();
    expect(fate.visible).toBe('ok');
    expect(scope.table('card').get(1n)).toEqual({ id: 1n, list: 'a', title: 'mine', note: null, rev: 1 });
  });

  test('a delete of a row that is gone is what was wanted', async () => {
    const { world, scope } = await live();
    world.server.database.commit([put(1n, null)]);
    const fate = follow(scope.table('card').delete(1n));
    await world.run();
    expect(fate).toMatchObject({ committed: 'ok' });
    expect(world.sync.pending.value).toEqual([]);
  });

  test('two inserts of one key: mine writes over, park keeps', async () => {
    const { world, scope } = await live({ onConflict: () => 'mine' });
    world.server.database.commit([put(7n, card('a', 'theirs'))]);
    const fate = follow(scope.table('card').insert(fresh(7n, 'mine')));
    await world.run();
    // Their row was not to be seen yet when the outcome came, so there was nothing to write over.
    expect(fate.committed).toBe('row_exists');
    expect(titleOf(scope, 7n)).toBe('theirs');
    const again = follow(world.sync.retry(world.sync.pending.value[0]!.id));
    await world.run();
    expect(again.visible).toBe('ok');
    expect(titleOf(scope, 7n)).toBe('mine');
  });

  test('a row that keeps moving parks in the end', async () => {
    const { world, scope } = await live({ onConflict: () => 'mine' });
    const fate = follow(scope.table('card').update(1n, { title: 'mine' }));
    const push = world.server.database.push.bind(world.server.database);
    let round = 0;
    world.server.database.push = (...args) => {
      round += 1;
      world.server.database.commit([put(1n, card('a', `theirs ${round}`))]);
      return push(...args);
    };
    await world.run();
    expect(fate.committed).toBe('conflict');
    expect(round).toBe(6);
    expect(pendingStates(world)).toEqual(['parked']);
  });

  test('a batch is merged as a whole', async () => {
    const { world, scope } = await live();
    world.server.database.commit([put(1n, card('a', 'card 1', { note: 'theirs' })), put(2n, null)]);
    const fate = follow(
      world.sync.batch(() => {
        scope.table('card').delete(2n);
        scope.table('card').update(1n, { title: 'mine' });
        scope.table('card').insert(fresh(9n, 'nine'));
        scope.table('card').update(9n, { note: 'more' });
      }),
    );
    await world.run();
    expect(fate.visible).toBe('ok');
    expect(scope.table('card').get(1n)).toMatchObject({ title: 'mine', note: 'theirs' });
    expect(scope.table('card').get(9n)).toMatchObject({ title: 'nine', note: 'more' });
  });
});
