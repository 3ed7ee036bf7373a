//! The hub without I/O and clock: takes what the tail read, gives pages to feeds and batches to mailboxes.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tidegate_log::{ClientKey, Effect, EffectBatch, Interest, ScopeFacts, TailPosition};
use tidegate_model::{Lsn, Point, RegistryGeneration, ScopeId, Subject};
use tidegate_protocol::ScopeNumber;

use super::mailbox::{Mailbox, Message, Request};
use super::page::{Page, Press, Stretch};
use super::{Batch, Feed, FeedKey, MemberId, Snapshot};
use crate::grants::{Followed, StaticGrants};

/// Bounds of the hub's memory.
#[derive(Clone, Copy, Debug)]
pub struct HubBounds {
    /// Bytes of pages that all windows hold together.
    pub window_bytes_max: usize,
    /// Feeds that nobody subscribes to are kept for those who come back, this many at most.
    pub idle_feeds_max: usize,
}

struct Member {
    client: ClientKey,
    mailbox: Arc<Mailbox>,
    feeds: HashSet<FeedKey>,
}

struct FeedEntry {
    /// `None` until a tail read has told about the scope.
    feed: Option<Arc<Feed>>,
    subscribers: HashMap<MemberId, Arc<Mailbox>>,
}

struct SubjectEntry {
    followed: Option<Followed>,
    members: HashMap<MemberId, Arc<Mailbox>>,
}

/// The hub of one lineage.
pub struct Core {
    press: Arc<Press>,
    bounds: HubBounds,
    rules: StaticGrants,
    position: TailPosition,
    /// Number of the last read that began.
    seq: u64,
    members: HashMap<MemberId, Member>,
    clients: HashMap<ClientKey, HashMap<MemberId, Arc<Mailbox>>>,
    subjects: HashMap<Subject, SubjectEntry>,
    feeds: HashMap<FeedKey, FeedEntry>,
    by_scope: HashMap<ScopeId, Vec<FeedKey>>,
    numbers: HashMap<ScopeNumber, FeedKey>,
    /// Scopes that got pages of a transaction whose end has not been read yet.
    parts: HashSet<ScopeNumber>,
    /// Feeds that the next read must tell about, by the hash of their scope's name.
    starting: HashMap<[u8; 32], Vec<FeedKey>>,
    /// Feeds of scopes that do not exist yet.
    unborn: HashMap<[u8; 32], Vec<FeedKey>>,
    /// Subjects that the next read must tell about, by hash.
    evaluating: HashMap<[u8; 32], Subject>,
    /// Who waits to be in step, and the first read that will do.
    syncing: HashMap<MemberId, u64>,
    /// Feeds in the order in which their windows grew.
    window_order: VecDeque<Arc<Feed>>,
    window_bytes: usize,
    idle: VecDeque<FeedKey>,
    next_number: u32,
}

impl Core {
    /// A hub whose tail stands at `position`.
    pub fn new(press: Arc<Press>, bounds: HubBounds, rules: StaticGrants, position: TailPosition) -> Core {
        Core {
            press,
            bounds,
            rules,
            position,
            seq: 0,
            members: HashMap::new(),
            clients: HashMap::new(),
            subjects: HashMap::new(),
            feeds: HashMap::new(),
            by_scope: HashMap::new(),
            numbers: HashMap::new(),
            parts: HashSet::new(),
            starting: HashMap::new(),
            unborn: HashMap::new(),
            evaluating: HashMap::new(),
            syncing: HashMap::new(),
            window_order: VecDeque::new(),
            window_bytes: 0,
            idle: VecDeque::new(),
            next_number: 0,
        }
    }

    /// Sessions that it serves.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Scopes that it follows, and the bytes of their windows.
    pub fn feeds(&self) -> (usize, usize) {
        (self.feeds.len(), self.window_bytes)
    }

    /// Registry generation of the static grants.
    pub fn registry(&self) -> RegistryGeneration {
        self.rules.generation()
    }

    /// A read begins now: what it should tell besides.
    pub fn begin_read(&mut self) -> Interest {
        self.seq += 1;
        // The parts of a large transaction tell nothing; whoever waits is told after its end.
        Interest {
            names: !self.unborn.is_empty(),
            scopes: self.starting.keys().copied().collect(),
            subjects: self.evaluating.keys().copied().collect(),
        }
    }

