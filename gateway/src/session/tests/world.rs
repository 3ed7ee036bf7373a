//! A whole gateway without I/O: a log in memory, the real hub core, the real session, a model client, and a script that says what
//! happens next. Every check of the model client and of this file runs after every step.

mod client;
mod database;

use super::model_client::{Arrived, ModelClient, Rows, Seen};
use crate::grants::{StaticGrants, SubjectGrants};
use crate::hub::{
    Core, Feed, FeedKey, HubBounds, KeyRing, Mailbox, MemberId, Message, PageBounds, Press, Request, Stretch,
};
use crate::push::PushReply;
use crate::rebuild::{After, RebuildFrom, RebuildPage, Run, RunPosition};
use crate::registry::Registries;
use crate::session::{
    Before, Beginning, Command, Input, ReadId, ScopePages, Session, SessionBounds, Settled, Surroundings,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_log::*;
use tidegate_model::*;
use tidegate_protocol::{
    Base, Bin, ClientFrame, Columns, Limits, Mutation, MutationNumber, MutationOp, MutationResult,
    MutationStatus, Push, RebuildPageBuilder, ServerFrame, SessionLimits, Subscribe, SubscriptionKind,
    Unsubscribe, Value,
};
use uuid::Uuid;

pub const SCOPES: [&str; 3] = ["s:a", "s:b", "s:c"];
const TABLE: TableId = TableId(7);
const RELATION: RelationId = RelationId(3);
const SV: RegistryGeneration = RegistryGeneration(1);

fn scope_id(name: &str) -> ScopeId {
    ScopeId(100 + SCOPES.iter().position(|scope| *scope == name).expect("a known scope") as i64)
}

fn name_of(id: ScopeId) -> &'static str {
    SCOPES[(id.0 - 100) as usize]
}

/// One source transaction, materialized.
struct Transaction {
    commit: Lsn,
    /// By scope, then position.
    effects: Vec<Effect>,
    grants: Vec<GrantChange>,
    materialized: Vec<u64>,
    /// Rows of every scope after it.
    rows: BTreeMap<&'static str, Rows>,
}

/// A row change of a transaction: the scopes that the row is in afterwards, as bits; none: it is gone.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub key: u8,
    pub scopes: u8,
}

/// Sizes that decide where things are cut.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub page_effects: usize,
    pub read_transactions: u32,
    pub read_effects: u32,
    pub outbox_bytes: usize,
    pub mailbox_batches: usize,
    pub window_bytes: usize,
    pub rebuild_rows: usize,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            page_effects: 100,
            read_transactions: 100,
            read_effects: 100,
            outbox_bytes: 1 << 20,
            mailbox_batches: 16,
            window_bytes: 1 << 20,
            rebuild_rows: 100,
        }
    }
}

struct InFlight {
    batch: EffectBatch,
}

enum Answer {
    Scope(ReadId, Arc<crate::hub::Feed>, Point, Lsn, u64),
    Rebuild(ReadId, Arc<crate::hub::Feed>, RebuildFrom),
    Settle(Vec<u64>),
    Push(u64, Vec<u64>),
}

/// A member of whom only its place at the hub matters.
type Elder = (Arc<Mailbox>, BTreeMap<FeedKey, Arc<Feed>>);

pub struct World {
    sizes: Sizes,
    now: Instant,
    log: Vec<Transaction>,
    current: BTreeMap<u8, (u8, RowVersion, Vec<u8>)>,
    states: BTreeMap<&'static str, Vec<(EffectPosition, ScopeState)>>,
    floors: BTreeMap<&'static str, (EffectPosition, ScopeState)>,
    granted: BTreeMap<ScopeName, Option<Lsn>>,
    versions: u128,
    /// Accepted mutations: pending, or materialized at a commit.
    accepted: BTreeMap<u64, Option<Lsn>>,
    pub press: Arc<Press>,
    registries: Arc<Registries>,
    pub core: Core,
    position: TailPosition,
    reading: Option<InFlight>,
    rebuilt: HashMap<(u32, Point, After), Arc<RebuildPage>>,
    runs: HashMap<u32, Arc<Run>>,
    /// Another member, and the feeds that it has.
    elder: Option<Elder>,
    member: u64,
    mailbox: Arc<Mailbox>,
    pub session: Session,
    answers: Vec<Answer>,
    crowded: bool,
    // The client.
    pub client: ModelClient,
    client_id: ClientId,
    next_number: u64,
    /// Pushed, outcome unknown.
    unanswered: BTreeSet<u64>,
    /// Accepted and not announced, as the client knows.
    awaiting: BTreeSet<u64>,
    wanted: BTreeSet<&'static str>,
    /// Where the client's effects of a scope stand, by its own cursors.
    points: BTreeMap<String, Point>,
    /// A transaction at which every joined scope stood at the last cut.
    cut_at: usize,
    pub seen: Vec<Seen>,
}

