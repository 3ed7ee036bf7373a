/** Connecting against the model server: tokens, heartbeats, backoff, wake-ups, and what the server may not send. */

import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, test, vi } from 'vitest';
import { WebSocket, WebSocketServer } from 'ws';
import { createSync, type Status, SyncError } from '../../src/index.ts';
import { encode } from '../../src/protocol/encode.ts';
import { CLOSE_CODES } from '../../src/protocol/frames.ts';
import { idle } from './clock.ts';
import { error } from './server.ts';
import { schema, World } from './world.ts';

async function online(): Promise<World> {
  const world = new World();
  world.sync.scope('all');
  await world.run();
  return world;
}

const states = (world: World) => {
  const seen: Status['state'][] = [];
  world.sync.status.subscribe(({ state }) => seen.push(state));
  return seen;
};

function jwt(claims: object): string {
  return `${btoa('{}')}.${btoa(JSON.stringify(claims))}.x`;
}

describe('tokens', () => {
  test('auth is asked on every connect; user goes with a token only', async () => {
    const world = await online();
    expect(world.connection.frames('hello')[0]).toMatchObject({ v: [3], token: 'token', user: 'ada' });
    world.token = null;
    world.connection.end(1006);
    await world.clock.advance(1_000);
    await world.run();
    expect(world.asked).toEqual(['connect', 'connect']);
    expect(world.connection.frames('hello')[0]).not.toHaveProperty('token');
    expect(world.connection.frames('hello')[0]).not.toHaveProperty('user');
  });

  test('a rejected token is replaced once, at once', async () => {
    const world = new World();
    world.server.refusedTokens.add('token');
    world.second = 'fresh';
    world.sync.scope('all');
    await world.run();
    expect(world.asked).toEqual(['connect', 'rejected']);
    expect(world.sync.status.value).toEqual({ state: 'online' });
  });

  test('a second rejection, the same token again, or none needs a person, and nothing retries by itself', async () => {
    for (const second of ['token', null, 'also bad']) {
      const world = new World();
      world.server.refusedTokens.add('token').add('also bad');
      const seen = states(world);
      world.second = second;
      world.sync.scope('all');
      await world.run();
      await world.clock.advance(3_600_000);
      expect(world.sync.status.value).toMatchObject({ state: 'needs-auth', cause: { code: 'auth_invalid' } });
      expect(world.server.connections.length).toBe(second === 'also bad' ? 2 : 1);
      expect(seen.at(-1)).toBe('needs-auth');
      world.token = 'good';
      world.sync.reconnect();
      await world.run();
      expect(world.sync.status.value).toEqual({ state: 'online' });
    }
  });

  test('auth that throws is tried again with backoff', async () => {
    let fail = true;
    const world = new World({
      auth: async () => {
        if (fail) throw new Error('no network');
        return 'token';
      },
    });
    world.sync.scope('all');
    await idle();
    expect(world.sync.status.value).toMatchObject({
      state: 'offline',
      cause: { code: 'auth_failed', retryable: true },
    });
    fail = false;
    await world.clock.advance(500);
    await world.run();
    expect(world.sync.status.value).toEqual({ state: 'online' });
  });

  test('a token that is about to expire is renewed on the open connection', async () => {
    const world = new World();
    const now = world.clock.time / 1000;
    world.token = jwt({ iat: now, exp: now + 600 });
    world.sync.scope('all');
    await world.run();
    world.token = jwt({ iat: now, exp: now + 6000 });
    for (let second = 0; second < 550; second += 10) {
      await world.clock.advance(10_000);
      await world.run();
    }
    expect(world.asked).toEqual(['connect', 'expiring']);
    expect(world.connection.frames('auth')).toMatchObject([{ token: world.token }]);
    expect(world.server.connections).toHaveLength(1);
  });

  test('sessions that end at once as expired do not make a tight loop', async () => {
    const world = await online();
    world.connection.end(CLOSE_CODES.auth_expired);
    world.token = 'fresh';
    await idle();
    expect(world.sync.status.value).toMatchObject({ state: 'offline' });
    await world.clock.advance(1_000);
    await world.run();
    expect(world.asked).toEqual(['connect', 'rejected']);
  });

  test('sessions that lasted and then expired go on at once', async () => {
    const world = await online();
    for (let n = 0; n < 4; n++) {
      await world.clock.advance(10_000);
      await world.run();
    }
    world.token = 'fresh';
    world.connection.end(CLOSE_CODES.auth_expired);
    await world.run();
    expect(world.sync.status.value).toEqual({ state: 'online' });
    expect(world.asked).toEqual(['connect', 'rejected']);
  });
});

