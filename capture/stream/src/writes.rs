//! The write lists of a batch: one struct per statement, columns as parallel vectors, ready for `UNNEST`. Plain data.
//!
//! The caller adds what the core does not know: the stream generation and the projected state.

use bytes::Bytes;
use tidegate_model::{Lsn, RegistryGeneration, RelationId};
use uuid::Uuid;

/// Everything that a batch writes, besides progress. Within one list no key occurs twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// `tidegate.source_transaction`, insert, in commit order (R1, R4).
    pub transactions: TransactionColumns,
    /// `s<state>_p<relation>`, one entry per relation with changed rows, ordered by relation.
    pub projections: Vec<ProjectionWrites>,
    /// `s<state>_scope`, insert.
    pub new_scopes: NewScopeColumns,
    /// `s<state>_scope`, update by id.
    pub scopes: ScopeColumns,
    /// `s<state>_scope_row`, insert.
    pub edges_added: EdgeColumns,
    /// `s<state>_scope_row`, delete.
    pub edges_removed: EdgeColumns,
    /// `tidegate.effect`, insert, in position order.
    pub effects: EffectColumns,
    /// `tidegate.grant_effect`, insert, in position order.
    pub grant_effects: GrantEffectColumns,
    /// `s<state>_subject_grant`, insert or update by (subject_hash, scope_hash).
    pub grants_set: GrantColumns,
    /// `s<state>_subject_grant`, delete by (subject_hash, scope_hash).
    pub grants_removed: GrantKeyColumns,
    /// `tidegate.write_fence`, update by id: the accepted mutations that came round (F8). Exactly as many rows must match id,
    /// mutation, relation, key and version, or it is [`crate::FailureClass::WriteFenceMismatch`].
    pub fences: FenceColumns,
    /// `tidegate.registry_activation`, insert (G3).
    pub activations: ActivationColumns,
    /// Barrier markers that the batch contains (B4).
    pub markers: Vec<Marker>,
}

/// `tidegate.source_transaction`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0002_stream.sql.
pub struct TransactionColumns {
    pub commit_lsn: Vec<Lsn>,
    pub end_lsn: Vec<Lsn>,
    pub xid: Vec<i64>,
    /// Microseconds since 2000-01-01, as PostgreSQL counts.
    pub committed_at_pg_micros: Vec<i64>,
    pub event_count: Vec<i64>,
    pub effect_count: Vec<i64>,
    pub effect_bytes: Vec<i64>,
    pub manifest: Vec<Vec<u8>>,
}

/// Changed rows of one relation's projection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectionWrites {
    /// The relation.
    pub relation: RelationId,
    /// Rows that the projection lacks.
    pub insert: RowColumns,
    /// Rows that it has, by `key_index`.
    pub update: RowColumns,
    /// Rows that go, by `key_index`.
    pub delete: Vec<Bytes>,
}

/// Rows of a projection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0004_log.sql.
pub struct RowColumns {
    pub key_index: Vec<Bytes>,
    pub version: Vec<Uuid>,
    pub row: Vec<Bytes>,
    pub digest: Vec<[u8; 16]>,
    /// Text form of `bigint[]`, such as `{1,7}`: `UNNEST` flattens nested arrays.
    pub scope_ids: Vec<String>,
    /// Text form of the jsonb array of pairs; `None` when the row grants nothing.
    pub grants: Vec<Option<String>>,
}

/// `s<state>_scope`, rows that do not exist yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0004_log.sql.
pub struct NewScopeColumns {
    pub name_hash: Vec<[u8; 32]>,
    pub name: Vec<String>,
    /// The other columns, parallel to these two.
    pub totals: ScopeColumns,
}

/// `s<state>_scope`, the columns that effects move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0004_log.sql.
pub struct ScopeColumns {
    pub scope_id: Vec<i64>,
    pub row_count: Vec<i64>,
    pub digest: Vec<[u8; 16]>,
    pub tail_commit_lsn: Vec<Lsn>,
    pub tail_event_ordinal: Vec<i64>,
    pub tail_effect_ordinal: Vec<i32>,
}

/// `s<state>_scope_row`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0004_log.sql.
pub struct EdgeColumns {
    pub scope_id: Vec<i64>,
    pub relation_id: Vec<i32>,
    pub key_index: Vec<Bytes>,
}

/// What a client must do with a row in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum EffectOperation {
    /// Store the row.
    Upsert = 1,
    /// The row leaves this scope.
    Delete = 2,
}

/// `tidegate.effect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0004_log.sql.
pub struct EffectColumns {
    pub scope_id: Vec<i64>,
    pub commit_lsn: Vec<Lsn>,
    pub event_ordinal: Vec<i64>,
    pub effect_ordinal: Vec<i32>,
    pub op: Vec<i16>,
    pub table_id: Vec<i32>,
    pub key: Vec<Bytes>,
    pub version: Vec<Uuid>,
    pub row: Vec<Option<Bytes>>,
    pub schema_version: Vec<i32>,
    pub digest_after: Vec<[u8; 16]>,
    pub count_after: Vec<i64>,
}

impl EffectColumns {
    /// Number of effects.
    pub fn len(&self) -> usize {
        self.scope_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.scope_id.is_empty()
    }
}

/// `tidegate.grant_effect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0004_log.sql.
pub struct GrantEffectColumns {
    pub commit_lsn: Vec<Lsn>,
    pub ordinal: Vec<i32>,
    /// 1 granted, 2 revoked.
    pub op: Vec<i16>,
    pub subject: Vec<String>,
    pub scope: Vec<String>,
}

/// `s<state>_subject_grant`, pairs that hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0004_log.sql.
pub struct GrantColumns {
    pub keys: GrantKeyColumns,
    pub subject: Vec<String>,
    pub scope: Vec<String>,
    pub row_count: Vec<i64>,
    /// Where the pair begins to hold; `None` leaves the stored `since_commit_lsn` as it is.
    pub since_commit_lsn: Vec<Option<Lsn>>,
}

/// Keys of `s<state>_subject_grant`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0004_log.sql.
pub struct GrantKeyColumns {
    pub subject_hash: Vec<[u8; 32]>,
    pub scope_hash: Vec<[u8; 32]>,
}

/// `tidegate.write_fence`, fences to reconcile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0005_write.sql.
pub struct FenceColumns {
    pub fence_id: Vec<Uuid>,
    pub mutation_id: Vec<i64>,
    pub relation_id: Vec<i32>,
    pub key: Vec<String>,
    pub version: Vec<Uuid>,
    pub materialized_commit_lsn: Vec<Lsn>,
}

/// `tidegate.registry_activation`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The columns are documented in migrations/sql/0003_registry.sql.
pub struct ActivationColumns {
    pub registry_generation: Vec<RegistryGeneration>,
    pub commit_lsn: Vec<Lsn>,
    pub first_event_ordinal: Vec<i64>,
}

/// A marker message: a transaction that someone waits for (B4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Its nonce.
    pub nonce: Uuid,
    /// Commit position of its transaction.
    pub commit_lsn: Lsn,
    /// End of its transaction: the barrier.
    pub end_lsn: Lsn,
}