fn press(effects_max: usize) -> Press {
    Press {
        lineage: Lineage {
            generation: GenerationId(1),
            stream: StreamGeneration(Uuid::from_u128(1)),
            state: StateId(1),
            server: ServerIdentity { system: 7, timeline: 1 },
        },
        keys: KeyRing::new(CursorKeys::new([(1, [9; 32])]).expect("a key")),
        bounds: PageBounds { effects_max, bytes_max: 1 << 20 },
        base: Lsn(0),
    }
}

fn registries() -> Arc<Registries> {
    let json = format!(
        r#"{{"generation":1,"relations":[{{"relation_id":{RELATION},"table_id":{TABLE},"kind":"synced","schema":"public","name":"items",
            "oid":1,"key":{{"column":"id","type":"int"}},"columns":[{{"name":"id","attnum":1,"type":"int4","wire":"int","type_oid":23,
            "nullable":false}}],"write":"enabled","unrestricted":false,"since":1,"scopes":[{{"rule_id":1,"name":"s:{{id}}",
            "template":[{{"text":"s:"}},{{"column":"id"}}],"where":null}}]}}],"grants":[]}}"#
    );
    let registries = Registries::default();
    registries.insert(Snapshot::from_json(&json).expect("a snapshot"));
    Arc::new(registries)
}

impl World {
    pub fn new(sizes: Sizes) -> World {
        let press = Arc::new(press(sizes.page_effects));
        let registries = registries();
        let registry = registries.get(SV).expect("loaded");
        let bounds = HubBounds { window_bytes_max: sizes.window_bytes, idle_feeds_max: 2 };
        let rules = StaticGrants::new(&registry, &HashMap::new());
        let core = Core::new(press.clone(), bounds, rules, TailPosition::default());
        let client_id = ClientId(Uuid::from_u128(5));
        let session = Session::new(
            surroundings(&press, &registries, sizes),
            Beginning {
                session: Uuid::nil(),
                client: ClientKey { subject: Subject("anna".into()), client: client_id },
                grants: Arc::new(SubjectGrants::default()),
                last: 0,
                awaited: Vec::new(),
                registry: SV,
            },
            Instant::now(),
        );
        let mut world = World {
            sizes,
            now: Instant::now(),
            log: Vec::new(),
            current: BTreeMap::new(),
            states: SCOPES.into_iter().map(|scope| (scope, Vec::new())).collect(),
            floors: BTreeMap::new(),
            granted: SCOPES.into_iter().map(|scope| (ScopeName(scope.into()), None)).collect(),
            versions: 0,
            accepted: BTreeMap::new(),
            press,
            registries,
            core,
            position: TailPosition::default(),
            reading: None,
            rebuilt: HashMap::new(),
            runs: HashMap::new(),
            elder: None,
            member: 0,
            mailbox: Arc::new(Mailbox::new(sizes.mailbox_batches)),
            session,
            answers: Vec::new(),
            crowded: false,
            client: ModelClient::default(),
            client_id,
            next_number: 1,
            unanswered: BTreeSet::new(),
            awaiting: BTreeSet::new(),
            wanted: BTreeSet::new(),
            points: BTreeMap::new(),
            cut_at: 0,
            seen: Vec::new(),
        };
        world.connect();
        world
    }

    fn key(&self) -> ClientKey {
        ClientKey { subject: Subject("anna".into()), client: self.client_id }
    }

    fn tip(&self) -> Option<Lsn> {
        self.log.last().map(|transaction| transaction.commit)
    }

    // ---- steps ----

    /// The tail's statement runs.
    pub fn begin_read(&mut self) {
        if self.reading.is_none() {
            let interest = self.core.begin_read();
            self.reading = Some(InFlight { batch: self.read_tail(&interest) });
        }
    }

    /// Its result arrives.
    pub fn end_read(&mut self) {
        if let Some(InFlight { batch }) = self.reading.take() {
            self.position = batch.through;
            self.core.take(batch, false);
        }
    }

    pub fn read(&mut self) {
        self.end_read();
        self.begin_read();
        self.end_read();
    }

