//! A test's database with a logical slot, and the proof of F7 over what it decodes.

use crate::wal::{Decoder, Event, Fence, Row, Witness, letter};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Connection};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use tidegate_embedded::testing::TestServer;
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::RowOperation;

pub type Transaction = Vec<Event>;

/// A loaded database with a logical slot.
pub struct Stream {
    pub db: LoadedDatabase,
    slot: String,
    decoder: Mutex<Decoder>,
}

/// A registered relation as the registry has it.
#[derive(sqlx::FromRow)]
struct Relation {
    oid: i64,
    relation_id: i32,
    /// Qualified.
    name: String,
    table_id: Option<i32>,
    key_column: String,
    /// Whether its fences have witnesses.
    watched: bool,
}

impl Stream {
    /// Runs the statements, then makes the slot: what they write is not decoded.
    pub async fn after(server: TestServer, setup: &str) -> Stream {
        Stream::over(LoadedDatabase::new(&server).await, setup).await
    }

    /// As [`Stream::after`], over this database.
    pub async fn over(db: LoadedDatabase, setup: &str) -> Stream {
        let slot = format!("{}_slot", db.database.name());
        let mut session = db.pool.acquire().await.expect("connect");
        sqlx::raw_sql(AssertSqlSafe(setup)).execute(&mut *session).await.expect("set up");
        sqlx::query("select pg_create_logical_replication_slot($1, 'pgoutput')")
            .bind(&slot)
            .execute(&mut *session)
            .await
            .expect("create a slot");
        drop(session);
        Stream { db, slot, decoder: Mutex::default() }
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
        let messages: Vec<Vec<u8>> = sqlx::query_scalar(
            "select data from pg_logical_slot_get_binary_changes($1, null, null,
                 'proto_version', '1', 'publication_names', 'tidegate', 'messages', 'true')",
        )
        .bind(&self.slot)
        .fetch_all(self.pool())
        .await
        .expect("decode");
        self.decoder.lock().expect("one test").transactions(&messages)
    }

    async fn relations(&self, oid: &str) -> Vec<Relation> {
        sqlx::query_as(AssertSqlSafe(format!(
            "select ({oid})::bigint as oid, relation_id, format('%I.%I', schema_name, table_name) as name, table_id,
                 quote_ident(key_column) as key_column,
                 exists (select from pg_trigger where tgrelid = {oid} and tgname = '!tidegate_fence_witness') as watched
             from tidegate.relation"
        )))
        .fetch_all(self.pool())
        .await
        .expect("relations")
    }

    /// Decodes, proves F7 for every transaction, and that the newest fence of each row agrees with `row_version` and with
    /// whether the row exists. Gives the row changes in source order, as `table operation key`.
    pub async fn check(&self) -> Vec<String> {
        let relations = self.relations("relation_oid").await;
        self.prove(relations).await
    }

    /// As [`check`](Self::check), in a database whose tables have other identities than those that were registered.
    pub async fn check_by_name(&self) -> Vec<String> {
        let relations = self.relations("to_regclass(format('%I.%I', schema_name, table_name))::oid").await;
        self.prove(relations).await
    }

    async fn prove(&self, relations: Vec<Relation>) -> Vec<String> {
        let mut shown = Vec::new();
        let mut newest: HashMap<(i32, String), Fence> = HashMap::new();
        let mut ids = HashSet::new();
        for transaction in self.decode().await {
            let proof = Proof::of(&transaction, &relations, &mut ids);
            shown.extend(proof.shown);
            newest.extend(proof.newest);
        }
        for ((relation, key), fence) in newest {
            let relation = relations.iter().find(|r| r.relation_id == relation).expect("relation");
            let stored: (String, bool, bool) = sqlx::query_as(AssertSqlSafe(format!(
                "select version::text, alive, exists (select from {} t where t.{}::text = $1)
                 from tidegate.row_version_{} v where v.key::text = tidegate.version_key($1)",
                relation.name, relation.key_column, relation.relation_id
            )))
            .bind(&key)
            .fetch_one(self.pool())
            .await
            .expect("row_version");
            let alive = fence.operation != RowOperation::Delete;
            assert_eq!(stored, (fence.version, alive, alive), "{}", relation.name);
        }
        shown
    }
}

