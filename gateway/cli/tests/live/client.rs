//! A client installation over a real socket: every frame that it gets is judged by the model client and kept.

use super::model_client::{ModelClient, Rows, Seen};
use super::world::{SECRET, Serving, World, within};
use futures_util::{SinkExt, StreamExt};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};
use tidegate_gateway::auth::mint_token;
use tidegate_model::{ClientId, RegistryGeneration};
use tidegate_protocol::{
    Base, Bin, ClientFrame, Columns, Hello, IntoOwned, Limits, Mutation, MutationNumber, MutationOp,
    MutationResult, Ping, Push, SUBPROTOCOL, Secret, ServerFrame, Subscribe, SubscriptionKind, TableId,
    Unsubscribe, Value, Void,
};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use uuid::Uuid;

type Ws = WebSocketStream<MaybeTlsStream<TcpStream>>;

pub fn token(user: &str) -> String {
    mint_token(SECRET, user, Duration::from_secs(3600), &serde_json::Map::new(), SystemTime::now())
        .expect("a token")
}

/// A mutation of an item, without its number.
#[derive(Clone, Debug)]
pub struct Write {
    pub op: MutationOp,
    pub id: i64,
    pub base: Base,
    pub cols: Vec<(&'static str, Value<'static>)>,
}

pub fn text(value: impl Into<String>) -> Value<'static> {
    Value::Str(value.into().into())
}

impl Write {
    pub fn new(op: MutationOp, id: i64, cols: Vec<(&'static str, Value<'static>)>) -> Write {
        Write { op, id, base: Base::None, cols }
    }

    /// Into list L1.
    pub fn insert(id: i64, body: &str) -> Write {
        Write::new(MutationOp::Insert, id, vec![("list_id", text("L1")), ("body", text(body))])
    }

    /// Into list L1, or what is there.
    pub fn upsert(id: i64, body: &str) -> Write {
        Write { op: MutationOp::Upsert, ..Write::insert(id, body) }
    }

    pub fn update(id: i64, body: &str) -> Write {
        Write::new(MutationOp::Update, id, vec![("body", text(body))])
    }

    pub fn delete(id: i64) -> Write {
        Write::new(MutationOp::Delete, id, Vec::new())
    }

    pub fn on(self, base: Base) -> Write {
        Write { base, ..self }
    }

    pub fn after(self, number: u64) -> Write {
        self.on(Base::After(MutationNumber(number)))
    }
}

