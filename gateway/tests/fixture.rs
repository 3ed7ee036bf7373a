//! A loaded database with the application's tables, roles and policies, and a pusher on it.

use sqlx::postgres::PgConnectOptions;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_gateway::auth::Identity;
use tidegate_gateway::push::{
    self, ClientHello, ClientMarks, ClientPusher, PushConfig, PushError, PushReply, Pusher,
};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::{ClientId, RegistryGeneration, RowVersion, Subject, TableId};
use tidegate_protocol::{Base, Columns, Mutation, MutationNumber, MutationOp, MutationStatus, Push, Value};
use uuid::Uuid;

/// A database with roles of its own, since roles belong to the server.
pub struct Fixture {
    pub db: LoadedDatabase,
    pub role: String,
    pub login: String,
    pub client_id: Uuid,
    pusher: Mutex<Pusher>,
    item: TableId,
    /// The registry generation with the tables of the fixture.
    pub sv: RegistryGeneration,
}

impl TestContext for Fixture {
    async fn prepare(server: TestServer) -> Self {
        Fixture::on(&server).await
    }
}

/// One mutation to be.
pub struct Write {
    pub table: Option<TableId>,
    pub op: MutationOp,
    pub key: Value<'static>,
    pub base: Base,
    pub cols: Vec<(std::borrow::Cow<'static, str>, Value<'static>)>,
}

fn write(op: MutationOp, id: i64, cols: Vec<(&'static str, &'static str)>) -> Write {
    let cols = cols.into_iter().map(|(name, value)| (name.into(), Value::Str(value.into()))).collect();
    Write { table: None, op, key: Value::Int(id), base: Base::None, cols }
}

pub fn text(value: &'static str) -> Value<'static> {
    Value::Str(value.into())
}

pub fn insert(id: i64, owner: &'static str, title: &'static str) -> Write {
    write(MutationOp::Insert, id, vec![("owner", owner), ("title", title)])
}

pub fn upsert(id: i64, owner: &'static str, title: &'static str) -> Write {
    write(MutationOp::Upsert, id, vec![("owner", owner), ("title", title)])
}

pub fn update(id: i64, title: &'static str) -> Write {
    write(MutationOp::Update, id, vec![("title", title)])
}

pub fn delete(id: i64) -> Write {
    write(MutationOp::Delete, id, vec![])
}

pub fn statuses(reply: &PushReply) -> Vec<&'static str> {
    reply.results.iter().map(|result| result.status.as_str()).collect()
}

pub fn codes(reply: &PushReply) -> Vec<&str> {
    assert!(reply.error.is_none(), "{:?}", reply.error);
    reply.results.iter().map(|result| result.code.as_deref().unwrap_or_default()).collect()
}

pub fn one(reply: &PushReply) -> MutationStatus {
    reply.results[0].status
}

impl Fixture {
    pub async fn on(server: &TestServer) -> Fixture {
        let db = LoadedDatabase::new(server).await;
        let (role, login) = (format!("app_{}", db.database.name()), format!("gate_{}", db.database.name()));
        let setup = include_str!("fixture.sql").replace(":role", &role).replace(":login", &login);
        sqlx::raw_sql(sqlx::AssertSqlSafe(setup))
            .execute(&db.pool)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let item = table(&db, "item").await;
        let pusher = Mutex::new(Pusher::start(config(&db, &login, &role)).await.expect("a pusher"));
        let sv = sqlx::query_scalar("select max(id) from tidegate.registry_generation");
        let sv = RegistryGeneration(sv.fetch_one(&db.pool).await.expect("one"));
        Fixture { db, role, login, client_id: Uuid::from_u128(1), pusher, item, sv }
    }

    pub async fn close(&self) {
        let pusher = self.pusher.lock().expect("no panic").clone();
        pusher.close().await;
    }

    /// For what a pusher looks at only when it loads the registry.
    pub async fn restart_pusher(&self) {
        let pusher = Pusher::start(config(&self.db, &self.login, &self.role)).await.expect("a pusher");
        *self.pusher.lock().expect("no panic") = pusher;
    }

    /// One connection, one place to wait.
    pub async fn small_pusher(&self) -> Pusher {
        self.pusher_with(|config| (config.connections_max, config.queue_max) = (1, 1)).await
    }

    /// With other limits.
    pub async fn pusher_with(&self, change: impl FnOnce(&mut PushConfig)) -> Pusher {
        let mut config = config(&self.db, &self.login, &self.role);
        change(&mut config);
        Pusher::start(config).await.expect("a pusher")
    }

