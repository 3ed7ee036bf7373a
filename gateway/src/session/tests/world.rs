//! A whole gateway without I/O: a log in memory, the real hub core, the real session, a model client, and a script that says what
//! happens next. Every check of the model client and of this file runs after every step.

use super::model_client::{Arrived, ModelClient, Rows, Seen};
use crate::grants::SubjectGrants;
use crate::hub::{Core, HubBounds, KeyRing, Mailbox, MemberId, Message, PageBounds, Press, Request, Stretch};
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
        let core = Core::new(press.clone(), bounds, registry, TailPosition::default());
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

    // ---- the database ----

    /// Commits and materializes one transaction.
    pub fn commit(&mut self, changes: &[Change], grants: &[(usize, bool)], materialize: bool) {
        let commit = Lsn(self.tip().map_or(0x1000, |lsn| lsn.0 + 0x10));
        let mut effects = Vec::new();
        for (event, change) in changes.iter().enumerate() {
            self.versions += 1;
            let version = RowVersion(Uuid::from_u128(self.versions));
            let key = RowKey::Int(i64::from(change.key));
            let row = vec![0x92, change.key & 0x7f, (self.versions & 0x7f) as u8];
            let before = self.current.get(&change.key).map_or(0, |(scopes, ..)| *scopes);
            for (bit, scope) in SCOPES.into_iter().enumerate() {
                let (was, is) = (before >> bit & 1 == 1, change.scopes >> bit & 1 == 1);
                if !was && !is {
                    continue;
                }
                let mut state = self.states[scope].last().map_or(ScopeState::EMPTY, |(_, state)| *state);
                if was {
                    let (_, version, row) = &self.current[&change.key];
                    state.digest = state.digest.minus(row_digest(TABLE, &key, *version, row));
                    state.row_count -= 1;
                }
                if is {
                    state.digest = state.digest.plus(row_digest(TABLE, &key, version, &row));
                    state.row_count += 1;
                }
                let position =
                    EffectPosition { commit_lsn: commit, event_ordinal: event as u64, effect_ordinal: 0 };
                self.states.get_mut(scope).expect("known").push((position, state));
                effects.push(Effect {
                    scope: scope_id(scope),
                    position,
                    table: TABLE,
                    key: key.wire().into(),
                    version,
                    row: is.then(|| Bytes::from(row.clone())),
                    schema_version: SV,
                    after: state,
                });
            }
            if change.scopes == 0 {
                self.current.remove(&change.key);
            } else {
                self.current.insert(change.key, (change.scopes, version, row));
            }
        }
        effects.sort_by_key(|effect| (effect.scope, effect.position));
        let mut changed = Vec::new();
        for (scope, granted) in grants {
            let name = ScopeName(SCOPES[*scope].into());
            if self.granted.contains_key(&name) != *granted {
                let subject = Subject("anna".into());
                changed.push(GrantChange {
                    commit_lsn: commit,
                    granted: *granted,
                    subject,
                    scope: name.clone(),
                });
                if *granted {
                    self.granted.insert(name, Some(commit));
                } else {
                    self.granted.remove(&name);
                }
            }
        }
        let mut materialized = Vec::new();
        if materialize {
            for (number, at) in self.accepted.iter_mut().filter(|(_, at)| at.is_none()) {
                *at = Some(commit);
                materialized.push(*number);
            }
        }
        let rows = SCOPES.into_iter().enumerate().map(|(bit, scope)| (scope, self.rows_now(bit))).collect();
        self.log.push(Transaction { commit, effects, grants: changed, materialized, rows });
    }

    /// A mutation of the client is accepted through another gateway.
    pub fn accept(&mut self, number: u64) {
        self.accepted.insert(number, None);
    }

    /// A transaction that brings exactly these mutations round.
    pub fn materialize(&mut self, numbers: &[u64]) {
        self.commit(&[], &[], false);
        let last = self.log.last_mut().expect("just committed");
        for number in numbers {
            self.accepted.insert(*number, Some(last.commit));
            last.materialized.push(*number);
        }
    }

    /// Reads the tail once and lets the session and the client take what there is.
    pub fn turn(&mut self) {
        self.read();
        while self.message() || self.answer(0) {}
        self.drain(usize::MAX);
    }

    /// Turns until nothing moves any more; gives what the client saw.
    pub fn turns(&mut self) -> Vec<Seen> {
        self.seen.clear();
        for _ in 0..20 {
            self.turn();
        }
        std::mem::take(&mut self.seen)
    }

    fn rows_now(&self, bit: usize) -> Rows {
        let inside = self.current.iter().filter(|(_, (scopes, ..))| scopes >> bit & 1 == 1);
        inside
            .map(|(key, (_, version, row))| {
                ((TABLE.0, RowKey::Int(i64::from(*key))), (*version, row.clone()))
            })
            .collect()
    }

    /// Retention: removes a scope's older effects, as far as every tail has read them.
    pub fn prune(&mut self, scope: usize) {
        let scope = SCOPES[scope];
        let read: Vec<_> = self.states[scope]
            .iter()
            .filter(|(p, _)| Some(p.commit_lsn) <= self.position.end)
            .copied()
            .collect();
        if let Some(floor) = read.get(read.len() / 2) {
            let at = self.floors.entry(scope).or_insert(*floor);
            *at = (*at).max_by_position(*floor);
        }
    }

    fn facts(&self, scope: &'static str) -> Option<ScopeFacts> {
        let (tail, state) = *self.states[scope].last()?;
        Some(ScopeFacts {
            scope: scope_id(scope),
            state,
            tail: Some(tail),
            floor: self.floors.get(scope).copied(),
        })
    }

    fn anchor(&self) -> Anchor {
        Anchor { lineage: self.press.lineage, tip: self.tip(), registry: SV }
    }

    /// As the adapter reads: whole transactions within bounds, a large one in parts.
    fn read_tail(&self, interest: &Interest) -> EffectBatch {
        let from = self.position;
        let rest = || self.log.iter().filter(|t| Some(t.commit) > from.end);
        let mut batch = EffectBatch {
            anchor: self.anchor(),
            after: from,
            through: from,
            at_tip: true,
            effects: Vec::new(),
            continues: None,
            grants: Vec::new(),
            materialized: Vec::new(),
            pending: Pending::new(
                self.accepted.iter().filter(|(_, at)| at.is_none()).map(|(n, _)| (self.key(), *n)),
                false,
            ),
            names: Vec::new(),
            told: None,
        };
        let max = self.sizes.read_effects as usize;
        let large = rest().next().filter(|first| first.effects.len() > max);
        if let Some(large) = large {
            let after = from.inside.map(|i| (i.scope, i.event_ordinal, i.effect_ordinal));
            let place = |e: &Effect| (e.scope, e.position.event_ordinal, e.position.effect_ordinal);
            let mut left = large.effects.iter().filter(|e| Some(place(e)) > after);
            batch.effects = left.by_ref().take(max).cloned().collect();
            batch.continues = left.next().map(|next| next.scope);
            batch.through = match (batch.continues, batch.effects.last()) {
                (Some(_), Some(last)) => TailPosition {
                    end: from.end,
                    inside: Some(Inside {
                        commit_lsn: large.commit,
                        scope: last.scope,
                        event_ordinal: last.position.event_ordinal,
                        effect_ordinal: last.position.effect_ordinal,
                    }),
                },
                _ => TailPosition::end_of(large.commit),
            };
            batch.at_tip = false;
            if batch.continues.is_none() {
                self.add_rest(&mut batch, large);
            }
        } else {
            for transaction in rest().take(self.sizes.read_transactions as usize) {
                if batch.effects.len() + transaction.effects.len() > max {
                    break;
                }
                batch.effects.extend(transaction.effects.iter().cloned());
                batch.through = TailPosition::end_of(transaction.commit);
                self.add_rest(&mut batch, transaction);
            }
            batch.effects.sort_by_key(|effect| (effect.scope, effect.position));
            batch.at_tip = batch.through.end == self.tip();
            let hashed =
                |hash: &[u8; 32]| SCOPES.into_iter().find(|s| ScopeName((*s).into()).hash() == *hash);
            let facts = interest.scopes.iter().filter_map(|hash| Some((*hash, self.facts(hashed(hash)?)?)));
            let held = self.granted.iter().map(|(scope, since)| HeldGrant {
                subject: Subject("anna".into()),
                scope: scope.clone(),
                since: *since,
            });
            batch.told = Some(Told {
                scopes: interest.scopes.clone(),
                facts: facts.collect(),
                subjects: interest.subjects.clone(),
                held: held.collect(),
            });
        }
        if interest.names {
            let ids: BTreeSet<ScopeId> = batch.effects.iter().map(|effect| effect.scope).collect();
            batch.names = ids.into_iter().map(|id| (id, ScopeName(name_of(id).into()).hash())).collect();
        }
        batch
    }

    fn add_rest(&self, batch: &mut EffectBatch, transaction: &Transaction) {
        batch.grants.extend(transaction.grants.iter().cloned());
        batch.materialized.extend(transaction.materialized.iter().map(|number| Materialized {
            commit_lsn: transaction.commit,
            client: self.key(),
            number: *number,
        }));
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
        let message = self.mailbox.pop_urgent().or_else(|| {
            let wants = self.session.wants_messages();
            wants.then(|| self.mailbox.pop()).flatten()
        });
        let some = message.is_some();
        if let Some(message) = message {
            self.handle(Input::Message(message));
        }
        some
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

    fn scope_pages(&self, feed: &crate::hub::Feed, after: Point, through: Lsn, count: u64) -> ScopePages {
        let scope = SCOPES.into_iter().find(|scope| *scope == feed.name.0).expect("known");
        let from = EffectPosition::after(after);
        let of_scope = || {
            self.log.iter().flat_map(|t| &t.effects).filter(|e| {
                e.scope == scope_id(scope)
                    && self.floors.get(scope).is_none_or(|(floor, _)| e.position > *floor)
            })
        };
        let wanted = || of_scope().filter(|e| e.position >= from && e.position.commit_lsn <= through);
        let effects: Vec<Effect> = wanted().take(self.sizes.page_effects).cloned().collect();
        let next = wanted().nth(effects.len());
        let last = effects.last();
        let more =
            last.zip(next).is_some_and(|(last, next)| last.position.commit_lsn == next.position.commit_lsn);
        let reached = match (next, last) {
            (Some(_), Some(last)) if more => last.position.point(),
            (Some(_), Some(last)) => Point::TransactionEnd { commit_lsn: last.position.commit_lsn },
            _ => Point::TransactionEnd { commit_lsn: through },
        };
        let floor = self.floors.get(scope);
        let recorded = of_scope().take_while(|e| e.position < from).last();
        let before = match (floor, recorded) {
            (Some((floor, _)), _) if floor.point() > after => Before::BelowFloor,
            (_, Some(effect)) => Before::State(effect.after),
            (Some((_, state)), None) => Before::State(*state),
            (None, None) => Before::Unrecorded,
        };
        let stretch = Stretch {
            number: feed.number,
            name: &feed.name,
            effects: &effects,
            through: Some(reached),
            more,
        };
        ScopePages {
            pages: self.press.pages(stretch, false),
            reached,
            before,
            row_count: self.facts(scope).map_or(0, |facts| facts.state.row_count),
            replay_count: (wanted().count() as u64).min(count),
        }
    }

    fn rebuild_page(
        &mut self,
        feed: &crate::hub::Feed,
        from: RebuildFrom,
    ) -> (RunPosition, Arc<RebuildPage>) {
        let bit = SCOPES.iter().position(|scope| *scope == feed.name.0).expect("known");
        let now = TailPosition { end: self.tip(), inside: None }.point();
        let (run, after) = match from {
            RebuildFrom::Start => {
                let run = self.runs.entry(feed.number.0).or_insert_with(|| Run::beginning_at(now)).clone();
                (run, None)
            }
            RebuildFrom::Next(position) => (position.run, position.after),
            RebuildFrom::Token(token) => (
                Run::beginning_at(token.earliest),
                token.after.map(|(relation, key)| (RelationId(relation), key)),
            ),
        };
        let cached = (feed.number.0, run.earliest, after.clone());
        let page = match self.rebuilt.get(&cached) {
            Some(page) => page.clone(),
            None => {
                let rows = self.rows_now(bit);
                let begin = |key: &RowKey| after.as_ref().is_none_or(|(_, last)| key.index_bytes() > *last);
                let mut rest = rows.iter().filter(|((_, key), _)| begin(key));
                let mut builder = RebuildPageBuilder::new(feed.number, SV);
                let mut next = after.clone();
                for ((_, key), (version, row)) in rest.by_ref().take(self.sizes.rebuild_rows) {
                    builder.row(TABLE, &key.wire(), *version, row);
                    next = Some((RELATION, key.index_bytes()));
                }
                let done = rest.next().is_none();
                let token = RebuildToken {
                    generation: self.press.lineage.stream,
                    server: self.press.lineage.server,
                    earliest: run.earliest,
                    after: next.clone().map(|(relation, key)| (relation.0, key)),
                    schema_version: SV.0,
                };
                let token = self.press.keys.seal_rebuild(&feed.name, &token);
                let frame = builder.finish(&token, done);
                let page = Arc::new(RebuildPage { frame, sv: SV, after: next, done });
                self.rebuilt.insert(cached, page.clone());
                page
            }
        };
        (RunPosition { run, after: page.after.clone() }, page)
    }

    /// The cache forgets its runs: the next rebuild begins a new one.
    pub fn forget_runs(&mut self) {
        self.runs.clear();
    }

    // ---- the client ----

    fn connect(&mut self) {
        if self.member > 0 {
            self.core.request(Request::Leave { member: MemberId(self.member) });
        }
        self.member += 1;
        self.client.disconnect();
        self.answers.clear();
        self.crowded = false;
        self.points.clear();
        self.mailbox = Arc::new(Mailbox::new(self.sizes.mailbox_batches));
        let (member, client, mailbox) = (MemberId(self.member), self.key(), self.mailbox.clone());
        self.core.request(Request::Register { member, client, mailbox });
        let grants = loop {
            match self.mailbox.pop() {
                Some(Message::Registered(grants)) => break grants,
                Some(_) => panic!("registered comes first"),
                None => self.read(),
            }
        };
        self.session = Session::new(
            surroundings(&self.press, &self.registries, self.sizes),
            Beginning {
                session: Uuid::nil(),
                client: self.key(),
                grants,
                last: self.accepted.keys().next_back().copied().unwrap_or(0),
                awaited: self.awaiting.iter().copied().collect(),
                registry: SV,
            },
            self.now,
        );
        self.drain(1);
        let assigned = self.client.assigned.clone();
        self.client.held.retain(|name, _| assigned.contains(name));
        self.client.interrupted.retain(|name, _| assigned.contains(name));
        self.wanted.retain(|name| assigned.contains(*name));
        // What was sent and never answered is sent again.
        for number in self.unanswered.clone() {
            self.push_number(number);
        }
        self.handle(Input::Room);
        for scope in self.wanted.clone() {
            if assigned.contains(scope) {
                self.subscribe_with_what_it_has(scope);
            }
        }
    }

    pub fn reconnect(&mut self) {
        self.end_read();
        self.connect();
    }

    /// The client is away while something happens, and comes back.
    pub fn session_away(&mut self, meanwhile: impl FnOnce(&mut World)) {
        self.core.request(Request::Leave { member: MemberId(self.member) });
        self.mailbox = Arc::new(Mailbox::new(1));
        meanwhile(self);
        self.reconnect();
    }

    fn subscribe_with_what_it_has(&mut self, scope: &'static str) {
        let token = self.client.interrupted.get(scope).map(|(_, token)| Bin::from(token.clone()));
        let cursor = self.client.cursor(scope).map(|cursor| Bin::from(cursor.to_vec()));
        self.subscribe_frame(scope, cursor, token);
    }

    pub fn subscribe(&mut self, scope: usize) {
        let scope = SCOPES[scope];
        if self.client.assigned.contains(scope) && self.wanted.insert(scope) {
            self.subscribe_with_what_it_has(scope);
        }
    }

    fn subscribe_frame(&mut self, scope: &str, cursor: Option<Bin<'static>>, token: Option<Bin<'static>>) {
        let cursor = if token.is_some() { None } else { cursor };
        self.handle(Input::Frame(ClientFrame::Subscribe(Subscribe {
            reference: 10 + SCOPES.iter().position(|known| *known == scope).expect("known") as u64,
            kind: SubscriptionKind::Scope,
            name: Some(scope.to_owned().into()),
            cursor,
            token,
            mismatch: None,
        })));
    }

    pub fn unsubscribe(&mut self, scope: usize) {
        let scope = SCOPES[scope];
        if self.wanted.remove(scope) {
            // Frames under way are to be ignored: take them first, so that the model need not.
            self.drain(usize::MAX);
            self.client.unsubscribe(scope);
            self.points.remove(scope);
            self.handle(Input::Frame(ClientFrame::Unsubscribe(Unsubscribe {
                reference: 2,
                name: scope.into(),
            })));
        }
    }

    pub fn push(&mut self) {
        let number = self.next_number;
        self.next_number += 1;
        self.unanswered.insert(number);
        self.push_number(number);
    }

    fn push_number(&mut self, number: u64) {
        self.handle(Input::Frame(ClientFrame::Push(Push {
            reference: number,
            batch: Uuid::nil(),
            atomic: false,
            sv: SV,
            acked: MutationNumber(0),
            mutations: vec![Mutation {
                number: MutationNumber(number),
                table: TABLE,
                op: MutationOp::Update,
                key: Value::Int(1),
                base: Base::None,
                cols: Columns::default(),
            }],
        })));
    }

    /// The client reads so many frames.
    pub fn drain(&mut self, frames: usize) -> bool {
        let mut some = false;
        for _ in 0..frames {
            let Some(bytes) = self.session.outbox.pop() else { break };
            some = true;
            let frame = ServerFrame::decode(&bytes, &Limits::FROM_SERVER).expect("a frame");
            if let ServerFrame::Rebuild(rebuild) = &frame {
                self.note_rebuild(rebuild);
            }
            let cuts = matches!(&frame, ServerFrame::Page(page) if page.fin);
            let seen = self.client.take(&frame);
            self.check(&seen, cuts);
            self.seen.push(seen);
        }
        if self.crowded && self.session.outbox.bytes() < self.sizes.outbox_bytes {
            self.crowded = false;
            self.handle(Input::Room);
        }
        some
    }

    fn note_rebuild(&mut self, rebuild: &tidegate_protocol::Rebuild<'_>) {
        for scope in SCOPES {
            if let Ok(token) = self.press.keys.open_rebuild(&ScopeName(scope.into()), &rebuild.token) {
                self.points.insert(scope.into(), token.earliest);
            }
        }
    }

    fn point(&self, scope: &str, cursor: &[u8]) -> Point {
        self.press.keys.open_cursor(&ScopeName(scope.into()), cursor).expect("a cursor of this scope").point
    }

    fn check(&mut self, seen: &Seen, fin: bool) {
        match seen {
            Seen::Subscribed { name, mode, .. } => {
                if *mode == tidegate_protocol::SubscriptionMode::Resume {
                    let cursor = self.client.cursor(name).expect("a resume of what it holds").to_vec();
                    self.points.insert(name.clone(), self.point(name, &cursor));
                }
            }
            Seen::Page { name, effects, cursor, .. } => {
                let end = self.point(name, cursor);
                let begin = self.points.insert(name.clone(), end).expect("effects follow some point");
                let expected: Vec<Arrived> = self
                    .log
                    .iter()
                    .flat_map(|t| &t.effects)
                    .filter(|e| e.scope == scope_id(name_static(name)))
                    .filter(|e| e.position.point() > begin && e.position.point() <= end)
                    .map(|e| Arrived {
                        tx: e.position.commit_lsn.0,
                        table: e.table,
                        key: wire_key(&e.key),
                        version: e.version,
                        row: e.row.as_ref().map(|row| row.to_vec()),
                    })
                    .collect();
                assert_eq!(*effects, expected, "P6: nothing twice, nothing skipped, in {name}");
                assert!(self.client.assigned.contains(name), "V7: only under a grant");
                if fin && self.client.is_joined(name) {
                    self.check_cut();
                }
            }
            Seen::Joined { name, cursor } => {
                let at = self.point(name, cursor);
                let index = self
                    .log
                    .iter()
                    .take_while(|t| Point::TransactionEnd { commit_lsn: t.commit } <= at)
                    .count();
                assert!(index >= self.cut_at, "V5: the delivered position never goes back");
                self.cut_at = index;
                assert!(
                    self.joined_stand_at(index),
                    "V5: all joined scopes stand at one position when {name} joins"
                );
            }
            Seen::Cut => self.check_cut(),
            Seen::Materialized(numbers) => {
                for number in numbers {
                    assert!(
                        self.accepted.get(number).is_some_and(Option::is_some),
                        "V6: {number} has come round"
                    );
                    self.awaiting.remove(number);
                    self.unanswered.remove(number);
                }
            }
            Seen::Outcome { results, .. } => {
                for (number, _) in results {
                    // The client may have been told already that it came round.
                    if self.unanswered.remove(number) && !self.client.materialized.contains(number) {
                        self.awaiting.insert(*number);
                    }
                }
            }
            Seen::Scopes { removed, .. } => {
                for name in removed {
                    self.wanted.remove(name.as_str());
                    self.points.remove(name);
                }
            }
            Seen::Error { code, reference: Some(reference) } if code == "scope_forbidden" => {
                // Asked for while the news of its removal was under way.
                self.wanted.remove(SCOPES[*reference as usize - 10]);
            }
            Seen::Error { code, .. } => panic!("an error: {code}"),
            _ => {}
        }
    }

    /// V5: after a cut there is one transaction at which every joined scope stands.
    fn check_cut(&mut self) {
        let at = (self.cut_at..=self.log.len()).find(|index| self.joined_stand_at(*index));
        self.cut_at = at.expect("V5: joined scopes move in lockstep");
    }

    fn joined_stand_at(&self, index: usize) -> bool {
        let empty = Rows::new();
        self.client.joined().all(|name| {
            let rows = match index.checked_sub(1) {
                Some(last) => &self.log[last].rows[name_static(name)],
                None => &empty,
            };
            self.client.held.get(name).is_some_and(|held| held.rows == *rows)
        })
    }

    /// Lets everything come to rest; then the client must hold exactly what the database has.
    pub fn settle(&mut self) {
        // Whatever the client has written comes round.
        while self.answer(0) {}
        self.commit(&[], &[], true);
        for _ in 0..2000 {
            self.now += Duration::from_millis(100);
            self.read();
            let mut some = false;
            while self.message() {
                some = true;
            }
            some |= self.drain(usize::MAX);
            some |= self.answer(0);
            let rest = self.position.end == self.tip() && self.position.inside.is_none();
            if !some && rest && self.at_rest() {
                return;
            }
        }
        panic!(
            "no rest: joined {:?} of {:?}, awaiting {:?}",
            self.client.joined().collect::<Vec<_>>(),
            self.wanted,
            self.awaiting
        );
    }

    fn at_rest(&self) -> bool {
        let last = self.log.len().checked_sub(1);
        self.wanted.iter().all(|scope| {
            self.client.is_joined(scope)
                && last.is_none_or(|last| self.client.held[*scope].rows == self.log[last].rows[*scope])
        }) && self.awaiting.is_empty()
            && self.unanswered.is_empty()
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
