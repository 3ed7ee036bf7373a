/** The package's names, one by one: adding or losing one is a decision, not an accident. */

import { readFileSync } from 'node:fs';
import { expect, expectTypeOf, test } from 'vitest';
import type {
  Conflict,
  Key,
  Outcome,
  Pending,
  Resolution,
  Schema,
  Scope,
  ScopeStatus,
  Signal,
  Status,
  Sync,
  SyncError,
  Table,
  Write,
} from '../../src/index.ts';
import * as tidegate from '../../src/index.ts';
import { type AppTables, type Card, schema } from '../model/world.ts';

test('values', () => {
  expect(Object.keys(tidegate).sort()).toEqual(['MemoryStore', 'SyncError', 'createSync', 'newInt64', 'newUuid']);
});

test('types', () => {
  const source = readFileSync(new URL('../../src/index.ts', import.meta.url), 'utf8');
  expect(source).not.toMatch(/export \*|export default/);
  const names = [...source.matchAll(/export (type )?\{([^}]*)\}/g)].flatMap(([, , list]) =>
    list!.split(',').flatMap((item) => item.trim().replace(/^type /, '') || []),
  );
  expect(names.sort()).toMatchInlineSnapshot(`
    [
      "AuthReason",
      "Change",
      "ClientCode",
      "Code",
      "Column",
      "Conflict",
      "Effect",
      "Entry",
      "Environment",
      "ErrorCode",
      "Inspection",
      "Key",
      "Level",
      "LogEvent",
      "Manifest",
      "MemoryStore",
      "Op",
      "Outcome",
      "Pending",
      "PendingMutation",
      "RejectionCode",
      "Resolution",
      "RowKey",
      "ScalarType",
      "Schema",
      "Scope",
      "ScopeStatus",
      "ScopeStep",
      "Signal",
      "SocketLike",
      "Status",
      "Store",
      "StoreSession",
      "StoreStep",
      "StoredClient",
      "StoredRow",
      "StoredScope",
      "StoredState",
      "Sync",
      "SyncError",
      "SyncOptions",
      "Table",
      "TableSchema",
      "Tables",
      "WireType",
      "Write",
      "createSync",
      "newInt64",
      "newUuid",
    ]
  `);
});

test('what an application writes against', () => {
  expectTypeOf(schema).toExtend<Schema<AppTables>>();
  type Made = ReturnType<typeof tidegate.createSync<AppTables>>;
  expectTypeOf<Made>().toEqualTypeOf<Sync<AppTables>>();
  expectTypeOf<Sync<AppTables>['status']>().toEqualTypeOf<Signal<Status>>();
  expectTypeOf<Sync<AppTables>['pending']>().toEqualTypeOf<Signal<readonly Pending<AppTables>[]>>();
  expectTypeOf<Sync<AppTables>['scope']>().toEqualTypeOf<(id: string) => Scope<AppTables>>();
  expectTypeOf<Sync<AppTables>['batch']>().toEqualTypeOf<(fn: () => void) => Write>();
  expectTypeOf<Sync<AppTables>['retry']>().toEqualTypeOf<(id: string) => Write>();
  expectTypeOf<Sync<AppTables>['discard']>().toEqualTypeOf<(id: string) => Promise<void>>();
  expectTypeOf<Scope<AppTables>['status']>().toEqualTypeOf<Signal<ScopeStatus>>();
  expectTypeOf<Scope<AppTables>['table']>().toBeCallableWith('card');
  // @ts-expect-error: no such table
  expectTypeOf<Scope<AppTables>['table']>().toBeCallableWith('cards');
  expectTypeOf<Table<Card>['get']>().toEqualTypeOf<(key: Key) => Card | undefined>();
  expectTypeOf<Table<Card>['insert']>().toEqualTypeOf<(row: Card) => Write>();
  expectTypeOf<Table<Card>['update']>().toEqualTypeOf<(key: Key, patch: Partial<Card>) => Write>();
  expectTypeOf<Write['visible']>().toEqualTypeOf<Promise<Outcome>>();
  expectTypeOf<Outcome>().toEqualTypeOf<{ readonly ok: true } | { readonly ok: false; readonly error: SyncError }>();
  expectTypeOf<Conflict<AppTables>['theirs']>().toEqualTypeOf<Card | null>();
  expectTypeOf<Resolution<AppTables>>().toEqualTypeOf<'theirs' | 'mine' | 'park' | { readonly merge: Partial<Card> }>();
});

test('a wrong column type does not compile', () => {
  const wrong: Schema<AppTables> = {
    hash: '',
    tables: {
      card: {
        name: 'app.card',
        // @ts-expect-error: not a column
        key: 'nope',
        write: true,
        // @ts-expect-error: columns are missing
        columns: { id: 'int64' },
      },
    },
  };
  expect(wrong).toBeDefined();
});
