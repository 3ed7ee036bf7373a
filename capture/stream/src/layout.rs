//! How a relation's tuples become row images: which slot of the stream's tuple holds which captured column, checked against the
//! registration before the first row is read (G5, K1, K2). Pure.

use crate::decode::{RelationMetadata, Tuple, Value};
use crate::{Failure, FailureClass};
use std::sync::Arc;
use tidegate_model::{Relation, RowReader, Snapshot, encode_row_header, encode_text_value};

/// Metadata of a relation as the stream described it, kept until it describes it again.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) oid: u32,
    schema: String,
    name: String,
    replica_identity: u8,
    columns: Vec<DescribedColumn>,
}

#[derive(Clone, Debug)]
struct DescribedColumn {
    in_identity: bool,
    name: String,
    type_oid: u32,
}

impl Described {
    pub(crate) fn new(metadata: &RelationMetadata<'_>) -> Described {
        let column = |c: &crate::decode::ColumnMetadata<'_>| DescribedColumn {
            in_identity: c.in_identity,
            name: c.name.to_owned(),
            type_oid: c.type_oid,
        };
        Described {
            oid: metadata.oid,
            schema: metadata.schema.to_owned(),
            name: metadata.name.to_owned(),
            replica_identity: metadata.replica_identity,
            columns: metadata.columns.iter().map(column).collect(),
        }
    }
}

/// A registered relation under one registry generation, as the stream describes it now.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    snapshot: Arc<Snapshot>,
    relation: usize,
    /// Slot in the tuple of each captured column.
    slots: Vec<usize>,
    /// Slot of the key.
    pub(crate) key_slot: usize,
    /// Slots of a tuple.
    width: usize,
}

/// How [`Layout::encode`] wrote a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// A row image.
    Whole,
    /// Some values were omitted (R8): a bit per captured column, set where omitted, then an image of the others.
    Partial,
}

impl Layout {
    /// Checks the description against the registry in force. `None`: the relation is not registered, its rows do not apply.
    ///
    /// # Errors
    /// What has changed (G5): nothing of it is ever guessed around.
    pub(crate) fn resolve(
        described: &Described,
        snapshot: &Arc<Snapshot>,
    ) -> Result<Option<Layout>, Failure> {
        let Some(index) = snapshot.relations.iter().position(|relation| relation.oid == described.oid) else {
            let namesake =
                snapshot.relations.iter().find(|r| r.schema == described.schema && r.name == described.name);
            return match namesake {
                None => Ok(None),
                Some(relation) => {
                    Err(failed(FailureClass::RelationReplaced, relation, "another table has its name now"))
                }
            };
        };
        let relation = &snapshot.relations[index];
        if relation.schema != described.schema || relation.name != described.name {
            let now = format!("the table is called {}.{} now", described.schema, described.name);
            return Err(failed(FailureClass::RelationRenamed, relation, &now));
        }
        if described.replica_identity != b'd' {
            return Err(failed(
                FailureClass::ReplicaIdentityChanged,
                relation,
                "replica identity is not DEFAULT",
            ));
        }
        let mut identity = described.columns.iter().filter(|column| column.in_identity);
        let sole = (identity.next(), identity.next());
        let (Some(key), None) = sole else {
            return Err(failed(
                FailureClass::PrimaryKeyChanged,
                relation,
                "the primary key is not exactly one column",
            ));
        };
        if key.name != relation.key.column {
            return Err(failed(
                FailureClass::PrimaryKeyChanged,
                relation,
                "the primary key is another column",
            ));
        }
        let mut slots = Vec::with_capacity(relation.columns.len());
        for column in &relation.columns {
            let Some(slot) = described.columns.iter().position(|d| d.name == column.name) else {
                let what = format!("column {} is gone or has another name", column.name);
                return Err(failed(FailureClass::ColumnMissing, relation, &what));
            };
            let type_oid = described.columns[slot].type_oid;
            if type_oid != column.type_oid {
                let what = format!(
                    "column {} has type OID {type_oid}, registered was {}",
                    column.name, column.type_oid
                );
                return Err(failed(FailureClass::ColumnTypeChanged, relation, &what));
            }
            slots.push(slot);
        }
        let key_slot = slots[relation.key_index()];
        Ok(Some(Layout {
            snapshot: snapshot.clone(),
            relation: index,
            slots,
            key_slot,
            width: described.columns.len(),
        }))
    }

