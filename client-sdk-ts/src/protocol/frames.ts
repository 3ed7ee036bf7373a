/**
 * Frames and codes of Tidegate's wire protocol.
 *
 * Generated from the tables in gateway/protocol/src. Do not edit: change the table, then run
 * `TIDEGATE_BLESS=1 cargo nextest run -p tidegate-protocol`.
 */

export const PROTOCOL_VERSION = 3;
export const SUBPROTOCOL = 'tidegate.v3.msgpack';
export const SOCKET_PATH = '/v3/socket';

/** A primary key as the server sends it: integers of 64 bits are exact. */
export type Key = bigint | string;
/** What must hold for a mutation to run: a row version, or the version that an earlier mutation of this client produced. */
export type Base = Uint8Array | { readonly after: number };

/**
 * - `1`: upsert: the row is in the scope, with this content
 * - `2`: delete: the row leaves the scope
 */
export type EffectOp = 1 | 2;

/**
 * - `insert`: The row must not exist.
 * - `update`: The row must exist; omitted columns keep their values.
 * - `upsert`: Inserts the row, or updates the columns given.
 * - `delete`: The row must exist and is deleted.
 */
export type MutationOp = 'insert' | 'update' | 'upsert' | 'delete';

/**
 * - `accepted`: It is committed; `version` is what it produced.
 * - `conflict`: Its precondition did not hold; nothing was changed.
 * - `rejected`: It was refused; `code` says why, nothing was changed.
 * - `discarded`: The client gave it up by `void` before it ran; it never will.
 */
export type MutationStatus = 'accepted' | 'conflict' | 'rejected' | 'discarded';

/** - `scope`: A scope: a named set of rows. */
export type SubscriptionKind = 'scope';

/**
 * - `resume`: The client's rows stay; effects after its cursor follow.
 * - `rebuild`: The client starts a staged copy beside its rows; `joined` swaps it in.
 */
export type SubscriptionMode = 'resume' | 'rebuild';

/** One change of one row. */
export interface Mutation<V = unknown> {
  /** The client's number for it: one more than the one before, from 1, given at first send and never given again. */
  readonly n: number;
  /** Table id from the manifest. */
  readonly table: number;
  /** What to do. */
  readonly op: MutationOp;
  /** Primary key. */
  readonly key: V;
  /**
   * Precondition: a version that the row must have, or `{after: n}`, the version that the client's own mutation n
   * produced. Nil: none. An insert has none.
   */
  readonly base?: Base | undefined;
  /**
   * Values by column name, in their wire form. Omitted columns stay as they are (or take their default in an insert);
   * nil sets null. The key column need not be repeated. Absent for a delete.
   */
  readonly cols?: { readonly [column: string]: V } | undefined;
}

/** One column of a table, as rows carry it. */
export type ColumnSpec = readonly [
  /** Column name. */
  name: string,
  /** Wire type: see "Values". */
  type: string,
  /** Whether it may be null. */
  nullable: boolean,
];

/** One table of the manifest. */
export interface TableSpec {
  /** Table id, the same for ever. */
  readonly id: number;
  /** Schema-qualified name, such as `public.items`. */
  readonly name: string;
  /** Index in `cols` of the primary key. */
  readonly key: number;
  /** Columns in the order of a row's values. */
  readonly cols: readonly ColumnSpec[];
  /** Whether pushes to it are possible at all. */
  readonly write: boolean;
}

/** The tables that the subject can reach, under one schema version. */
export interface Manifest {
  /** The tables. */
  readonly tables: readonly TableSpec[];
}

/** What the server accepts from this socket. */
export interface SessionLimits {
  /** Longest frame, in bytes. */
  readonly frame_bytes_max: number;
  /** Most mutations in one `push`. */
  readonly batch_mutations_max: number;
  /** Most scopes subscribed at once. */
  readonly scopes_max: number;
  /** Mutations per second, sustained. */
  readonly mutations_per_second: number;
  /** Most accepted mutations of one client that are not yet materialized. */
  readonly unmaterialized_max: number;
}

