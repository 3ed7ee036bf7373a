//! First stage. Takes the bytes of one pgoutput message (protocol version 1, logical messages on), gives a [`Message`] that
//! borrows from them. No state: what a row means is for `assemble`, which knows the relations.
//!
//! Whatever the bytes are, the result is a message or a [`DecodeError`], never a panic. Errors carry no content.

use tidegate_model::{Lsn, RowOperation};

/// One decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'f> {
    /// A source transaction begins.
    Begin(Begin),
    /// It ends.
    Commit(Commit),
    /// Where the transaction was first committed, when another replication applied it. Carries nothing that we use.
    Origin,
    /// A user-defined type's name. Carries nothing that we use: types are compared by OID.
    Type,
    /// Metadata of a relation, sent before its first row and again after each change (G5).
    Relation(RelationMetadata<'f>),
    /// INSERT, UPDATE or DELETE of one row.
    Row(RowMessage<'f>),
    /// TRUNCATE.
    Truncate(Truncate<'f>),
    /// A logical message (`pg_logical_emit_message`).
    Logical(LogicalMessage<'f>),
}

/// A source transaction begins. The transport may surface it as a typed event: fill the fields from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Position of its commit record: half of the transaction's identity (R1).
    pub commit_lsn: Lsn,
    /// Commit time in microseconds since 2000-01-01.
    pub committed_at_pg_micros: i64,
    /// Transaction id, without epoch.
    pub xid: u32,
}

/// A source transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Position of its commit record: equals [`Begin::commit_lsn`].
    pub commit_lsn: Lsn,
    /// End of its commit record: what may be acknowledged once it is durable (A2).
    pub end_lsn: Lsn,
}

/// Metadata of a relation as of this point of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationMetadata<'f> {
    /// OID of the table.
    pub oid: u32,
    /// Its schema; `pg_catalog` where the stream abbreviates.
    pub schema: &'f str,
    /// Its name.
    pub name: &'f str,
    /// `pg_class.relreplident`: `d`, `n`, `f` or `i`.
    pub replica_identity: u8,
    /// Its columns, in the order of the tuples that follow.
    pub columns: Vec<ColumnMetadata<'f>>,
}

/// One column of a [`RelationMetadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnMetadata<'f> {
    /// Whether it belongs to the replica identity; under the default one, to the primary key.
    pub in_identity: bool,
    /// Its name.
    pub name: &'f str,
    /// `pg_attribute.atttypid`.
    pub type_oid: u32,
}

/// One row change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMessage<'f> {
    /// OID of the table.
    pub relation_oid: u32,
    /// What happened.
    pub operation: RowOperation,
    /// What was sent of the old row; never for an insert, always for a delete.
    pub old: Option<OldTuple<'f>>,
    /// The new row; never for a delete, always otherwise.
    pub new: Option<Tuple<'f>>,
}

/// TRUNCATE of one or more tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncate<'f> {
    oids: &'f [u8],
}

impl Truncate<'_> {
    /// OIDs of the truncated tables.
    pub fn relation_oids(&self) -> impl Iterator<Item = u32> + '_ {
        self.oids.as_chunks::<4>().0.iter().map(|oid| u32::from_be_bytes(*oid))
    }
}

/// A logical message. The transport may surface it as a typed event: fill the fields from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogicalMessage<'f> {
    /// Whether it belongs to the transaction around it. Others survive a rollback and are ignored.
    pub transactional: bool,
    /// Its prefix.
    pub prefix: &'f str,
    /// Its content.
    pub content: &'f [u8],
}

/// One column's value in a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'f> {
    /// SQL null.
    Null,
    /// Not sent: out of line and unchanged (R8).
    Unchanged,
    /// PostgreSQL's text output.
    Text(&'f [u8]),
}

/// A row's values, checked when it was decoded, read without allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple<'f> {
    columns: u16,
    data: &'f [u8],
}

impl<'f> Tuple<'f> {
    /// Number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.columns)
    }

    /// Whether it has no column.
    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// Its values in column order.
    pub fn values(&self) -> Values<'f> {
        Values { left: self.columns, data: self.data }
    }
}

