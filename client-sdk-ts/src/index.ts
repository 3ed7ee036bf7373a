/** The public names of `tidegate`, one by one; `test/unit/exports.test.ts` pins them. */

export type { AuthReason, Status } from './connection/connection.ts';
export type { Environment, SocketLike } from './environment.ts';
export { type ClientCode, type Code, SyncError } from './errors.ts';
export type { Key, RowKey } from './key.ts';
export type { Level, LogEvent } from './log.ts';
export { newInt64, newUuid } from './new-id.ts';
export type { Entry, Op } from './outbox/entry.ts';
export type { Outcome, Write } from './outbox/writes.ts';
export type { ErrorCode, Manifest, RejectionCode } from './protocol/frames.ts';
export type { ScopeStatus } from './replica/scope-state.ts';
export type { Column, ScalarType, Schema, TableSchema, Tables, WireType } from './schema.ts';
export type { Signal } from './signal.ts';
export { MemoryStore } from './store/memory.ts';
export type {
  ScopeStep,
  Store,
  StoredClient,
  StoredRow,
  StoredScope,
  StoredState,
  StoreSession,
  StoreStep,
} from './store/store.ts';
export {
  type Change,
  type Conflict,
  createSync,
  type Effect,
  type Inspection,
  type Pending,
  type PendingMutation,
  type Resolution,
  type Scope,
  type Sync,
  type SyncOptions,
  type Table,
} from './sync.ts';
