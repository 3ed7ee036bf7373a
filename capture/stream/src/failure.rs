//! What can go wrong with a source transaction, as a closed list (Q1). Every stage of this crate fails with one of these or
//! not at all. A failure names relations, counts and positions, never a value: keys are values too.

use std::fmt;
use tidegate_model::{Lsn, RelationId};

/// Longest explanation that a poison record takes, in bytes.
pub const EXPLANATION_BYTES_MAX: usize = 1000;

/// Who can do something about a failure (Q3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAct {
    /// An operator repairs what the explanation names, then retries the same transaction under the same identities.
    OperatorRetry,
    /// The WAL itself says that rows are gone or mean something else now: only an authorized stream reset leads out.
    ResetOnly,
}

macro_rules! classes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $next:ident;)*) => {
        /// Class of a blocking failure: the bounded string that the poison record and the metrics carry.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FailureClass { $($(#[$doc])* $variant,)* }

        impl FailureClass {
            /// All classes, in the order of the stages that raise them.
            pub const ALL: &'static [FailureClass] = &[$(FailureClass::$variant,)*];

            /// The stored and exported form, at most 64 bytes.
            pub fn as_str(self) -> &'static str {
                match self { $(FailureClass::$variant => $text,)* }
            }

            /// Who acts next.
            pub fn next_act(self) -> NextAct {
                match self { $(FailureClass::$variant => NextAct::$next,)* }
            }
        }
    };
}

classes! {
    /// A frame is not what pgoutput's protocol version 1 writes.
    FrameMalformed = "frame_malformed", OperatorRetry;
    /// A well-formed message where the protocol does not allow it: a row outside of a transaction, say.
    MessageUnexpected = "message_unexpected", OperatorRetry;
    /// A row names a relation that no relation message has described on this connection.
    RelationUndescribed = "relation_undescribed", OperatorRetry;
    /// The registered qualified name belongs to another table now (G5, DD-01).
    RelationReplaced = "relation_replaced", ResetOnly;
    /// The registered table has another qualified name now (G5).
    RelationRenamed = "relation_renamed", ResetOnly;
    /// The replica identity is not the default one (K2).
    ReplicaIdentityChanged = "replica_identity_changed", ResetOnly;
    /// The primary key is not exactly the registered column (K1).
    PrimaryKeyChanged = "primary_key_changed", ResetOnly;
    /// A captured column is gone, or has another name (G5).
    ColumnMissing = "column_missing", ResetOnly;
    /// A captured column has another type (G5).
    ColumnTypeChanged = "column_type_changed", ResetOnly;
    /// A decoded TRUNCATE of a registered relation (K3).
    Truncate = "truncate", ResetOnly;
    /// A row changed its key although guard and fence refuse that (F1).
    KeyChanged = "key_changed", ResetOnly;
    /// A value is not of its column's type, or a key is missing or null.
    ValueMalformed = "value_malformed", OperatorRetry;
    /// A value was omitted where only a complete row makes sense (R8, DT-01).
    ValueMissing = "value_missing", OperatorRetry;
    /// An activation message does not parse (G2).
    RegistryMessageMalformed = "registry_message_malformed", OperatorRetry;
    /// An activation names a registry generation that is not stored, or whose snapshot cannot be read (G2).
    RegistryGenerationMissing = "registry_generation_missing", OperatorRetry;
    /// An activation names a generation older than the one in force (G3).
    RegistryGenerationBackwards = "registry_generation_backwards", OperatorRetry;
    /// A marker message does not parse (B4).
    MarkerMalformed = "marker_malformed", OperatorRetry;
    /// A fence message does not parse, or carries the reserved version 0 (F8, F10).
    FenceMalformed = "fence_malformed", OperatorRetry;
    /// A fence contradicts the registration of its relation: kind, table id or qualified name (F4, F7).
    FenceRelationMismatch = "fence_relation_mismatch", OperatorRetry;
    /// A row change without its fence: a write that bypassed the triggers (F8, F11, TX-03).
    FenceMissing = "fence_missing", OperatorRetry;
    /// A fence without its row change (F8, TX-03, OP-08).
    FenceWithoutRow = "fence_without_row", OperatorRetry;
    /// The k-th fence of a row is for another operation than the row's k-th change (F7).
    FenceOperationMismatch = "fence_operation_mismatch", OperatorRetry;
    /// A fence and its row change have different keys (F7).
    FenceKeyMismatch = "fence_key_mismatch", OperatorRetry;
    /// Two fences of one transaction share their id, or two fences of one row share their ordinal (F8).
    FenceDuplicate = "fence_duplicate", OperatorRetry;
    /// A fence gives a row the version that it already has (F8, F10).
    FenceVersionReused = "fence_version_reused", OperatorRetry;
    /// A replayed transaction differs from what was stored for its identity (R3).
    ManifestMismatch = "manifest_mismatch", OperatorRetry;
    /// An insert of a row that the projection already has.
    InsertOnExisting = "insert_on_existing", OperatorRetry;
    /// An update of a row that the projection lacks (DT-01).
    UpdateOnMissing = "update_on_missing", OperatorRetry;
    /// A delete of a row that the projection lacks.
    DeleteOnMissing = "delete_on_missing", OperatorRetry;
    /// A row's columns changed between two of its changes in one transaction, and a value was omitted across that boundary (R8).
    LayoutChanged = "layout_changed", OperatorRetry;
    /// The projected state contradicts itself: an edge without its scope, a count below zero, a row of another shape.
    ProjectionInconsistent = "projection_inconsistent", OperatorRetry;
    /// The transaction exceeds a configured hard limit (TX-07).
    TransactionTooLarge = "transaction_too_large", OperatorRetry;
    /// Raised by the worker: the server cannot decode or send what follows the processed boundary, as after the publication was
    /// missing for a while (OP-08). Which transaction it is cannot be known: the record stands at the boundary.
    StreamUnreadable = "stream_unreadable", OperatorRetry;
    /// Raised by the worker: the catalogs show a registered relation that differs from what was registered, without any write (G5). A
    /// retry compares again. The record stands at the boundary.
    RelationDrifted = "relation_drifted", OperatorRetry;
    /// Raised by the worker: one message, and so one row, exceeds the configured limit. The record stands at the boundary.
    MessageTooLarge = "message_too_large", OperatorRetry;
    /// Raised by the worker: a write fence that the stream reconciles is missing or names another row (F8).
    WriteFenceMismatch = "write_fence_mismatch", OperatorRetry;
    /// Raised by the worker: PostgreSQL refused materialization with an SQLSTATE outside the transient list (Q4).
    DatabaseRefused = "database_refused", OperatorRetry;
}

