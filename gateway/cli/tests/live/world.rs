//! A database with the application's tables, workers and gateways, to start, stop and kill.

use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, Row};
use std::future::Future;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;
use tidegate_capture::{CaptureError, Hooks};
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_gateway::auth::{AuthConfig, TokenKeys};
use tidegate_gateway::push::PushConfig;
use tidegate_gateway::{Config, Gateway, GatewayError};
use tidegate_migrations::testing::LoadedDatabase;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest wait for a named signal; reached only by a broken test.
const PATIENCE: Duration = Duration::from_secs(60);
pub const SECRET: &[u8] = b"a secret for tests, long enough for HS256";

/// `items` belong to lists, which members are granted; `news` is for everybody.
const APPLICATION: &str = "
    do $$ begin
        if not exists (select from pg_roles where rolname = ':role') then create role :role nologin; end if;
        if not exists (select from pg_roles where rolname = ':login') then create role :login login noinherit password 'gate'; end if;
    end $$;
    grant :role to :login;
    create table public.items (id bigint primary key, list_id text, n int, body text);
    create table public.members (id bigint primary key, user_id text, list_id text);
    create table public.news (id text primary key, title text);
    grant all on public.items, public.members, public.news to :role;
    select tidegate.register_table('public.items', '{\"write\": \"enabled\", \"unrestricted\": true, \"scopes\": [{\"name\": \"list:{list_id}\"}]}');
    select tidegate.register_table('public.news', '{\"scopes\": [{\"name\": \"news\"}]}');
    select tidegate.register_grant('{\"scope\": \"list:{members.list_id}\", \"from\": \"public.members\", \"where\": \"members.user_id = {subject.id}\"}');
    select tidegate.register_grant('{\"scope\": \"news\", \"anonymous\": true}');
    select tidegate.grant_push(':login', array[':role']::name[]);
";

/// Anna may see both lists, Ben the first.
pub const MEMBERS: &str = "insert into members values (1, 'anna', 'L1'), (2, 'anna', 'L2'), (3, 'ben', 'L1')";

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// `full` where `TIDEGATE_SCALE=full` asks for it, else `scaled`.
pub fn scale(full: usize, scaled: usize) -> usize {
    if std::env::var("TIDEGATE_SCALE").is_ok_and(|scale| scale == "full") { full } else { scaled }
}

pub struct World {
    pub db: LoadedDatabase,
    pub server: TestServer,
    role: String,
    login: String,
}

impl TestContext for World {
    async fn prepare(server: TestServer) -> Self {
        // What the processes say is shown with a failing test only.
        let filter = tracing_subscriber::EnvFilter::new("info,sqlx=warn");
        let _ = tracing_subscriber::fmt().with_test_writer().with_env_filter(filter).try_init();
        let db = LoadedDatabase::new(&server).await;
        let (role, login) = (format!("app_{}", db.database.name()), format!("gate_{}", db.database.name()));
        let world = World { db, server, role, login };
        world.sql(&APPLICATION.replace(":role", &world.role).replace(":login", &world.login)).await;
        world
    }
}

/// A task, perhaps on a runtime of its own.
struct Process<E> {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), E>>,
    runtime: Option<Runtime>,
}

impl<E: std::fmt::Debug + Send + 'static> Process<E> {
    fn start<F>(runtime: Option<Runtime>, run: impl FnOnce(Shutdown) -> F) -> Process<E>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let process = run(Box::pin(async move {
            // A dropped sender is not a request to stop.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        let task = match &runtime {
            Some(runtime) => runtime.spawn(process),
            None => tokio::spawn(process),
        };
        Process { stop: Some(stop), task, runtime }
    }

    async fn stop(mut self, what: &str) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        within(what, &mut self.task).await.expect("no panic").expect("a clean end");
        if let Some(runtime) = self.runtime {
            runtime.shutdown_background();
        }
    }

    /// Ends it on the spot: nothing is said to anybody, connections drop.
    async fn kill(self) {
        self.task.abort();
        match self.runtime {
            // Its tasks go with it; those that a test has stopped, once it lets go of them.
            Some(runtime) => runtime.shutdown_background(),
            None => drop(self.task.await),
        }
    }
}

type Shutdown = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime")
}

/// A running worker.
pub struct Worker(Process<CaptureError>);

impl Worker {
    pub async fn stop(self) {
        self.0.stop("the worker to stop").await;
    }

    /// Ends it on the spot.
    pub async fn kill(self) {
        self.0.kill().await;
    }
}

/// A running gateway.
pub struct Serving {
    pub address: SocketAddr,
    process: Process<GatewayError>,
}

impl Serving {
    pub async fn stop(self) {
        self.process.stop("the gateway to stop").await;
    }

    /// Ends it on the spot, with all its sockets: of one that was started apart.
    pub async fn kill(self) {
        assert!(self.process.runtime.is_some(), "its sockets would outlive it");
        self.process.kill().await;
    }
}

