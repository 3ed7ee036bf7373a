/** One client, one model server, one clock. */

import type { Environment } from '../../src/environment.ts';
import { createSync, MemoryStore, type Schema, type Sync, type SyncOptions } from '../../src/index.ts';
import { idle, ManualClock } from './clock.ts';
import { type Connection, ModelServer } from './server.ts';

export type Card = { id: bigint; list: string | null; title: string; note: string | null; rev: number };
export type AppTables = { card: Card };

export const schema: Schema<AppTables> = {
  hash: 'test',
  tables: {
    card: {
      name: 'app.card',
      key: 'id',
      write: true,
      columns: { id: 'int64', list: 'string?', title: 'string', note: 'string?', rev: 'int' },
    },
  },
};

export class World {
  readonly clock = new ManualClock();
  readonly server = new ModelServer();
  readonly store = new MemoryStore();
  readonly asked: string[] = [];
  readonly logged: string[] = [];
  token: string | null = 'token';
  /** What `auth` gives after a rejection, if it is another one. */
  second: string | null | undefined;
  wake: () => void = () => {};
  sync: Sync<AppTables>;

  constructor(options: Partial<SyncOptions<AppTables>> = {}) {
    this.sync = this.open(options);
  }

  /** Another client on the same store: what a reload of the page does. */
  open(options: Partial<SyncOptions<AppTables>> = {}): Sync<AppTables> {
    const environment: Environment = {
      ...this.clock.environment,
      socket: () => this.server.connect(),
      onWake: (fn) => {
        this.wake = fn;
        return () => {};
      },
    };
    this.sync = createSync<AppTables>({
      url: 'ws://model/v3/socket',
      schema,
      user: 'ada',
      store: this.store,
      environment,
      log: ({ event }) => this.logged.push(event),
      auth: async (why) => {
        this.asked.push(why);
        return why === 'rejected' && this.second !== undefined ? this.second : this.token;
      },
      ...options,
    });
    return this.sync;
  }

  get connection(): Connection {
    return this.server.last;
  }

  /** Server and client do everything that there is to do, WAL included. */
  async run(): Promise<void> {
    await this.flow();
    while (this.server.database.wal.length > 0) {
      this.server.database.capture();
      await this.flow();
    }
  }

  /** As `run`, but capture stands still. */
  async flow(): Promise<void> {
    for (let turn = 0; ; turn++) {
      // Without time passing everything comes to rest, or something goes round in circles.
      if (turn > 500) throw new Error('the client and the server do not come to rest');
      await idle();
      const { connection } = this;
      if (connection === undefined) return;
      const before = connection.received.length;
      this.server.stepAll(connection);
      let delivered = false;
      while (connection.deliver()) delivered = true;
      await idle();
      if (!delivered && connection === this.connection && before === connection.received.length) return;
    }
  }
}