impl FailureClass {
    /// Whether the record of such a failure stands at the processed boundary, because the transaction is not known.
    pub fn at_boundary(self) -> bool {
        matches!(self, FailureClass::StreamUnreadable | FailureClass::MessageTooLarge)
    }

    /// Whether an operator's retry may clear it; stored as `poison.retryable`.
    pub fn retryable(self) -> bool {
        self.next_act() == NextAct::OperatorRetry
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One blocking failure, ready to become a poison record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its class.
    pub class: FailureClass,
    /// The transaction's commit position; `None` when the failure lies outside of any, or between those of one batch: run them one
    /// by one.
    pub commit_lsn: Option<Lsn>,
    /// Where the transaction ends, once that is known.
    pub end_lsn: Option<Lsn>,
    /// The relation, where one is known.
    pub relation: Option<RelationId>,
    /// Our own words, names of relations and columns, counts, positions; bounded by [`EXPLANATION_BYTES_MAX`]. No values.
    explanation: String,
}

impl Failure {
    /// A failure of `class`. `explanation` must be composed of our own words, names, counts and positions alone.
    pub fn new(class: FailureClass, explanation: impl Into<String>) -> Failure {
        let mut explanation = explanation.into();
        if explanation.len() > EXPLANATION_BYTES_MAX {
            let end =
                (0..=EXPLANATION_BYTES_MAX).rev().find(|at| explanation.is_char_boundary(*at)).unwrap_or(0);
            explanation.truncate(end);
        }
        Failure { class, commit_lsn: None, end_lsn: None, relation: None, explanation }
    }

    /// Names the relation.
    #[must_use]
    pub fn of(mut self, relation: RelationId) -> Failure {
        self.relation = Some(relation);
        self
    }

    /// Places the failure, where no earlier stage has.
    #[must_use]
    pub fn at(mut self, commit_lsn: Lsn, end_lsn: Option<Lsn>) -> Failure {
        self.commit_lsn = self.commit_lsn.or(Some(commit_lsn));
        self.end_lsn = self.end_lsn.or(end_lsn);
        self
    }

    /// The sentence for operators.
    pub fn explanation(&self) -> &str {
        &self.explanation
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.commit_lsn {
            Some(lsn) => write!(f, "transaction {lsn}: {}: {}", self.class, self.explanation),
            None => write!(f, "{}: {}", self.class, self.explanation),
        }
    }
}

impl std::error::Error for Failure {}

/// Why a stage stopped.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// Blocking: becomes poison (Q2).
    #[error(transparent)]
    Blocked(#[from] Failure),
    /// The spool's medium failed: transient in Q4's sense. Reconnect; the transaction is read again from the WAL.
    #[error("spool a large transaction: {0}")]
    Spool(#[from] std::io::Error),
}

impl StreamError {
    /// Places a blocking failure, where no earlier stage has.
    #[must_use]
    pub fn at(self, commit_lsn: Lsn, end_lsn: Option<Lsn>) -> StreamError {
        match self {
            StreamError::Blocked(failure) => StreamError::Blocked(failure.at(commit_lsn, end_lsn)),
            spool => spool,
        }
    }

    /// The blocking failure, if it is one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            StreamError::Blocked(failure) => Some(failure),
            StreamError::Spool(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q1_classes_are_bounded_distinct_words() {
        let mut seen = std::collections::HashSet::new();
        for class in FailureClass::ALL {
            let text = class.as_str();
            assert!(text.len() <= 64 && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{text}");
            assert!(seen.insert(text), "{text} twice");
        }
    }

    #[test]
    fn q1_explanations_are_bounded_at_a_character() {
        let failure = Failure::new(FailureClass::Truncate, "é".repeat(900));
        assert_eq!(failure.explanation().len(), EXPLANATION_BYTES_MAX);
    }

    #[test]
    fn k3_and_g5_leave_only_a_reset() {
        use FailureClass::*;
        for class in [
            Truncate,
            RelationReplaced,
            RelationRenamed,
            ReplicaIdentityChanged,
            PrimaryKeyChanged,
            ColumnMissing,
            ColumnTypeChanged,
        ] {
            assert!(!class.retryable(), "{class}");
        }
        assert!(TransactionTooLarge.retryable(), "a raised limit clears it");
        assert!(MessageTooLarge.retryable(), "a raised limit clears it");
    }
}
