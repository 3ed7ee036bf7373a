//! A database with the application's tables, a worker, a gateway, and clients.

use super::model_client::{ModelClient, Rows, Seen};
use futures_util::{SinkExt, StreamExt};
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, Row};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, SystemTime};
use tidegate_capture::{CaptureError, Hooks};
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_gateway::auth::{AuthConfig, TokenKeys, mint_token};
use tidegate_gateway::push::PushConfig;
use tidegate_gateway::{Config, Gateway, GatewayError};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::{ClientId, RegistryGeneration};
use tidegate_protocol::{
    Base, Bin, ClientFrame, Columns, Hello, Limits, Mutation, MutationNumber, MutationOp, Ping, Push,
    SUBPROTOCOL, Secret, ServerFrame, Subscribe, SubscriptionKind, TableId, Unsubscribe, Value,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use uuid::Uuid;

/// Longest wait for a named signal; reached only by a broken test.
const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: &[u8] = b"a secret for tests, long enough for HS256";

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

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
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

/// A running worker.
pub struct Worker {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), CaptureError>>,
}

impl Worker {
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        within("the worker to stop", &mut self.task).await.expect("no panic").expect("a clean end");
    }

    /// Ends it on the spot.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A running gateway.
pub struct Serving {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), GatewayError>>,
}

impl Serving {
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        within("the gateway to stop", &mut self.task).await.expect("no panic").expect("a clean end");
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

