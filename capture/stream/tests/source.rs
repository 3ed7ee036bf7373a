//! Plays the application's database: the fixture's tables, and transactions over them as frames with their fences.

use crate::frames::{self, Cell};
use std::sync::Arc;
use tidegate_model::Snapshot;
use uuid::Uuid;

pub const ITEM: u32 = 16_401;
pub const LIST: u32 = 16_402;
pub const MEMBER: u32 = 16_403;
/// Published, never registered.
pub const OTHER: u32 = 16_499;

pub const TEXT: u32 = 25;
pub const INT4: u32 = 23;
pub const INT8: u32 = 20;
pub const BOOL: u32 = 16;

/// `item (id bigint, list_id text, title text, body text, rev int)` in `list:{list_id}`, and in `hot` while rev > 5;
/// `list (id text, name text)` in `list:{id}`; `member (id int, list_id text, user_id text, active boolean)`, a dependency whose
/// active rows grant `list:{list_id}`.
pub fn registry(generation: i32) -> Snapshot {
    let column = |name: &str, attnum: i16, kind: &str, wire: &str, oid: u32| serde_json::json!({ "name": name, "attnum": attnum, "type": kind, "wire": wire, "type_oid": oid, "nullable": true });
    let json = serde_json::json!({
        "generation": generation,
        "relations": [
            { "relation_id": 1, "table_id": 11, "kind": "synced", "schema": "public", "name": "item", "oid": ITEM,
              "key": { "column": "id", "type": "int64" },
              "columns": [ column("id", 1, "int8", "int64", INT8), column("list_id", 2, "text", "string", TEXT),
                           column("title", 3, "text", "string", TEXT), column("body", 4, "text", "string", TEXT),
                           column("rev", 5, "int4", "int", INT4) ],
              "write": "enabled", "unrestricted": true, "since": 1,
              "scopes": [
                  { "rule_id": 1, "name": "list:{list_id}", "template": [ { "text": "list:" }, { "column": "list_id" } ], "where": null },
                  { "rule_id": 2, "name": "hot", "template": [ { "text": "hot" } ],
                    "where": { "op": "gt", "left": { "column": "rev" }, "right": { "literal": 5, "type": "int" } } },
                  { "rule_id": 3, "name": "list:{list_id}", "template": [ { "text": "list:" }, { "column": "list_id" } ],
                    "where": { "op": "is_null", "arg": { "column": "title" } } } ] },
            { "relation_id": 2, "table_id": 12, "kind": "synced", "schema": "public", "name": "list", "oid": LIST,
              "key": { "column": "id", "type": "string" },
              "columns": [ column("id", 1, "text", "string", TEXT), column("name", 2, "text", "string", TEXT) ],
              "write": "read_only", "unrestricted": false, "since": 1,
              "scopes": [ { "rule_id": 4, "name": "list:{id}", "template": [ { "text": "list:" }, { "column": "id" } ], "where": null } ] },
            { "relation_id": 3, "table_id": null, "kind": "capture_dependency", "schema": "public", "name": "member", "oid": MEMBER,
              "key": { "column": "id", "type": "int" },
              "columns": [ column("id", 1, "int4", "int", INT4), column("list_id", 2, "text", "string", TEXT),
                           column("user_id", 3, "text", "string", TEXT), column("active", 4, "bool", "bool", BOOL) ],
              "write": "read_only", "unrestricted": false, "since": 1, "scopes": [] }
        ],
        "grants": [
            { "grant_id": 1, "scope": "list:{member.list_id}", "template": [ { "text": "list:" }, { "column": "list_id" } ],
              "relation_id": 3, "subject_column": "user_id", "where": { "op": "column", "arg": { "column": "active" } }, "anonymous": false },
            { "grant_id": 2, "scope": "user:{subject.id}", "template": [ { "text": "user:" }, { "subject": "id" } ],
              "relation_id": null, "subject_column": null, "where": null, "anonymous": false }
        ]
    });
    Snapshot::from_json(&json.to_string()).expect("the fixture's registry")
}

/// The fixture's registry, generation 1.
pub fn fixture() -> Arc<Snapshot> {
    Arc::new(registry(1))
}

pub fn describe(oid: u32) -> Vec<u8> {
    match oid {
        ITEM => frames::relation(
            ITEM,
            "public",
            "item",
            b'd',
            &[
                ("id", INT8, true),
                ("list_id", TEXT, false),
                ("title", TEXT, false),
                ("body", TEXT, false),
                ("rev", INT4, false),
            ],
        ),
        LIST => frames::relation(LIST, "public", "list", b'd', &[("id", TEXT, true), ("name", TEXT, false)]),
        MEMBER => frames::relation(
            MEMBER,
            "public",
            "member",
            b'd',
            &[
                ("id", INT4, true),
                ("list_id", TEXT, false),
                ("user_id", TEXT, false),
                ("active", BOOL, false),
            ],
        ),
        _ => frames::relation(OTHER, "public", "other", b'd', &[("id", INT4, true)]),
    }
}

