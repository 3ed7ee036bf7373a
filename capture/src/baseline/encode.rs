//! One row of the snapshot, from COPY text to what a projection stores. The same encoding and the same rules as the stream's, so
//! the same row has the same bytes. Pure.

use super::text::fields;
use bytes::Bytes;
use std::fmt::Write;
use std::sync::Arc;
use tidegate_model::{
    Column, Relation, RelationId, RowDigest, RowKey, RowVersion, ScopeName, Snapshot, Subject,
    encode_row_header, encode_text_value,
};
use tidegate_stream::{Failure, FailureClass, Membership, evaluate, projected_digest};

/// A row, encoded.
pub(super) struct EncodedRow {
    pub(super) key_index: Vec<u8>,
    pub(super) version: RowVersion,
    pub(super) row: Vec<u8>,
    pub(super) digest: RowDigest,
    pub(super) scopes: Vec<ScopeName>,
    pub(super) grants: Vec<(Subject, ScopeName)>,
}

/// Encodes the rows of one relation.
pub(super) struct Encoder {
    registry: Arc<Snapshot>,
    relation: Relation,
    scratch: Vec<u8>,
    spans: Vec<Option<(usize, usize)>>,
    row: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(registry: &Arc<Snapshot>, relation: &Relation) -> Encoder {
        Encoder {
            registry: registry.clone(),
            relation: relation.clone(),
            scratch: Vec::new(),
            spans: Vec::new(),
            row: Vec::new(),
        }
    }

    /// The query whose rows [`encode`](Self::encode) takes: captured columns in order, then the fenced version. Text form of every
    /// value as the stream sends it; identifiers are quoted here.
    pub(super) fn query(relation: &Relation, version_key: &VersionKey) -> String {
        let mut sql = String::from("select ");
        for Column { name, .. } in &relation.columns {
            let _ = write!(sql, "t.{}, ", quoted(name));
        }
        let key = quoted(&relation.key.column);
        let key = match version_key {
            VersionKey::Text => format!("tidegate.version_key(t.{key}::text)"),
            VersionKey::Typed => format!("t.{key}"),
        };
        let _ = write!(
            sql,
            "v.version from only {}.{} t left join tidegate.row_version_{} v on v.key = {key} and v.alive",
            quoted(&relation.schema),
            quoted(&relation.name),
            relation.relation_id
        );
        sql
    }

    /// Encodes one row.
    ///
    /// # Errors
    /// A blocking failure that names the column, never the value.
    pub(super) fn encode(&mut self, line: &Bytes) -> Result<EncodedRow, Failure> {
        let malformed = |relation: &Relation, what: &str| {
            let what = format!("{}.{}: {what}", relation.schema, relation.name);
            Failure::new(FailureClass::ValueMalformed, what).of(relation.relation_id)
        };
        let columns = self.relation.columns.len();
        let text = fields(line, columns + 1, &mut self.scratch, &mut self.spans)
            .ok_or_else(|| malformed(&self.relation, "a copied row is damaged"))?;
        let value = |at: usize| self.spans[at].map(|(from, to)| &text[from..to]);
        self.row.clear();
        encode_row_header(columns, &mut self.row);
        for (at, column) in self.relation.columns.iter().enumerate() {
            encode_text_value(column.wire, value(at), &mut self.row)
                .map_err(|error| malformed(&self.relation, &format!("column {}: {error}", column.name)))?;
        }
        let key = value(self.relation.key_index())
            .and_then(|text| RowKey::from_text(self.relation.key.key_type, text))
            .ok_or_else(|| malformed(&self.relation, "a key is missing"))?;
        let version = match value(columns) {
            None => RowVersion::UNFENCED,
            Some(text) => {
                RowVersion(text.parse().map_err(|_| malformed(&self.relation, "a version is damaged"))?)
            }
        };
        let Membership { scopes, grants } = evaluate(&self.registry, &self.relation, &self.row);
        Ok(EncodedRow {
            key_index: key.index_bytes(),
            version,
            digest: projected_digest(&self.relation, &key, version, &self.row),
            row: self.row.clone(),
            scopes,
            grants,
        })
    }

    pub(super) fn relation_id(&self) -> RelationId {
        self.relation.relation_id
    }
}

/// Form of `row_version`'s key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionKey {
    /// text: long keys are shortened.
    Text,
    /// The key's own type.
    Typed,
}

/// A quoted identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Pairs as the projection stores them: in order of subject and scope.
pub(super) fn grants_json(grants: &[(Subject, ScopeName)]) -> Option<String> {
    if grants.is_empty() {
        return None;
    }
    let pairs = grants.iter().map(|(subject, scope)| serde_json::json!([subject.0, scope.0]));
    Some(serde_json::Value::from_iter(pairs).to_string())
}