    pub async fn worker(&self) -> Worker {
        let worker = self.worker_not_waited_for();
        self.until("the stream to be active", "select exists (select from tidegate.progress)
            and exists (select from tidegate.worker_heartbeat h join tidegate.worker w using (epoch) where h.state = 'streaming')").await;
        worker
    }

    pub fn worker_not_waited_for(&self) -> Worker {
        let mut config = tidegate_capture::Config::new(self.db.url());
        config.limits.heartbeat_interval = Duration::from_millis(100);
        config.limits.backoff_min = Duration::from_millis(20);
        config.limits.backoff_max = Duration::from_millis(200);
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let task = tokio::spawn(tidegate_capture::run(config, shutdown, Hooks::default()));
        Worker { stop: Some(stop), task }
    }

    pub fn config(&self) -> Config {
        let auth = AuthConfig {
            keys: Some(TokenKeys::Secret(SECRET.to_vec())),
            anonymous: true,
            ..AuthConfig::default()
        };
        let mut config = Config::new(self.db.url(), self.db.database.name(), auth);
        let connect = PgConnectOptions::from_str(&self.db.url())
            .expect("an address")
            .username(&self.login)
            .password("gate");
        config.push = Some(PushConfig { connections_max: 4, ..PushConfig::new(connect, &self.role) });
        // A wake that is lost costs this much; no test waits for less.
        config.limits.rescan = Duration::from_millis(200);
        config
    }

    pub async fn gateway(&self) -> Serving {
        self.gateway_with(self.config()).await
    }

    pub async fn gateway_with(&self, config: Config) -> Serving {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let gateway = Gateway::start(config).await.expect("a gateway");
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let router = gateway.router();
        Serving { address, stop: Some(stop), task: tokio::spawn(gateway.serve(listener, router, shutdown)) }
    }

    /// Worker and gateway.
    pub async fn start(&self) -> (Worker, Serving) {
        (self.worker().await, self.gateway().await)
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

pub fn token(user: &str) -> String {
    mint_token(SECRET, user, Duration::from_secs(3600), &serde_json::Map::new(), SystemTime::now())
        .expect("a token")
}

type Ws = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A client installation: its store outlives its sockets.
pub struct Client {
    pub user: Option<String>,
    pub id: ClientId,
    pub new: bool,
    pub model: ModelClient,
    pub seen: Vec<Seen>,
    pub next_number: u64,
    pub awaited: BTreeSet<u64>,
    socket: Option<Ws>,
    pings: u64,
}

impl Client {
    pub fn new(user: Option<&str>) -> Client {
        Client {
            user: user.map(str::to_owned),
            id: ClientId(Uuid::new_v4()),
            new: true,
            model: ModelClient::default(),
            seen: Vec::new(),
            next_number: 1,
            awaited: BTreeSet::new(),
            socket: None,
            pings: 0,
        }
    }

    /// A client that is connected and welcome.
    pub async fn connected(serving: &Serving, user: Option<&str>) -> Client {
        let mut client = Client::new(user);
        client.connect(serving).await;
        client
    }

    /// Opens the socket, without a word.
    pub async fn open(&mut self, serving: &Serving) {
        let mut request =
            format!("ws://{}/v3/socket", serving.address).into_client_request().expect("a request");
        request.headers_mut().insert("sec-websocket-protocol", SUBPROTOCOL.parse().expect("a header"));
        let (socket, _) =
            within("the upgrade", tokio_tungstenite::connect_async(request)).await.expect("a socket");
        self.model.disconnect();
        self.socket = Some(socket);
    }

    pub async fn hello(&mut self) {
        let token = self.user.as_deref().map(token);
        let hello = Hello {
            versions: vec![3],
            token: token.as_deref().map(|token| Secret(token.into())),
            user: None,
            client: self.id,
            new: self.new,
            sv: None,
            awaited: self.awaited.iter().copied().map(MutationNumber).collect(),
            acked: MutationNumber(0),
        };
        self.send(hello.into()).await;
    }

    pub async fn connect(&mut self, serving: &Serving) {
        // A stream that is being started is answered `unavailable`: as a client would, try again.
        within("welcome", async {
            loop {
                self.open(serving).await;
                self.hello().await;
                match self.next().await {
                    Some(Seen::Welcome { .. }) => break,
                    Some(Seen::Error { code, .. }) if code == "unavailable" => {}
                    other => panic!("expected welcome, got {other:?}"),
                }
            }
        })
        .await;
        self.new = false;
    }

    pub fn disconnect(&mut self) {
        self.socket = None;
        self.model.disconnect();
    }

    pub async fn send(&mut self, frame: ClientFrame<'_>) {
        self.send_bytes(frame.encode()).await;
    }

    pub async fn send_bytes(&mut self, bytes: Vec<u8>) {
        let socket = self.socket.as_mut().expect("connected");
        socket.send(Message::Binary(Bytes::from(bytes))).await.expect("sent");
    }

    /// The next frame, judged by the model; `None` once the socket is closed.
    pub async fn next(&mut self) -> Option<Seen> {
        loop {
            let socket = self.socket.as_mut().expect("connected");
            match within("a frame", socket.next()).await {
                Some(Ok(Message::Binary(bytes))) => {
                    let frame = ServerFrame::decode(&bytes, &Limits::FROM_SERVER).expect("a frame");
                    let seen = self.model.take(&frame);
                    match &seen {
                        Seen::Materialized(numbers) => {
                            for number in numbers {
                                self.awaited.remove(number);
                            }
                        }
                        Seen::Outcome { results, .. } => {
                            let accepted = results.iter().filter(|(_, status)| status == "accepted");
                            let unseen =
                                accepted.filter(|(number, _)| !self.model.materialized.contains(number));
                            self.awaited.extend(unseen.map(|(number, _)| *number));
                        }
                        _ => {}
                    }
                    self.seen.push(seen.clone());
                    return Some(seen);
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// The code of the close frame.
    pub async fn close_code(&mut self) -> u16 {
        loop {
            let socket = self.socket.as_mut().expect("connected");
            match within("the close frame", socket.next()).await {
                Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
                Some(Ok(Message::Binary(bytes))) => {
                    let frame = ServerFrame::decode(&bytes, &Limits::FROM_SERVER).expect("a frame");
                    let seen = self.model.take(&frame);
                    self.seen.push(seen);
                }
                Some(Ok(_)) => {}
                other => panic!("expected a close frame, got {other:?}"),
            }
        }
    }

    /// Reads until `done` says so of the model and the last frame.
    pub async fn until(&mut self, what: &str, mut done: impl FnMut(&ModelClient, &Seen) -> bool) -> Seen {
        loop {
            match self.next().await {
                Some(seen) if done(&self.model, &seen) => return seen,
                Some(_) => {}
                None => panic!("the socket closed before {what}; last: {:?}", self.seen.last()),
            }
        }
    }

    pub async fn until_seen(&mut self, what: &str, done: impl Fn(&Seen) -> bool) -> Seen {
        self.until(what, |_, seen| done(seen)).await
    }

    /// Asks and waits until the answer: everything sent before has come.
    pub async fn ping(&mut self) {
        self.pings += 1;
        let id = self.pings;
        self.send(Ping { id }.into()).await;
        self.until_seen("pong", |seen| *seen == Seen::Pong(id)).await;
    }

    /// Subscribes with what the store has.
    pub async fn subscribe(&mut self, name: &str) {
        let token = self.model.interrupted.get(name).map(|(_, token)| token.clone());
        let cursor = self.model.cursor(name).filter(|_| token.is_none()).map(<[u8]>::to_vec);
        self.subscribe_with(name, cursor, token).await;
    }

    pub async fn subscribe_with(&mut self, name: &str, cursor: Option<Vec<u8>>, token: Option<Vec<u8>>) {
        let subscribe = Subscribe {
            reference: 1,
            kind: SubscriptionKind::Scope,
            name: Some(name.to_owned().into()),
            cursor: cursor.map(Bin::from),
            token: token.map(Bin::from),
            mismatch: None,
        };
        self.send(subscribe.into()).await;
    }

    pub async fn unsubscribe(&mut self, name: &str) {
        self.send(Unsubscribe { reference: 1, name: name.to_owned().into() }.into()).await;
    }

    /// Subscribes and waits until it has joined; gives the mode and reason.
    pub async fn join(&mut self, name: &str) -> String {
        self.subscribe(name).await;
        self.joined(name).await
    }

    pub async fn joined(&mut self, name: &str) -> String {
        let mut how = String::new();
        loop {
            let seen = self.next().await.expect("the socket stays open");
            match seen {
                Seen::Subscribed { name: of, mode, reason } if of == name => {
                    how = reason.unwrap_or_else(|| mode.as_str().to_owned());
                }
                Seen::Joined { name: of, .. } if of == name => return how,
                Seen::Error { code, .. } => panic!("subscribe to {name}: {code}"),
                _ => {}
            }
        }
    }

    pub fn rows(&self, name: &str) -> Rows {
        self.model.held.get(name).map(|held| held.rows.clone()).unwrap_or_default()
    }

    /// Keys and text of a list's rows, as the client holds them.
    pub fn list(&self, list: &str) -> Vec<(i64, Option<i32>, Option<String>)> {
        let rows = self.rows(&format!("list:{list}"));
        rows.values()
            .map(|(_, row)| {
                let values = tidegate_protocol::decode_row(row).expect("a row");
                let int = |index: usize| match &values[index] {
                    Value::Int(value) => Some(*value),
                    _ => None,
                };
                let text = |index: usize| match &values[index] {
                    Value::Str(value) => Some(value.to_string()),
                    _ => None,
                };
                (int(0).expect("a key"), int(2).map(|n| n as i32), text(3))
            })
            .collect()
    }

    /// Reads until the client's list is what the table has, at a cut.
    pub async fn until_list(&mut self, world: &World, list: &str) {
        let expected = world.list(list).await;
        while self.list(list) != expected || self.model.staged() {
            assert!(self.next().await.is_some(), "the socket closed before the list was current");
        }
    }

    /// Pushes updates of items' bodies as one batch; gives the numbers.
    pub async fn push(&mut self, world: &World, items: &[(i64, &str)]) -> Vec<u64> {
        let first = self.next_number;
        self.next_number += items.len() as u64;
        self.push_numbers(world, first, items).await
    }

    pub async fn push_numbers(&mut self, world: &World, first: u64, items: &[(i64, &str)]) -> Vec<u64> {
        let sv: i32 = world.scalar("select max(id) from tidegate.registry_generation").await;
        let table: i32 =
            world.scalar("select table_id from tidegate.relation where table_name = 'items'").await;
        let mutations = items.iter().zip(first..).map(|((id, body), number)| Mutation {
            number: MutationNumber(number),
            table: TableId(table),
            op: MutationOp::Upsert,
            key: Value::Int(*id),
            base: Base::None,
            cols: Columns(vec![
                ("list_id".into(), Value::Str("L1".into())),
                ("body".into(), Value::Str((*body).to_owned().into())),
            ]),
        });
        let push = Push {
            reference: first,
            batch: Uuid::from_u128(u128::from(first)),
            atomic: false,
            sv: RegistryGeneration(sv),
            acked: MutationNumber(0),
            mutations: mutations.collect(),
        };
        self.send(push.into()).await;
        (first..first + items.len() as u64).collect()
    }
}
