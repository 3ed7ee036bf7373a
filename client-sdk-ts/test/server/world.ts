/**
 * A real server with the demo's tables, as `tidegate dev` runs it. The environment says where: TIDEGATE_URL (such as
 * http://127.0.0.1:8787) and DATABASE_URL. Tokens come from the demo's own route. Nothing here sleeps: tests wait for signals.
 */

import pg from 'pg';
import { WebSocket } from 'ws';
import { type DemoCard, schema, type Tables } from '../../../gateway/cli/demo/src/schema.ts';
import {
  createSync,
  newInt64,
  type Outcome,
  type Scope,
  type Signal,
  type Sync,
  type SyncOptions,
} from '../../src/index.ts';

function given(name: string): string {
  const value = process.env[name];
  if (value === undefined || value === '') throw new Error(`these tests need ${name}: see test/server/world.ts`);
  return value;
}

export const BOARD = 1n;
export const [IDEAS, WEEK, , PUBLIC] = [1n, 2n, 3n, 4n] as const;

export type User = 'ada' | 'ben' | null;

export class World {
  readonly #url = given('TIDEGATE_URL').replace(/\/$/, '');
  readonly database = new pg.Pool({ connectionString: given('DATABASE_URL'), max: 4 });
  readonly #open: Sync<Tables>[] = [];
  /** Sockets by client, so that a test can cut them. */
  readonly sockets = new Map<Sync<Tables>, WebSocket[]>();
  readonly logged: string[] = [];

  client(user: User, options: Partial<SyncOptions<Tables>> = {}): Sync<Tables> {
    const sockets: WebSocket[] = [];
    const sync = createSync<Tables>({
      url: `${this.#url.replace(/^http/, 'ws')}/v3/socket`,
      schema,
      user: user ?? 'visitor',
      auth: async () => (user === null ? null : this.token(user)),
      log: ({ event }) => this.logged.push(event),
      environment: {
        socket: (url, subprotocol) => {
          const socket = new WebSocket(url, subprotocol);
          sockets.push(socket);
          return socket;
        },
      },
      ...options,
    });
    this.#open.push(sync);
    this.sockets.set(sync, sockets);
    return sync;
  }

  async token(user: string): Promise<string> {
    const response = await fetch(`${this.#url}/demo/token?user=${user}`);
    if (!response.ok) throw new Error(`token: HTTP ${response.status}`);
    return (await response.text()).trim();
  }

  async sql(text: string, values: readonly unknown[] = []): Promise<Record<string, unknown>[]> {
    return (await this.database.query(text, [...values])).rows;
  }

  /** A card that no other test touches. */
  async card(list: bigint, title: string): Promise<bigint> {
    const id = newInt64();
    await this.sql('insert into demo.card (id, board_id, list_id, title, position) values ($1, 1, $2, $3, 9000)', [
      id,
      list,
      title,
    ]);
    return id;
  }

  async close(): Promise<void> {
    await Promise.all(this.#open.map((sync) => sync.close()));
    await this.sql('delete from demo.card where id not between 1 and 10');
    await this.database.end();
  }
}

/** The board, live, with these cards in it. */
export async function boardOf(sync: Sync<Tables>, ...ids: readonly bigint[]): Promise<Scope<Tables>> {
  const scope = sync.scope(`board:${BOARD}`);
  await until(scope.status, ({ data, stale }) => data === 'live' && !stale);
  for (const id of ids) await untilCard(scope, id, (card) => card !== undefined);
  return scope;
}

/** Resolves when a signal has such a value; the runner's time limit bounds it. */
export function until<V>(signal: Signal<V>, holds: (value: V) => boolean): Promise<V> {
  return new Promise((resolve) => {
    let end: (() => void) | null = null;
    let done = false;
    end = signal.subscribe((value) => {
      if (done || !holds(value)) return;
      done = true;
      queueMicrotask(() => end?.());
      resolve(value);
    });
  });
}

/** Resolves when the card is shown so. */
export async function untilCard(
  scope: Scope<Tables>,
  id: bigint,
  holds: (card: DemoCard | undefined) => boolean,
): Promise<DemoCard | undefined> {
  const rows = await until(scope.table('demo.card').rows(), (cards) => holds(cards.find((card) => card.id === id)));
  return rows.find((card) => card.id === id);
}

export function code(outcome: Outcome): string {
  return outcome.ok ? 'ok' : outcome.error.code;
}