describe('ready', () => {
  const waiting = (world: World, name = 'all') =>
    world.sync
      .scope(name)
      .ready()
      .then(
        () => 'ready',
        ({ code }: SyncError) => code,
      );

  test('rejects with the cause when the token is refused, also while it waits; once more after reconnect', async () => {
    const world = new World();
    world.server.refusedTokens.add('token');
    const first = waiting(world);
    await world.run();
    expect(await first).toBe('auth_invalid');
    expect(await waiting(world)).toBe('auth_invalid');
    expect(await waiting(world, 'other')).toBe('auth_invalid');
    world.token = 'good';
    world.sync.reconnect();
    const again = waiting(world);
    await world.run();
    expect(await again).toBe('ready');
  });

  test('rejects where there is no WebSocket, and after close', async () => {
    vi.stubGlobal('WebSocket', undefined);
    const world = new World({ environment: { onWake: () => () => {} } });
    expect(await waiting(world)).toBe('no_websocket');
    vi.unstubAllGlobals();
    const scope = world.sync.scope('all');
    await world.sync.close();
    await expect(scope.ready()).rejects.toMatchObject({ code: 'closed' });
  });

  test('rows of an earlier session are ready, whatever becomes of the connection', async () => {
    const world = await online();
    await world.sync.close();
    world.server.refusedTokens.add('token');
    world.open();
    const ready = waiting(world);
    await world.run();
    expect(await ready).toBe('ready');
    expect(world.sync.status.value).toMatchObject({ state: 'needs-auth' });
    expect(await waiting(world)).toBe('ready');
  });

  test('the console says once why it stopped, without the token', async () => {
    const said = vi.spyOn(console, 'error').mockImplementation(() => {});
    const world = new World({ log: 'error' });
    world.token = 'secret-7f3a';
    world.server.refusedTokens.add('secret-7f3a');
    const refused = [waiting(world), waiting(world)];
    await world.run();
    await Promise.all(refused);
    expect(said.mock.calls).toEqual([['tidegate: auth_invalid', { message: expect.any(String) }]]);
    expect(JSON.stringify(said.mock.calls)).not.toContain('7f3a');
    said.mockRestore();
  });

  test('a schema that does not fit is logged once and ends the waiting', async () => {
    const { columns, ...card } = schema.tables.card;
    const world = new World({
      schema: { hash: 'other', tables: { card: { ...card, columns: { ...columns, rev: 'int64' } } } },
    });
    const ready = waiting(world);
    await world.run();
    expect(await ready).toBe('schema_mismatch');
    expect(world.logged).toEqual(['schema_mismatch']);
  });
});

test('in Node a socket of ws connects, given the base url of a server', async () => {
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const arrived = once(server, 'connection');
  const sync = createSync({
    url: `http://127.0.0.1:${port}`,
    schema,
    user: 'ada',
    auth: async () => 'token',
    log: 'silent',
    environment: { socket: (url, protocol) => new WebSocket(url, protocol) },
  });
  const ready = sync.scope('all').ready();
  const [socket, request] = (await arrived) as [WebSocket, IncomingMessage];
  expect(request.url).toBe('/v3/socket');
  expect(request.headers['sec-websocket-protocol']).toBe('tidegate.v3.msgpack');
  await once(socket, 'message');
  socket.close(CLOSE_CODES.auth_failed);
  await expect(ready).rejects.toBeInstanceOf(SyncError);
  await sync.close();
  server.close();
});