    /// The registration.
    pub(crate) fn relation(&self) -> &Relation {
        &self.snapshot.relations[self.relation]
    }

    /// The registry that it belongs to.
    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Whether images under `self` and `other` have the same columns.
    pub(crate) fn same_columns(&self, other: &Layout) -> bool {
        self.relation().columns == other.relation().columns
    }

    /// A failure of `class` that names the relation.
    pub(crate) fn failure(&self, class: FailureClass, what: &str) -> Failure {
        failed(class, self.relation(), what)
    }

    /// Appends the image of a row to `out`: once, here, and never again (the bytes are stored, sent and hashed as they are).
    pub(crate) fn encode(&self, tuple: &Tuple<'_>, out: &mut Vec<u8>) -> Result<Completeness, Failure> {
        if tuple.len() != self.width {
            return Err(self.failure(
                FailureClass::FrameMalformed,
                "a row has not as many values as its description has columns",
            ));
        }
        let values: Vec<Value<'_>> = tuple.values().collect();
        let omitted = self.slots.iter().filter(|slot| values[**slot] == Value::Unchanged).count();
        if omitted > 0 {
            let bits = out.len();
            out.resize(bits + self.slots.len().div_ceil(8), 0);
            for (index, slot) in self.slots.iter().enumerate() {
                if values[*slot] == Value::Unchanged {
                    out[bits + index / 8] |= 1 << (index % 8);
                }
            }
        }
        encode_row_header(self.slots.len() - omitted, out);
        for (column, slot) in self.relation().columns.iter().zip(&self.slots) {
            let text = match values[*slot] {
                Value::Unchanged => continue,
                Value::Null => None,
                Value::Text(bytes) => Some(std::str::from_utf8(bytes).map_err(|_| {
                    self.failure(
                        FailureClass::ValueMalformed,
                        &format!("a value of column {} is not UTF-8", column.name),
                    )
                })?),
            };
            encode_text_value(column.wire, text, out).map_err(|error| {
                self.failure(FailureClass::ValueMalformed, &format!("column {}: {error}", column.name))
            })?;
        }
        Ok(if omitted > 0 { Completeness::Partial } else { Completeness::Whole })
    }
}

fn failed(class: FailureClass, relation: &Relation, what: &str) -> Failure {
    Failure::new(class, format!("{}.{}: {what}", relation.schema, relation.name)).of(relation.relation_id)
}

/// Fills the omitted values of `partial` from `base`, an image of the same `columns` columns (R8). `None` when either is not
/// what it should be.
pub(crate) fn complete(partial: &[u8], base: &[u8], columns: usize) -> Option<Vec<u8>> {
    let (bits, sent) = partial.split_at_checked(columns.div_ceil(8))?;
    let (mut sent, mut base) = (RowReader::new(sent)?, RowReader::new(base)?);
    let mut out = Vec::with_capacity(partial.len());
    encode_row_header(columns, &mut out);
    for index in 0..columns {
        let old = base.next_value()?.1;
        out.extend_from_slice(if omits(bits, index) { old } else { sent.next_value()?.1 });
    }
    (sent.next_value().is_none() && base.next_value().is_none()).then_some(out)
}

/// Lays `upper` over `lower`, both partial: what neither sends stays omitted.
pub(crate) fn overlay(upper: &[u8], lower: &[u8], columns: usize) -> Option<Vec<u8>> {
    let bytes = columns.div_ceil(8);
    let (upper_bits, upper) = upper.split_at_checked(bytes)?;
    let (lower_bits, lower) = lower.split_at_checked(bytes)?;
    let mut out: Vec<u8> = upper_bits.iter().zip(lower_bits).map(|(u, l)| u & l).collect();
    let omitted: u32 = out.iter().map(|bits| bits.count_ones()).sum();
    encode_row_header(columns.checked_sub(omitted as usize)?, &mut out);
    let (mut upper, mut lower) = (RowReader::new(upper)?, RowReader::new(lower)?);
    for index in 0..columns {
        let below = if omits(lower_bits, index) { None } else { Some(lower.next_value()?.1) };
        let value = if omits(upper_bits, index) { below } else { Some(upper.next_value()?.1) };
        out.extend_from_slice(value.unwrap_or_default());
    }
    Some(out)
}

fn omits(bits: &[u8], index: usize) -> bool {
    bits[index / 8] >> (index % 8) & 1 == 1
}