/// A client installation: its store outlives its sockets.
pub struct Client {
    pub user: Option<String>,
    pub id: ClientId,
    pub new: bool,
    pub model: ModelClient,
    pub seen: Vec<Seen>,
    /// Every frame of the socket that it has now, or had last.
    pub frames: Vec<Bytes>,
    /// Every result of any socket, in order of arrival.
    pub results: Vec<MutationResult<'static>>,
    pub next_number: u64,
    pub awaited: BTreeSet<u64>,
    pub acked: u64,
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
            frames: Vec::new(),
            results: Vec::new(),
            next_number: 1,
            awaited: BTreeSet::new(),
            acked: 0,
            socket: None,
            pings: 0,
        }
    }

    /// The same installation on one more socket, with nothing in its store.
    pub fn twin(&self) -> Client {
        let mut twin = Client::new(self.user.as_deref());
        (twin.id, twin.new, twin.next_number) = (self.id, self.new, self.next_number);
        twin.awaited = self.awaited.clone();
        twin
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
        self.frames.clear();
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
            acked: MutationNumber(self.acked),
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

    fn take(&mut self, bytes: Bytes) -> Seen {
        let frame = ServerFrame::decode(&bytes, &Limits::FROM_SERVER).expect("a frame");
        let seen = self.model.take(&frame);
        if let ServerFrame::Outcome(outcome) = &frame {
            self.results.extend(outcome.results.iter().cloned().map(IntoOwned::into_owned));
        }
        match &seen {
            Seen::Materialized(numbers) => {
                for number in numbers {
                    self.awaited.remove(number);
                }
            }
            Seen::Outcome { results, .. } => {
                let accepted = results.iter().filter(|(_, status)| status == "accepted");
                let unseen = accepted.filter(|(number, _)| !self.model.materialized.contains(number));
                self.awaited.extend(unseen.map(|(number, _)| *number));
            }
            _ => {}
        }
        self.frames.push(bytes);
        self.seen.push(seen.clone());
        seen
    }

    /// The next frame, judged by the model; `None` once the socket is closed.
    pub async fn next(&mut self) -> Option<Seen> {
        loop {
            let socket = self.socket.as_mut().expect("connected");
            match within("a frame", socket.next()).await {
                Some(Ok(Message::Binary(bytes))) => return Some(self.take(bytes)),
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
                Some(Ok(Message::Binary(bytes))) => drop(self.take(bytes)),
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
        self.model.handled();
    }

    /// Reads until the next frame that says that something cannot be done; gives its code.
    pub async fn error(&mut self) -> String {
        match self.until_seen("an error", |seen| matches!(seen, Seen::Error { .. })).await {
            Seen::Error { code, .. } => code,
            _ => unreachable!("only an error ends the wait"),
        }
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
        self.model.leave(name);
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

    /// What a `subscribe` with this cursor is answered: the code of a refusal, or the mode and reason.
    pub async fn answer(&mut self, name: &str, cursor: Vec<u8>) -> String {
        self.subscribe_with(name, Some(cursor), None).await;
        self.answered(name).await
    }

    pub async fn answered(&mut self, name: &str) -> String {
        loop {
            match self.next().await.expect("the socket stays open") {
                Seen::Subscribed { name: of, mode, reason } if of == name => {
                    return reason.unwrap_or_else(|| mode.as_str().to_owned());
                }
                Seen::Error { code, .. } => return code,
                _ => {}
            }
        }
    }

    /// Whether a text was in any byte of the socket that it has now, or had last.
    pub fn heard(&self, text: &str) -> bool {
        self.frames.iter().any(|frame| frame.windows(text.len()).any(|part| part == text.as_bytes()))
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

    /// Reads until this mutation has come round on this socket.
    pub async fn until_round(&mut self, number: u64) {
        if !self.model.materialized.contains(&number) {
            self.until("it to come round", |model, _| model.materialized.contains(&number)).await;
        }
        // And until the cut that it belongs to.
        if matches!(self.seen.last(), Some(Seen::Materialized(_))) {
            self.next().await.expect("its cut");
        }
    }

    /// Reads until the outcome of this request; gives its results.
    pub async fn outcome(&mut self, reference: u64) -> Vec<MutationResult<'static>> {
        let known = self.results.len();
        self.until_seen(
            "the outcome",
            |seen| matches!(seen, Seen::Outcome { reference: of, .. } if *of == reference),
        )
        .await;
        self.results[known..].to_vec()
    }

    /// Pushes upserts of items' bodies as one batch; gives the numbers.
    pub async fn push(&mut self, world: &World, items: &[(i64, &str)]) -> Vec<u64> {
        let writes: Vec<Write> = items.iter().map(|(id, body)| Write::upsert(*id, body)).collect();
        let first = self.next_number;
        self.write(world, &writes).await;
        (first..self.next_number).collect()
    }

    pub async fn push_numbers(&mut self, world: &World, first: u64, items: &[(i64, &str)]) {
        let writes: Vec<Write> = items.iter().map(|(id, body)| Write::upsert(*id, body)).collect();
        self.resend(world, first, &writes).await;
    }

    /// Pushes under the next numbers; gives the first, which is the request's number too.
    pub async fn write(&mut self, world: &World, writes: &[Write]) -> u64 {
        let first = self.next_number;
        self.next_number += writes.len() as u64;
        self.resend(world, first, writes).await;
        first
    }

    /// Pushes under given numbers. The same numbers make the same batch.
    pub async fn resend(&mut self, world: &World, first: u64, writes: &[Write]) {
        let push = Client::batch(world, first, writes).await;
        self.send(push.into()).await;
    }

    pub async fn batch(world: &World, first: u64, writes: &[Write]) -> Push<'static> {
        let sv: i32 = world.scalar("select max(id) from tidegate.registry_generation").await;
        let table = world.table("items").await;
        let mutations = writes.iter().zip(first..).map(|(write, number)| Mutation {
            number: MutationNumber(number),
            table: TableId(table),
            op: write.op,
            key: Value::Int(write.id),
            base: write.base,
            cols: Columns(write.cols.iter().map(|(name, value)| ((*name).into(), value.clone())).collect()),
        });
        Push {
            reference: first,
            batch: Uuid::from_u128(u128::from(first)),
            atomic: false,
            sv: RegistryGeneration(sv),
            acked: MutationNumber(0),
            mutations: mutations.collect(),
        }
    }

    pub async fn void(&mut self, reference: u64, numbers: &[u64]) {
        let numbers = numbers.iter().copied().map(MutationNumber).collect();
        self.send(Void { reference, numbers }.into()).await;
    }
}
