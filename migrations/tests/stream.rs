//! What logical decoding delivers of a test's transactions, and the proof of F7 over it: a small pgoutput reader of
//! its own, so that fences are not checked by the code that later relies on them.

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Connection};
use std::collections::{BTreeMap, HashMap, HashSet};
use tidegate_embedded::testing::TestServer;
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::{FenceMessage, RowOperation};

/// A row change or a fence as decoded. The key is the text of the first column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Row { oid: u32, operation: RowOperation, key: String },
    Fence(Fence),
    Activation(String),
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

pub type Transaction = Vec<Event>;

/// A loaded database with a logical slot.
pub struct Stream {
    pub db: LoadedDatabase,
    slot: String,
}

impl Stream {
    /// Runs the statements, then makes the slot: what they write is not decoded.
    pub async fn after(server: TestServer, setup: &str) -> Stream {
        let db = LoadedDatabase::new(&server).await;
        let slot = format!("{}_slot", db.database.name());
        let mut session = db.pool.acquire().await.expect("connect");
        sqlx::raw_sql(AssertSqlSafe(setup)).execute(&mut *session).await.expect("set up");
        sqlx::query("select pg_create_logical_replication_slot($1, 'pgoutput')")
            .bind(&slot)
            .execute(&mut *session)
            .await
            .expect("create a slot");
        drop(session);
        Stream { db, slot }
    }

    pub fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    /// A session of its own.
    pub async fn session(&self) -> PgConnection {
        PgConnection::connect(&self.db.url()).await.expect("connect")
    }

    /// Runs statements in a session of their own.
    pub async fn run(&self, sql: &str) -> Result<(), sqlx::Error> {
        let mut session = self.session().await;
        let result = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await.map(drop);
        session.close().await?;
        result
    }

    /// Runs statements that must succeed.
    pub async fn ok(&self, sql: &str) {
        self.run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Runs statements that must fail with this SQLSTATE; gives message and hint.
    pub async fn fails(&self, sqlstate: &str, sql: &str) -> (String, String) {
        let error = self.run(sql).await.expect_err(sql);
        failure(&error, sqlstate)
    }

    /// Everything that was committed since the last call, in commit order.
    pub async fn decode(&self) -> Vec<Transaction> {
        let rows: Vec<Vec<u8>> = sqlx::query_scalar(
            "select data from pg_logical_slot_get_binary_changes($1, null, null,
                 'proto_version', '1', 'publication_names', 'tidegate', 'messages', 'true')",
        )
        .bind(&self.slot)
        .fetch_all(self.pool())
        .await
        .expect("decode");
        let mut transactions = Vec::new();
        let mut open: Option<Transaction> = None;
        for row in rows {
            match row[0] {
                b'B' => open = Some(Vec::new()),
                b'C' => transactions.extend(open.take()),
                _ => {
                    if let (Some(event), Some(open)) = (event(&row), open.as_mut()) {
                        open.push(event);
                    }
                }
            }
        }
        transactions
    }

