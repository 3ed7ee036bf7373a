//! A database with the schema loaded and a worker to start, kill and wait for; and the recomputation that every test ends with.

use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Row};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidegate_capture::{CaptureError, Committed, Config, Hooks};
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::{
    Lsn, RowDigest, RowKey, RowReader, RowVersion, ScopeDigest, Snapshot, TableId, WireValue,
    encode_row_header, encode_text_value, row_digest,
};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Longest wait for a named signal; reached only by a broken test.
const PATIENCE: Duration = Duration::from_secs(60);

pub const ITEMS: &str = "
    create table public.items (id text primary key, list_id text, n int, body text);
    select tidegate.register_table('public.items', '{\"scopes\": [{\"name\": \"list:{list_id}\"}]}');
";

pub struct World {
    pub db: LoadedDatabase,
    pub server: TestServer,
}

impl TestContext for World {
    async fn prepare(server: TestServer) -> Self {
        // What the worker says is shown with a failing test only.
        let _ = tracing_subscriber::fmt().with_test_writer().with_max_level(tracing::Level::INFO).try_init();
        let db = LoadedDatabase::new(&server).await;
        World { db, server }
    }
}

/// A running worker.
pub struct Running {
    pub commits: watch::Receiver<Option<Committed>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), CaptureError>>,
    /// Of a worker that may be paused: a paused thread must not hold up the test's own runtime.
    apart: Option<tokio::runtime::Runtime>,
}

impl Running {
    /// Stops in order.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        within("the worker to stop", &mut self.task).await.expect("no panic").expect("a clean end");
    }

    /// Ends it on the spot: connections drop, nothing is cleaned up.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Waits for it to end by itself.
    pub async fn ended(mut self) -> CaptureError {
        let error =
            within("the worker to end", &mut self.task).await.expect("no panic").expect_err("an error");
        if let Some(runtime) = self.apart {
            runtime.shutdown_background();
        }
        error
    }

    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }
}

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

impl World {
    pub fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    /// Short intervals: tests wait for signals, but some signals are polled.
    pub fn config(&self) -> Config {
        let mut config = Config::new(self.db.url());
        config.limits.acknowledge_interval = Duration::from_millis(50);
        config.limits.heartbeat_interval = Duration::from_millis(100);
        config.limits.poison_poll_interval = Duration::from_millis(20);
        // Compared when a session begins; tests of drift compare more often.
        config.limits.drift_check_interval = Duration::from_secs(3600);
        config.limits.first_start_quiet = Duration::ZERO;
        config.limits.backoff_min = Duration::from_millis(20);
        config.limits.backoff_max = Duration::from_millis(200);
        config
    }

    pub fn start(&self) -> Running {
        self.start_with(self.config())
    }

    pub fn start_with(&self, config: Config) -> Running {
        self.start_on(config, None)
    }

    /// A worker on a runtime of its own.
    pub fn start_apart(&self) -> Running {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .expect("a runtime");
        self.start_on(self.config(), Some(runtime))
    }

    fn start_on(&self, config: Config, apart: Option<tokio::runtime::Runtime>) -> Running {
        let (committed, commits) = watch::channel(None);
        let hooks = Hooks {
            on_committed: Some(Arc::new(move |commit| {
                committed.send_replace(Some(commit));
            })),
        };
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            // A dropped sender is not a request to stop.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let worker = tidegate_capture::run(config, shutdown, hooks);
        let task = match &apart {
            Some(runtime) => runtime.spawn(worker),
            None => tokio::spawn(worker),
        };
        Running { commits, stop: Some(stop), task, apart }
    }