/** One row of a rebuild. */
export type RebuildRow = readonly [
  /** Table id. */
  table: number,
  /** Primary key. */
  key: Key,
  /** Version of the row. */
  version: Uint8Array,
  /** The row: a MessagePack array of its column values, as bytes. */
  row: Uint8Array,
];

/** One thing to do in one scope. */
export type Effect = readonly [
  /** What. */
  op: EffectOp,
  /** Table id. */
  table: number,
  /** Primary key. */
  key: Key,
  /** Version of the row; of a delete, that of the change which caused it. */
  version: Uint8Array,
  /** The row: a MessagePack array of its column values, as bytes. Nil for a delete. */
  row: Uint8Array | null,
];

/** The effects that one source transaction has in one scope, or those of them that fit this page. */
export type TransactionEffects = readonly [
  /** Orders and joins transactions within one cut, across scopes. */
  tx: number,
  /** In the order in which they are to be applied. */
  effects: readonly Effect[],
];

/** What became of one mutation. Durable: the same mutation sent again gets the same result. */
export interface MutationResult {
  /** Mutation number. */
  readonly n: number;
  /** How it ended. */
  readonly status: MutationStatus;
  /** The version that an accepted mutation produced. */
  readonly version: Uint8Array | null;
  /** Why it was not accepted: a rejection code. */
  readonly code: string | null;
  /** For people; no part of it is to be parsed. */
  readonly message: string | null;
  /** Of a conflict: the row as the server has it, if one of the client's scopes contains it and it is current. */
  readonly row: RebuildRow | null;
}

/** Opens the session. Must be the first frame, within 10 seconds, and comes once. */
export interface Hello {
  readonly t: 'hello';
  /** Protocol versions that the client speaks. */
  readonly v: readonly number[];
  /** Access token; nil for an anonymous session. */
  readonly token?: string | undefined;
  /**
   * The subject that the client believes it is, which owns its local store. Refused with `user_mismatch` if the token
   * says otherwise.
   */
  readonly user?: string | undefined;
  /** Id of this client installation: 16 random bytes, kept with the local store, never shared by two stores. */
  readonly client: Uint8Array;
  /**
   * True until the first `welcome` for this client id: the server may make its record. An unknown id that is not new
   * is `client_expired`.
   */
  readonly new: boolean;
  /** Schema version of the manifest that the client holds. */
  readonly sv?: number | undefined;
  /** Mutations that were accepted but not yet materialized as far as the client knows: it will be told of each. */
  readonly await: readonly number[];
  /** Every outcome up to this number has been stored by the client and may be forgotten by the server. */
  readonly acked: number;
}

/**
 * Subscribes to a scope, or to all assigned ones. Subscribing again to a subscribed scope replaces the subscription.
 */
export interface Subscribe {
  readonly t: 'subscribe';
  /** The client's number for this request; answers carry it. */
  readonly ref: number;
  /** What is subscribed to. */
  readonly kind: SubscriptionKind;
  /** Scope name. Nil: every assigned scope, without cursors. */
  readonly name?: string | undefined;
  /** Where the client stands in this scope, as a page or `joined` gave it. Nil: nowhere, it holds nothing. */
  readonly cursor?: Uint8Array | undefined;
  /** Instead of a cursor: the continuation token of an interrupted rebuild. */
  readonly token?: Uint8Array | undefined;
  /** True when the client drops the scope because its digest did not match: the server counts it and rebuilds. */
  readonly mismatch?: boolean | undefined;
}

/** Ends a subscription. Has no answer; frames already under way for the scope are to be ignored. */
export interface Unsubscribe {
  readonly t: 'unsubscribe';
  /** The client's number for this request. */
  readonly ref: number;
  /** Scope name. */
  readonly name: string;
}

/** Asks the server to apply mutations. Answered by `outcome`, or by `error` where nothing durable was decided. */
export interface Push<V = unknown> {
  readonly t: 'push';
  /** The client's number for this request. */
  readonly ref: number;
  /** Id of the batch: 16 random bytes. Sent again, a batch keeps its id and its members. */
  readonly batch: Uint8Array;
  /** Whether all mutations must be accepted for any to be. Otherwise each stands alone. */
  readonly atomic: boolean;
  /** Schema version under which the values were written. */
  readonly sv: number;
  /** As in `hello`. */
  readonly acked: number;
  /** In ascending, gapless order of number. */
  readonly mutations: readonly Mutation<V>[];
}

