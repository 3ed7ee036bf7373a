//! One scope of a session: from `subscribe` through check, rebuild and catching up to `joined`, and on from there.

use std::sync::Arc;
use std::time::Instant;
use tidegate_log::ScopeState;
use tidegate_model::{Lsn, Point, ScopeName};
use tidegate_protocol::{
    Bin, CloseCode, ErrorCode, ErrorFrame, Joined, RebuildReason, ScopeNumber, ServerFrame, Subscribe,
    Subscribed, SubscriptionMode,
};

use super::claim::Claim;
use super::operation::Gate;
use super::{Command, ReadId, Session};
use crate::hub::{Covered, Feed, FeedKey, Page};
use crate::rebuild::{RebuildFrom, RebuildPage, RunPosition};

/// How often one connection may begin on one scope. Each beginning has a feed of its own, which only those share who have begun
/// as often: with this, one scope costs the hub no more than so many feeds, however many connections begin anew without end.
pub(super) const BEGINNINGS_MAX: u32 = 100;

/// What a subscription begins with.
#[derive(Debug)]
pub(super) struct Start {
    pub reference: Option<u64>,
    pub wish: Wish,
    /// Which feed was asked for.
    pub nth: u32,
}

impl Start {
    /// Whether the client has not heard yet that its subscription begins anew.
    pub fn is_untold(&self) -> bool {
        matches!(self.wish, Wish::Again(_))
    }

    fn new(reference: Option<u64>, wish: Wish) -> Start {
        Start { reference, wish, nth: 0 }
    }
}

#[derive(Debug)]
pub(super) enum Wish {
    Nothing,
    Cursor(Vec<u8>),
    Token(Vec<u8>),
    Mismatch,
    /// Nobody asked: what was under way cannot go on.
    Again(RebuildReason),
}

/// How a subscription stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// What the client holds is compared with history before anything is promised. `ahead`: since when the tail is behind it.
    Checking { claim: Claim, ahead: Option<Instant> },
    /// Rows are being sent.
    Rebuilding(RebuildFrom),
    /// Effects after `at` are to be sent before it joins.
    Catching,
    /// It moves with the session's cuts.
    Joined,
}

/// How new the newest row of a rebuild may be. Rows are read wherever the database stands, by this process or another: only the
/// next snapshot of the tail tells a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newest {
    /// Nothing was sent, or the session has passed it.
    Passed,
    /// To be learnt.
    Unknown,
    /// At most this: the scope joins no earlier.
    AtMost(Point),
}

/// One scope of one session.
#[derive(Debug)]
pub(super) struct Subscription {
    pub feed: Arc<Feed>,
    /// Everything of the scope through here was sent. Of a joined scope in step, the session's `delivered` is as good.
    pub at: Point,
    /// The scope there, where known.
    pub state: Option<ScopeState>,
    pub phase: Phase,
    /// The read under way.
    pub busy: Option<ReadId>,
    /// How new the rows are that a rebuild has sent.
    pub rows: Newest,
    /// A page of a rebuild that shows more than the tail has read: it waits until the session knows its grants there (V7).
    pub parked: Option<(RunPosition, Arc<RebuildPage>)>,
    /// How many snapshots the session had asked for when it began.
    pub begun_at: u64,
    pub reference: Option<u64>,
}

impl Subscription {
    pub fn is_joined(&self) -> bool {
        matches!(self.phase, Phase::Joined)
    }

    /// Waits for the tail to reach its cursor.
    pub fn is_ahead(&self) -> bool {
        matches!(self.phase, Phase::Checking { ahead: Some(_), .. })
    }

    /// Has something to send that needs an operation.
    pub fn wants_operation(&self) -> bool {
        self.busy.is_none() && !self.is_joined() && !self.is_ahead()
    }
}

/// What a read of one scope found, already encoded.
#[derive(Clone, Debug)]
pub struct ScopePages {
    /// In order.
    pub pages: Vec<Arc<Page>>,
    /// Everything of the scope through here is in `pages` or came before them.
    pub reached: Point,
    /// How the scope stood where the read began.
    pub before: Before,
    /// Rows in the scope now.
    pub row_count: u64,
    /// Effects from where the read began, counted up to the limit asked for.
    pub replay_count: u64,
}

impl ScopePages {
    /// Bytes of its pages.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|page| page.bytes()).sum()
    }
}

/// How a scope stood at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Like this.
    State(ScopeState),
    /// Nothing is recorded to compare with: the baseline's content, before its first effect.
    Unrecorded,
    /// The effects after the point are no longer all there.
    BelowFloor,
}

