/** Everything that can go wrong, as one class with a documented code. */

import type { ErrorCode, RejectionCode } from './protocol/frames.ts';

/**
 * Codes that the SDK itself gives. What the server answers comes with the server's own code
 * (`ErrorCode`, `RejectionCode`).
 *
 * - `invalid_url`: `url` is not one of http, https, ws or wss.
 * - `invalid_value`: a value that its column cannot hold; also text with a NUL or half a surrogate pair.
 * - `unsafe_integer`: a plain number beyond 2^53 - 1, or not whole, where an integer is needed. Pass a bigint.
 * - `unknown_table`, `unknown_column`: not in the generated schema, or not in what the server offers this user.
 * - `not_writable`: the table takes no writes from clients.
 * - `key_change`: an update may not change the key: delete the row and insert another.
 * - `row_not_found`: the scope has no such row.
 * - `conflict`: somebody else's change came first, and `onConflict` did not choose this one.
 * - `dependency_rejected`: an earlier write on the same row was refused or parked.
 * - `discarded`: given up by `discard`.
 * - `pending_writes`: `signOut` would lose work.
 * - `schema_mismatch`: the generated schema and the server's tables differ: run `tidegate gen types` again.
 * - `digest_mismatch`: a scope's rows did not match the server's digest, again after a rebuild.
 * - `scope_released`: the scope was released before it became ready.
 * - `auth_failed`: `auth()` threw.
 * - `auth_required`: there is no token that the server takes.
 * - `connection_closed`, `connection_silent`, `connect_timeout`: why the socket ended.
 * - `protocol_violation`: the server sent what the protocol does not allow.
 * - `store_failed`: the local store refused to save.
 * - `store_unsupported`: this version has no such store.
 * - `no_websocket`: the platform has no WebSocket; pass `environment.socket`.
 * - `internal`: a fault in the SDK; please report it.
 * - `closed`: the Sync was closed.
 */
export type ClientCode =
  | 'invalid_url'
  | 'invalid_value'
  | 'unsafe_integer'
  | 'unknown_table'
  | 'unknown_column'
  | 'not_writable'
  | 'key_change'
  | 'row_not_found'
  | 'conflict'
  | 'dependency_rejected'
  | 'discarded'
  | 'pending_writes'
  | 'schema_mismatch'
  | 'digest_mismatch'
  | 'scope_released'
  | 'auth_failed'
  | 'auth_required'
  | 'connection_closed'
  | 'connection_silent'
  | 'connect_timeout'
  | 'protocol_violation'
  | 'store_failed'
  | 'store_unsupported'
  | 'internal'
  | 'no_websocket'
  | 'closed';

/** A code of the SDK or of the server. Codes of newer servers are possible too: treat unknown ones by `retryable`. */
export type Code = ClientCode | ErrorCode | RejectionCode | (string & {});

export class SyncError extends Error {
  override readonly name = 'SyncError';
  readonly code: Code;
  /** Whether the same request may succeed later, unchanged. */
  readonly retryable: boolean;
  /** The server session in which it happened, for its operator's logs. */
  readonly requestId?: string | undefined;

  constructor(
    code: Code,
    message: string,
    more: { readonly retryable?: boolean; readonly requestId?: string | undefined } = {},
  ) {
    super(message);
    this.code = code;
    this.retryable = more.retryable ?? false;
    this.requestId = more.requestId;
  }
}

/** Why a session ended or cannot begin, where the next attempt may go better. */
export function transient(code: Code, message: string): SyncError {
  return new SyncError(code, message, { retryable: true });
}
