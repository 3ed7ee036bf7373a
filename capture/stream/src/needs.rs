//! What a batch asks of the database, in two rounds, and how the answers come back. No I/O: the caller fetches.

use bytes::Bytes;
use tidegate_model::{RelationId, RowDigest, RowVersion, ScopeDigest, ScopeId, ScopeName, Subject};

/// Round 1: rows of the projections, one query per relation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowNeeds {
    /// One entry per relation that the batch touches.
    pub relations: Vec<RelationRowNeeds>,
}

/// Rows needed of one relation's projection, by `key_index` ([`tidegate_model::RowKey::index_bytes`]), each key once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationRowNeeds {
    /// The relation.
    pub relation: RelationId,
    /// Keys whose first change is an update or a delete: the projection has them, or the batch blocks.
    pub present: Vec<Bytes>,
    /// Keys whose first change is an insert: the projection lacks them, or the batch blocks. Looking them up may be left
    /// out where the insert into the projection itself would fail on a duplicate key; report that as
    /// [`crate::FailureClass::InsertOnExisting`].
    pub absent: Vec<Bytes>,
}

/// A row of a projection, as it is before the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldRow {
    /// Its version.
    pub version: RowVersion,
    /// Its wire image.
    pub row: Bytes,
    /// Its digest.
    pub digest: RowDigest,
    /// The scopes that it is in.
    pub scopes: Vec<ScopeId>,
    /// The pairs that it grants.
    pub grants: Vec<(Subject, ScopeName)>,
}

/// Round 2: scopes and grant pairs, one query each. Known only once membership has been evaluated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeNeeds {
    /// Scopes that rows were in before, by id. Every one exists, or the projected state contradicts itself.
    pub ids: Vec<ScopeId>,
    /// Scopes that rows are in now, by name; they may not exist yet.
    pub names: Vec<NamedScope>,
    /// (subject, scope) pairs whose count changes.
    pub pairs: Vec<GrantPair>,
}

impl ScopeNeeds {
    /// Whether nothing is needed: no query.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.names.is_empty() && self.pairs.is_empty()
    }
}

/// A scope looked up by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedScope {
    /// [`ScopeName::hash`]: the column `name_hash`.
    pub hash: [u8; 32],
    /// The name.
    pub name: ScopeName,
}

/// A (subject, scope) pair of a grant rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantPair {
    /// SHA-256 of the subject.
    pub subject_hash: [u8; 32],
    /// [`ScopeName::hash`] of the scope.
    pub scope_hash: [u8; 32],
    /// Who.
    pub subject: Subject,
    /// What.
    pub scope: ScopeName,
}

/// Row count and digest of a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopeTotals {
    /// Number of rows.
    pub row_count: i64,
    /// Sum of their digests.
    pub digest: ScopeDigest,
}

/// Answer for one [`NamedScope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeAnswer {
    /// The scope's id; for one that does not exist, a freshly allocated id that it shall have.
    pub id: ScopeId,
    /// Its totals; `None` when it does not exist yet.
    pub stored: Option<ScopeTotals>,
}

/// Answers to [`ScopeNeeds`], each list parallel to the list that it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeAnswers {
    /// For [`ScopeNeeds::ids`]; `None` when there is no such scope.
    pub ids: Vec<Option<ScopeTotals>>,
    /// For [`ScopeNeeds::names`].
    pub names: Vec<ScopeAnswer>,
    /// For [`ScopeNeeds::pairs`]: the stored `row_count`, zero when there is no such pair.
    pub pairs: Vec<i64>,
}