    fn handle(&mut self, input: Input<'_>) {
        self.session.handle(input, self.now);
        self.crowded |= self.session.outbox.bytes() >= self.sizes.outbox_bytes;
        while let Some(command) = self.session.commands.pop_front() {
            let member = MemberId(self.member);
            match command {
                Command::Attach(feed) => drop(self.core.request(Request::Attach { member, feed })),
                Command::Detach(feed) => drop(self.core.request(Request::Detach { member, feed })),
                Command::Sync { urgent } => drop(self.core.request(Request::Sync { member, urgent })),
                Command::ReadScope { id, feed, after, through, replay_count_max } => {
                    self.answers.push(Answer::Scope(id, feed, after, through, replay_count_max));
                }
                Command::ReadRebuild(id, feed, from) => self.answers.push(Answer::Rebuild(id, feed, from)),
                Command::Settle(numbers) => self.answers.push(Answer::Settle(numbers)),
                Command::Push(push) => {
                    let numbers = push.mutations.iter().map(|mutation| mutation.number.0).collect();
                    self.answers.push(Answer::Push(push.reference, numbers));
                }
                Command::Void(_) | Command::Auth { .. } => {}
                Command::Close(code) => panic!("the session closed: {code}"),
            }
        }
    }

    /// The session takes one message of the hub, if it wants one.
    pub fn message(&mut self) -> bool {
        let urgent = self.mailbox.pop_urgent();
        self.take_message(urgent)
    }

    /// As [`message`](Self::message), but before the hub has come to its urgent word.
    pub fn message_in_its_turn(&mut self) -> bool {
        self.take_message(None)
    }

    fn take_message(&mut self, urgent: Option<Message>) -> bool {
        let message = urgent.or_else(|| {
            let wants = self.session.wants_messages();
            wants.then(|| self.mailbox.pop()).flatten()
        });
        let some = message.is_some();
        if let Some(message) = message {
            self.handle(Input::Message(message));
        }
        some
    }

    /// Answers of the database that the session waits for.
    pub fn waits_for(&self) -> usize {
        self.answers.len()
    }

    /// The database answers one of the session's commands.
    pub fn answer(&mut self, which: usize) -> bool {
        if self.answers.is_empty() {
            return false;
        }
        match self.answers.remove(which % self.answers.len()) {
            Answer::Scope(id, feed, after, through, count) => {
                let pages = self.scope_pages(&feed, after, through, count);
                self.handle(Input::ScopeRead(id, pages));
            }
            Answer::Rebuild(id, feed, from) => {
                let (position, page) = self.rebuild_page(&feed, from);
                self.handle(Input::RebuildRead(id, position, page));
            }
            Answer::Settle(numbers) => {
                let settled = numbers.into_iter().map(|number| {
                    let fate = match self.accepted.get(&number) {
                        Some(Some(commit)) => Settled::Materialized(*commit),
                        Some(None) => Settled::Pending,
                        None => Settled::NotAccepted,
                    };
                    (number, fate)
                });
                let settled = settled.collect();
                self.handle(Input::Settled(settled));
            }
            Answer::Push(reference, numbers) => {
                let results = numbers.iter().map(|number| {
                    self.accepted.entry(*number).or_insert(None);
                    MutationResult {
                        number: MutationNumber(*number),
                        status: MutationStatus::Accepted,
                        version: None,
                        code: None,
                        message: None,
                        row: None,
                    }
                });
                let reply = PushReply { results: results.collect(), ..PushReply::default() };
                self.handle(Input::Pushed { reference, of: "push", numbers, reply });
            }
        }
        true
    }

    /// The cache forgets its runs: the next rebuild begins a new one.
    pub fn forget_runs(&mut self) {
        self.runs.clear();
    }
}

trait LaterOf {
    fn max_by_position(self, other: Self) -> Self;
}

impl LaterOf for (EffectPosition, ScopeState) {
    fn max_by_position(self, other: Self) -> Self {
        if other.0 > self.0 { other } else { self }
    }
}

fn name_static(name: &str) -> &'static str {
    SCOPES.into_iter().find(|scope| *scope == name).expect("a known scope")
}

fn wire_key(wire: &[u8]) -> RowKey {
    (0..=255).map(RowKey::Int).find(|key| key.wire() == wire).expect("a small key")
}

fn surroundings(press: &Arc<Press>, registries: &Arc<Registries>, sizes: Sizes) -> Surroundings {
    Surroundings {
        press: press.clone(),
        registries: registries.clone(),
        bounds: Arc::new(SessionBounds {
            limits: SessionLimits {
                frame_bytes_max: 1 << 20,
                batch_mutations_max: 100,
                scopes_max: 10,
                mutations_per_second: 100,
                unmaterialized_max: 100,
            },
            heartbeat: Duration::from_secs(25),
            outbox_bytes_max: sizes.outbox_bytes,
            ahead_max: Duration::from_secs(5),
            retry: Duration::from_millis(100),
            replay_min: 20,
        }),
    }
}