    /// Takes a request; true if a read should begin at once.
    pub fn request(&mut self, request: Request) -> bool {
        match request {
            Request::Register { member, client, mailbox } => self.register(member, client, mailbox),
            Request::Attach { member, feed } => self.attach(member, feed),
            Request::Detach { member, feed } => {
                if let Some(member) = self.members.get_mut(&member) {
                    member.feeds.remove(&feed);
                }
                self.detach(member, &feed);
                false
            }
            Request::Sync { member, urgent } => {
                // The read under way may have begun before the session was ready (V2).
                self.syncing.insert(member, self.seq + 1);
                urgent
            }
            Request::Leave { member } => {
                self.leave(member);
                false
            }
        }
    }

    fn register(&mut self, id: MemberId, client: ClientKey, mailbox: Arc<Mailbox>) -> bool {
        let entry = self
            .subjects
            .entry(client.subject.clone())
            .or_insert_with(|| SubjectEntry { followed: None, members: HashMap::new() });
        entry.members.insert(id, mailbox.clone());
        let known = entry.followed.as_ref().map(|followed| followed.now().clone());
        if known.is_none() {
            self.evaluating.insert(subject_hash(&client.subject), client.subject.clone());
        }
        let read = known.is_none();
        if let Some(grants) = known {
            mailbox.put(Message::Registered(grants));
            self.clients.entry(client.clone()).or_default().insert(id, mailbox.clone());
        }
        self.members.insert(id, Member { client, mailbox, feeds: HashSet::new() });
        read
    }

