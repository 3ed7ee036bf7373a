//! What Tidegate's processes agree on through PostgreSQL. No I/O, no clock, no async.
//!
//! Capture writes these values, the gateway reads them, the loader's SQL produces some of them: one definition each, here.
//! The absence that matters: nothing in this crate knows a connection, so every rule in it can be tested as a table.

mod cursor;
mod digest;
mod fence;
mod hex;
mod ids;
mod key;
mod lsn;
mod position;
mod predicate;
mod registry;
mod row;
mod scope;
mod value;
mod wake;

pub use cursor::{Cursor, CursorError, CursorKeys, RebuildToken, ServerIdentity};
pub use digest::{RowDigest, ScopeDigest, row_digest};
pub use fence::{
    FENCE_PREFIX, FenceError, FenceMessage, MARKER_PREFIX, REGISTRY_PREFIX, RelationKind, RowOperation,
};
pub use fence::{parse_marker, parse_registry_activation};
pub use ids::{
    ClientId, FenceId, GenerationId, MutationId, RegistryGeneration, RelationId, RowVersion, ScopeId,
    StateId, StreamGeneration, Subject, TableId,
};
pub use key::{KeyType, RowKey};
pub use lsn::{Lsn, LsnParseError};
pub use position::{GenerationMismatch, Point, Position};
pub use predicate::{Comparison, Literal, Operand, Predicate};
pub use registry::{Column, Grant, KeyColumn, Relation, Rule, Snapshot, SnapshotError, WritePolicy};
pub use row::{RowReader, WireValue};
pub use scope::{ScopeName, Template, TemplatePart};
pub use value::{ColumnType, ElementType, ValueError, encode_row_header, encode_text_value};
pub use wake::Wake;