impl World {
    pub fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    pub async fn sql(&self, sql: &str) {
        let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(self.pool()).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub async fn scalar<T>(&self, sql: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        let found = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(self.pool()).await;
        found.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Waits until a query gives true: for facts whose only signal is the database itself.
    pub async fn until(&self, what: &str, sql: &str) {
        within(what, async {
            loop {
                let found: Result<Option<Option<bool>>, _> =
                    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_optional(self.pool()).await;
                if found.ok().flatten().flatten() == Some(true) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Everything committed before this call has been materialized.
    pub async fn settle(&self) {
        let nonce: String = self
            .scalar(
                "select pg_logical_emit_message(true, 'tidegate.marker', '1:' || gen_random_uuid())::text",
            )
            .await;
        let sql = format!("select processed_end_lsn >= '{nonce}'::pg_lsn from tidegate.progress");
        self.until("everything to be processed", &sql).await;
    }

    /// The client's number for a table of the application.
    pub async fn table(&self, name: &str) -> i32 {
        self.scalar(&format!("select table_id from tidegate.relation where table_name = '{name}'")).await
    }

    pub async fn worker(&self) -> Worker {
        self.worker_with(self.capture_config()).await
    }

    pub fn worker_not_waited_for(&self) -> Worker {
        self.worker_on(None, self.capture_config())
    }

    /// A worker that a test may hold up: on a runtime of its own, one source transaction in each commit.
    pub async fn worker_apart(&self) -> Worker {
        let mut config = self.capture_config();
        config.limits.group_transactions_max = 1;
        let worker = self.worker_on(Some(runtime()), config);
        self.until_streaming().await;
        worker
    }

    pub async fn worker_with(&self, config: tidegate_capture::Config) -> Worker {
        let worker = self.worker_on(None, config);
        self.until_streaming().await;
        worker
    }

    async fn until_streaming(&self) {
        self.until("the stream to be active", "select exists (select from tidegate.progress)
            and exists (select from tidegate.worker_heartbeat h join tidegate.worker w using (epoch) where h.state = 'streaming')").await;
    }

    pub fn capture_config(&self) -> tidegate_capture::Config {
        let mut config = tidegate_capture::Config::new(self.db.url());
        config.limits.heartbeat_interval = Duration::from_millis(100);
        config.limits.first_start_quiet = Duration::ZERO;
        config.limits.backoff_min = Duration::from_millis(20);
        config.limits.backoff_max = Duration::from_millis(200);
        config
    }

    fn worker_on(&self, runtime: Option<Runtime>, config: tidegate_capture::Config) -> Worker {
        Worker(Process::start(runtime, |stopped| tidegate_capture::run(config, stopped, Hooks::default())))
    }

    pub fn config(&self) -> Config {
        self.config_at(self.server.port())
    }

    /// A gateway's configuration that reaches the database at another port, such as that of a link.
    pub fn config_at(&self, port: u16) -> Config {
        let auth = AuthConfig {
            keys: Some(TokenKeys::Secret(SECRET.to_vec())),
            anonymous: true,
            ..AuthConfig::default()
        };
        let url = self.db.url().replace(&format!(":{}/", self.server.port()), &format!(":{port}/"));
        let mut config = Config::new(url, self.db.database.name(), auth);
        config.push = Some(PushConfig { connections_max: 4, ..self.push_config(port) });
        // Sessions are held up while they begin, for as long as a test takes.
        config.limits.hello_timeout = Duration::from_secs(600);
        // A wake that is lost costs this much; no test waits for less.
        config.limits.rescan = Duration::from_millis(200);
        config
    }

    /// How pushes connect at this port.
    pub fn push_config(&self, port: u16) -> PushConfig {
        let connect = PgConnectOptions::from_str(&self.db.url())
            .expect("an address")
            .port(port)
            .username(&self.login)
            .password("gate");
        PushConfig::new(connect, &self.role)
    }

    pub async fn gateway(&self) -> Serving {
        self.gateway_with(self.config()).await
    }

    pub async fn gateway_with(&self, config: Config) -> Serving {
        let gateway = Gateway::start(config).await.expect("a gateway");
        self.serve(None, gateway).await
    }

    /// A gateway that may be killed: on a runtime of its own.
    pub async fn gateway_apart(&self, config: Config) -> Serving {
        let runtime = runtime();
        let started = runtime.spawn(Gateway::start(config));
        let gateway = started.await.expect("no panic").expect("a gateway");
        self.serve(Some(runtime), gateway).await
    }

    async fn serve(&self, runtime: Option<Runtime>, gateway: Gateway) -> Serving {
        if self.scalar::<bool>("select exists (select from tidegate.progress)").await {
            within("the gateway to follow the stream", gateway.followed()).await;
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        let process = Process::start(runtime, |stopped| async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            let router = gateway.router();
            gateway.serve(listener, router, stopped).await
        });
        Serving { address, process }
    }

    /// Worker and gateway.
    pub async fn start(&self) -> (Worker, Serving) {
        (self.worker().await, self.gateway().await)
    }

    /// A worker that may be held up, and a gateway.
    pub async fn start_apart(&self) -> (Worker, Serving) {
        (self.worker_apart().await, self.gateway().await)
    }

    /// What a client of a list must hold: keys and text of its rows, from the application's table.
    pub async fn list(&self, list: &str) -> Vec<(i64, Option<i32>, Option<String>)> {
        let rows = sqlx::query("select id, n, body from public.items where list_id = $1 order by id")
            .bind(list)
            .fetch_all(self.pool())
            .await
            .expect("rows");
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }
}
