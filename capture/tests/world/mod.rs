//! A database with the schema loaded and a worker to start, kill and wait for.

pub mod heard;
pub mod observer;
pub mod points;
pub mod recomputed;
pub mod standing;
pub mod tap;

use points::Turn;
use recomputed::wire_key;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Row};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_capture::{CaptureError, Committed, Config, Hooks};
use tidegate_embedded::testing::{Kind, TestContext, TestServer};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::Lsn;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Longest wait for a named signal; reached only by a broken test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at what only the database can tell.
const POLL: Duration = Duration::from_millis(10);

pub const ITEMS: &str = "
    create table public.items (id text primary key, list_id text, n int, body text);
    select tidegate.register_table('public.items', '{\"scopes\": [{\"name\": \"list:{list_id}\"}]}');
";

/// The fixture of the cases: lists and their items, both registered, both in the scope of their list.
pub const LISTS_AND_ITEMS: &str = "
    create table public.list (id text primary key, name text);
    create table public.item (id bigint primary key, list_id text references list (id) on delete cascade,
                              title text, body text, meta json, rev int not null default 1);
    select tidegate.register_table('public.list', '{\"scopes\": [{\"name\": \"list:{id}\"}]}');
    select tidegate.register_table('public.item', '{\"scopes\": [{\"name\": \"list:{list_id}\"}]}');
";

/// Whether tests run at full size.
pub fn full_scale() -> bool {
    std::env::var("TIDEGATE_SCALE").is_ok_and(|scale| scale == "full")
}

pub struct World {
    pub db: LoadedDatabase,
    pub server: TestServer,
    _turn: Turn,
}

impl TestContext for World {
    async fn prepare(server: TestServer) -> Self {
        World::on(server, Turn::with_others().await).await
    }
}

/// A running worker.
pub struct Running {
    pub commits: watch::Receiver<Option<Committed>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), CaptureError>>,
    /// Of a worker that may be paused: a paused thread must not hold up the test's own runtime.
    apart: Option<tokio::runtime::Runtime>,
    started: SystemTime,
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
    pub async fn kill(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Waits for it to end by itself.
    pub async fn ended(mut self) -> CaptureError {
        within("the worker to end", &mut self.task).await.expect("no panic").expect_err("an error")
    }

    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Running {
    /// Whether it gets as far as this marker. If not, it has ended, and [`ended`](Self::ended) says how.
    pub async fn lives_until(&mut self, world: &World, marker: &str) -> bool {
        let reached = reached(marker);
        within("the marker, or its end", async {
            loop {
                if self.task.is_finished() {
                    return false;
                }
                if world.holds(&reached).await {
                    return true;
                }
                tokio::time::sleep(POLL).await;
            }
        })
        .await
    }
}

/// Whether everything up to a marker is processed.
fn reached(marker: &str) -> String {
    format!("select processed_end_lsn >= '{marker}'::pg_lsn from tidegate.progress")
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.apart.take() {
            runtime.shutdown_background();
        }
    }
}

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

impl World {
    async fn on(server: TestServer, turn: Turn) -> World {
        heard::install();
        let db = LoadedDatabase::new(&server).await;
        if server.kind() == Kind::Private {
            // A copied sequence believes that its next values are logged already, which was true of the template: until a
            // checkpoint, a crash would take it back.
            sqlx::raw_sql("checkpoint").execute(&db.pool).await.expect("checkpoint");
        }
        World { db, server, _turn: turn }
    }

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

    /// Idle acknowledgements as often as a keepalive comes.
    pub fn eager(&self) -> Config {
        let mut config = self.config();
        (config.limits.idle_ack_interval, config.limits.idle_ack_bytes_min) = (Duration::ZERO, 1);
        config
    }

    /// No idle acknowledgements: others write on the same server, and only transactions shall move the boundary.
    pub fn without_idle(&self) -> Config {
        let mut config = self.config();
        (config.limits.idle_ack_interval, config.limits.idle_ack_bytes) =
            (Duration::from_secs(3600), u64::MAX);
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
        self.start_apart_with(self.config())
    }

    /// The same with another configuration.
    pub fn start_apart_with(&self, config: Config) -> Running {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .expect("a runtime");
        self.start_on(config, Some(runtime))
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
        let started = SystemTime::now();
        let worker = tidegate_capture::run(config, shutdown, hooks);
        let task = match &apart {
            Some(runtime) => runtime.spawn(worker),
            None => tokio::spawn(worker),
        };
        Running { commits, stop: Some(stop), task, apart, started }
    }