describe('heartbeats', () => {
  test('cl_03 pings go out at every interval, whatever else is sent or heard', async () => {
    const world = await online();
    for (let beat = 1; beat <= 3; beat++) {
      await world.clock.advance(19_000);
      world.server.database.commit([]);
      await world.run();
      await world.clock.advance(1_000);
      await world.run();
      expect(world.connection.frames('ping')).toHaveLength(beat);
    }
    expect(world.server.connections).toHaveLength(1);
  });

  test('cl_03 two silent intervals end the session, and what a detached socket still delivers is not heard', async () => {
    const world = await online();
    const silent = world.connection;
    const handler = silent.onmessage;
    await world.clock.advance(40_000);
    expect(world.sync.status.value).toMatchObject({ state: 'offline', cause: { code: 'connection_silent' } });
    expect(silent.ended).toBe(true);
    expect(silent.onmessage).toBeNull();
    expect(handler).not.toBeNull();
    await world.clock.advance(1_000);
    await world.run();
    expect(world.sync.status.value).toEqual({ state: 'online' });
  });

  test('cl_03 a wake-up looks at once; many make one look', async () => {
    const world = await online();
    for (let n = 0; n < 50; n++) world.wake();
    expect(world.connection.frames('ping')).toHaveLength(1);
    await world.clock.advance(5_000);
    expect(world.sync.status.value).toMatchObject({ state: 'offline', cause: { code: 'connection_silent' } });

    const alive = await online();
    await alive.clock.advance(1);
    alive.wake();
    await alive.run();
    await alive.clock.advance(6_000);
    expect(alive.sync.status.value).toEqual({ state: 'online' });
  });

  test('cl_03 a wake-up shortens a long wait, never to a storm', async () => {
    const world = new World();
    world.server.accepting = false;
    world.sync.scope('all');
    for (let n = 0; n < 8; n++) await world.clock.advance(60_000);
    world.connection.end(1006);
    const attempts = world.server.connections.length;
    for (let n = 0; n < 50; n++) world.wake();
    await world.clock.advance(1_000);
    expect(world.server.connections.length).toBe(attempts + 1);
  });
});

