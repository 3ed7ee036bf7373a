//! One client of the verification: subscribes, pushes, disconnects, stalls, and holds the server to every promise.

use super::census::Census;
use super::compare::{Content, differences, held};
use super::mutations::Mutations;
use super::writer::LISTS;
use crate::connection::{Connection, Identity};
use crate::replica::{Applied, Faults, Replica};
use anyhow::Context;
use fastrand::Rng;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tidegate_protocol::{Manifest, RowKey, ServerFrame, Value, Welcome, decode_row};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a client waits between two tries to connect, at most.
const BACKOFF_MAX: Duration = Duration::from_millis(800);
/// Once everything is quiet it holds what the tables say after this long, counted anew while rows still come: clients of many kills
/// have much to read.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(90);
/// But not for ever: rows that never end are a finding too.
const SETTLE_MAX: Duration = Duration::from_secs(600);
/// Silence after which a connection is given up.
const SILENCE_MAX: Duration = Duration::from_secs(40);

/// What the run is doing.
#[derive(Clone)]
pub enum Phase {
    /// Writers write, programs are killed.
    Load,
    /// Nobody begins a write; those under way come to their end.
    Pause,
    /// Each scope must come to hold this.
    Settle(Arc<HashMap<String, Content>>),
}

/// What one client found.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Findings {
    /// Protocol faults.
    pub faults: Faults,
    /// Rows that differ from the tables at the end.
    pub differences: u64,
    /// Times that half of a transaction was visible.
    pub torn: u64,
    /// Times that the balances and lists were checked.
    pub invariants_checked: u64,
    /// Times that an own write was announced as materialized but was not there.
    pub own_write_missing: u64,
    /// Pages verified by digest.
    pub verified_pages: u64,
    /// Effects applied.
    pub effects: u64,
    /// Times it connected.
    pub connections: u64,
    /// Times it resumed a scope by cursor.
    pub resumes: u64,
    /// Times it rebuilt one.
    pub rebuilds: u64,
    /// Its mutations.
    pub mutations: super::mutations::Tally,
}

impl Findings {
    /// Adds another client's.
    pub fn merge(&mut self, other: &Findings) {
        self.faults.merge(&other.faults);
        self.differences += other.differences;
        self.torn += other.torn;
        self.invariants_checked += other.invariants_checked;
        self.own_write_missing += other.own_write_missing;
        self.verified_pages += other.verified_pages;
        self.effects += other.effects;
        self.connections += other.connections;
        self.resumes += other.resumes;
        self.rebuilds += other.rebuilds;
        self.mutations.merge(&other.mutations);
    }
}

/// A client.
pub struct Client {
    address: String,
    identity: Identity,
    scopes: Vec<String>,
    slow: bool,
    rng: Rng,
    replica: Replica,
    mutations: Mutations,
    manifest: Option<Manifest<'static>>,
    findings: Findings,
    /// Announced as materialized: must be visible at the next step.
    due: Vec<u64>,
    /// Counts the clients whose writes have all come to their end; none means that this one has been counted.
    settled: Option<Arc<AtomicUsize>>,
    /// When to stop waiting, once everything is quiet.
    give_up: Option<(Instant, Instant)>,
    census: Arc<Census>,
}

/// Why a session ended.
enum End {
    Reconnect,
    Settled,
}

impl Client {
    /// A client with a token of its own. Every fifth subscribes to all lists and checks what must hold across them; every
    /// tenth is slow.
    pub fn new(
        index: usize,
        address: String,
        token: String,
        (settled, census): (Arc<AtomicUsize>, Arc<Census>),
        seed: u64,
    ) -> Client {
        let mut rng = Rng::with_seed(seed);
        let mut scopes: Vec<String> = (0..LISTS).map(|list| format!("list:{list}")).collect();
        if !index.is_multiple_of(5) {
            rng.shuffle(&mut scopes);
            scopes.truncate(rng.usize(1..4));
        }
        scopes.push(if index.is_multiple_of(2) { "hot" } else { "tally" }.to_owned());
        Client {
            address,
            identity: Identity::fresh(Some(token)),
            scopes,
            slow: index % 10 == 3,
            replica: Replica::new(true),
            mutations: Mutations::new(index as i64, rng.u64(..)),
            rng,
            manifest: None,
            findings: Findings::default(),
            due: Vec::new(),
            settled: Some(settled),
            give_up: None,
            census,
        }
    }

