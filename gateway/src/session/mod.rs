//! One client's session: what it has subscribed to, how far each scope was sent, and what may be sent next.
//!
//! A state machine without I/O, clock and transport. Frames, messages of the hub and answers to its own [`Command`]s go in;
//! frames and commands come out. It reads the hub's windows, which are memory.
//!
//! **Lockstep (V5).** `delivered` is a transaction's end, for all joined scopes together. Live batches move it cut by cut. A session
//! that missed batches catches up in a *round*: all joined scopes through one transaction's end, then one cut.
//!
//! **The gate (V2).** Whatever is not a live batch happens in an *operation*: the session asks to be in step, gets a snapshot
//! that was taken after it asked, waits until each mutation that was pending there has come round, and then may send what was
//! read by then. A live batch brings its own snapshot; if that holds it back, its pages are dropped and read again in a round.

mod awaited;
mod claim;
mod interface;
mod operation;
mod outbox;
mod subscription;
mod telling;
#[cfg(test)]
mod tests;

pub use awaited::{Awaited, Settled};
pub use interface::{Beginning, Command, Input, ReadId, SessionBounds, Surroundings};
pub use outbox::Outbox;
pub use subscription::{Before, ScopePages};

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tidegate_log::{Anchor, ClientKey};
use tidegate_model::{Point, RegistryGeneration, ScopeName, TableId};
use tidegate_protocol::{
    ClientFrame, CloseCode, ErrorCode, ErrorFrame, MutationNumber, MutationStatus, Pong, ScopeNumber, Welcome,
};

use crate::grants::SubjectGrants;
use crate::hub::{Batch, Message};
use crate::push::PushReply;
use crate::registry::{manifest, reachable};
use operation::Gate;
use subscription::{Start, Subscription};

/// The machine.
#[derive(Debug)]
pub struct Session {
    around: Surroundings,
    client: ClientKey,
    grants: Arc<SubjectGrants>,
    /// The newest value that took scopes away, until the hub's messages have come so far.
    revoked: Option<Arc<SubjectGrants>>,
    /// Given since the last cut: told after the pages of the same transaction (V7).
    added: Vec<ScopeName>,
    /// What the operation's snapshot was bound to.
    anchor: Option<Anchor>,
    /// Everything through here was sent and cut, for all joined scopes.
    delivered: Point,
    /// Joined scopes must be brought to a later point in a round: batches went by.
    behind: bool,
    /// Pages of joined scopes were sent after the last cut.
    staged: bool,
    /// The last batch ended inside a source transaction: a scope that joined now would miss the transaction's beginning.
    inside: bool,
    gate: Gate,
    /// Snapshots asked for so far: what begins later is not for the operation of an earlier one (V2).
    asked: u64,
    /// Requested, not fed yet.
    starting: HashMap<ScopeName, Start>,
    /// How often this connection has begun on each scope: every beginning has a number of its own.
    begun: HashMap<ScopeName, u32>,
    scopes: BTreeMap<ScopeNumber, Subscription>,
    awaited: Awaited,
    /// Look-ups of mutations under way. Until they are answered nothing is cut: the cut might be the one that must announce them.
    settling: usize,
    /// The highest number that had run when the session was registered.
    last_before: u64,
    /// Tables told per schema version.
    told: HashMap<RegistryGeneration, BTreeSet<TableId>>,
    /// The last page's schema version, proven told under these grants.
    proven: Option<(RegistryGeneration, Arc<SubjectGrants>)>,
    now: Instant,
    closing: bool,
    last_read: u64,
    /// Bytes that the operation under way may still send: each bounded stretch gets a gate of its own (V2).
    allowance: usize,
    /// Frames to send.
    pub outbox: Outbox,
    /// Commands to carry out.
    pub commands: VecDeque<Command>,
}