/** Settles mutations whose outcome is unknown: each is discarded if it never ran, else its first outcome is told. */
export interface Void {
  readonly t: 'void';
  /** The client's number for this request; the `outcome` carries it. */
  readonly ref: number;
  /** Mutation numbers, ascending. */
  readonly numbers: readonly number[];
}

/** Brings a fresh token before the old one expires. The subject must stay the same. Silent on success. */
export interface Auth {
  readonly t: 'auth';
  /** The client's number for this request. */
  readonly ref: number;
  /** Access token. */
  readonly token: string;
}

/** Asks for a `pong`. */
export interface Ping {
  readonly t: 'ping';
  /** Comes back in the `pong`. */
  readonly id: number;
}

/** A frame that clients send. `V` is how the client holds a column value. */
export type ClientFrame<V = unknown> =
  | Hello
  | Subscribe
  | Unsubscribe
  | Push<V>
  | Void
  | Auth
  | Ping;

/** Accepts the `hello`. */
export interface Welcome {
  readonly t: 'welcome';
  /** Id of this session, for support and logs. */
  readonly session: Uint8Array;
  /** Protocol version chosen. */
  readonly v: number;
  /** Current schema version. */
  readonly sv: number;
  /** Its manifest; nil when the client already holds it. */
  readonly schema: Manifest | null;
  /** What the server accepts from this socket. */
  readonly limits: SessionLimits;
  /**
   * A client that has sent nothing for this long sends `ping`. Nothing received for twice this long: the connection
   * is dead, for either side.
   */
  readonly heartbeat_ms: number;
  /** Scopes that the subject may subscribe to and need not name itself. */
  readonly assigned: readonly string[];
  /** Version of the set of assigned scopes. */
  readonly set: number;
  /** Highest mutation number of this client that has run or was settled. */
  readonly last: number;
}

/** A schema version, before the first frame that uses it. */
export interface Schema {
  readonly t: 'schema';
  /** Schema version. */
  readonly sv: number;
  /** Its manifest. Replaces the one before for new frames; stored rows keep their own `sv`. */
  readonly schema: Manifest;
}

/** A subscription has begun, or begins again: sent unasked when a scope must rebuild. */
export interface Subscribed {
  readonly t: 'subscribed';
  /** Number of the request; nil when sent unasked. */
  readonly ref: number | null;
  /** Number that later frames use for this scope. A new one for each beginning. */
  readonly scope: number;
  /** Scope name. */
  readonly name: string;
  /** How it starts. */
  readonly mode: SubscriptionMode;
  /** Why it rebuilds: a rebuild reason. */
  readonly reason: string | null;
}

/** Rows of a scope for its staged copy. */
export interface Rebuild {
  readonly t: 'rebuild';
  /** Scope number. */
  readonly scope: number;
  /** Schema version of the rows. */
  readonly sv: number;
  /** The rows; each key comes once in a run. */
  readonly rows: readonly RebuildRow[];
  /** Continues the run after this frame, on any socket and gateway, given to `subscribe`. */
  readonly token: Uint8Array;
  /** Whether these were the last rows. Effects up to `joined` follow as pages. */
  readonly done: boolean;
}

/** Effects of a scope. To be staged, and applied at the cut. */
export interface Page {
  readonly t: 'page';
  /** Scope number. */
  readonly scope: number;
  /** Schema version of the rows. */
  readonly sv: number;
  /** By source transaction, in commit order. */
  readonly txs: readonly TransactionEffects[];
  /** Whether the last transaction goes on in this scope's next page. */
  readonly more: boolean;
  /** Where the scope stands after this page. */
  readonly cursor: Uint8Array;
  /** Rows in the scope after this page. */
  readonly count: number;
  /** Scope digest after this page. */
  readonly digest: Uint8Array;
  /** Whether the page is its own cut. Ignored on a scope that has not joined. Always the last field. */
  readonly fin: boolean;
}