    pub fn push_config(&self, login: &str, role: &str) -> PushConfig {
        config(&self.db, login, role)
    }

    /// Through a link of the test's own, one connection.
    pub async fn pusher_through(&self, port: u16) -> Pusher {
        let mut config = config(&self.db, &self.login, &self.role);
        config.connect = config.connect.port(port);
        config.connections_max = 1;
        Pusher::start(config).await.expect("a pusher")
    }

    pub fn client(&self, subject: &str, new: bool) -> ClientPusher {
        self.client_of(self.client_id, subject, new)
    }

    pub fn client_of(&self, client: Uuid, subject: &str, new: bool) -> ClientPusher {
        self.client_at(&self.pusher.lock().expect("no panic").clone(), client, subject, new)
    }

    pub fn client_at(&self, pusher: &Pusher, client: Uuid, subject: &str, new: bool) -> ClientPusher {
        let claims = format!(r#"{{"sub":"{subject}","team":"red"}}"#);
        let identity =
            Identity { subject: Subject(subject.to_owned()), claims: claims.into(), expires_at: None };
        pusher.client(Arc::new(identity), ClientId(client), new)
    }

    /// What a gateway asks at a client's `hello`.
    pub async fn hello(
        &self,
        subject: &str,
        new: bool,
        awaited: &[u64],
        acked: u64,
    ) -> Result<ClientMarks, PushError> {
        let awaited: Vec<_> = awaited.iter().copied().map(MutationNumber).collect();
        let hello = ClientHello {
            subject: &Subject(subject.to_owned()),
            client: ClientId(self.client_id),
            new,
            awaited: &awaited,
            acked: MutationNumber(acked),
        };
        push::hello(&self.db.pool, hello).await
    }

    /// A push of these writes, numbered from `first`; the same first number and length make the same batch.
    pub fn push(&self, first: u64, atomic: bool, writes: Vec<Write>) -> Push<'static> {
        Push {
            reference: first,
            batch: Uuid::from_u128(u128::from(first) << 32 | writes.len() as u128),
            atomic,
            sv: self.sv,
            acked: MutationNumber(0),
            mutations: writes
                .into_iter()
                .zip(first..)
                .map(|(write, number)| Mutation {
                    number: MutationNumber(number),
                    table: write.table.unwrap_or(self.item),
                    op: write.op,
                    key: write.key,
                    base: write.base,
                    cols: Columns(write.cols),
                })
                .collect(),
        }
    }

    pub async fn sql(&self, sql: &str) {
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.db.pool).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&self.db.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub async fn column(&self, sql: &str) -> Vec<String> {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_all(&self.db.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub async fn version(&self, id: i64) -> RowVersion {
        let version =
            sqlx::query_scalar("select version from tidegate.row_version_1 where key = $1").bind(id);
        RowVersion(version.fetch_one(&self.db.pool).await.unwrap_or_else(|error| panic!("{error}")))
    }

    pub async fn generation(&self) -> i32 {
        sqlx::query_scalar("select max(id) from tidegate.registry_generation")
            .fetch_one(&self.db.pool)
            .await
            .expect("one")
    }

    pub async fn table(&self, name: &str) -> TableId {
        table(&self.db, name).await
    }

    /// The named signal for "it waits": a lock that is not granted to a pushing session.
    pub async fn wait_until_a_push_waits_for_a_lock(&self) {
        loop {
            let waiting = sqlx::query_scalar::<_, i64>(
                "select count(*) from pg_stat_activity where usename = $1 and wait_event_type = 'Lock'",
            )
            .bind(&self.login)
            .fetch_one(&self.db.pool)
            .await
            .expect("activity");
            if waiting > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn table(db: &LoadedDatabase, name: &str) -> TableId {
    let id = sqlx::query_scalar("select table_id from tidegate.relation where table_name = $1").bind(name);
    TableId(id.fetch_one(&db.pool).await.unwrap_or_else(|error| panic!("{error}")))
}

fn config(db: &LoadedDatabase, login: &str, role: &str) -> PushConfig {
    let connect = PgConnectOptions::from_str(&db.url()).expect("an address").username(login).password("gate");
    PushConfig {
        timeout: Duration::from_secs(3),
        // Tests that hold a lock on purpose take their time on a busy machine.
        lock_timeout: Duration::from_secs(3),
        unmaterialized_max: 300,
        connections_max: 8,
        ..PushConfig::new(connect, role)
    }
}