impl Session {
    /// Begins; `welcome` is in the outbox.
    pub fn new(around: Surroundings, beginning: Beginning, now: Instant) -> Session {
        let Beginning { session, client, grants, last, awaited, registry } = beginning;
        let mut this = Session {
            around,
            client,
            grants,
            revoked: None,
            added: Vec::new(),
            anchor: None,
            delivered: Point::GenerationStart,
            behind: false,
            staged: false,
            inside: false,
            gate: Gate::Closed,
            asked: 0,
            starting: HashMap::new(),
            begun: HashMap::new(),
            scopes: BTreeMap::new(),
            awaited: Awaited::default(),
            settling: 0,
            last_before: last,
            told: HashMap::new(),
            proven: None,
            now,
            closing: false,
            last_read: 0,
            allowance: 0,
            outbox: Outbox::default(),
            commands: VecDeque::new(),
        };
        let bounds = this.around.bounds.clone();
        let Some(snapshot) = this.around.registries.get(registry) else {
            this.fail("the registry generation in force is not loaded");
            return this;
        };
        let tables = reachable(&snapshot, this.grants.scopes());
        this.outbox.frame(Welcome {
            session,
            version: tidegate_protocol::PROTOCOL_VERSION,
            sv: registry,
            // The tables shown depend on grants, so an equal schema version does not prove an equal manifest.
            schema: Some(manifest(&snapshot, &tables)),
            limits: bounds.limits.clone(),
            heartbeat_ms: bounds.heartbeat.as_millis() as u32,
            assigned: this.grants.scopes().map(|scope| scope.0.as_str().into()).collect(),
            set: outbox::FIRST_SET,
            last: MutationNumber(last),
        });
        this.told.insert(registry, tables);
        if !awaited.is_empty() {
            this.awaited.ask(awaited.iter().copied(), true);
            this.settle(awaited);
        }
        this
    }

    /// Takes one input. Afterwards frames and commands may be waiting.
    pub fn handle(&mut self, input: Input<'_>, now: Instant) {
        self.now = now;
        if self.closing {
            return;
        }
        match input {
            Input::Frame(frame) => self.on_frame(frame),
            Input::Message(message) => self.on_message(message),
            Input::ScopeRead(id, pages) => self.on_scope_read(id, pages),
            Input::RunLost(id) => self.on_run_lost(id),
            Input::RebuildRead(id, position, page) => self.on_rebuild_read(id, position, page),
            Input::Pushed { reference, of, numbers, reply } => self.on_pushed(reference, of, &numbers, reply),
            Input::Settled(settled) => {
                self.settling -= 1;
                for (number, settled) in settled {
                    self.awaited.settled(number, settled);
                }
            }
            Input::Room => {}
        }
        self.advance();
    }

    /// Whether it takes messages of the hub now. When it does not, they stay in the bounded mailbox.
    pub fn wants_messages(&self) -> bool {
        let in_round = self.behind && matches!(self.gate, Gate::Open(_));
        !self.closing && self.has_room() && !in_round
    }

    /// The subscriptions, requested ones included.
    pub fn subscriptions(&self) -> usize {
        self.scopes.len() + self.starting.len()
    }

    /// Sends an `error` that answers no request.
    pub fn error(&mut self, error: ErrorFrame<'_>) {
        let closes = ErrorCode::parse(&error.code).and_then(ErrorCode::closes);
        self.outbox.frame(error);
        if let Some(code) = closes {
            self.close(code);
        }
    }

    fn close(&mut self, code: CloseCode) {
        self.closing = true;
        self.commands.push_back(Command::Close(code));
    }

    fn fail(&mut self, what: &'static str) {
        tracing::error!(what, "session failed");
        self.error(ErrorFrame::new(ErrorCode::Internal, what));
    }

    fn has_room(&self) -> bool {
        self.outbox.bytes() < self.around.bounds.outbox_bytes_max
    }

    /// Whether the operation under way may send another page.
    fn may_send(&self) -> bool {
        self.allowance > 0 && self.has_room()
    }

    /// Looks up what became of these, before anything more is cut (V6).
    fn settle(&mut self, numbers: Vec<u64>) {
        self.settling += 1;
        self.commands.push_back(Command::Settle(numbers));
    }

    fn read_id(&mut self) -> ReadId {
        self.last_read += 1;
        ReadId(self.last_read)
    }

    fn on_frame(&mut self, frame: ClientFrame<'_>) {
        match frame {
            ClientFrame::Hello(_) => {
                self.error(ErrorFrame::new(ErrorCode::UnexpectedFrame, "hello comes once"));
            }
            ClientFrame::Subscribe(subscribe) => self.on_subscribe(subscribe),
            ClientFrame::Unsubscribe(unsubscribe) => {
                self.unsubscribe(&ScopeName(unsubscribe.name.into_owned()));
            }
            ClientFrame::Push(push) => {
                self.awaited.ask(push.mutations.iter().map(|mutation| mutation.number.0), false);
                self.commands.push_back(Command::Push(tidegate_protocol::IntoOwned::into_owned(push)));
            }
            ClientFrame::Void(void) => {
                self.awaited.ask(void.numbers.iter().map(|number| number.0), false);
                self.commands.push_back(Command::Void(void));
            }
            ClientFrame::Auth(auth) => {
                let command = Command::Auth { reference: auth.reference, token: auth.token.0.into_owned() };
                self.commands.push_back(command);
            }
            ClientFrame::Ping(ping) => self.outbox.frame(Pong { id: ping.id }),
        }
    }