    /// Runs statements in one simple query: one transaction unless they say otherwise.
    pub async fn sql(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(self.pool())
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    pub async fn scalar<T>(&self, sql: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(self.pool())
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    pub async fn text(&self, sql: &str) -> String {
        self.scalar::<Option<String>>(sql).await.unwrap_or_default()
    }

    /// Whether a query gives true; no row is no.
    async fn holds(&self, sql: &str) -> bool {
        let found: Option<Option<bool>> = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_optional(self.pool())
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
        found.flatten().unwrap_or(false)
    }

    /// Waits until a query gives true. For facts whose only signal is the database itself.
    pub async fn until(&self, what: &str, sql: &str) {
        within(what, async {
            while !self.holds(sql).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Waits until the first baseline is active.
    pub async fn until_streaming(&self) {
        let state = "select exists (select from tidegate.progress)
            and exists (select from tidegate.worker_heartbeat h join tidegate.worker w using (epoch) where h.state = 'streaming')";
        self.until("streaming", state).await;
    }

    /// Stops a worker and waits until the server knows.
    pub async fn stop_and_release(&self, worker: Running) {
        worker.stop().await;
        let free =
            "select not active from pg_replication_slots join tidegate.stream_generation using (slot_name)";
        self.until("the slot to be free", free).await;
    }

    /// Everything committed before this call is durable afterwards.
    pub async fn settle(&self) {
        let nonce = self
            .text("select pg_logical_emit_message(true, 'tidegate.marker', '1:' || gen_random_uuid())::text")
            .await;
        let sql = format!("select processed_end_lsn >= '{nonce}'::pg_lsn from tidegate.progress");
        self.until("everything to be processed", &sql).await;
    }

    pub async fn snapshot(&self) -> Snapshot {
        let sql = "select snapshot::text from tidegate.registry_generation g
                   where id = (select registry_generation from tidegate.progress)";
        Snapshot::from_json(&self.text(sql).await).expect("a snapshot")
    }

    /// Recomputes everything from the application's tables and compares: projections, edges, scope totals; and replays the
    /// effects of each scope, checking the digest after every one.
    pub async fn assert_consistent(&self) {
        let state: i32 = self.scalar("select state_id from tidegate.stream_generation g join tidegate.progress p on p.generation = g.id").await;
        let registry = self.snapshot().await;
        let mut expected: BTreeMap<String, (i64, ScopeDigest)> = BTreeMap::new();
        for relation in &registry.relations {
            let projected = self.projected(state, relation).await;
            let source = self.source(relation).await;
            assert_eq!(
                projected.keys().collect::<Vec<_>>(),
                source.keys().collect::<Vec<_>>(),
                "keys of {}",
                relation.name
            );
            for (key, row) in &source {
                let (version, image, digest, scope_ids) = &projected[key];
                assert_eq!(image, row, "row {key:?} of {}", relation.name);
                let table = relation.table_id.unwrap_or(TableId(0));
                assert_eq!(*digest, row_digest(table, key, *version, image));
                let names = if relation.table_id.is_some() {
                    relation.scopes_of(&relation.values(image))
                } else {
                    vec![]
                };
                assert_eq!(names.len(), scope_ids.len());
                for name in names {
                    let total = expected.entry(name.0).or_default();
                    total.0 += 1;
                    total.1 = total.1.plus(*digest);
                }
            }
        }
        let mut stored = self.scopes(state).await;
        let ids: BTreeMap<String, i64> = stored.iter().map(|(name, (id, ..))| (name.clone(), *id)).collect();
        stored.retain(|_, (_, count, digest)| (*count, *digest) != (0, ScopeDigest::EMPTY));
        let stored: BTreeMap<_, _> =
            stored.into_iter().map(|(name, (_, count, digest))| (name, (count, digest))).collect();
        assert_eq!(stored, expected, "scope totals");
        for id in ids.values() {
            self.replay_effects(state, *id).await;
        }
        let edges: i64 =
            self.scalar(&format!("select count(*) from tidegate_projection.s{state}_scope_row")).await;
        assert_eq!(edges, expected.values().map(|(count, _)| *count).sum::<i64>(), "edges");
    }

    async fn projected(
        &self,
        state: i32,
        relation: &tidegate_model::Relation,
    ) -> BTreeMap<RowKey, (RowVersion, Vec<u8>, RowDigest, Vec<i64>)> {
        let sql = format!(
            "select version, row, digest, scope_ids from tidegate_projection.s{state}_p{}",
            relation.relation_id
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("projection");
        rows.iter()
            .map(|row| {
                let image: Vec<u8> = row.get("row");
                let key = relation.key_of(&image).expect("a key");
                let digest = RowDigest::from_bytes(row.get("digest")).expect("16 bytes");
                (key, (RowVersion(row.get("version")), image, digest, row.get("scope_ids")))
            })
            .collect()
    }

    async fn source(&self, relation: &tidegate_model::Relation) -> BTreeMap<RowKey, Vec<u8>> {
        let columns: Vec<String> =
            relation.columns.iter().map(|column| format!("format('%s', \"{0}\")", column.name)).collect();
        let nulls: Vec<String> =
            relation.columns.iter().map(|column| format!("\"{}\" is null", column.name)).collect();
        let sql = format!(
            "select array[{}]::text[] as v, array[{}] as nulls from only \"{}\".\"{}\"",
            columns.join(", "),
            nulls.join(", "),
            relation.schema,
            relation.name
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("source rows");
        rows.iter()
            .map(|row| {
                let (values, nulls): (Vec<String>, Vec<bool>) = (row.get("v"), row.get("nulls"));
                let mut image = Vec::new();
                encode_row_header(values.len(), &mut image);
                for ((column, value), null) in relation.columns.iter().zip(&values).zip(nulls) {
                    let value = (!null).then_some(value.as_str());
                    encode_text_value(column.wire, value, &mut image).expect("encodable");
                }
                (relation.key_of(&image).expect("a key"), image)
            })
            .collect()
    }

    async fn scopes(&self, state: i32) -> BTreeMap<String, (i64, i64, ScopeDigest)> {
        let sql = format!("select scope_id, name, row_count, digest from tidegate_projection.s{state}_scope");
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("scopes");
        rows.iter()
            .map(|row| {
                let digest = ScopeDigest::from_bytes(row.get("digest")).expect("16 bytes");
                (row.get("name"), (row.get("scope_id"), row.get("row_count"), digest))
            })
            .collect()
    }

    /// V4: from the totals before the first effect, each effect leads to the digest and count that it carries, the last one to
    /// the scope's own.
    async fn replay_effects(&self, state: i32, scope: i64) {
        let sql = format!(
            "select op, table_id, key, version, row, digest_after, count_after from tidegate.effect
             where scope_id = {scope} and generation = (select generation from tidegate.progress) order by commit_lsn, event_ordinal, effect_ordinal"
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("effects");
        let mut held: BTreeMap<(i32, Vec<u8>), RowDigest> = BTreeMap::new();
        let mut known: Option<(i64, ScopeDigest)> = None;
        for row in &rows {
            let (table, wire): (i32, Vec<u8>) = (row.get("table_id"), row.get("key"));
            let after = (
                row.get::<i64, _>("count_after"),
                ScopeDigest::from_bytes(row.get("digest_after")).expect("16"),
            );
            let before = held.remove(&(table, wire.clone()));
            let upserted = row.get::<Option<Vec<u8>>, _>("row").map(|image| {
                row_digest(TableId(table), &wire_key(&wire), RowVersion(row.get("version")), &image)
            });
            if let Some(digest) = upserted {
                held.insert((table, wire), digest);
            }
            // A row that the baseline brought is unknown here until its first effect: then only the next step can be checked.
            if let (Some((count, digest)), true) =
                (known, before.is_some() || upserted.is_some() && after.0 > known.map_or(0, |k| k.0))
            {
                let mut expected = (count, digest);
                if let Some(before) = before {
                    expected = (expected.0 - 1, expected.1.minus(before));
                }
                if let Some(upserted) = upserted {
                    expected = (expected.0 + 1, expected.1.plus(upserted));
                }
                assert_eq!(after, expected, "effects of scope {scope}");
            }
            known = Some(after);
        }
        if let Some(known) = known {
            let sql = format!(
                "select row_count, digest from tidegate_projection.s{state}_scope where scope_id = {scope}"
            );
            let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(self.pool()).await.expect("the scope");
            let digest = ScopeDigest::from_bytes(row.get("digest")).expect("16 bytes");
            assert_eq!(
                known,
                (row.get("row_count"), digest),
                "the last effect carries the scope's own totals"
            );
        }
    }

    /// `scope op key` of every effect, in delivery order.
    pub async fn effects(&self) -> Vec<String> {
        let sql = "select s.name, e.op, e.key from tidegate.effect e
                   join tidegate.stream_generation g on g.id = e.generation
                   join lateral (select name from scope_names(g.state_id) where scope_id = e.scope_id) s on true
                   order by e.commit_lsn, e.event_ordinal, e.effect_ordinal, s.name";
        self.sql(
            "create or replace function public.scope_names(state int) returns table (scope_id bigint, name text) language plpgsql as $f$
             begin return query execute format('select scope_id, name from tidegate_projection.s%s_scope', state); end $f$",
        )
        .await;
        let rows = sqlx::query(sql).fetch_all(self.pool()).await.expect("effects");
        rows.iter()
            .map(|row| {
                let op = if row.get::<i16, _>("op") == 1 { "upsert" } else { "delete" };
                format!(
                    "{} {op} {}",
                    row.get::<String, _>("name"),
                    wire_key(&row.get::<Vec<u8>, _>("key")).to_text()
                )
            })
            .collect()
    }

    pub async fn lsn(&self, sql: &str) -> Lsn {
        self.text(&format!("select ({sql})::text")).await.parse().expect("a position")
    }
}

fn wire_key(wire: &[u8]) -> RowKey {
    let mut array = vec![0x91];
    array.extend_from_slice(wire);
    match RowReader::new(&array).and_then(|mut reader| {
        reader.next_value().map(|(value, _)| match value {
            WireValue::Int(number) => RowKey::Int(number),
            WireValue::Str(text) => RowKey::Text(text.to_owned()),
            _ => panic!("a key is a number or a string"),
        })
    }) {
        Some(key) => key,
        None => panic!("a key"),
    }
}
