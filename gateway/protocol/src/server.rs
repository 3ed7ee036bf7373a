//! Frames that the server sends. This is the table: names, order, types and meaning of every field, once.

use crate::declare::{frames, record, tuple, words};
use crate::opaque::Bin;
use crate::read::{Malformed, Reader};
use crate::value::Key;
use crate::wire::{MutationNumber, ScopeNumber, Shape, Wire, Words, owned_already};
use crate::write;
use std::borrow::Cow;
use tidegate_model::{RegistryGeneration, RowVersion, ScopeDigest, TableId};
use uuid::Uuid;

/// What an effect does to its row in its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EffectOp {
    /// The row is in the scope, with this content.
    Upsert = 1,
    /// The row leaves the scope.
    Delete = 2,
}

impl<'a> Wire<'a> for EffectOp {
    const SHAPE: Shape = Shape::Number(&Words {
        name: "EffectOp",
        words: &[
            ("1", "upsert: the row is in the scope, with this content"),
            ("2", "delete: the row leaves the scope"),
        ],
    });
    fn put(&self, out: &mut Vec<u8>) {
        write::uint(out, *self as u64);
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match reader.uint()? {
            1 => Ok(EffectOp::Upsert),
            2 => Ok(EffectOp::Delete),
            _ => Err(Malformed::expected("1 or 2")),
        }
    }
}

owned_already!(EffectOp);

words! {
    /// How a subscription starts.
    SubscriptionMode {
        /// The client's rows stay; effects after its cursor follow.
        "resume" Resume,
        /// The client starts a staged copy beside its rows; `joined` swaps it in.
        "rebuild" Rebuild,
    }
}

words! {
    /// How a mutation ended.
    MutationStatus {
        /// It is committed; `version` is what it produced.
        "accepted" Accepted,
        /// Its precondition did not hold; nothing was changed.
        "conflict" Conflict,
        /// It was refused; `code` says why, nothing was changed.
        "rejected" Rejected,
        /// The client gave it up by `void` before it ran; it never will.
        "discarded" Discarded,
    }
}

tuple! {
    /// One column of a table, as rows carry it.
    ColumnSpec<'a> [
        /// Column name.
        "name" name: Cow<'a, str>,
        /// Wire type: see "Values".
        "type" wire_type: Cow<'a, str>,
        /// Whether it may be null.
        "nullable" nullable: bool,
    ]
}

record! {
    /// One table of the manifest.
    TableSpec<'a> {
        /// Table id, the same for ever.
        "id" id: TableId,
        /// Schema-qualified name, such as `public.items`.
        "name" name: Cow<'a, str>,
        /// Index in `cols` of the primary key.
        "key" key: u32,
        /// Columns in the order of a row's values.
        "cols" cols: Vec<ColumnSpec<'a>>,
        /// Whether pushes to it are possible at all.
        "write" write: bool,
    }
}

record! {
    /// The tables that the subject can reach, under one schema version.
    Manifest<'a> {
        /// The tables.
        "tables" tables: Vec<TableSpec<'a>>,
    }
}

record! {
    /// What the server accepts from this socket.
    SessionLimits {
        /// Longest frame, in bytes.
        "frame_bytes_max" frame_bytes_max: u32,
        /// Most mutations in one `push`.
        "batch_mutations_max" batch_mutations_max: u32,
        /// Most scopes subscribed at once.
        "scopes_max" scopes_max: u32,
        /// Mutations per second, sustained.
        "mutations_per_second" mutations_per_second: u32,
        /// Most accepted mutations of one client that are not yet materialized.
        "unmaterialized_max" unmaterialized_max: u32,
    }
}

tuple! {
    /// One row of a rebuild.
    RebuildRow<'a> [
        /// Table id.
        "table" table: TableId,
        /// Primary key.
        "key" key: Key<'a>,
        /// Version of the row.
        "version" version: RowVersion,
        /// The row: a MessagePack array of its column values, as bytes.
        "row" row: Bin<'a>,
    ]
}

tuple! {
    /// One thing to do in one scope.
    Effect<'a> [
        /// What.
        "op" op: EffectOp,
        /// Table id.
        "table" table: TableId,
        /// Primary key.
        "key" key: Key<'a>,
        /// Version of the row; of a delete, that of the change which caused it.
        "version" version: RowVersion,
        /// The row: a MessagePack array of its column values, as bytes. Nil for a delete.
        "row" row: Option<Bin<'a>>,
    ]
}

tuple! {
    /// The effects that one source transaction has in one scope, or those of them that fit this page.
    TransactionEffects<'a> [
        /// Orders and joins transactions within one cut, across scopes.
        "tx" tx: u64,
        /// In the order in which they are to be applied.
        "effects" effects: Vec<Effect<'a>>,
    ]
}

record! {
    /// What became of one mutation. Durable: the same mutation sent again gets the same result.
    MutationResult<'a> {
        /// Mutation number.
        "n" number: MutationNumber,
        /// How it ended.
        "status" status: MutationStatus,
        /// The version that an accepted mutation produced.
        "version" version: Option<RowVersion>,
        /// Why it was not accepted: a rejection code.
        "code" code: Option<Cow<'a, str>>,
        /// For people; no part of it is to be parsed.
        "message" message: Option<Cow<'a, str>>,
        /// Of a conflict: the row as the server has it, if one of the client's scopes contains it and it is current.
        "row" row: Option<RebuildRow<'a>>,
    }
}