    fn on_pushed(&mut self, reference: u64, of: &'static str, numbers: &[u64], reply: PushReply) {
        let mut look_up = Vec::new();
        for result in &reply.results {
            let accepted = result.status == MutationStatus::Accepted;
            if self.awaited.decided(result.number.0, accepted, self.last_before) {
                look_up.push(result.number.0);
            }
        }
        let decided: BTreeSet<u64> = reply.results.iter().map(|result| result.number.0).collect();
        self.awaited.undecided(numbers.iter().copied().filter(|number| !decided.contains(number)));
        if !look_up.is_empty() {
            self.settle(look_up);
        }
        if let Some(outcome) = reply.outcome(reference) {
            self.outbox.frame(outcome);
        }
        if let Some(error) = &reply.error {
            let frame = error.frame(Some(reference), of);
            self.error(frame);
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Registered(grants) => self.take_grants(&grants),
            Message::Revoked(grants) => self.take_removals(&grants),
            Message::Attached(feed) => self.on_attached(feed),
            Message::Batch(batch) => self.on_batch(&batch),
            Message::Sync { snapshot, grants, missed } => self.on_sync(&snapshot, &grants, missed),
            Message::Missed => self.fall_behind(),
            Message::Ended(why) => {
                tracing::debug!(why, "the history was left");
                self.close(CloseCode::GoingAway);
            }
        }
    }

    /// Live pages: the usual case, kept short.
    fn on_batch(&mut self, batch: &Batch) {
        self.inside = !batch.complete;
        if let Some(grants) = batch.grants.get(&self.client.subject) {
            self.take_grants(grants);
        }
        if let Some(numbers) = batch.materialized.get(&self.client) {
            self.awaited.came_round(numbers.iter().copied());
        }
        if self.behind {
            return;
        }
        let through = batch.snapshot.through;
        let joined = |number: &ScopeNumber| self.scopes.get(number).is_some_and(Subscription::is_joined);
        let has_pages = match batch.pages.len() <= self.scopes.len() {
            true => batch.pages.keys().any(joined),
            false => self.scopes.iter().any(|(n, s)| s.is_joined() && batch.pages.contains_key(n)),
        };
        let cuts = batch.complete && (has_pages || self.staged || self.owes_cut(through));
        if !has_pages && !cuts {
            if batch.complete {
                self.delivered = self.delivered.max(through);
                self.tell_added();
            }
            return;
        }
        if self.settling > 0 {
            return self.fall_behind();
        }
        // V2: the first statement that read the log after the session was ready is the batch's own.
        let pending = batch.snapshot.pending.of(&self.client);
        if pending != Some(&[]) {
            self.fall_behind();
            self.hold(pending);
            return;
        }
        let one = match batch.pages.len() {
            1 => batch
                .pages
                .values()
                .next()
                .and_then(|pages| pages.first())
                .filter(|page| page.fin && has_pages),
            _ => None,
        };
        match one {
            // The usual case: nothing is allocated, nothing sorted.
            Some(page) if !self.staged => {
                self.tell_schema(page.sv);
                self.tell_materialized(through);
                self.outbox.scoped(page.scope, page.frame().clone(), true);
            }
            _ => {
                self.send_batch(batch);
                if !batch.complete {
                    self.staged |= has_pages;
                    return;
                }
                self.tell_materialized(through);
                self.outbox.cut();
            }
        }
        self.staged = false;
        self.delivered = through;
        self.tell_added();
    }

    /// The batch's pages of joined scopes, scope by scope.
    fn send_batch(&mut self, batch: &Batch) {
        let joined = |number: &ScopeNumber| self.scopes.get(number).is_some_and(Subscription::is_joined);
        let mut numbers: Vec<ScopeNumber> = match batch.pages.len() <= self.scopes.len() {
            true => batch.pages.keys().copied().filter(joined).collect(),
            false => {
                self.scopes.keys().copied().filter(|n| joined(n) && batch.pages.contains_key(n)).collect()
            }
        };
        numbers.sort_unstable();
        for number in numbers {
            let pages = &batch.pages[&number];
            for page in pages {
                self.send_page(page);
            }
            if !batch.complete
                && let (Some(subscription), Some(page)) = (self.scopes.get_mut(&number), pages.last())
            {
                subscription.at = page.end;
            }
        }
    }
}