/** The scope has reached the session's cut: verify, swap in and show. */
export interface Joined {
  readonly t: 'joined';
  /** Scope number. */
  readonly scope: number;
  /** Where the scope stands. */
  readonly cursor: Uint8Array;
  /** Rows in the scope. */
  readonly count: number;
  /** Scope digest. */
  readonly digest: Uint8Array;
}

/**
 * Everything through one source transaction has been sent for all joined scopes: apply what is staged, in one step.
 */
export interface Cut {
  readonly t: 'cut';
}

/** What became of mutations. */
export interface Outcome {
  readonly t: 'outcome';
  /** Number of the request. */
  readonly ref: number;
  /** One per mutation decided. */
  readonly results: readonly MutationResult[];
}

/** Pages are held back until these mutations of the client have come round. The client has only to wait. */
export interface CapturePending {
  readonly t: 'capture_pending';
  /** Mutation numbers; the first ones, if there are many. */
  readonly numbers: readonly number[];
  /** About how long until the next attempt, in milliseconds. */
  readonly retry_ms: number;
}

/** These mutations are visible with the next `cut`, `fin` page or `joined`, which follows directly. */
export interface Materialized {
  readonly t: 'materialized';
  /** Mutation numbers. */
  readonly numbers: readonly number[];
}

/** The assigned scopes have changed. What was removed stops at once and must be dropped. */
export interface Scopes {
  readonly t: 'scopes';
  /** Newly assigned. */
  readonly added: readonly string[];
  /** No longer assigned. */
  readonly removed: readonly string[];
  /** Version of the set after the change. */
  readonly set: number;
}

/** Something was refused, or cannot be done now. */
export interface ErrorFrame {
  readonly t: 'error';
  /** An error code. A code that the client does not know is judged by `retryable` alone. */
  readonly code: string;
  /** For people; no part of it is to be parsed. */
  readonly message: string;
  /** Whether the same request may succeed later, unchanged. */
  readonly retryable: boolean;
  /** Not before this many milliseconds; nil: the client's own backoff. */
  readonly retry_after_ms: number | null;
  /** Number of the request that it answers. */
  readonly ref: number | null;
  /** Type of the frame that it answers. */
  readonly of: string | null;
}

/** Answers `ping`. */
export interface Pong {
  readonly t: 'pong';
  /** That of the `ping`. */
  readonly id: number;
}

/** The server closes the connection next. */
export interface Bye {
  readonly t: 'bye';
  /** A close reason. */
  readonly reason: string;
  /** Reconnect after this many milliseconds; already spread out over all clients. Nil: the client's own backoff. */
  readonly reconnect_ms: number | null;
}

/** A frame that the server sends. */
export type ServerFrame =
  | Welcome
  | Schema
  | Subscribed
  | Rebuild
  | Page
  | Joined
  | Cut
  | Outcome
  | CapturePending
  | Materialized
  | Scopes
  | ErrorFrame
  | Pong
  | Bye;