frames! {
    /// A frame from the server.
    ToClient ServerFrame

    /// Accepts the `hello`.
    "welcome" Welcome<'a> {
        /// Id of this session, for support and logs.
        "session" session: Uuid,
        /// Protocol version chosen.
        "v" version: u32,
        /// Current schema version.
        "sv" sv: RegistryGeneration,
        /// Its manifest; nil when the client already holds it.
        "schema" schema: Option<Manifest<'a>>,
        /// What the server accepts from this socket.
        "limits" limits: SessionLimits,
        /// A client that has sent nothing for this long sends `ping`. Nothing received for twice this long: the connection is dead,
        /// for either side.
        "heartbeat_ms" heartbeat_ms: u32,
        /// Scopes that the subject may subscribe to and need not name itself.
        "assigned" assigned: Vec<Cow<'a, str>>,
        /// Version of the set of assigned scopes.
        "set" set: u64,
        /// Highest mutation number of this client that has run or was settled.
        "last" last: MutationNumber,
    }

    /// A schema version, before the first frame that uses it.
    "schema" Schema<'a> {
        /// Schema version.
        "sv" sv: RegistryGeneration,
        /// Its manifest. Replaces the one before for new frames; stored rows keep their own `sv`.
        "schema" schema: Manifest<'a>,
    }

    /// A subscription has begun, or begins again: sent unasked when a scope must rebuild.
    "subscribed" Subscribed<'a> {
        /// Number of the request; nil when sent unasked.
        "ref" reference: Option<u64>,
        /// Number that later frames use for this scope. A new one for each beginning.
        "scope" scope: ScopeNumber,
        /// Scope name.
        "name" name: Cow<'a, str>,
        /// How it starts.
        "mode" mode: SubscriptionMode,
        /// Why it rebuilds: a rebuild reason.
        "reason" reason: Option<Cow<'a, str>>,
    }

    /// Rows of a scope for its staged copy.
    "rebuild" Rebuild<'a> {
        /// Scope number.
        "scope" scope: ScopeNumber,
        /// Schema version of the rows.
        "sv" sv: RegistryGeneration,
        /// The rows; each key comes once in a run.
        "rows" rows: Vec<RebuildRow<'a>>,
        /// Continues the run after this frame, on any socket and gateway, given to `subscribe`.
        "token" token: Bin<'a>,
        /// Whether these were the last rows. Effects up to `joined` follow as pages.
        "done" done: bool,
    }

    /// Effects of a scope. To be staged, and applied at the cut.
    "page" Page<'a> {
        /// Scope number.
        "scope" scope: ScopeNumber,
        /// Schema version of the rows.
        "sv" sv: RegistryGeneration,
        /// By source transaction, in commit order.
        "txs" txs: Vec<TransactionEffects<'a>>,
        /// Whether the last transaction goes on in this scope's next page.
        "more" more: bool,
        /// Where the scope stands after this page.
        "cursor" cursor: Bin<'a>,
        /// Rows in the scope after this page.
        "count" count: u64,
        /// Scope digest after this page.
        "digest" digest: ScopeDigest,
        /// Whether the page is its own cut. Ignored on a scope that has not joined. Always the last field.
        "fin" fin: bool,
    }

    /// The scope has reached the session's cut: verify, swap in and show.
    "joined" Joined<'a> {
        /// Scope number.
        "scope" scope: ScopeNumber,
        /// Where the scope stands.
        "cursor" cursor: Bin<'a>,
        /// Rows in the scope.
        "count" count: u64,
        /// Scope digest.
        "digest" digest: ScopeDigest,
    }

    /// Everything through one source transaction has been sent for all joined scopes: apply what is staged, in one step.
    "cut" Cut {
    }

    /// What became of mutations.
    "outcome" Outcome<'a> {
        /// Number of the request.
        "ref" reference: u64,
        /// One per mutation decided.
        "results" results: Vec<MutationResult<'a>>,
    }

    /// Pages are held back until these mutations of the client have come round. The client has only to wait.
    "capture_pending" CapturePending {
        /// Mutation numbers; the first ones, if there are many.
        "numbers" numbers: Vec<MutationNumber>,
        /// About how long until the next attempt, in milliseconds.
        "retry_ms" retry_ms: u32,
    }

    /// These mutations are visible with the next `cut`, `fin` page or `joined`, which follows directly.
    "materialized" Materialized {
        /// Mutation numbers.
        "numbers" numbers: Vec<MutationNumber>,
    }

    /// The assigned scopes have changed. What was removed stops at once and must be dropped.
    "scopes" Scopes<'a> {
        /// Newly assigned.
        "added" added: Vec<Cow<'a, str>>,
        /// No longer assigned.
        "removed" removed: Vec<Cow<'a, str>>,
        /// Version of the set after the change.
        "set" set: u64,
    }

    /// Something was refused, or cannot be done now.
    "error" ErrorFrame<'a> {
        /// An error code. A code that the client does not know is judged by `retryable` alone.
        "code" code: Cow<'a, str>,
        /// For people; no part of it is to be parsed.
        "message" message: Cow<'a, str>,
        /// Whether the same request may succeed later, unchanged.
        "retryable" retryable: bool,
        /// Not before this many milliseconds; nil: the client's own backoff.
        "retry_after_ms" retry_after_ms: Option<u32>,
        /// Number of the request that it answers.
        "ref" reference: Option<u64>,
        /// Type of the frame that it answers.
        "of" of: Option<Cow<'a, str>>,
    }

    /// Answers `ping`.
    "pong" Pong {
        /// That of the `ping`.
        "id" id: u64,
    }

    /// The server closes the connection next.
    "bye" Bye<'a> {
        /// A close reason.
        "reason" reason: Cow<'a, str>,
        /// Reconnect after this many milliseconds; already spread out over all clients. Nil: the client's own backoff.
        "reconnect_ms" reconnect_ms: Option<u32>,
    }
}