    /// Runs statements in one simple query: one transaction unless they say otherwise.
    pub async fn sql(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(self.pool())
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    /// SQLSTATE with which the server refuses these statements. They are rolled back.
    pub async fn refused(&self, sql: &str) -> String {
        let mut connection = self.pool().acquire().await.expect("a connection").detach();
        let error =
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect_err(sql);
        error.as_database_error().and_then(|error| error.code()).expect("a code").into_owned()
    }

    /// Runs statements of which neither events nor fences of this table tell: both are switched off around them.
    pub async fn without_events(&self, table: &str, sql: &str) {
        let triggers = format!("do $f$ declare t name; begin for t in select tgname from pg_trigger where tgrelid = '{table}'::regclass and tgname ~ 'tidegate'
            loop execute format('alter table {table} enable always trigger %I', t); end loop; end $f$");
        self.sql(&format!("alter publication tidegate drop table {table}")).await;
        self.sql(&format!("begin; alter table {table} disable trigger user; {sql}; {triggers}; commit"))
            .await;
        self.sql(&format!("alter publication tidegate add table {table}")).await;
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
    pub async fn holds(&self, sql: &str) -> bool {
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
                tokio::time::sleep(POLL).await;
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

    /// Waits until this worker streams: not until the heartbeat of an earlier one says so.
    pub async fn until_streams(&self, worker: &Running) {
        let started = worker.started.duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
        let state = format!(
            "select h.state = 'streaming' and w.claimed_at >= to_timestamp({started} / 1e6)
             from tidegate.worker_heartbeat h join tidegate.worker w using (epoch)"
        );
        self.until("its own stream", &state).await;
    }

    /// Stops a worker and waits until the server knows.
    pub async fn stop_and_release(&self, worker: Running) {
        worker.stop().await;
        self.until_released().await;
    }

    /// Waits until nobody streams from the slot any more.
    pub async fn until_released(&self) {
        let free =
            "select not active from pg_replication_slots join tidegate.stream_generation using (slot_name)";
        self.until("the slot to be free", free).await;
    }

    /// WAL that tells the stream nothing, and has passed the server's disk.
    pub async fn write_noise(&self) {
        self.sql("create table public.noise as select g, repeat('x', 500) from generate_series(1, 2000) g; drop table public.noise")
            .await;
    }

    /// Locks the projection of a relation against materialization until the transaction ends.
    pub async fn lock_projection(&self, relation: i32) -> sqlx::Transaction<'static, sqlx::Postgres> {
        let state: i32 = self.scalar("select state_id from tidegate.stream_generation").await;
        let mut lock = self.pool().begin().await.expect("begin");
        let sql = format!("lock table tidegate_projection.s{state}_p{relation} in access exclusive mode");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *lock).await.expect("lock");
        lock
    }

    /// Behind such a lock, waits until the worker has been sent everything up to a marker, and has taken it in: it will share commits.
    pub async fn until_gathered(&self, marker: &str) {
        self.until_locked_out().await;
        let sent = format!(
            "select sent_lsn >= '{marker}'::pg_lsn from pg_stat_replication join tidegate.worker on pid = walsender_pid"
        );
        self.until("everything to be sent", &sent).await;
        self.until_beats().await;
    }

    /// Waits until materialization waits for such a lock.
    pub async fn until_locked_out(&self) {
        self.until(
            "the worker to wait",
            "select exists (select from pg_stat_activity where datname = current_database()
            and application_name like 'tidegate capture % materialize' and wait_event_type = 'Lock')",
        )
        .await;
    }

    /// Waits for beats of the heartbeat that began after this call: the worker has had its chance.
    pub async fn until_beats(&self) {
        self.sql(
            "drop table if exists public.beats; create table public.beats as select clock_timestamp() as at",
        )
        .await;
        self.until(
            "beats",
            "select beat_at > at + interval '300 ms' from tidegate.worker_heartbeat, public.beats",
        )
        .await;
    }

    /// Everything committed before this call is durable afterwards.
    pub async fn settle(&self) {
        let marker = self.emit_marker().await;
        self.until("everything to be processed", &reached(&marker)).await;
    }

    /// A transaction of its own; gives its position.
    pub async fn emit_marker(&self) -> String {
        self.text("select pg_logical_emit_message(true, 'tidegate.marker', '1:' || gen_random_uuid())::text")
            .await
    }

    /// Everything that materialization keeps, with the transaction that wrote each row.
    pub async fn everything(&self) -> Vec<String> {
        let tables = "select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where c.relkind = 'r' and (n.nspname = 'tidegate_projection' or (n.nspname = 'tidegate' and c.relname in
                ('source_transaction', 'effect', 'grant_effect', 'registry_activation', 'write_fence', 'poison'))) order by 1";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(self.pool()).await.expect("tables");
        let mut lines = Vec::new();
        for table in tables {
            let sql = format!("select '{table} ' || t.xmin || t::text from {table} t order by 1");
            let rows: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("rows");
            lines.extend(rows);
        }
        lines
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
