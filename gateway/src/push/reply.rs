//! What a push comes to: durable outcomes, and an error for what was not decided.

use tidegate_model::{RowKey, RowVersion, TableId};
use tidegate_protocol::{ErrorCode, ErrorFrame, MutationNumber, MutationResult, Outcome};

/// What a client should wait where waiting is all it can do, in milliseconds.
pub(super) const RETRY_MS: u32 = 500;

/// Answer to one `push` or `void`. Both parts may be present: outcomes for the first numbers, an error for the rest.
#[derive(Debug, Default)]
pub struct PushReply {
    /// Durable outcomes in order of number, stored ones included (V3). Every accepted one is owed a `materialized` (V6).
    pub results: Vec<MutationResult<'static>>,
    /// The conflicts among them that were found just now. The session may add a row to such a result, only as V1 allows.
    pub conflicts: Vec<ConflictNow>,
    /// Why the rest was not decided. Nothing durable says anything about it.
    pub error: Option<PushError>,
}

/// A conflict that was found just now: what the session needs to judge whether it may add the projected row (V1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConflictNow {
    /// The mutation.
    pub number: MutationNumber,
    /// Its table.
    pub table: TableId,
    /// Its key.
    pub key: RowKey,
    /// The source's current version of the row: the projected row may be told only if it has this one. Nil: unfenced.
    pub current: RowVersion,
}

/// Nothing durable was decided, or not about everything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct PushError {
    /// The code for the client; it says whether to send again.
    pub code: ErrorCode,
    /// For people, in our own words.
    pub message: &'static str,
    /// Not before this many milliseconds; `None`: the client's own backoff.
    pub retry_after_ms: Option<u32>,
}

impl PushError {
    pub(super) fn new(code: ErrorCode, message: &'static str) -> PushError {
        PushError { code, message, retry_after_ms: None }
    }

    pub(super) fn retry_after(code: ErrorCode, message: &'static str, retry_after_ms: u32) -> PushError {
        PushError { code, message, retry_after_ms: Some(retry_after_ms) }
    }

    /// The frame that answers request `reference` of type `of`.
    pub fn frame(&self, reference: Option<u64>, of: &'static str) -> ErrorFrame<'static> {
        ErrorFrame {
            code: self.code.into(),
            message: self.message.into(),
            retryable: self.code.retryable(),
            retry_after_ms: self.retry_after_ms,
            reference,
            of: Some(of.into()),
        }
    }
}

impl From<PushError> for PushReply {
    fn from(error: PushError) -> PushReply {
        PushReply { error: Some(error), ..PushReply::default() }
    }
}

impl PushReply {
    /// The `outcome` frame, unless nothing was decided.
    pub fn outcome(&self, reference: u64) -> Option<Outcome<'static>> {
        (!self.results.is_empty()).then(|| Outcome { reference, results: self.results.clone() })
    }
}