/// The registration that a fence of `oid` names: kind, relation id, table id, qualified name.
fn registration(oid: u32) -> (char, i32, &'static str, &'static str) {
    match oid {
        ITEM => ('s', 1, "11", "public.item"),
        LIST => ('s', 2, "12", "public.list"),
        _ => ('d', 3, "", "public.member"),
    }
}

/// A fence message's content, field by field.
#[derive(Clone, Debug)]
pub struct Fence {
    pub oid: u32,
    pub operation: char,
    pub ordinal: u64,
    pub version: Uuid,
    pub id: Uuid,
    pub mutation: Option<i64>,
    pub key: String,
}

impl Fence {
    pub fn content(&self) -> String {
        let (kind, relation, table, name) = registration(self.oid);
        let mutation = self.mutation.map(|m| m.to_string()).unwrap_or_default();
        let Fence { operation, ordinal, version, id, key, .. } = self;
        format!(
            "1:{kind}:{relation}:{table}:{}:{name}:{operation}:{ordinal}:{version}:{id}:{mutation}:{key}",
            name.len()
        )
    }

    pub fn frame(&self) -> Vec<u8> {
        frames::message(true, "tidegate.fence", self.content().as_bytes())
    }
}

/// A row change: the whole new row for insert and update, the key alone for delete.
#[derive(Clone, Debug)]
pub struct Change {
    pub oid: u32,
    pub operation: char,
    pub cells: Vec<Cell>,
}

impl Change {
    pub fn frame(&self) -> Vec<u8> {
        match self.operation {
            'I' => frames::insert(self.oid, &self.cells),
            'U' => frames::update(self.oid, None, &self.cells),
            _ => frames::delete(self.oid, &self.cells),
        }
    }

    pub fn key(&self) -> String {
        match &self.cells[0] {
            Cell::Text(key) => key.clone(),
            other => panic!("a key is text, not {other:?}"),
        }
    }
}

/// Makes transactions with positions, versions and fence ids of their own, the same from the same beginning.
#[derive(Default)]
pub struct Source {
    clock: u64,
}

/// A transaction as frames, still open to change by a test.
pub struct Frames {
    pub commit_lsn: u64,
    pub body: Vec<Vec<u8>>,
}

impl Frames {
    pub fn all(&self) -> Vec<Vec<u8>> {
        let mut frames = vec![frames::begin(self.commit_lsn, 700)];
        frames.extend(self.body.iter().cloned());
        frames.push(frames::commit(self.commit_lsn));
        frames
    }
}

impl Source {
    /// A source whose positions, versions and fence ids begin elsewhere.
    pub fn at(clock: u64) -> Source {
        Source { clock }
    }

    pub fn tick(&mut self) -> u64 {
        self.clock += 16;
        self.clock
    }

    /// A fence for `change`, as the trigger would write it now.
    pub fn fence(&mut self, change: &Change) -> Fence {
        let ordinal = self.tick();
        let spread = u128::from(ordinal).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        Fence {
            oid: change.oid,
            operation: change.operation,
            ordinal,
            version: Uuid::from_u128(spread | 1),
            id: Uuid::from_u128(spread.swap_bytes() | 2),
            mutation: None,
            key: change.key(),
        }
    }

    /// One transaction: descriptions, then per statement its rows and then its fences, as PostgreSQL writes them (TX-05).
    pub fn transaction(&mut self, statements: &[Vec<Change>]) -> Frames {
        let mut body = Vec::new();
        let mut described = Vec::new();
        for statement in statements {
            for change in statement {
                if !described.contains(&change.oid) {
                    described.push(change.oid);
                    body.push(describe(change.oid));
                }
                body.push(change.frame());
            }
            for change in statement.iter().filter(|change| change.oid != OTHER) {
                body.push(self.fence(change).frame());
            }
        }
        Frames { commit_lsn: self.tick(), body }
    }

    /// Single changes, one statement each.
    pub fn changes(&mut self, changes: &[Change]) -> Frames {
        let statements: Vec<_> = changes.iter().map(|change| vec![change.clone()]).collect();
        self.transaction(&statements)
    }
}

pub fn item(operation: char, id: i64, list: Option<&str>, title: &str, rev: i32) -> Change {
    let id: Cell = id.to_string().as_str().into();
    let cells = match operation {
        'D' => vec![id, Cell::Null, Cell::Null, Cell::Null, Cell::Null],
        _ => vec![id, list.into(), title.into(), Cell::Null, rev.to_string().as_str().into()],
    };
    Change { oid: ITEM, operation, cells }
}

pub fn list(operation: char, id: &str, name: &str) -> Change {
    let name = if operation == 'D' { Cell::Null } else { name.into() };
    Change { oid: LIST, operation, cells: vec![id.into(), name] }
}

pub fn member(operation: char, id: i64, list: &str, user: &str, active: bool) -> Change {
    let id: Cell = id.to_string().as_str().into();
    let cells = match operation {
        'D' => vec![id, Cell::Null, Cell::Null, Cell::Null],
        _ => vec![id, list.into(), user.into(), if active { "t" } else { "f" }.into()],
    };
    Change { oid: MEMBER, operation, cells }
}

pub fn other(id: i64) -> Change {
    Change { oid: OTHER, operation: 'I', cells: vec![id.to_string().as_str().into()] }
}
