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
mod outbox;
mod subscription;
#[cfg(test)]
mod tests;

pub use awaited::{Awaited, Settled};
pub use outbox::Outbox;
pub use subscription::{Before, ScopePages};

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_log::ClientKey;
use tidegate_model::{Lsn, Point, RegistryGeneration, ScopeName, TableId};
use tidegate_protocol::{
    CapturePending, ClientFrame, CloseCode, ErrorCode, ErrorFrame, Materialized, MutationNumber,
    MutationStatus, Pong, Push, Schema, ScopeNumber, Scopes, ServerFrame, SessionLimits, Void, Welcome,
};
use uuid::Uuid;

use crate::grants::SubjectGrants;
use crate::hub::{Batch, Feed, FeedKey, Message, Page, Press, Snapshot};
use crate::push::PushReply;
use crate::rebuild::{RebuildFrom, RebuildPage, RunPosition};
use crate::registry::{Registries, manifest, reachable};
use subscription::{Newest, Start, Subscription};

/// Bounds of one session.
#[derive(Clone, Debug)]
pub struct SessionBounds {
    /// What `welcome` tells.
    pub limits: SessionLimits,
    /// `welcome.heartbeat_ms`.
    pub heartbeat: Duration,
    /// Bytes queued for the client beyond which nothing more is read for it.
    pub outbox_bytes_max: usize,
    /// How long a cursor may be ahead of the tail.
    pub ahead_max: Duration,
    /// Told in `capture_pending`.
    pub retry: Duration,
    /// A resume that would replay more effects than the scope has rows, and more than this, becomes a rebuild.
    pub replay_min: u64,
}

/// What sessions of one lineage share.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Makes cursors.
    pub press: Arc<Press>,
    /// Registry generations that pages use: each is here before a page that needs it is.
    pub registries: Arc<Registries>,
    /// Bounds.
    pub bounds: Arc<SessionBounds>,
}

/// What goes in.
#[derive(Debug)]
pub enum Input<'a> {
    /// A frame from the client, after its `hello`.
    Frame(ClientFrame<'a>),
    /// From the hub.
    Message(Message),
    /// Answer to [`Command::ReadScope`].
    ScopeRead(ReadId, ScopePages),
    /// Answer to [`Command::ReadRebuild`].
    RebuildRead(ReadId, RunPosition, Arc<RebuildPage>),
    /// Answer to [`Command::Push`] or [`Command::Void`]: the numbers asked about, and the reply.
    Pushed {
        /// Number of the client's request.
        reference: u64,
        /// `push` or `void`.
        of: &'static str,
        /// All numbers of the request.
        numbers: Vec<u64>,
        /// The reply.
        reply: PushReply,
    },
    /// Answer to [`Command::Settle`].
    Settled(Vec<(u64, Settled)>),
    /// The outbox has been drained below its bound.
    Room,
}

/// One read. An answer whose read nobody waits for any more is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId(u64);