impl Session {
    pub(super) fn on_subscribe(&mut self, subscribe: Subscribe<'_>) {
        let reference = subscribe.reference;
        let Some(name) = subscribe.name else {
            let names: Vec<_> = self.grants.scopes().cloned().collect();
            for name in names {
                let subscribed = self.starting.contains_key(&name) || self.find(&name).is_some();
                if !subscribed && !self.start(name, Start::new(Some(reference), Wish::Nothing)) {
                    return;
                }
            }
            return;
        };
        let wish = match (subscribe.token, subscribe.cursor) {
            _ if subscribe.mismatch == Some(true) => Wish::Mismatch,
            (Some(token), _) => Wish::Token(token.0.into_owned()),
            (None, Some(cursor)) => Wish::Cursor(cursor.0.into_owned()),
            (None, None) => Wish::Nothing,
        };
        self.start(ScopeName(name.into_owned()), Start::new(Some(reference), wish));
    }

    /// False if it was refused.
    fn start(&mut self, name: ScopeName, start: Start) -> bool {
        let answer = |code, message: &'static str| match start.reference {
            Some(reference) => ErrorFrame::new(code, message).answering(reference, "subscribe"),
            None => ErrorFrame::new(code, message),
        };
        if self.grants.since(&name).is_none() {
            self.error(answer(ErrorCode::ScopeForbidden, "the subject has no grant for this scope"));
            return false;
        }
        // Subscribing again ends what was and begins anew.
        self.unsubscribe(&name);
        if self.subscriptions() >= self.around.bounds.limits.scopes_max as usize {
            self.error(answer(ErrorCode::ScopeLimit, "too many scopes on this socket"));
            return false;
        }
        self.ask(name, start);
        !self.closing
    }

    /// Asks for a feed whose number this connection has not used.
    fn ask(&mut self, scope: ScopeName, mut start: Start) {
        let begun = self.begun.entry(scope.clone()).or_default();
        if *begun >= BEGINNINGS_MAX {
            let error = ErrorFrame::new(ErrorCode::RateLimited, "too many beginnings on one scope");
            self.error(match start.reference {
                Some(reference) => error.answering(reference, "subscribe"),
                None => error,
            });
            // On another connection the count begins anew; here the scope could not go on.
            return self.close(CloseCode::GoingAway);
        }
        start.nth = *begun;
        *begun += 1;
        self.commands.push_back(Command::Attach(FeedKey { scope: scope.clone(), nth: start.nth }));
        self.starting.insert(scope, start);
    }

    /// Begins again, unasked: the way on from where the subscription stood is not known any more.
    fn again(&mut self, number: ScopeNumber, reason: RebuildReason) {
        let Some(subscription) = self.scopes.remove(&number) else { return };
        self.outbox.drop_scope(number);
        self.commands.push_back(Command::Detach(subscription.feed.key()));
        self.ask(subscription.feed.name.clone(), Start::new(subscription.reference, Wish::Again(reason)));
    }

    fn find(&self, name: &ScopeName) -> Option<ScopeNumber> {
        self.scopes
            .iter()
            .find(|(_, subscription)| subscription.feed.name == *name)
            .map(|(number, _)| *number)
    }

    pub(super) fn unsubscribe(&mut self, name: &ScopeName) {
        if let Some(start) = self.starting.remove(name) {
            self.commands.push_back(Command::Detach(FeedKey { scope: name.clone(), nth: start.nth }));
        }
        if let Some(number) = self.find(name)
            && let Some(subscription) = self.scopes.remove(&number)
        {
            self.outbox.drop_scope(number);
            self.commands.push_back(Command::Detach(subscription.feed.key()));
        }
    }

    pub(super) fn on_attached(&mut self, feed: Arc<Feed>) {
        // Not there any more, or another beginning by now: it was unsubscribed, or taken away, in between.
        if self.starting.get(&feed.name).is_some_and(|start| start.nth == feed.nth)
            && let Some(start) = self.starting.remove(&feed.name)
        {
            self.begin(feed, start);
        }
    }

    /// Ends a subscription that cannot begin.
    pub(super) fn refuse(&mut self, number: ScopeNumber, code: ErrorCode, message: &'static str) {
        let Some(subscription) = self.scopes.remove(&number) else { return };
        self.commands.push_back(Command::Detach(subscription.feed.key()));
        let error = ErrorFrame::new(code, message);
        self.error(match subscription.reference {
            Some(reference) => error.answering(reference, "subscribe"),
            None => error,
        });
    }

    pub(super) fn set_phase(&mut self, number: ScopeNumber, phase: Phase) {
        if let Some(subscription) = self.scopes.get_mut(&number) {
            subscription.phase = phase;
        }
    }

    pub(super) fn rebuild(&mut self, number: ScopeNumber, reason: RebuildReason) {
        let scope = self.scopes.get(&number).map(|subscription| &subscription.feed.name);
        // A scope that is not granted any more is not subscribed any more.
        let Some(since) = scope.and_then(|name| self.grants.since(name)) else { return };
        self.subscribed(number, SubscriptionMode::Rebuild, Some(reason));
        if let Some(subscription) = self.scopes.get_mut(&number) {
            subscription.phase = Phase::Rebuilding(RebuildFrom::Start { since });
            subscription.state = None;
        }
    }

    pub(super) fn subscribed(
        &mut self,
        number: ScopeNumber,
        mode: SubscriptionMode,
        reason: Option<RebuildReason>,
    ) {
        let Some(subscription) = self.scopes.get_mut(&number) else { return };
        let frame = Subscribed {
            // A beginning that nobody asked for answers no request.
            reference: subscription.reference.take(),
            scope: number,
            name: subscription.feed.name.0.as_str().into(),
            mode,
            reason: reason.map(RebuildReason::into),
        };
        let frame: ServerFrame<'_> = frame.into();
        self.outbox.scoped(number, frame.encode().into(), false);
    }

    /// Sends a scope's pages through `through`. False while that takes another read, or room.
    pub(super) fn bring(&mut self, number: ScopeNumber, through: Point) -> bool {
        loop {
            let Some(subscription) = self.scopes.get_mut(&number) else { return true };
            if subscription.at >= through {
                return true;
            }
            if subscription.busy.is_some() {
                return false;
            }
            match subscription.feed.read(subscription.at, through) {
                Covered::Pages(pages) => {
                    for page in &pages {
                        if !self.may_send() {
                            // The rest is read again in the next operation.
                            self.gate = Gate::Closed;
                            return false;
                        }
                        self.send_of(number, page);
                    }
                    if let Some(subscription) = self.scopes.get_mut(&number) {
                        subscription.at = through;
                    }
                    return true;
                }
                Covered::Not { until } => {
                    let until = until.min(through).commit_lsn().unwrap_or(Lsn::ZERO);
                    if subscription.feed.scope().is_none() {
                        // A scope that does not exist has no effects anywhere.
                        subscription.at = through;
                        continue;
                    }
                    let (feed, after) = (subscription.feed.clone(), subscription.at);
                    if self.may_send() {
                        self.read(number, feed, after, until, 0);
                    } else {
                        self.gate = Gate::Closed;
                    }
                    return false;
                }
            }
        }
    }

    pub(super) fn read(
        &mut self,
        number: ScopeNumber,
        feed: Arc<Feed>,
        after: Point,
        through: Lsn,
        replay_count_max: u64,
    ) {
        let id = self.read_id();
        if let Some(subscription) = self.scopes.get_mut(&number) {
            subscription.busy = Some(id);
        }
        self.commands.push_back(Command::ReadScope { id, feed, after, through, replay_count_max });
    }

    /// Sends one page of a scope that is being brought somewhere.
    fn send_of(&mut self, number: ScopeNumber, page: &Page) {
        self.send_page(page);
        if let Some(subscription) = self.scopes.get_mut(&number) {
            subscription.at = page.end;
            subscription.state = Some(page.state);
            self.staged |= subscription.is_joined();
        }
    }

    /// Goes on with a scope that has not joined.
    pub(super) fn go_on(&mut self, number: ScopeNumber) {
        if !matches!(self.gate, Gate::Open(_)) {
            return;
        }
        let Some(subscription) = self.scopes.get(&number) else { return };
        if subscription.busy.is_some() {
            return;
        }
        match &subscription.phase {
            Phase::Joined => {}
            Phase::Checking { .. } => {
                self.check(number);
                if self
                    .scopes
                    .get(&number)
                    .is_some_and(|s| matches!(s.phase, Phase::Catching | Phase::Rebuilding(_)))
                {
                    self.go_on(number);
                }
            }
            Phase::Rebuilding(from) => {
                let from = from.clone();
                self.go_on_rebuilding(number, from);
            }
            Phase::Catching => {
                let joins = match subscription.rows {
                    Newest::Passed => true,
                    Newest::Unknown => false,
                    Newest::AtMost(point) => point <= self.delivered,
                };
                if self.bring(number, self.delivered) && joins {
                    self.join(number);
                }
            }
        }
    }

    fn awaiting(&mut self, id: ReadId) -> Option<ScopeNumber> {
        let (number, subscription) =
            self.scopes.iter_mut().find(|(_, subscription)| subscription.busy == Some(id))?;
        subscription.busy = None;
        Some(*number)
    }

    pub(super) fn on_scope_read(&mut self, id: ReadId, read: ScopePages) {
        let Some(number) = self.awaiting(id) else { return };
        let open = matches!(self.gate, Gate::Open(_));
        let replay_min = self.around.bounds.replay_min;
        let Some(subscription) = self.scopes.get_mut(&number) else { return };
        if read.before == Before::BelowFloor {
            if matches!(subscription.phase, Phase::Checking { .. }) {
                self.rebuild(number, RebuildReason::BelowFloor);
            } else {
                self.again(number, RebuildReason::BelowFloor);
            }
            return;
        }
        if let Phase::Checking { .. } = &subscription.phase {
            // Never right after a rebuild: catching up after one does not come here.
            if read.replay_count > replay_min.max(read.row_count) {
                self.rebuild(number, RebuildReason::Cheaper);
                return;
            }
            let state = match read.before {
                Before::State(state) => Some(state),
                _ => None,
            };
            self.compare(number, state);
        }
        let usable =
            |subscription: &Subscription| matches!(subscription.phase, Phase::Catching | Phase::Joined);
        // V2: the operation that asked for it has ended: what it found is read again in the next.
        if !open || !self.scopes.get(&number).is_some_and(usable) {
            return;
        }
        for page in &read.pages {
            self.send_of(number, page);
        }
        if let Some(subscription) = self.scopes.get_mut(&number) {
            subscription.at = subscription.at.max(read.reached);
        }
    }

    /// The run that a token names was never here: what the client has staged is of another history (P9).
    pub(super) fn on_run_lost(&mut self, id: ReadId) {
        if let Some(number) = self.awaiting(id) {
            self.rebuild(number, RebuildReason::OtherHistory);
        }
    }

    pub(super) fn on_rebuild_read(&mut self, id: ReadId, position: RunPosition, page: Arc<RebuildPage>) {
        let Some(number) = self.awaiting(id) else { return };
        if matches!(self.gate, Gate::Open(_)) {
            self.send_rebuild(number, position, page);
        }
    }

    /// The next page of a rebuild: the one that waited, or one that is asked for, if it could be sent.
    pub(super) fn go_on_rebuilding(&mut self, number: ScopeNumber, from: RebuildFrom) {
        if !self.may_send() {
            self.gate = Gate::Closed;
            return;
        }
        let id = self.read_id();
        let Some(subscription) = self.scopes.get_mut(&number) else { return };
        if let Some((position, page)) = subscription.parked.take() {
            self.send_rebuild(number, position, page);
            return self.go_on(number);
        }
        subscription.busy = Some(id);
        let feed = subscription.feed.clone();
        self.commands.push_back(Command::ReadRebuild(id, feed, from));
    }

    fn send_rebuild(&mut self, number: ScopeNumber, position: RunPosition, page: Arc<RebuildPage>) {
        if let (Gate::Open(through), Some(subscription)) = (&self.gate, self.scopes.get_mut(&number))
            && page.read_at > *through
        {
            subscription.parked = Some((position, page));
            self.gate = Gate::Closed;
            return;
        }
        match self.scopes.get(&number).map(|subscription| &subscription.phase) {
            Some(Phase::Rebuilding(_)) => {}
            // The run that the client's token names is of this history: it goes on.
            Some(Phase::Checking { .. }) => {
                self.subscribed(number, SubscriptionMode::Rebuild, Some(RebuildReason::Continued));
            }
            _ => return,
        }
        let Some(subscription) = self.scopes.get_mut(&number) else { return };
        subscription.rows = Newest::Unknown;
        if page.done {
            subscription.at = position.run.earliest;
            subscription.state = None;
            subscription.phase = Phase::Catching;
        } else {
            subscription.phase = Phase::Rebuilding(RebuildFrom::Next(position));
        }
        self.tell_schema(page.sv);
        self.allowance = self.allowance.saturating_sub(page.frame.len());
        self.outbox.scoped(number, page.frame.clone(), false);
    }

    /// The scope has reached the session's cut.
    fn join(&mut self, number: ScopeNumber) {
        let delivered = self.delivered;
        let Some(subscription) = self.scopes.get_mut(&number) else { return };
        // Unknown only while the facts that the feed began with are ahead of the tail: the next operation will know.
        let Some(state) = subscription.state.or_else(|| subscription.feed.state_at(delivered)) else {
            return;
        };
        subscription.phase = Phase::Joined;
        subscription.rows = Newest::Passed;
        let feed = subscription.feed.clone();
        self.tell_materialized(delivered);
        let cursor = self.around.press.cursor(&feed.name, delivered, state);
        let joined =
            Joined { scope: number, cursor: Bin::from(cursor), count: state.row_count, digest: state.digest };
        let frame: ServerFrame<'_> = joined.into();
        self.outbox.scoped(number, frame.encode().into(), true);
    }
}
