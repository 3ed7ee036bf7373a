//! Reads what logical decoding delivers: the smallest pgoutput reader that the tests need, of their own, so that fences are not
//! checked by the code that later relies on them.

use serde_json::{Map, Value};
use std::collections::HashMap;
use tidegate_model::{FenceMessage, RowOperation};

/// One event of a transaction, in decoded order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Row(Row),
    Fence(Fence),
    /// What a trigger that fires right behind the fence saw: see `witness.sql`.
    Witness(Witness),
    Activation(String),
    Truncate(Vec<u32>),
}

/// A row change. `key` is the text of the first column.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub oid: u32,
    pub operation: RowOperation,
    pub key: String,
    /// The new image, by column; of a delete the key alone.
    pub image: HashMap<String, Field>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    Null,
    Text(String),
    /// Stored out of line and not changed: not sent.
    Unchanged,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub relation: i32,
    pub table: Option<i32>,
    pub name: String,
    pub operation: RowOperation,
    pub ordinal: u64,
    pub version: String,
    pub fence: String,
    pub mutation: Option<u64>,
    pub key: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Witness {
    pub oid: u32,
    pub operation: RowOperation,
    /// The new row as jsonb; of a delete the old one.
    pub row: Map<String, Value>,
}

impl Row {
    /// Whether this is the change that the witness saw. Only of a delete does the WAL say no more than the key.
    pub fn is_seen_by(&self, witness: &Witness) -> bool {
        self.oid == witness.oid
            && self.operation == witness.operation
            && self.image.iter().all(|(column, field)| {
                let seen = witness.row.get(column).unwrap_or(&Value::Null);
                match field {
                    Field::Unchanged => true,
                    Field::Null => seen.is_null(),
                    Field::Text(text) => match seen {
                        Value::String(seen) => text == seen,
                        Value::Bool(seen) => text == if *seen { "t" } else { "f" },
                        Value::Number(seen) => *text == seen.to_string(),
                        _ => false,
                    },
                }
            })
    }
}

pub fn letter(operation: RowOperation) -> char {
    match operation {
        RowOperation::Insert => 'I',
        RowOperation::Update => 'U',
        RowOperation::Delete => 'D',
    }
}

/// Turns messages into transactions, in commit order.
#[derive(Default)]
pub struct Decoder {
    columns: HashMap<u32, Vec<String>>,
}

impl Decoder {
    pub fn transactions(&mut self, messages: &[Vec<u8>]) -> Vec<Vec<Event>> {
        let mut transactions = Vec::new();
        let mut open: Option<Vec<Event>> = None;
        for message in messages {
            match message[0] {
                b'B' => open = Some(Vec::new()),
                b'C' => transactions.extend(open.take()),
                b'R' => self.describe(&mut Reader(&message[1..])),
                // Messages outside transactions come before any that was open when they were sent.
                _ => {
                    if let Some(open) = open.as_mut() {
                        open.extend(self.event(message));
                    }
                }
            }
        }
        transactions
    }

    fn describe(&mut self, rest: &mut Reader<'_>) {
        let oid = rest.u32();
        rest.text();
        rest.text();
        rest.take(1);
        let count = rest.u16();
        let columns = (0..count).map(|_| {
            rest.take(1);
            let name = rest.text();
            rest.take(8);
            name
        });
        let columns = columns.collect();
        self.columns.insert(oid, columns);
    }

    fn event(&self, message: &[u8]) -> Option<Event> {
        let mut rest = Reader(&message[1..]);
        match message[0] {
            b'I' => Some(self.row(RowOperation::Insert, &mut rest)),
            b'U' => Some(self.row(RowOperation::Update, &mut rest)),
            b'D' => Some(self.row(RowOperation::Delete, &mut rest)),
            b'T' => {
                let count = rest.u32();
                rest.take(1);
                Some(Event::Truncate((0..count).map(|_| rest.u32()).collect()))
            }
            b'M' => {
                rest.take(9);
                let prefix = rest.text();
                let length = rest.u32() as usize;
                own(&prefix, rest.take(length))
            }
            _ => None,
        }
    }

    fn row(&self, operation: RowOperation, rest: &mut Reader<'_>) -> Event {
        let oid = rest.u32();
        let columns = &self.columns[&oid];
        let mut key = None;
        if rest.take(1) == b"K" {
            // Of a delete; or of an update whose key, unchanged, is stored out of line: then the new image has none.
            let old = rest.tuple();
            key = Some(old[0].clone());
            if operation == RowOperation::Delete {
                let image = HashMap::from([(columns[0].clone(), old[0].clone())]);
                return Event::Row(Row { oid, operation, key: text(&old[0]), image });
            }
            assert_eq!(rest.take(1), b"N", "replica identity DEFAULT");
        }
        let image = rest.tuple();
        let key = text(&key.unwrap_or_else(|| image[0].clone()));
        Event::Row(Row { oid, operation, key, image: columns.iter().cloned().zip(image).collect() })
    }
}

fn text(field: &Field) -> String {
    let Field::Text(text) = field else { panic!("the key is always sent") };
    text.clone()
}

fn own(prefix: &str, content: &[u8]) -> Option<Event> {
    match prefix {
        "tidegate.fence" => {
            let fence = FenceMessage::parse(content).expect("a fence message");
            Some(Event::Fence(Fence {
                relation: fence.relation.0,
                table: fence.table.map(|table| table.0),
                name: fence.qualified_name.to_owned(),
                operation: fence.operation,
                ordinal: fence.ordinal,
                version: fence.version.0.to_string(),
                fence: fence.fence.0.to_string(),
                mutation: fence.mutation.map(|id| u64::try_from(id.0).expect("positive")),
                key: fence.key.to_owned(),
            }))
        }
        "tidegate.registry" => Some(Event::Activation(String::from_utf8(content.to_vec()).expect("text"))),
        "test.witness" => {
            let mut seen: Value = serde_json::from_slice(content).expect("json");
            let operation = match seen["op"].as_str() {
                Some("I") => RowOperation::Insert,
                Some("U") => RowOperation::Update,
                _ => RowOperation::Delete,
            };
            let oid = seen["oid"].as_u64().and_then(|oid| u32::try_from(oid).ok()).expect("an oid");
            let Value::Object(row) = seen["row"].take() else { panic!("a row") };
            Some(Event::Witness(Witness { oid, operation, row }))
        }
        _ => None,
    }
}

struct Reader<'m>(&'m [u8]);

impl<'m> Reader<'m> {
    fn take(&mut self, count: usize) -> &'m [u8] {
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        head
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().expect("two bytes"))
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn text(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).expect("a terminated text");
        let text = String::from_utf8(self.take(end).to_vec()).expect("text");
        self.take(1);
        text
    }

    fn tuple(&mut self) -> Vec<Field> {
        let count = self.u16();
        let fields = (0..count).map(|_| match self.take(1) {
            b"n" => Field::Null,
            b"u" => Field::Unchanged,
            _ => {
                let length = self.u32() as usize;
                Field::Text(String::from_utf8(self.take(length).to_vec()).expect("text"))
            }
        });
        fields.collect()
    }
}