/// A fence and, where its table is watched, what was seen right behind it.
type Fenced<'e> = (&'e Fence, Option<&'e Witness>);

/// F7 of one transaction: per row identity, the k-th change and the fence of the k-th lowest ordinal are one operation.
struct Proof {
    shown: Vec<String>,
    newest: HashMap<(i32, String), Fence>,
}

impl Proof {
    fn of(transaction: &[Event], relations: &[Relation], ids: &mut HashSet<String>) -> Proof {
        let mut shown = Vec::new();
        let mut changes: BTreeMap<(i32, &str), Vec<&Row>> = BTreeMap::new();
        let mut fences: BTreeMap<(i32, &str), Vec<Fenced<'_>>> = BTreeMap::new();
        let mut ordinal = 0;
        for (index, event) in transaction.iter().enumerate() {
            match event {
                Event::Row(row) => {
                    let relation = relations.iter().find(|r| r.oid == i64::from(row.oid)).expect("relation");
                    let table = relation.name.trim_start_matches("public.");
                    shown.push(format!("{table} {} {}", letter(row.operation), row.key));
                    changes.entry((relation.relation_id, &row.key)).or_default().push(row);
                }
                Event::Fence(fence) => {
                    assert!(ids.insert(fence.fence.clone()), "F2: a fence id is reused");
                    assert!(ids.insert(fence.version.clone()), "F2: a version is reused");
                    assert!(fence.ordinal > ordinal, "F2: an ordinal does not grow");
                    ordinal = fence.ordinal;
                    let relation = relations.iter().find(|r| r.relation_id == fence.relation).expect("id");
                    assert_eq!((&fence.name, fence.table), (&relation.name, relation.table_id), "F4");
                    let witness = match transaction.get(index + 1) {
                        Some(Event::Witness(witness)) => Some(witness),
                        _ => None,
                    };
                    assert_eq!(witness.is_some(), relation.watched, "every fence has its witness");
                    fences.entry((fence.relation, &fence.key)).or_default().push((fence, witness));
                }
                Event::Witness(_) | Event::Activation(_) | Event::Truncate(_) => {}
            }
        }
        assert_eq!(
            changes.keys().collect::<Vec<_>>(),
            fences.keys().collect::<Vec<_>>(),
            "rows without fences, or fences without rows"
        );
        let mut newest = HashMap::new();
        for (identity, mut fences) in fences {
            fences.sort_by_key(|(fence, _)| fence.ordinal);
            let changes = &changes[&identity];
            let order =
                |operations: Vec<RowOperation>| operations.into_iter().map(letter).collect::<String>();
            assert_eq!(
                order(fences.iter().map(|(fence, _)| fence.operation).collect()),
                order(changes.iter().map(|change| change.operation).collect()),
                "F7: fences of {identity:?} out of the order of its changes"
            );
            for (change, (_, witness)) in changes.iter().zip(&fences) {
                if let Some(witness) = witness {
                    assert!(change.is_seen_by(witness), "F7: {change:?} is paired with {witness:?}");
                }
            }
            let (last, _) = fences.pop().expect("one at least");
            newest.insert((identity.0, identity.1.to_owned()), last.clone());
        }
        Proof { shown, newest }
    }
}

/// Message and hint of a failure that must have this SQLSTATE.
pub fn failure(error: &sqlx::Error, sqlstate: &str) -> (String, String) {
    let error = error.as_database_error().unwrap_or_else(|| panic!("not the server's: {error}"));
    let error: &sqlx::postgres::PgDatabaseError = error.downcast_ref();
    assert_eq!(error.code(), sqlstate, "{error}");
    (error.message().to_owned(), error.hint().unwrap_or_default().to_owned())
}