    /// Decodes, proves F7 for every transaction, and that the newest fence of each row agrees with `row_version` and with
    /// whether the row exists. Gives the row changes in source order, as `table operation key`.
    pub async fn check(&self) -> Vec<String> {
        let relations: Vec<(i64, i32, String, Option<i32>, String)> = sqlx::query_as(
            "select relation_oid::bigint, relation_id, format('%I.%I', schema_name, table_name), table_id, quote_ident(key_column)
             from tidegate.relation",
        )
        .fetch_all(self.pool())
        .await
        .expect("relations");
        let by_oid: HashMap<u32, &(i64, i32, String, Option<i32>, String)> =
            relations.iter().map(|r| (u32::try_from(r.0).expect("oid"), r)).collect();
        let mut shown = Vec::new();
        let mut newest: HashMap<(i32, String), Fence> = HashMap::new();
        let mut ids = HashSet::new();
        for transaction in self.decode().await {
            let mut changes: BTreeMap<(i32, String), Vec<RowOperation>> = BTreeMap::new();
            let mut fences: BTreeMap<(i32, String), Vec<Fence>> = BTreeMap::new();
            let mut ordinals = HashSet::new();
            for event in transaction {
                match event {
                    Event::Row { oid, operation, key } => {
                        let (_, id, name, ..) = by_oid[&oid];
                        let table = name.trim_start_matches("public.");
                        shown.push(format!("{table} {} {key}", letter(operation)));
                        changes.entry((*id, key)).or_default().push(operation);
                    }
                    Event::Fence(fence) => {
                        assert!(ids.insert(fence.fence.clone()), "a fence id is reused");
                        assert!(ids.insert(fence.version.clone()), "a version is reused");
                        assert!(ordinals.insert(fence.ordinal), "an ordinal is reused");
                        let relation = relations.iter().find(|r| r.1 == fence.relation).expect("relation");
                        assert_eq!((&fence.name, fence.table), (&relation.2, relation.3), "F4");
                        fences.entry((fence.relation, fence.key.clone())).or_default().push(fence);
                    }
                    Event::Activation(_) => {}
                }
            }
            assert_eq!(
                changes.keys().collect::<Vec<_>>(),
                fences.keys().collect::<Vec<_>>(),
                "rows without fences, or fences without rows"
            );
            for (row, mut fences) in fences {
                fences.sort_by_key(|fence| fence.ordinal);
                let operations: Vec<_> = fences.iter().map(|fence| fence.operation).collect();
                assert_eq!(
                    operations, changes[&row],
                    "F7: fences of {row:?} out of the order of its changes"
                );
                newest.insert(row, fences.pop().expect("one at least"));
            }
        }
        for ((relation, key), fence) in newest {
            let (_, _, table, _, column) = relations.iter().find(|r| r.1 == relation).expect("relation");
            let stored: (String, bool, bool) = sqlx::query_as(AssertSqlSafe(format!(
                "select version::text, alive, exists (select from {table} t where t.{column}::text = $1)
                 from tidegate.row_version_{relation} v where v.key::text = tidegate.version_key($1)"
            )))
            .bind(&key)
            .fetch_one(self.pool())
            .await
            .expect("row_version");
            let alive = fence.operation != RowOperation::Delete;
            assert_eq!(stored, (fence.version, alive, alive), "{table}");
        }
        shown
    }
}

/// Message and hint of a failure that must have this SQLSTATE.
pub fn failure(error: &sqlx::Error, sqlstate: &str) -> (String, String) {
    let error = error.as_database_error().unwrap_or_else(|| panic!("not the server's: {error}"));
    let error: &sqlx::postgres::PgDatabaseError = error.downcast_ref();
    assert_eq!(error.code(), sqlstate, "{error}");
    (error.message().to_owned(), error.hint().unwrap_or_default().to_owned())
}

fn letter(operation: RowOperation) -> char {
    match operation {
        RowOperation::Insert => 'I',
        RowOperation::Update => 'U',
        RowOperation::Delete => 'D',
    }
}

/// The events that the tests look at; others, such as Relation, read as none.
fn event(message: &[u8]) -> Option<Event> {
    let mut rest = Reader(&message[1..]);
    match message[0] {
        b'I' => {
            let oid = rest.u32();
            rest.take(1);
            Some(Event::Row { oid, operation: RowOperation::Insert, key: rest.key() })
        }
        b'U' => {
            let oid = rest.u32();
            // An old key comes along although it did not change where it is stored out of line: then the new tuple has none.
            assert!(matches!(rest.take(1), b"N" | b"K"), "replica identity DEFAULT");
            Some(Event::Row { oid, operation: RowOperation::Update, key: rest.key() })
        }
        b'D' => {
            let oid = rest.u32();
            rest.take(1);
            Some(Event::Row { oid, operation: RowOperation::Delete, key: rest.key() })
        }
        b'M' => {
            rest.take(9);
            let prefix = rest.text();
            let length = rest.u32() as usize;
            let content = rest.take(length);
            match prefix.as_str() {
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
                "tidegate.registry" => {
                    Some(Event::Activation(String::from_utf8(content.to_vec()).expect("text")))
                }
                _ => None,
            }
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

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn text(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).expect("a terminated text");
        let text = String::from_utf8(self.take(end).to_vec()).expect("text");
        self.take(1);
        text
    }

    /// First column of the tuple that comes next.
    fn key(&mut self) -> String {
        self.take(2);
        assert_eq!(self.take(1), b"t", "the key is always sent");
        let length = self.u32() as usize;
        String::from_utf8(self.take(length).to_vec()).expect("text")
    }
}
