//! The transactional messages that our triggers and functions put into the WAL.

use crate::{FenceId, MutationId, RegistryGeneration, RelationId, RowVersion, TableId};
use uuid::Uuid;

/// Prefix of fence messages (F4).
pub const FENCE_PREFIX: &str = "tidegate.fence";
/// Prefix of registry activation messages (G2).
pub const REGISTRY_PREFIX: &str = "tidegate.registry";
/// Prefix of barrier markers (B4).
pub const MARKER_PREFIX: &str = "tidegate.marker";

/// What a registration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelationKind {
    /// Clients see its rows.
    Synced,
    /// Only membership and grant rules read it.
    CaptureDependency,
}

/// A row operation that really happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowOperation {
    /// INSERT, also the insert part of MERGE, COPY and ON CONFLICT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
}

/// The fence of one row operation, borrowed from the message's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceMessage<'m> {
    /// Registration kind; decides whether `table` is present (F4).
    pub kind: RelationKind,
    /// The relation's immutable id.
    pub relation: RelationId,
    /// The table's client-visible id; present exactly for synced relations.
    pub table: Option<TableId>,
    /// Schema-qualified, quoted name at installation.
    pub qualified_name: &'m str,
    /// The operation.
    pub operation: RowOperation,
    /// Registered-DML ordinal: strictly increasing within the transaction, not dense (F2).
    pub ordinal: u64,
    /// The version that this operation gave the row.
    pub version: RowVersion,
    /// Unique id.
    pub fence: FenceId,
    /// The client mutation that made the change, where a push did (F5).
    pub mutation: Option<MutationId>,
    /// The row's key in PostgreSQL's text form. Keys cannot change, so it is old and new key in one.
    pub key: &'m str,
}

/// A fence message that does not parse. Blocking (F8); carries no content of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed fence message: {0}")]
pub struct FenceError(pub &'static str);

impl<'m> FenceMessage<'m> {
    /// Parses `1:<kind>:<relation>:<table>:<length>:<name>:<op>:<ordinal>:<version>:<fence>:<mutation>:<key>`; see
    /// `migrations/sql/0007_fence.sql`, which writes it.
    ///
    /// # Errors
    /// [`FenceError`] naming the field that is wrong.
    pub fn parse(content: &'m [u8]) -> Result<FenceMessage<'m>, FenceError> {
        let text = std::str::from_utf8(content).map_err(|_| FenceError("not UTF-8"))?;
        let mut rest = Fields(text);
        if rest.next("version")? != "1" {
            return Err(FenceError("unknown format"));
        }
        let kind = match rest.next("kind")? {
            "s" => RelationKind::Synced,
            "d" => RelationKind::CaptureDependency,
            _ => return Err(FenceError("kind")),
        };
        let relation = RelationId(rest.number("relation id")?);
        let table = match rest.next("table id")? {
            "" => None,
            id => Some(TableId(id.parse().map_err(|_| FenceError("table id"))?)),
        };
        if table.is_some() != (kind == RelationKind::Synced) {
            return Err(FenceError("table id does not fit the kind"));
        }
        let length: usize = rest.number("name length")?;
        let qualified_name = rest.take(length).ok_or(FenceError("name"))?;
        let operation = match rest.next("operation")? {
            "I" => RowOperation::Insert,
            "U" => RowOperation::Update,
            "D" => RowOperation::Delete,
            _ => return Err(FenceError("operation")),
        };
        let ordinal = rest.number("ordinal")?;
        let version = RowVersion(rest.uuid("version")?);
        let fence = FenceId(rest.uuid("fence id")?);
        let mutation = match rest.next("mutation id")? {
            "" => None,
            id => Some(MutationId(id.parse().map_err(|_| FenceError("mutation id"))?)),
        };
        Ok(FenceMessage {
            kind,
            relation,
            table,
            qualified_name,
            operation,
            ordinal,
            version,
            fence,
            mutation,
            key: rest.0,
        })
    }
}

/// What is left of a colon-separated text.
struct Fields<'m>(&'m str);

impl<'m> Fields<'m> {
    fn next(&mut self, name: &'static str) -> Result<&'m str, FenceError> {
        let (field, rest) = self.0.split_once(':').ok_or(FenceError(name))?;
        self.0 = rest;
        Ok(field)
    }

    /// The next `length` bytes, which a colon must follow.
    fn take(&mut self, length: usize) -> Option<&'m str> {
        let field = self.0.get(..length)?;
        self.0 = self.0.get(length..)?.strip_prefix(':')?;
        Some(field)
    }

    fn number<N: std::str::FromStr>(&mut self, name: &'static str) -> Result<N, FenceError> {
        self.next(name)?.parse().map_err(|_| FenceError(name))
    }

    fn uuid(&mut self, name: &'static str) -> Result<Uuid, FenceError> {
        self.next(name)?.parse().map_err(|_| FenceError(name))
    }
}

/// Content of a [`REGISTRY_PREFIX`] message: `1:<registry generation>`.
pub fn parse_registry_activation(content: &[u8]) -> Option<RegistryGeneration> {
    let id = std::str::from_utf8(content).ok()?.strip_prefix("1:")?;
    id.parse().ok().map(RegistryGeneration)
}

/// Content of a [`MARKER_PREFIX`] message: `1:<nonce>`.
pub fn parse_marker(content: &[u8]) -> Option<Uuid> {
    std::str::from_utf8(content).ok()?.strip_prefix("1:")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "1:s:17:4:9:\"a:b\".\"c\":U:1234:00000000-0000-0000-0000-000000000001:00000000-0000-0000-0000-000000000002:88:k:e:y";

    #[test]
    fn f4_a_fence_message_parses_with_colons_in_name_and_key() {
        let text = GOOD.replace(":9:", &format!(":{}:", "\"a:b\".\"c\"".len()));
        let fence = FenceMessage::parse(text.as_bytes()).expect("parses");
        assert_eq!(fence.qualified_name, "\"a:b\".\"c\"");
        assert_eq!((fence.relation, fence.table, fence.ordinal), (RelationId(17), Some(TableId(4)), 1234));
        assert_eq!((fence.mutation, fence.key), (Some(MutationId(88)), "k:e:y"));
    }

    #[test]
    fn f8_every_truncation_is_refused_or_differs_only_in_its_key() {
        let text = GOOD.replace(":9:", &format!(":{}:", "\"a:b\".\"c\"".len()));
        let key_start = text.len() - "k:e:y".len();
        for end in 0..key_start {
            assert!(FenceMessage::parse(&text.as_bytes()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn f4_a_dependency_must_not_have_a_table_id() {
        assert_eq!(
            FenceMessage::parse(b"1:d:17:4:1:x:I:1:").unwrap_err(),
            FenceError("table id does not fit the kind")
        );
        assert_eq!(
            FenceMessage::parse(b"1:s:17::1:x:I:1:").unwrap_err(),
            FenceError("table id does not fit the kind")
        );
    }
}