describe('reconnecting', () => {
  test('delays grow, are random, and start again only after a connection that lasted', async () => {
    const world = await online();
    const delays: number[] = [];
    const lose = async () => {
      world.connection.end(1006);
      const { retryAt } = world.sync.status.value as { retryAt: number };
      delays.push(retryAt - world.clock.time);
      await world.clock.advance(retryAt - world.clock.time);
      await world.run();
    };
    for (let n = 0; n < 10; n++) await lose();
    for (const [n, delay] of delays.entries()) {
      expect(delay).toBeGreaterThanOrEqual(0);
      expect(delay).toBeLessThan(Math.min(30_000, 500 * 2 ** n));
    }
    expect(new Set(delays).size).toBeGreaterThan(5);
    for (let n = 0; n < 4; n++) {
      await world.clock.advance(10_000);
      await world.run();
    }
    delays.length = 0;
    await lose();
    expect(delays[0]).toBeLessThan(500);
  });

  test('bye says when: exactly then', async () => {
    const world = await online();
    world.connection.answer({ t: 'bye', reason: 'going_away', reconnect_ms: 7_777 });
    world.connection.deliver();
    world.connection.end(CLOSE_CODES.going_away);
    expect(world.sync.status.value).toMatchObject({ state: 'offline', retryAt: world.clock.time + 7_777 });
  });

  test('a server that never answers is given up in time', async () => {
    const world = new World();
    world.server.accepting = false;
    world.sync.scope('all');
    await idle();
    await world.clock.advance(15_000);
    expect(world.sync.status.value).toMatchObject({ state: 'offline', cause: { code: 'connect_timeout' } });
  });

  test('a protocol that the server does not speak is not tried again', async () => {
    const world = await online();
    world.connection.answer(error('unsupported_version', false));
    world.connection.deliver();
    world.connection.end(CLOSE_CODES.protocol);
    await world.clock.advance(3_600_000);
    expect(world.sync.status.value).toMatchObject({ state: 'failed', cause: { code: 'unsupported_version' } });
    expect(world.server.connections).toHaveLength(1);
  });

  test('a limit waits long', async () => {
    const world = await online();
    world.connection.end(CLOSE_CODES.limit);
    const { retryAt } = world.sync.status.value as { retryAt: number };
    expect(retryAt - world.clock.time).toBeGreaterThanOrEqual(15_000);
  });

  test('what is not a frame, or has no place now, ends the session with backoff; unknown types and fields do not', async () => {
    const world = await online();
    world.connection.toClient.push(encode({ t: 'news', from: 'the future' }));
    world.connection.toClient.push(encode({ t: 'cut', also: 'new' }));
    await world.run();
    expect(world.sync.status.value).toEqual({ state: 'online' });
    world.connection.answer({ t: 'joined', scope: 1, cursor: new Uint8Array(), count: 0, digest: new Uint8Array(16) });
    world.connection.deliver();
    await idle();
    expect(world.sync.status.value).toMatchObject({ state: 'offline', cause: { code: 'protocol_violation' } });
    await world.clock.advance(1_000);
    await world.run();
    world.connection.toClient.push(Uint8Array.of(0xc1));
    world.connection.deliver();
    expect(world.sync.status.value).toMatchObject({ state: 'offline', cause: { code: 'protocol_violation' } });
  });

  test('a schema that does not fit is said by table and column, and not tried again', async () => {
    const { columns, ...card } = schema.tables.card;
    const world = new World({
      schema: { hash: 'other', tables: { card: { ...card, columns: { ...columns, rev: 'int64' } } } },
    });
    world.sync.scope('all');
    await world.run();
    expect(world.sync.status.value).toMatchObject({ state: 'failed', cause: { code: 'schema_mismatch' } });
    expect((world.sync.status.value as { cause: SyncError }).cause.message).toContain('app.card.rev');
  });

  test('a store that refuses fails writes by name instead of promising them', async () => {
    const world = await online();
    const session = await world.store.open('ws://model/v3/socket ada');
    expect(session).toBeDefined();
    const broken = new World({
      store: {
        open: async () => ({
          load: async () => ({ client: null, manifests: new Map(), scopes: [], assigned: [], outbox: [] }),
          loadRows: async () => [],
          apply: async () => {
            throw new Error('quota');
          },
          clear: async () => {},
          close: async () => {},
        }),
      },
    });
    const scope = broken.sync.scope('all');
    const write = scope.table('card').insert({ id: 1n, list: null, title: 'x', note: null, rev: 1 });
    expect(await write.saved).toMatchObject({ ok: false, error: { code: 'store_failed' } });
    expect(broken.sync.status.value).toMatchObject({ state: 'failed', cause: { code: 'store_failed' } });
  });

  test('close ends everything; nothing is left waiting', async () => {
    const world = await online();
    await world.sync.close();
    expect(world.sync.status.value).toEqual({ state: 'closed' });
    expect(world.connection.ended).toBe(true);
    expect(world.clock.waiting).toBe(0);
    expect(() => world.sync.scope('all')).toThrow(SyncError);
    world.sync.reconnect();
    expect(world.sync.status.value).toEqual({ state: 'closed' });
  });

  test('indexeddb is refused by name', () => {
    expect(() =>
      createSync({ url: 'ws://model', schema, user: '', auth: async () => null, store: 'indexeddb' }),
    ).toThrow(expect.objectContaining({ code: 'store_unsupported' }));
  });
});