/// What comes out besides frames.
#[derive(Debug)]
pub enum Command {
    /// Ask the hub to feed a scope.
    Attach(FeedKey),
    /// Ask it to stop.
    Detach(FeedKey),
    /// Ask it to bring the session in step.
    Sync {
        /// At once.
        urgent: bool,
    },
    /// Read a scope from the log.
    ReadScope {
        /// To be given back with the answer.
        id: ReadId,
        /// The scope.
        feed: Arc<Feed>,
        /// After here (exclusive).
        after: Point,
        /// Through this transaction.
        through: Lsn,
        /// How far to count what would be replayed; 0 not at all.
        replay_count_max: u64,
    },
    /// Read the next page of a rebuild.
    ReadRebuild(ReadId, Arc<Feed>, RebuildFrom),
    /// Look up what became of these mutations.
    Settle(Vec<u64>),
    /// Run a push. Pushes and voids run one after the other.
    Push(Push<'static>),
    /// Settle numbers.
    Void(Void),
    /// Judge a fresh token.
    Auth {
        /// Number of the request.
        reference: u64,
        /// The token.
        token: String,
    },
    /// Say goodbye and close.
    Close(CloseCode),
}

#[derive(Debug)]
enum Gate {
    /// No operation is under way.
    Closed,
    /// The snapshot has been asked for.
    Asked,
    /// These mutations were pending in it and have not come round. `None`: not known.
    Held(Option<BTreeSet<u64>>),
    /// What was read through here may be sent.
    Open(Point),
}

/// The machine.
#[derive(Debug)]
pub struct Session {
    around: Surroundings,
    client: ClientKey,
    grants: Arc<SubjectGrants>,
    /// The newest value that took scopes away, until the hub's messages have come so far.
    revoked: Option<Arc<SubjectGrants>>,
    /// Version of the set of assigned scopes.
    set: u64,
    /// Given since the last cut: told after the pages of the same transaction (V7).
    added: Vec<ScopeName>,
    /// Everything through here was sent and cut, for all joined scopes.
    delivered: Point,
    /// Joined scopes must be brought to a later point in a round: batches went by.
    behind: bool,
    /// Pages of joined scopes were sent after the last cut.
    staged: bool,
    /// The last batch ended inside a source transaction: a scope that joined now would miss the transaction's beginning.
    inside: bool,
    gate: Gate,
    /// Requested, not fed yet.
    starting: HashMap<ScopeName, Start>,
    /// How often this connection has begun on each scope: every beginning has a number of its own.
    begun: HashMap<ScopeName, u32>,
    scopes: BTreeMap<ScopeNumber, Subscription>,
    awaited: Awaited,
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

/// How a session begins: after the `hello` was judged and the hub has registered it.
#[derive(Debug)]
pub struct Beginning {
    /// Its id.
    pub session: Uuid,
    /// Whose.
    pub client: ClientKey,
    /// As the hub follows them.
    pub grants: Arc<SubjectGrants>,
    /// `welcome.last`.
    pub last: u64,
    /// `hello.await`.
    pub awaited: Vec<u64>,
    /// Registry generation in force; read before.
    pub registry: RegistryGeneration,
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
            set: 1,
            added: Vec::new(),
            delivered: Point::GenerationStart,
            behind: false,
            staged: false,
            inside: false,
            gate: Gate::Closed,
            starting: HashMap::new(),
            begun: HashMap::new(),
            scopes: BTreeMap::new(),
            awaited: Awaited::default(),
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
            set: this.set,
            last: MutationNumber(last),
        });
        this.told.insert(registry, tables);
        if !awaited.is_empty() {
            this.awaited.ask(awaited.iter().copied(), true);
            this.commands.push_back(Command::Settle(awaited));
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
            Input::RebuildRead(id, position, page) => self.on_rebuild_read(id, position, &page),
            Input::Pushed { reference, of, numbers, reply } => self.on_pushed(reference, of, &numbers, reply),
            Input::Settled(settled) => {
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
            self.commands.push_back(Command::Settle(look_up));
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
            Message::Missed => {
                self.fall_behind();
                if matches!(self.gate, Gate::Open(_)) {
                    self.gate = Gate::Closed;
                }
            }
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
        let cuts = batch.complete && (has_pages || self.staged || self.awaited.is_due(through));
        if !has_pages && !cuts {
            if batch.complete {
                self.delivered = self.delivered.max(through);
                self.tell_added();
            }
            return;
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

    fn on_sync(&mut self, snapshot: &Snapshot, grants: &Arc<SubjectGrants>, missed: bool) {
        self.inside = false;
        self.take_grants(grants);
        if missed {
            self.fall_behind();
            let unseen = self.awaited.unseen();
            if !unseen.is_empty() {
                self.commands.push_back(Command::Settle(unseen));
            }
        }
        let pending = snapshot.pending.of(&self.client);
        let held = match &mut self.gate {
            Gate::Asked => match pending {
                Some([]) => None,
                pending => Some(pending.map(|numbers| numbers.iter().copied().collect())),
            },
            // From now on the set only shrinks.
            Gate::Held(held) => match (held.take(), pending) {
                (Some(mut set), Some(pending)) => {
                    set.retain(|number| pending.contains(number));
                    (!set.is_empty()).then_some(Some(set))
                }
                (Some(set), None) => Some(Some(set)),
                (None, Some([])) => None,
                (None, pending) => Some(pending.map(|numbers| numbers.iter().copied().collect())),
            },
            Gate::Closed | Gate::Open(_) => return,
        };
        let asked = matches!(self.gate, Gate::Asked);
        match held {
            None => {
                self.gate = Gate::Open(snapshot.through);
                self.allowance = self.around.bounds.outbox_bytes_max;
                for subscription in self.scopes.values_mut().filter(|s| s.rows == Newest::Unknown) {
                    subscription.rows = Newest::AtMost(snapshot.tip);
                }
            }
            Some(set) => {
                if asked {
                    self.tell_pending(
                        set.as_ref().map(|set| set.iter().copied().collect::<Vec<_>>()).as_deref(),
                    );
                }
                self.gate = Gate::Held(set);
                self.commands.push_back(Command::Sync { urgent: false });
            }
        }
    }

    /// V2: nothing goes out before these have come round.
    fn hold(&mut self, pending: Option<&[u64]>) {
        self.tell_pending(pending);
        // A snapshot that was asked for will be answered; no second request.
        let asked = matches!(self.gate, Gate::Asked | Gate::Held(_));
        self.gate = Gate::Held(pending.map(|numbers| numbers.iter().copied().collect()));
        if !asked {
            self.commands.push_back(Command::Sync { urgent: false });
        }
    }

    fn tell_pending(&mut self, numbers: Option<&[u64]>) {
        const TOLD_MAX: usize = 100;
        let numbers =
            numbers.unwrap_or_default().iter().take(TOLD_MAX).copied().map(MutationNumber).collect();
        let retry_ms = self.around.bounds.retry.as_millis() as u32;
        self.outbox.frame(CapturePending { numbers, retry_ms });
    }

    fn fall_behind(&mut self) {
        if !self.behind {
            self.behind = true;
            for subscription in self.scopes.values_mut().filter(|subscription| subscription.is_joined()) {
                subscription.at = subscription.at.max(self.delivered);
            }
        }
    }

    /// Goes on as far as is possible now.
    fn advance(&mut self) {
        if self.closing {
            return;
        }
        if matches!(self.gate, Gate::Open(_)) {
            self.operate();
        }
        if matches!(self.gate, Gate::Closed) && !self.closing && self.has_room() {
            let urgent = self.behind
                || self.awaited.is_due(self.delivered)
                || self.scopes.values().any(|subscription| subscription.wants_operation());
            let ahead = self.awaited.any_due() || self.scopes.values().any(Subscription::is_ahead);
            if urgent || ahead {
                self.gate = Gate::Asked;
                self.commands.push_back(Command::Sync { urgent });
            }
        }
    }

    /// An operation goes on: the gate is open through some transaction's end.
    fn operate(&mut self) {
        let Gate::Open(through) = self.gate else { return };
        if self.behind && !self.round(through) {
            return;
        }
        // In step: whatever concerned the session through here has come before.
        if !self.behind {
            self.delivered = self.delivered.max(through);
        }
        let numbers: Vec<ScopeNumber> = self
            .scopes
            .iter()
            .filter(|(_, subscription)| !subscription.is_joined())
            .map(|(n, _)| *n)
            .collect();
        // Pages of a transaction whose end has not been read are staged at the client: nothing joins before its cut.
        if !self.staged && !self.inside {
            for number in numbers {
                self.go_on(number);
            }
            if self.awaited.is_due(self.delivered) {
                self.tell_materialized(self.delivered);
                self.outbox.cut();
            }
            self.tell_added();
        }
        if matches!(self.gate, Gate::Open(_))
            && !self.scopes.values().any(|subscription| subscription.busy.is_some())
        {
            self.gate = Gate::Closed;
        }
    }

    /// Brings all joined scopes to `through`, then cuts. False while that takes another read, or room.
    fn round(&mut self, through: Point) -> bool {
        let numbers: Vec<ScopeNumber> = self
            .scopes
            .iter()
            .filter(|(_, subscription)| subscription.is_joined())
            .map(|(n, _)| *n)
            .collect();
        for number in numbers {
            if !self.bring(number, through) {
                return false;
            }
        }
        self.behind = false;
        self.delivered = self.delivered.max(through);
        if self.staged || self.awaited.is_due(self.delivered) {
            self.tell_materialized(self.delivered);
            self.outbox.cut();
            self.staged = false;
        }
        self.tell_added();
        true
    }

    fn send_page(&mut self, page: &Page) {
        self.tell_schema(page.sv);
        self.allowance = self.allowance.saturating_sub(page.frame().len());
        self.outbox.scoped(page.scope, page.plain_frame(), false);
    }

    /// A schema version comes before its first use; again when grants have brought tables that it did not show.
    fn tell_schema(&mut self, sv: RegistryGeneration) {
        if self
            .proven
            .as_ref()
            .is_some_and(|(proven, grants)| *proven == sv && Arc::ptr_eq(grants, &self.grants))
        {
            return;
        }
        let Some(snapshot) = self.around.registries.get(sv) else {
            self.fail("a page needs a registry generation that is not loaded");
            return;
        };
        let tables = reachable(&snapshot, self.grants.scopes());
        let told = self.told.entry(sv).or_default();
        if !tables.is_subset(told) || tables.is_empty() && told.is_empty() {
            told.extend(tables);
            let schema = manifest(&snapshot, told);
            self.outbox.frame(Schema { sv, schema });
        }
        self.proven = Some((sv, self.grants.clone()));
    }

    fn tell_materialized(&mut self, at: Point) {
        let numbers = self.awaited.announce(at);
        if !numbers.is_empty() {
            let numbers = numbers.into_iter().map(MutationNumber).collect();
            self.outbox.frame(Materialized { numbers });
        }
    }

    /// V7: removals take effect at once, before any page; additions are told after the pages of their transaction.
    fn take_grants(&mut self, grants: &Arc<SubjectGrants>) {
        if Arc::ptr_eq(grants, &self.grants) {
            return;
        }
        let grants = match &self.revoked {
            // What was taken ahead of its turn stays taken while older messages arrive.
            Some(revoked) if revoked.is_newer_than(grants) => Arc::new(grants.kept_in(revoked)),
            _ => {
                self.revoked = None;
                grants.clone()
            }
        };
        let diff = self.grants.diff(&grants);
        self.grants = grants;
        self.remove(&diff.removed);
        self.added.extend(diff.added);
    }

    /// Removals that come ahead of their turn. Additions keep theirs.
    fn take_removals(&mut self, grants: &Arc<SubjectGrants>) {
        let removed = self.grants.diff(grants).removed;
        if !removed.is_empty() {
            self.revoked = Some(grants.clone());
            self.grants = Arc::new(self.grants.kept_in(grants));
            self.remove(&removed);
        }
    }

    fn remove(&mut self, removed: &[ScopeName]) {
        for scope in removed {
            self.added.retain(|added| added != scope);
            self.unsubscribe(scope);
        }
        if !removed.is_empty() {
            self.set += 1;
            let removed = removed.iter().map(|scope| scope.0.as_str().into()).collect();
            self.outbox.frame(Scopes { added: Vec::new(), removed, set: self.set });
        }
    }

    fn tell_added(&mut self) {
        if self.added.is_empty() {
            return;
        }
        self.set += 1;
        let added = std::mem::take(&mut self.added);
        let added = added.iter().map(|scope| scope.0.as_str().into()).collect();
        let frame: ServerFrame<'_> = Scopes { added, removed: Vec::new(), set: self.set }.into();
        self.outbox.frame(frame);
    }
}