/// Iterator over a [`Tuple`].
#[derive(Clone, Debug)]
pub struct Values<'f> {
    left: u16,
    data: &'f [u8],
}

impl<'f> Iterator for Values<'f> {
    type Item = Value<'f>;

    fn next(&mut self) -> Option<Value<'f>> {
        self.left = self.left.checked_sub(1)?;
        let (value, rest) = split_value(self.data).ok()?;
        self.data = rest;
        Some(value)
    }
}

/// What the stream sends of an old row. Under the default replica identity only key columns are sent, and the other slots are
/// empty: they mean "not sent", never null (DT-01). So this type gives out nothing but a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldTuple<'f>(Tuple<'f>);

impl<'f> OldTuple<'f> {
    /// Text form of the key column at `index`; `None` when it was not sent.
    pub fn key(&self, index: usize) -> Option<&'f [u8]> {
        match self.0.values().nth(index)? {
            Value::Text(text) => Some(text),
            Value::Null | Value::Unchanged => None,
        }
    }

    /// Number of slots, sent or not.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no slot.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Bytes that pgoutput's protocol version 1 does not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends inside of the named part.
    #[error("the frame ends inside of {0}")]
    Truncated(&'static str),
    /// Bytes are left over after the message.
    #[error("{0} bytes are left over after the message")]
    Trailing(usize),
    /// No such message in this protocol version.
    #[error("unknown message kind {0:#04x}")]
    UnknownKind(u8),
    /// A tag has a value that the named part does not have.
    #[error("unknown tag {1:#04x} in {0}")]
    UnknownTag(&'static str, u8),
    /// A name is not UTF-8 although the connection asked for it.
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    /// A length or count is negative.
    #[error("negative length in {0}")]
    NegativeLength(&'static str),
}

/// Decodes one message from the data of one XLogData frame.
///
/// # Errors
/// [`DecodeError`] when the bytes are not exactly one message.
pub fn decode(frame: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut input = Input(frame);
    let message = match input.byte("message kind")? {
        b'B' => Message::Begin(Begin {
            commit_lsn: input.lsn("begin")?,
            committed_at_pg_micros: input.u64("begin")? as i64,
            xid: input.u32("begin")?,
        }),
        b'C' => {
            input.byte("commit")?;
            let commit = Commit { commit_lsn: input.lsn("commit")?, end_lsn: input.lsn("commit")? };
            input.u64("commit time")?;
            Message::Commit(commit)
        }
        b'O' => {
            input.lsn("origin")?;
            input.string("origin name")?;
            Message::Origin
        }
        b'Y' => {
            input.u32("type")?;
            input.string("type schema")?;
            input.string("type name")?;
            Message::Type
        }
        b'R' => Message::Relation(relation(&mut input)?),
        b'I' => {
            let relation_oid = input.u32("insert")?;
            input.tag(b'N', "insert")?;
            let new = Some(input.tuple()?);
            Message::Row(RowMessage { relation_oid, operation: RowOperation::Insert, old: None, new })
        }
        b'U' => {
            let relation_oid = input.u32("update")?;
            let old = match input.byte("update")? {
                b'K' | b'O' => {
                    let old = OldTuple(input.tuple()?);
                    input.tag(b'N', "update")?;
                    Some(old)
                }
                b'N' => None,
                other => return Err(DecodeError::UnknownTag("update", other)),
            };
            let new = Some(input.tuple()?);
            Message::Row(RowMessage { relation_oid, operation: RowOperation::Update, old, new })
        }
        b'D' => {
            let relation_oid = input.u32("delete")?;
            match input.byte("delete")? {
                b'K' | b'O' => {}
                other => return Err(DecodeError::UnknownTag("delete", other)),
            }
            let old = Some(OldTuple(input.tuple()?));
            Message::Row(RowMessage { relation_oid, operation: RowOperation::Delete, old, new: None })
        }
        b'T' => {
            let count = input.count("truncate")?;
            input.byte("truncate options")?;
            let bytes = count.checked_mul(4).ok_or(DecodeError::Truncated("truncate"))?;
            Message::Truncate(Truncate { oids: input.take(bytes, "truncate")? })
        }
        b'M' => {
            let transactional = match input.byte("message flags")? {
                0 => false,
                1 => true,
                other => return Err(DecodeError::UnknownTag("message flags", other)),
            };
            input.lsn("message")?;
            let prefix = input.string("message prefix")?;
            let length = input.count("message")?;
            Message::Logical(LogicalMessage {
                transactional,
                prefix,
                content: input.take(length, "message")?,
            })
        }
        other => return Err(DecodeError::UnknownKind(other)),
    };
    match input.0.len() {
        0 => Ok(message),
        left => Err(DecodeError::Trailing(left)),
    }
}

fn relation<'f>(input: &mut Input<'f>) -> Result<RelationMetadata<'f>, DecodeError> {
    let oid = input.u32("relation")?;
    let schema = match input.string("relation schema")? {
        "" => "pg_catalog",
        schema => schema,
    };
    let name = input.string("relation name")?;
    let replica_identity = input.byte("relation")?;
    let count = input.u16("relation")?;
    // Each column takes at least ten bytes: a forged count cannot make us reserve more than the frame could hold.
    let mut columns = Vec::with_capacity(usize::from(count).min(input.0.len() / 10));
    for _ in 0..count {
        let in_identity = input.byte("relation column")? & 1 == 1;
        let name = input.string("relation column name")?;
        let type_oid = input.u32("relation column")?;
        input.u32("relation column")?;
        columns.push(ColumnMetadata { in_identity, name, type_oid });
    }
    Ok(RelationMetadata { oid, schema, name, replica_identity, columns })
}