    fn attach(&mut self, id: MemberId, key: FeedKey) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        member.feeds.insert(key.clone());
        let mailbox = member.mailbox.clone();
        let entry = self
            .feeds
            .entry(key.clone())
            .or_insert_with(|| FeedEntry { feed: None, subscribers: HashMap::new() });
        entry.subscribers.insert(id, mailbox.clone());
        match &entry.feed {
            Some(feed) => {
                mailbox.put(Message::Attached(feed.clone()));
                false
            }
            None => {
                let starting = self.starting.entry(key.scope.hash()).or_default();
                if !starting.contains(&key) {
                    starting.push(key);
                }
                true
            }
        }
    }

    fn detach(&mut self, id: MemberId, key: &FeedKey) {
        let Some(entry) = self.feeds.get_mut(key) else { return };
        entry.subscribers.remove(&id);
        if entry.subscribers.is_empty() {
            // Whoever comes back begins with the first. The others are for those who have begun again on one connection: kept,
            // one client could make the hub feed as many as it likes (CL-01).
            if key.nth > 0 {
                return self.forget_if_idle(key);
            }
            self.idle.push_back(key.clone());
            while self.idle.len() > self.bounds.idle_feeds_max {
                if let Some(key) = self.idle.pop_front() {
                    self.forget_if_idle(&key);
                }
            }
        }
    }

    fn forget_if_idle(&mut self, key: &FeedKey) {
        fn remove<K: std::hash::Hash + Eq>(lists: &mut HashMap<K, Vec<FeedKey>>, at: &K, key: &FeedKey) {
            if let Some(list) = lists.get_mut(at) {
                list.retain(|other| other != key);
                if list.is_empty() {
                    lists.remove(at);
                }
            }
        }
        if self.feeds.get(key).is_none_or(|entry| !entry.subscribers.is_empty()) {
            return;
        }
        let hash = key.scope.hash();
        remove(&mut self.starting, &hash, key);
        remove(&mut self.unborn, &hash, key);
        if let Some(feed) = self.feeds.remove(key).and_then(|entry| entry.feed) {
            self.numbers.remove(&feed.number);
            if let Some(id) = feed.scope() {
                remove(&mut self.by_scope, &id, key);
            }
            // Its pages leave the order as they come to its front; their memory counts until then.
            while self.window_order.front().is_some_and(|front| front.number == feed.number) {
                self.evict();
            }
        }
    }

    fn leave(&mut self, id: MemberId) {
        self.syncing.remove(&id);
        let Some(member) = self.members.remove(&id) else { return };
        for feed in &member.feeds {
            self.detach(id, feed);
        }
        if let Some(members) = self.clients.get_mut(&member.client) {
            members.remove(&id);
            if members.is_empty() {
                self.clients.remove(&member.client);
            }
        }
        let subject = &member.client.subject;
        if let Some(entry) = self.subjects.get_mut(subject) {
            entry.members.remove(&id);
            if entry.members.is_empty() {
                self.subjects.remove(subject);
                self.evaluating.remove(&subject_hash(subject));
            }
        }
    }

    /// Takes the static grants of another registry generation, in force from the end of the next batch given to
    /// [`take`](Self::take). Call before it.
    pub fn set_rules(&mut self, rules: StaticGrants) {
        self.rules = rules;
    }

    /// Takes what the read that [`begin_read`](Self::begin_read) announced last has brought: hands it to everybody whom it
    /// concerns, then answers everybody who asked before the read began.
    pub fn take(&mut self, read: EffectBatch, rules_changed: bool) {
        // S3: the log reports a history that was put back, by name. Whatever else leads back is for nobody.
        if read.through < self.position {
            tracing::error!("a read of the tail went back; it is dropped");
            return;
        }
        let complete = read.through.inside.is_none();
        self.position = read.through;
        let through = read.through.point();
        let snapshot = Arc::new(Snapshot {
            seq: self.seq,
            through,
            tip: read.anchor.tip_position().point().max(through),
            pending: read.pending,
            anchor: read.anchor,
        });
        for (scope, hash) in &read.names {
            self.born(*scope, hash);
        }
        let mut batch = Batch {
            snapshot: snapshot.clone(),
            complete,
            pages: self.pages(&read.effects, complete.then_some(through), read.continues),
            materialized: HashMap::new(),
            grants: HashMap::new(),
        };
        for entry in read.materialized {
            if self.clients.contains_key(&entry.client) {
                batch.materialized.entry(entry.client).or_default().push((entry.number, entry.commit_lsn));
            }
        }
        for change in &read.grants {
            let followed = self.subjects.get_mut(&change.subject).and_then(|entry| entry.followed.as_mut());
            if let Some(followed) = followed
                && followed.apply(change)
            {
                batch.grants.insert(change.subject.clone(), followed.now().clone());
            }
        }
        if rules_changed {
            for (subject, entry) in &mut self.subjects {
                if let Some(followed) = &mut entry.followed
                    && followed.set_rules(subject, &self.rules)
                {
                    batch.grants.insert(subject.clone(), followed.now().clone());
                }
            }
        }
        // Feeds begin after this batch: its pages are not theirs.
        self.publish(Arc::new(batch));
        if let Some(told) = read.told {
            self.start_feeds(&told.scopes, &told.facts, through);
            self.evaluate(&told.subjects, &told.held, read.anchor.tip);
        }
        // V2: who asked before the read began gets its snapshot, unless it stands inside a transaction.
        if complete {
            let members = &self.members;
            let subjects = &self.subjects;
            let seq = self.seq;
            self.syncing.retain(|id, first| {
                if *first > seq {
                    return true;
                }
                let Some(member) = members.get(id) else { return false };
                let followed = subjects.get(&member.client.subject).and_then(|entry| entry.followed.as_ref());
                let Some(followed) = followed else { return true };
                member.mailbox.sync(&snapshot, followed.now());
                false
            });
        }
    }

    /// Whether somebody waits for a read.
    pub fn awaited(&self) -> bool {
        !self.starting.is_empty() || !self.evaluating.is_empty()
    }

    fn pages(
        &mut self,
        effects: &[Effect],
        through: Option<Point>,
        continues: Option<ScopeId>,
    ) -> HashMap<ScopeNumber, Vec<Arc<Page>>> {
        let mut runs: Vec<(Arc<Feed>, &[Effect])> = Vec::new();
        // `effects` come by scope: each run is one scope's.
        for run in effects.chunk_by(|a, b| a.scope == b.scope) {
            for key in self.by_scope.get(&run[0].scope).into_iter().flatten() {
                if let Some(feed) = self.feeds.get(key).and_then(|entry| entry.feed.as_ref()) {
                    runs.push((feed.clone(), run));
                }
            }
        }
        // V5: a page is its own cut when it is all that anybody here gets from a whole batch.
        let one = runs.iter().all(|(_, run)| run[0].scope == runs[0].1[0].scope);
        let fin = one && through.is_some() && self.parts.is_empty();
        let mut pages = HashMap::with_capacity(runs.len());
        for (feed, run) in runs {
            let goes_on = continues == Some(run[0].scope);
            let stretch =
                Stretch { number: feed.number, name: &feed.name, effects: run, through, more: goes_on };
            let made = self.press.pages(stretch, fin);
            feed.extend(&made);
            for page in &made {
                self.window_bytes += page.bytes();
                self.window_order.push_back(feed.clone());
            }
            pages.insert(feed.number, made);
        }
        while self.window_bytes > self.bounds.window_bytes_max && !self.window_order.is_empty() {
            self.evict();
        }
        pages
    }

    fn evict(&mut self) {
        if let Some(feed) = self.window_order.pop_front() {
            self.window_bytes = self.window_bytes.saturating_sub(feed.evict());
        }
    }

    fn publish(&mut self, batch: Arc<Batch>) {
        // Who got parts of a large transaction is owed its cut, whatever its last part brings.
        let parts = if batch.complete { std::mem::take(&mut self.parts) } else { HashSet::new() };
        for number in
            batch.pages.keys().chain(parts.iter().filter(|number| !batch.pages.contains_key(number)))
        {
            let entry = self.numbers.get(number).and_then(|scope| self.feeds.get(scope));
            for mailbox in entry.into_iter().flat_map(|entry| entry.subscribers.values()) {
                mailbox.batch(&batch);
            }
        }
        if !batch.complete {
            self.parts.extend(batch.pages.keys());
        }
        for client in batch.materialized.keys() {
            for mailbox in self.clients.get(client).into_iter().flat_map(HashMap::values) {
                mailbox.batch(&batch);
            }
        }
        for subject in batch.grants.keys() {
            let grants = &batch.grants[subject];
            for mailbox in self.subjects.get(subject).into_iter().flat_map(|entry| entry.members.values()) {
                mailbox.revoked(grants);
                mailbox.batch(&batch);
            }
        }
    }

    fn born(&mut self, id: ScopeId, hash: &[u8; 32]) {
        let Some(keys) = self.unborn.remove(hash) else { return };
        for key in &keys {
            if let Some(feed) = self.feeds.get(key).and_then(|entry| entry.feed.as_ref()) {
                feed.exists(id);
            }
        }
        self.by_scope.entry(id).or_default().extend(keys);
    }

    fn start_feeds(&mut self, asked: &[[u8; 32]], facts: &HashMap<[u8; 32], ScopeFacts>, through: Point) {
        for hash in asked {
            let facts = facts.get(hash);
            for key in self.starting.remove(hash).unwrap_or_default() {
                let Some(entry) = self.feeds.get_mut(&key) else { continue };
                let number = ScopeNumber(self.next_number);
                self.next_number += 1;
                let feed = Arc::new(Feed::new(number, key.clone(), through, facts));
                entry.feed = Some(feed.clone());
                for mailbox in entry.subscribers.values() {
                    mailbox.put(Message::Attached(feed.clone()));
                }
                self.numbers.insert(number, key.clone());
                match facts {
                    Some(facts) => self.by_scope.entry(facts.scope).or_default().push(key),
                    None => self.unborn.entry(*hash).or_default().push(key),
                }
            }
        }
    }

    fn evaluate(&mut self, asked: &[[u8; 32]], held: &[tidegate_log::HeldGrant], as_of: Option<Lsn>) {
        let mut by_subject: BTreeMap<&Subject, Vec<tidegate_log::HeldGrant>> = BTreeMap::new();
        for grant in held {
            by_subject.entry(&grant.subject).or_default().push(grant.clone());
        }
        for hash in asked {
            let Some(subject) = self.evaluating.remove(hash) else { continue };
            let Some(entry) = self.subjects.get_mut(&subject) else { continue };
            let held = by_subject.get(&subject).map_or(&[][..], Vec::as_slice);
            let followed = Followed::new(&subject, held, as_of, &self.rules);
            for (id, mailbox) in &entry.members {
                // Batches come from now on, after this message.
                mailbox.put(Message::Registered(followed.now().clone()));
                if let Some(member) = self.members.get(id) {
                    self.clients.entry(member.client.clone()).or_default().insert(*id, mailbox.clone());
                }
            }
            entry.followed = Some(followed);
        }
    }

    /// The lineage has ended: everybody is told why, and nothing more.
    pub fn end(&mut self, why: &'static str) {
        for member in self.members.values() {
            member.mailbox.put(Message::Ended(why));
        }
    }
}

/// The key of a subject in `s<state>_subject_grant`.
pub fn subject_hash(subject: &Subject) -> [u8; 32] {
    use sha2::Digest;
    sha2::Sha256::digest(subject.0.as_bytes()).into()
}