/** Code of an `error` frame. */
export type ErrorCode =
  /** The server does not know this frame type. Do not send it under this protocol version. The frame was ignored. */
  | 'unknown_frame'
  /**
   * The frame is not MessagePack, or not what its table says. Compare with the golden vectors. Nothing in the frame
   * was acted on.
   */
  | 'malformed_frame'
  /**
   * The frame has more bytes, items or nesting than the server accepts. Keep to `welcome.limits`: split the batch, or
   * keep large values out of rows.
   */
  | 'frame_too_large'
  /** None of the versions in `hello.v` is spoken here. Update the client, or the server. Do not retry before. */
  | 'unsupported_version'
  /** The first frame was not `hello`, or none came in time. Send `hello` first, within 10 seconds. */
  | 'hello_required'
  /** A known frame where it has no place, such as a second `hello`. Keep to the order of frames. */
  | 'unexpected_frame'
  /** The server takes no anonymous sessions, and there was no token. Get a token and connect again. */
  | 'auth_required'
  /**
   * The token does not verify: signature, issuer, audience or form. Get a fresh token once. If that fails too, the
   * configuration of token issuer and server disagree.
   */
  | 'auth_invalid'
  /**
   * The token has expired. Get a fresh token and connect again; cursors stay valid. Send `auth` in time to avoid
   * this.
   */
  | 'auth_expired'
  /**
   * `hello.user` is not the token's subject. Nothing else in the frame was looked at. Open the local store of the
   * token's subject, or get a token for the store's user. Never send one user's writes as another.
   */
  | 'user_mismatch'
  /**
   * `auth` brought a token of another subject. It was ignored; the session goes on with the old token. Close the
   * connection and open one for the other subject, with its own store.
   */
  | 'subject_change'
  /**
   * The subject has no grant for this scope. Drop the local rows of the scope. A `scopes` frame tells when it is
   * granted.
   */
  | 'scope_forbidden'
  /** More scopes than `welcome.limits.scopes_max`. Unsubscribe from another scope first. */
  | 'scope_limit'
  /**
   * The cursor is truncated, forged, or of a format that this server no longer reads. Subscribe once more without it,
   * keeping the old rows until `joined`; report it.
   */
  | 'cursor_invalid'
  /** The cursor belongs to another scope. As `cursor_invalid`; the client has mixed up its records. */
  | 'cursor_wrong_scope'
  /**
   * The cursor, or the token, is ahead of what this gateway has read, and stayed so for as long as it waits. Keep the
   * rows. Reconnect with backoff, if possible to another gateway.
   */
  | 'cursor_ahead'
  /**
   * The rebuild's continuation token is truncated, forged, of another scope, or no longer usable. Throw the staged
   * rows away and subscribe without token.
   */
  | 'token_invalid'
  /**
   * The server has no record of this client id, or an older one than the client's numbers prove. Take a new client id
   * and connect again. Give what was sent and never answered back to the application: it may have run or not.
   * Renumber and send what was never sent.
   */
  | 'client_expired'
  /**
   * A mutation number came back with other content, batch or membership: two stores share this client id. As
   * `client_expired`.
   */
  | 'client_forked'
  /**
   * A mutation number above the next one. Send again from the first number without outcome, in order. From the
   * failing number on nothing was run.
   */
  | 'gap'
  /**
   * More mutations in one push than `welcome.limits.batch_mutations_max`. Split the batch. An atomic one must be made
   * smaller by the application. Nothing was run.
   */
  | 'batch_too_large'
  /**
   * Too many accepted mutations of this client are not yet materialized. Keep the writes queued; send again after
   * `retry_after_ms`, or when `materialized` arrives.
   */
  | 'capture_behind'
  /**
   * The push was written under a schema version that this gateway has not loaded yet. Send again after
   * `retry_after_ms`.
   */
  | 'schema_unknown'
  /**
   * More at once than this socket, or all sockets of its subject together, may ask for: frames or mutations per
   * second, pushes that run or wait, beginnings on one scope. Send again after `retry_after_ms`, fewer at once.
   */
  | 'rate_limited'
  /** More sockets of this subject than allowed. Close other connections, or reconnect with backoff. */
  | 'connection_limit'
  /**
   * The server cannot do this now: database unreachable, restarting, overloaded. Send again with backoff. Nothing
   * durable was decided that a resend would not tell.
   */
  | 'unavailable'
  /**
   * The stream stands still until an operator acts. Rows already received stay right; new ones do not come. Stay
   * connected and show the data as stale. Accepted writes are kept and become visible later.
   */
  | 'capture_blocked'
  /** The client took longer to read than the server waits. Reconnect with backoff; cursors stay valid. */
  | 'too_slow'
  /** A fault of the server. Reconnect with backoff. The operator finds it in the logs under the session's id. */
  | 'internal';