/// Splits the first value off a tuple's data.
fn split_value(data: &[u8]) -> Result<(Value<'_>, &[u8]), DecodeError> {
    let mut input = Input(data);
    let value = match input.byte("tuple")? {
        b'n' => Value::Null,
        b'u' => Value::Unchanged,
        b't' => {
            let length = input.count("tuple value")?;
            Value::Text(input.take(length, "tuple value")?)
        }
        // Binary ('b') is never asked for, so it is as unknown as anything else.
        other => return Err(DecodeError::UnknownTag("tuple", other)),
    };
    Ok((value, input.0))
}

/// What is left of a frame.
struct Input<'f>(&'f [u8]);

impl<'f> Input<'f> {
    fn take(&mut self, length: usize, part: &'static str) -> Result<&'f [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Truncated(part))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated(part))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self, part: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(part).map(|[byte]| byte)
    }

    fn tag(&mut self, expected: u8, part: &'static str) -> Result<(), DecodeError> {
        match self.byte(part)? {
            tag if tag == expected => Ok(()),
            other => Err(DecodeError::UnknownTag(part, other)),
        }
    }

    fn u16(&mut self, part: &'static str) -> Result<u16, DecodeError> {
        self.array(part).map(u16::from_be_bytes)
    }

    fn u32(&mut self, part: &'static str) -> Result<u32, DecodeError> {
        self.array(part).map(u32::from_be_bytes)
    }

    fn u64(&mut self, part: &'static str) -> Result<u64, DecodeError> {
        self.array(part).map(u64::from_be_bytes)
    }

    fn lsn(&mut self, part: &'static str) -> Result<Lsn, DecodeError> {
        self.u64(part).map(Lsn)
    }

    /// A signed 32-bit length or count, not negative.
    fn count(&mut self, part: &'static str) -> Result<usize, DecodeError> {
        let count = self.u32(part)? as i32;
        usize::try_from(count).map_err(|_| DecodeError::NegativeLength(part))
    }

    /// A zero-terminated name.
    fn string(&mut self, part: &'static str) -> Result<&'f str, DecodeError> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(DecodeError::Truncated(part))?;
        let text = self.take(end, part)?;
        self.byte(part)?;
        std::str::from_utf8(text).map_err(|_| DecodeError::NotUtf8(part))
    }

    /// A tuple, each value checked, so that reading it later cannot fail.
    fn tuple(&mut self) -> Result<Tuple<'f>, DecodeError> {
        let columns = self.u16("tuple")?;
        let start = self.0;
        let mut rest = start;
        for _ in 0..columns {
            rest = split_value(rest)?.1;
        }
        self.0 = rest;
        Ok(Tuple { columns, data: &start[..start.len() - rest.len()] })
    }
}
