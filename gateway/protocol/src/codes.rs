//! Every code that a client can meet, closed lists: errors, rejections, rebuild reasons, close codes. Each says what it means and
//! what to do, once; `PROTOCOL.md` and the SDK's types are made from these lists.
//!
//! An error is not durable and decides nothing. A rejection is a mutation's durable outcome.

use crate::server::{ErrorFrame, MutationStatus};
use crate::table::DecodeError;
use std::borrow::Cow;

/// Who has to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// The client library, by itself: send the same again, with backoff.
    Retry,
    /// The client library, by itself, in the way described.
    Recover,
    /// Nobody: it passes.
    Wait,
    /// The user or the application's session: a fresh token.
    SignIn,
    /// The application or its user: a decision about the data or the request.
    Decide,
    /// Whoever writes the client: the request is wrong.
    FixClient,
    /// Whoever runs the server.
    Operator,
}

impl Remedy {
    /// As the documentation's tables show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Remedy::Retry => "retry",
            Remedy::Recover => "recover",
            Remedy::Wait => "wait",
            Remedy::SignIn => "sign in",
            Remedy::Decide => "decide",
            Remedy::FixClient => "fix the client",
            Remedy::Operator => "operator",
        }
    }
}

macro_rules! codes {
    (
        $(#[doc = $doc:literal])* $name:ident ($($property:ident: $property_ty:ty = $property_doc:literal),* $(,)?)
        { $( $(#[doc = $meaning:literal])* $wire:literal $variant:ident ($($value:expr),*) $advice:literal; )* }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $( $(#[doc = $meaning])* #[doc = "\n\n"] #[doc = $advice] $variant, )* }

        impl $name {
            /// The whole list.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The wire form.
            pub const fn as_str(self) -> &'static str {
                match self { $( $name::$variant => $wire ),* }
            }

            /// Reads the wire form.
            pub fn parse(word: &str) -> Option<$name> {
                match word { $( $wire => Some($name::$variant), )* _ => None }
            }

            /// What it means.
            pub const fn meaning(self) -> &'static str {
                match self { $( $name::$variant => concat!($($meaning, "\n"),*) ),* }
            }

            /// What to do about it.
            pub const fn advice(self) -> &'static str {
                match self { $( $name::$variant => $advice ),* }
            }

            codes!(@properties $name [$($property: $property_ty = $property_doc),*] [$( $variant ($($value),*) )*]);
        }

        impl From<$name> for Cow<'static, str> {
            fn from(code: $name) -> Self {
                Cow::Borrowed(code.as_str())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
    (@properties $name:ident [$property:ident: $ty:ty = $doc:literal $(, $p:ident: $t:ty = $d:literal)*]
        [$( $variant:ident ($value:expr $(, $rest:expr)*) )*]) => {
        #[doc = $doc]
        pub const fn $property(self) -> $ty {
            match self { $( $name::$variant => $value ),* }
        }
        codes!(@properties $name [$($p: $t = $d),*] [$( $variant ($($rest),*) )*]);
    };
    (@properties $name:ident [] [$( $variant:ident () )*]) => {};
}

codes! {
    /// Code of an `error` frame.
    ErrorCode (
        remedy: Remedy = "Who has to do something.",
        retryable: bool = "Whether the same request may succeed later, unchanged.",
        closes: Option<CloseCode> = "How the server closes the connection after it; `None`: it stays open.",
    ) {
        /// The server does not know this frame type.
        "unknown_frame" UnknownFrame (Remedy::FixClient, false, None)
            "Do not send it under this protocol version. The frame was ignored.";
        /// The frame is not MessagePack, or not what its table says.
        "malformed_frame" MalformedFrame (Remedy::FixClient, false, Some(CloseCode::Protocol))
            "Compare with the golden vectors. Nothing in the frame was acted on.";
        /// The frame has more bytes, items or nesting than the server accepts.
        "frame_too_large" FrameTooLarge (Remedy::FixClient, false, Some(CloseCode::Limit))
            "Keep to `welcome.limits`: split the batch, or keep large values out of rows.";
        /// None of the versions in `hello.v` is spoken here.
        "unsupported_version" UnsupportedVersion (Remedy::FixClient, false, Some(CloseCode::Protocol))
            "Update the client, or the server. Do not retry before.";
        /// The first frame was not `hello`, or none came in time.
        "hello_required" HelloRequired (Remedy::FixClient, false, Some(CloseCode::Protocol))
            "Send `hello` first, within 10 seconds.";
        /// A known frame where it has no place, such as a second `hello`.
        "unexpected_frame" UnexpectedFrame (Remedy::FixClient, false, Some(CloseCode::Protocol))
            "Keep to the order of frames.";
        /// The server takes no anonymous sessions, and there was no token.
        "auth_required" AuthRequired (Remedy::SignIn, false, Some(CloseCode::AuthFailed))
            "Get a token and connect again.";
        /// The token does not verify: signature, issuer, audience or form.
        "auth_invalid" AuthInvalid (Remedy::SignIn, false, Some(CloseCode::AuthFailed))
            "Get a fresh token once. If that fails too, the configuration of token issuer and server disagree.";
        /// The token has expired.
        "auth_expired" AuthExpired (Remedy::SignIn, false, Some(CloseCode::AuthExpired))
            "Get a fresh token and connect again; cursors stay valid. Send `auth` in time to avoid this.";
        /// `hello.user` is not the token's subject. Nothing else in the frame was looked at.
        "user_mismatch" UserMismatch (Remedy::SignIn, false, Some(CloseCode::AuthFailed))
            "Open the local store of the token's subject, or get a token for the store's user. Never send one user's writes as another.";
        /// `auth` brought a token of another subject. It was ignored; the session goes on with the old token.
        "subject_change" SubjectChange (Remedy::FixClient, false, None)
            "Close the connection and open one for the other subject, with its own store.";
        /// The subject has no grant for this scope.
        "scope_forbidden" ScopeForbidden (Remedy::Decide, false, None)
            "Drop the local rows of the scope. A `scopes` frame tells when it is granted.";
        /// More scopes than `welcome.limits.scopes_max`.
        "scope_limit" ScopeLimit (Remedy::Decide, false, None)
            "Unsubscribe from another scope first.";
        /// The cursor is truncated, forged, or of a format that this server no longer reads.
        "cursor_invalid" CursorInvalid (Remedy::Recover, false, None)
            "Subscribe once more without it, keeping the old rows until `joined`; report it.";
        /// The cursor belongs to another scope.
        "cursor_wrong_scope" CursorWrongScope (Remedy::Recover, false, None)
            "As `cursor_invalid`; the client has mixed up its records.";
        /// The cursor, or the token, is ahead of what this gateway has read, and stayed so for as long as it waits.
        "cursor_ahead" CursorAhead (Remedy::Retry, true, None)
            "Keep the rows. Reconnect with backoff, if possible to another gateway.";
        /// The rebuild's continuation token is truncated, forged, of another scope, or no longer usable.
        "token_invalid" TokenInvalid (Remedy::Recover, false, None)
            "Throw the staged rows away and subscribe without token.";
        /// The server has no record of this client id, or an older one than the client's numbers prove.
        "client_expired" ClientExpired (Remedy::Recover, false, Some(CloseCode::Protocol))
            "Take a new client id and connect again. Give what was sent and never answered back to the application: it may have run or not. Renumber and send what was never sent.";
        /// A mutation number came back with other content, batch or membership: two stores share this client id.
        "client_forked" ClientForked (Remedy::Recover, false, Some(CloseCode::Protocol))
            "As `client_expired`.";
        /// A mutation number above the next one.
        "gap" Gap (Remedy::Retry, true, None)
            "Send again from the first number without outcome, in order. From the failing number on nothing was run.";
        /// More mutations in one push than `welcome.limits.batch_mutations_max`.
        "batch_too_large" BatchTooLarge (Remedy::FixClient, false, None)
            "Split the batch. An atomic one must be made smaller by the application. Nothing was run.";
        /// Too many accepted mutations of this client are not yet materialized.
        "capture_behind" CaptureBehind (Remedy::Wait, true, None)
            "Keep the writes queued; send again after `retry_after_ms`, or when `materialized` arrives.";
        /// The push was written under a schema version that this gateway has not loaded yet.
        "schema_unknown" SchemaUnknown (Remedy::Retry, true, None)
            "Send again after `retry_after_ms`.";
        /// More at once than this socket, or all sockets of its subject together, may ask for: frames or mutations per second,
        /// pushes that run or wait, beginnings on one scope.
        "rate_limited" RateLimited (Remedy::Wait, true, None)
            "Send again after `retry_after_ms`, fewer at once.";
        /// More sockets of this subject than allowed.
        "connection_limit" ConnectionLimit (Remedy::Wait, true, Some(CloseCode::Limit))
            "Close other connections, or reconnect with backoff.";
        /// The server cannot do this now: database unreachable, restarting, overloaded.
        "unavailable" Unavailable (Remedy::Retry, true, None)
            "Send again with backoff. Nothing durable was decided that a resend would not tell.";
        /// The stream stands still until an operator acts. Rows already received stay right; new ones do not come.
        "capture_blocked" CaptureBlocked (Remedy::Operator, true, None)
            "Stay connected and show the data as stale. Accepted writes are kept and become visible later.";
        /// The client took longer to read than the server waits.
        "too_slow" TooSlow (Remedy::Retry, true, Some(CloseCode::TooSlow))
            "Reconnect with backoff; cursors stay valid.";
        /// A fault of the server.
        "internal" Internal (Remedy::Operator, true, Some(CloseCode::Internal))
            "Reconnect with backoff. The operator finds it in the logs under the session's id.";
    }
}

codes! {
    /// Code of a mutation's durable outcome other than `accepted`.
    RejectionCode (
        status: MutationStatus = "The status that it comes with.",
        remedy: Remedy = "Who has to do something.",
    ) {
        /// The row's version is not the base's, or the row is gone.
        "conflict" Conflict (MutationStatus::Conflict, Remedy::Decide)
            "Compare with the current row, which the outcome or the next page brings; then write again under a new number, or give up.";
        /// An insert found its row there already.
        "row_exists" RowExists (MutationStatus::Conflict, Remedy::Decide)
            "As `conflict`; use `upsert` where that is meant.";
        /// An update or delete without base found no row that this subject may see.
        "row_not_found" RowNotFound (MutationStatus::Rejected, Remedy::Decide)
            "The row was deleted, or is hidden from the subject. Drop the edit or insert the row.";
        /// The mutation whose version `base` names was not accepted.
        "dependency_rejected" DependencyRejected (MutationStatus::Rejected, Remedy::Decide)
            "Decide the earlier mutation first, then write again under a new number.";
        /// Another mutation of the same atomic batch was not accepted.
        "batch_rejected" BatchRejected (MutationStatus::Rejected, Remedy::Decide)
            "Look at the one with another code; send the batch anew once that is solved.";
        /// Row-level security refused the row as it is or as it would become.
        "row_refused" RowRefused (MutationStatus::Rejected, Remedy::Decide)
            "The subject may not make this change.";
        /// The database role of pushes lacks a privilege on the table or column.
        "permission_denied" PermissionDenied (MutationStatus::Rejected, Remedy::Operator)
            "Grant the privilege, or register the table read-only.";
        /// Pushes to this table are not enabled.
        "not_writable" NotWritable (MutationStatus::Rejected, Remedy::FixClient)
            "Write it through the application's own server.";
        /// No table with this id in the schema version of the push.
        "unknown_table" UnknownTable (MutationStatus::Rejected, Remedy::FixClient)
            "Use the manifest's table ids.";
        /// No column of this name in the schema version of the push.
        "unknown_column" UnknownColumn (MutationStatus::Rejected, Remedy::FixClient)
            "Use the manifest's column names.";
        /// The columns hold a key other than the mutation's.
        "key_change" KeyChange (MutationStatus::Rejected, Remedy::FixClient)
            "Keys never change: delete the row and insert another.";
        /// A value that its column cannot hold: wrong type, out of range, malformed text, a NUL.
        "invalid_value" InvalidValue (MutationStatus::Rejected, Remedy::FixClient)
            "Correct the value; check it before it is queued.";
        /// The table changed since the schema version under which the mutation was written, in a way that matters to it.
        "schema_changed" SchemaChanged (MutationStatus::Rejected, Remedy::Decide)
            "Write it again under the current manifest and a new number.";
        /// A unique or primary-key constraint other than the row's own key.
        "constraint_unique" ConstraintUnique (MutationStatus::Rejected, Remedy::Decide)
            "Another row has this value.";
        /// A foreign key: the other row is missing, or still refers to this one.
        "constraint_foreign_key" ConstraintForeignKey (MutationStatus::Rejected, Remedy::Decide)
            "Create or remove the other row first.";
        /// A check constraint, or a domain's.
        "constraint_check" ConstraintCheck (MutationStatus::Rejected, Remedy::Decide)
            "Correct the values.";
        /// A null in a column that requires a value.
        "constraint_not_null" ConstraintNotNull (MutationStatus::Rejected, Remedy::Decide)
            "Give the column a value.";
        /// An exclusion constraint.
        "constraint_exclusion" ConstraintExclusion (MutationStatus::Rejected, Remedy::Decide)
            "Another row excludes this one.";
        /// The database refused the statement for another permanent reason, such as an error that a trigger raised.
        "database_refused" DatabaseRefused (MutationStatus::Rejected, Remedy::Decide)
            "The reason is the application's: look at its triggers.";
        /// The number is at or below the settled mark and its record is gone: its outcome was acknowledged and then forgotten. It does not run again. Not a verdict.
        "outcome_expired" OutcomeExpired (MutationStatus::Rejected, Remedy::Recover)
            "Keep the outcome that was stored when it was acknowledged.";
        /// Settled by `void` before it ran.
        "discarded" Discarded (MutationStatus::Discarded, Remedy::Recover)
            "It never runs; its number is used up.";
    }
}

codes! {
    /// Why a subscription rebuilds.
    RebuildReason () {
        /// The client gave no cursor.
        "new" New ()
            "Stage the rows.";
        /// The client gave a continuation token: the run goes on.
        "continued" Continued ()
            "Keep the rows staged so far.";
        /// The effects after the cursor are no longer kept.
        "below_floor" BelowFloor ()
            "Stage the rows anew; the old ones stay shown until `joined`.";
        /// The cursor, or the token, comes from a history that the database has left: a restore or a failover that lost transactions.
        "other_history" OtherHistory ()
            "As `below_floor`.";
        /// The cursor comes from before an operator's stream reset.
        "other_generation" OtherGeneration ()
            "As `below_floor`.";
        /// The grant was taken away and given again since the cursor.
        "regranted" Regranted ()
            "As `below_floor`.";
        /// Sending the rows costs less than the effects since the cursor.
        "cheaper" Cheaper ()
            "As `below_floor`.";
        /// The client said that its digest did not match, by `mismatch`.
        "digest_mismatch" DigestMismatch ()
            "Discard the old rows: they are known to be wrong.";
    }
}

codes! {
    /// How the server closes a connection: WebSocket close code, and the reason in `bye`.
    CloseCode (
        number: u16 = "The WebSocket close code.",
        remedy: Remedy = "Who has to do something.",
    ) {
        /// The server shuts down or sheds clients.
        "going_away" GoingAway (4000, Remedy::Retry)
            "Reconnect after `bye.reconnect_ms`.";
        /// The client broke the protocol; an `error` said how.
        "protocol" Protocol (4001, Remedy::FixClient)
            "Do as the `error` says; without one, reconnect with the longest backoff.";
        /// The token was refused; an `error` said why.
        "auth_failed" AuthFailed (4002, Remedy::SignIn)
            "Reconnect with a fresh token, once; then wait for the user.";
        /// The token expired.
        "auth_expired" AuthExpired (4003, Remedy::SignIn)
            "Reconnect at once with a fresh token.";
        /// The client did not read fast enough.
        "too_slow" TooSlow (4004, Remedy::Retry)
            "Reconnect with backoff.";
        /// A limit was exceeded; an `error` said which.
        "limit" Limit (4005, Remedy::Wait)
            "Reconnect with the longest backoff.";
        /// Nothing came from the client for twice the heartbeat.
        "idle_timeout" IdleTimeout (4006, Remedy::Retry)
            "Reconnect at once if the device is awake; send `ping` when idle.";
        /// A fault of the server.
        "internal" Internal (4010, Remedy::Operator)
            "Reconnect with backoff.";
    }
}

impl DecodeError {
    /// The code of the `error` frame that answers it.
    pub fn code(&self) -> ErrorCode {
        match self {
            DecodeError::UnknownFrame(_) => ErrorCode::UnknownFrame,
            DecodeError::TooLarge { .. } => ErrorCode::FrameTooLarge,
            DecodeError::Malformed { .. } => ErrorCode::MalformedFrame,
        }
    }
}

impl<'a> ErrorFrame<'a> {
    /// An error that answers no frame in particular. `retryable` comes from the list.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'a, str>>) -> ErrorFrame<'a> {
        ErrorFrame {
            code: code.into(),
            message: message.into(),
            retryable: code.retryable(),
            retry_after_ms: None,
            reference: None,
            of: None,
        }
    }

    /// The same, as the answer to request `reference`, a frame of type `of`.
    pub fn answering(self, reference: u64, of: &'static str) -> ErrorFrame<'a> {
        ErrorFrame { reference: Some(reference), of: Some(of.into()), ..self }
    }

    /// The same, with a delay in milliseconds.
    pub fn after_ms(self, retry_after_ms: u32) -> ErrorFrame<'a> {
        ErrorFrame { retry_after_ms: Some(retry_after_ms), ..self }
    }
}