/** Code of a mutation's durable outcome other than `accepted`. */
export type RejectionCode =
  /**
   * The row's version is not the base's, or the row is gone. Compare with the current row, which the outcome or the
   * next page brings; then write again under a new number, or give up.
   */
  | 'conflict'
  /** An insert found its row there already. As `conflict`; use `upsert` where that is meant. */
  | 'row_exists'
  /**
   * An update or delete without base found no row that this subject may see. The row was deleted, or is hidden from
   * the subject. Drop the edit or insert the row.
   */
  | 'row_not_found'
  /**
   * The mutation whose version `base` names was not accepted. Decide the earlier mutation first, then write again
   * under a new number.
   */
  | 'dependency_rejected'
  /**
   * Another mutation of the same atomic batch was not accepted. Look at the one with another code; send the batch
   * anew once that is solved.
   */
  | 'batch_rejected'
  /** Row-level security refused the row as it is or as it would become. The subject may not make this change. */
  | 'row_refused'
  /**
   * The database role of pushes lacks a privilege on the table or column. Grant the privilege, or register the table
   * read-only.
   */
  | 'permission_denied'
  /** Pushes to this table are not enabled. Write it through the application's own server. */
  | 'not_writable'
  /** No table with this id in the schema version of the push. Use the manifest's table ids. */
  | 'unknown_table'
  /** No column of this name in the schema version of the push. Use the manifest's column names. */
  | 'unknown_column'
  /** The columns hold a key other than the mutation's. Keys never change: delete the row and insert another. */
  | 'key_change'
  /**
   * A value that its column cannot hold: wrong type, out of range, malformed text, a NUL. Correct the value; check it
   * before it is queued.
   */
  | 'invalid_value'
  /**
   * The table changed since the schema version under which the mutation was written, in a way that matters to it.
   * Write it again under the current manifest and a new number.
   */
  | 'schema_changed'
  /** A unique or primary-key constraint other than the row's own key. Another row has this value. */
  | 'constraint_unique'
  /** A foreign key: the other row is missing, or still refers to this one. Create or remove the other row first. */
  | 'constraint_foreign_key'
  /** A check constraint, or a domain's. Correct the values. */
  | 'constraint_check'
  /** A null in a column that requires a value. Give the column a value. */
  | 'constraint_not_null'
  /** An exclusion constraint. Another row excludes this one. */
  | 'constraint_exclusion'
  /**
   * The database refused the statement for another permanent reason, such as an error that a trigger raised. The
   * reason is the application's: look at its triggers.
   */
  | 'database_refused'
  /**
   * The number is at or below the settled mark and its record is gone: its outcome was acknowledged and then
   * forgotten. It does not run again. Not a verdict. Keep the outcome that was stored when it was acknowledged.
   */
  | 'outcome_expired'
  /** Settled by `void` before it ran. It never runs; its number is used up. */
  | 'discarded';

/** Why a subscription rebuilds. */
export type RebuildReason =
  /** The client gave no cursor. Stage the rows. */
  | 'new'
  /** The client gave a continuation token: the run goes on. Keep the rows staged so far. */
  | 'continued'
  /** The effects after the cursor are no longer kept. Stage the rows anew; the old ones stay shown until `joined`. */
  | 'below_floor'
  /**
   * The cursor, or the token, comes from a history that the database has left: a restore or a failover that lost
   * transactions. As `below_floor`.
   */
  | 'other_history'
  /** The cursor comes from before an operator's stream reset. As `below_floor`. */
  | 'other_generation'
  /** The grant was taken away and given again since the cursor. As `below_floor`. */
  | 'regranted'
  /** Sending the rows costs less than the effects since the cursor. As `below_floor`. */
  | 'cheaper'
  /**
   * The client said that its digest did not match, by `mismatch`. Discard the old rows: they are known to be wrong.
   */
  | 'digest_mismatch';

/** WebSocket close codes, by the reason that `bye` gives. */
export const CLOSE_CODES = {
  /** The server shuts down or sheds clients. Reconnect after `bye.reconnect_ms`. */
  going_away: 4000,
  /**
   * The client broke the protocol; an `error` said how. Do as the `error` says; without one, reconnect with the
   * longest backoff.
   */
  protocol: 4001,
  /** The token was refused; an `error` said why. Reconnect with a fresh token, once; then wait for the user. */
  auth_failed: 4002,
  /** The token expired. Reconnect at once with a fresh token. */
  auth_expired: 4003,
  /** The client did not read fast enough. Reconnect with backoff. */
  too_slow: 4004,
  /** A limit was exceeded; an `error` said which. Reconnect with the longest backoff. */
  limit: 4005,
  /**
   * Nothing came from the client for twice the heartbeat. Reconnect at once if the device is awake; send `ping` when
   * idle.
   */
  idle_timeout: 4006,
  /** A fault of the server. Reconnect with backoff. */
  internal: 4010,
} as const;