    /// Lives until it holds what the tables say, or has waited too long for it.
    ///
    /// # Errors
    /// When the server sends something that is not of the protocol, or refuses a session for good.
    pub async fn run(mut self, mut phase: watch::Receiver<Phase>) -> anyhow::Result<Findings> {
        let mut failures = 0u32;
        loop {
            match self.session(&mut phase, &mut failures).await {
                Ok(End::Settled) => break,
                Ok(End::Reconnect) => {}
                // The server is down or was killed: that is the test. What it must not do is counted in `faults`.
                Err(_) => failures += 1,
            }
            if self.has_waited_long(&phase.borrow()) {
                break;
            }
            self.replica.disconnected();
            self.due.clear();
            let limit = BACKOFF_MAX.min(Duration::from_millis(20 << failures.min(6)));
            tokio::time::sleep(limit.mul_f64(self.rng.f64())).await;
        }
        if let Phase::Settle(expected) = &*phase.borrow() {
            self.findings.differences = self.count_differences(expected)?;
        }
        self.findings.faults.merge(&self.replica.faults);
        self.findings.verified_pages = self.replica.verified_pages;
        self.findings.effects = self.replica.effects;
        self.findings.mutations = self.mutations.tally();
        Ok(self.findings)
    }

    async fn session(
        &mut self,
        phase: &mut watch::Receiver<Phase>,
        failures: &mut u32,
    ) -> anyhow::Result<End> {
        self.identity.awaited = self.mutations.awaited();
        self.identity.acked = self.mutations.acked();
        let opened =
            tokio::time::timeout(Duration::from_secs(15), Connection::open(&self.address, &self.identity));
        let (mut connection, welcome) = opened.await.context("connect in time")??;
        *failures = 0;
        self.findings.connections += 1;
        self.welcomed(welcome);
        for scope in self.scopes.clone() {
            let cursor = self.replica.scopes.get(&scope).and_then(|scope| scope.cursor.clone());
            connection.subscribe(Some(&scope), cursor.as_deref()).await?;
        }
        for push in self.mutations.resend() {
            connection.send(&push.into()).await?;
        }
        let mut act = tokio::time::interval(Duration::from_millis(self.rng.u64(150..350)));
        let mut last_frame = Instant::now();
        let mut questions = self.census.questions();
        loop {
            tokio::select! {
                frame = connection.next() => {
                    let Some(frame) = frame? else { return Ok(End::Reconnect) };
                    last_frame = Instant::now();
                    if let ServerFrame::Bye(_) = frame { return Ok(End::Reconnect) }
                    self.receive(frame);
                    self.census.count_frame();
                }
                Ok(()) = questions.changed(), if !self.slow => self.census.answer(&self.replica),
                _ = act.tick() => {
                    if last_frame.elapsed() > SILENCE_MAX {
                        return Ok(End::Reconnect);
                    }
                    let now = phase.borrow().clone();
                    if self.has_waited_long(&now) {
                        return Ok(End::Settled);
                    }
                    for push in self.mutations.resend_due() {
                        connection.send(&push.into()).await?;
                    }
                    match now {
                        Phase::Load => {
                            if self.rng.u32(0..60) == 0 {
                                return Ok(End::Reconnect);
                            }
                            if self.slow && self.rng.u32(0..10) == 0 {
                                tokio::time::sleep(Duration::from_millis(self.rng.u64(500..2500))).await;
                            }
                            if let Some(push) = self.next_push() {
                                connection.send(&push.into()).await?;
                            }
                        }
                        Phase::Pause => {
                            connection.ping().await?;
                            if self.mutations.is_settled() && let Some(settled) = self.settled.take() {
                                settled.fetch_add(1, Relaxed);
                            }
                        }
                        Phase::Settle(expected) => {
                            connection.ping().await?;
                            if self.mutations.is_settled()
                                && self.looks_complete(&expected)
                                && self.count_differences(&expected)? == 0
                            {
                                return Ok(End::Settled);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Whether everything has been quiet for so long that what is missing will not come: the differences are then findings.
    fn has_waited_long(&mut self, phase: &Phase) -> bool {
        if !matches!(phase, Phase::Settle(_)) {
            return false;
        }
        let now = Instant::now();
        let (until, last) = self.give_up.get_or_insert((now + SETTLE_TIMEOUT, now + SETTLE_MAX));
        (*until).min(*last) < now
    }

    fn welcomed(&mut self, welcome: Welcome<'static>) {
        self.identity.new = false;
        if let Some(manifest) = welcome.schema {
            self.manifest = Some(manifest);
        }
        self.mutations.connected(welcome.sv);
    }

    fn receive(&mut self, frame: ServerFrame<'static>) {
        match &frame {
            ServerFrame::Subscribed(subscribed) => match subscribed.reason {
                None => self.findings.resumes += 1,
                Some(_) => self.findings.rebuilds += 1,
            },
            ServerFrame::Outcome(outcome) => self.mutations.outcome(outcome),
            ServerFrame::ErrorFrame(error) => self.mutations.refused(error),
            ServerFrame::Materialized(materialized) => {
                for number in &materialized.numbers {
                    if self.mutations.materialized(number.0) {
                        self.due.push(number.0);
                    } else {
                        self.findings.faults.wrong_materialized += 1;
                    }
                }
            }
            ServerFrame::Schema(schema) => self.manifest = Some(schema.schema.clone()),
            ServerFrame::Page(_) | ServerFrame::Rebuild(_) => {
                if let Some((until, _)) = &mut self.give_up {
                    *until = Instant::now() + SETTLE_TIMEOUT;
                }
            }
            _ => {}
        }
        match self.replica.apply(frame, &mut |_, _| {}) {
            Applied::Nothing => {}
            Applied::Joined(_) | Applied::Step => self.check_step(),
        }
    }

    /// What must hold whenever something became visible (V5, V6).
    fn check_step(&mut self) {
        for number in std::mem::take(&mut self.due) {
            if let Some((list, id)) = self.mutations.inserted(number) {
                let scope = self.replica.scopes.get(&format!("list:{list}")).filter(|scope| scope.joined);
                let missing = scope
                    .is_some_and(|scope| !scope.rows.held.keys().any(|(_, key)| *key == RowKey::Int(id)));
                self.findings.own_write_missing += u64::from(missing);
            }
        }
        // Each check reads every row: a sample of the steps is enough.
        if self.scopes.len() as i64 <= LISTS || self.rng.u32(0..20) != 0 {
            return;
        }
        let Some(item) = self.table("loadtest.item") else { return };
        let mut sum = 0;
        let mut ids = HashSet::new();
        for list in 0..LISTS {
            let Some(scope) = self.replica.scopes.get(&format!("list:{list}")).filter(|scope| scope.joined)
            else {
                return;
            };
            for ((table, key), held) in &scope.rows.held {
                if *table == item {
                    self.findings.torn += u64::from(!ids.insert(key.clone()));
                    sum += held.row.as_deref().map_or(0, balance);
                }
            }
        }
        self.findings.invariants_checked += 1;
        self.findings.torn += u64::from(sum != 0);
    }

    fn table(&self, name: &str) -> Option<tidegate_protocol::TableId> {
        self.manifest.as_ref()?.tables.iter().find(|table| table.name == name).map(|table| table.id)
    }

    fn next_push(&mut self) -> Option<tidegate_protocol::Push<'static>> {
        let table = self.table("loadtest.item")?;
        // Any held item will do; which one comes first in the map is arbitrary.
        let known = self.replica.scopes.values().filter(|scope| scope.joined).find_map(|scope| {
            let skip = self.rng.usize(0..8);
            let mut items = scope.rows.held.iter().filter(|((id, _), _)| *id == table);
            items.nth(skip).map(|((_, key), held)| (key.clone(), held.version))
        });
        self.mutations.next_push(table, known)
    }

    /// Whether it is worth comparing every row: a client that does so all the time while it still receives is so slow that it never
    /// ends.
    fn looks_complete(&self, expected: &HashMap<String, Content>) -> bool {
        self.scopes.iter().all(|name| {
            let scope = self.replica.scopes.get(name).filter(|scope| scope.joined);
            scope.zip(expected.get(name)).is_some_and(|(scope, rows)| scope.rows.held.len() == rows.len())
        })
    }

    fn count_differences(&self, expected: &HashMap<String, Content>) -> anyhow::Result<u64> {
        let Some(manifest) = &self.manifest else { return Ok(1) };
        let mut total = 0;
        for name in &self.scopes {
            let Some(scope) = self.replica.scopes.get(name) else { return Ok(1) };
            let expected = expected.get(name).context("a scope without expectation")?;
            total += differences(expected, &held(scope, manifest)?);
        }
        Ok(total)
    }
}

fn balance(row: &[u8]) -> i64 {
    match decode_row(row).ok().as_deref().and_then(|values| values.get(3)) {
        Some(Value::Int(balance)) => *balance,
        _ => 0,
    }
}
