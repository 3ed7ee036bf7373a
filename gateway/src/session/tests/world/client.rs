//! The client's side of the model: what it asks for, and what is checked of everything that it is told.

use super::*;

impl World {
    pub(super) fn connect(&mut self) {
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

    pub(super) fn subscribe_with_what_it_has(&mut self, scope: &'static str) {
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

    pub(super) fn subscribe_frame(
        &mut self,
        scope: &str,
        cursor: Option<Bin<'static>>,
        token: Option<Bin<'static>>,
    ) {
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
            self.client.leave(scope);
            self.points.remove(scope);
            self.handle(Input::Frame(ClientFrame::Unsubscribe(Unsubscribe {
                reference: 2,
                name: scope.into(),
            })));
            self.client.handled();
        }
    }

    pub fn push(&mut self) {
        let number = self.next_number;
        self.next_number += 1;
        self.unanswered.insert(number);
        self.push_number(number);
    }

    pub(super) fn push_number(&mut self, number: u64) {
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

    pub(super) fn note_rebuild(&mut self, rebuild: &tidegate_protocol::Rebuild<'_>) {
        for scope in SCOPES {
            if let Ok(token) = self.press.keys.open_rebuild(&ScopeName(scope.into()), &rebuild.token) {
                self.points.insert(scope.into(), token.earliest);
                // What was queued under an earlier grant has been dropped with it: this came under the grant of now.
                if let Some(since) = self.session.grants.since(&ScopeName(scope.into())) {
                    assert!(token.earliest >= since, "V7: a run from before the grant in {scope}");
                    self.check_rows_are_granted(scope, since, rebuild);
                }
            }
        }
    }

    /// V7: each row was in the scope at some time since the grant, and while it held.
    fn check_rows_are_granted(&self, scope: &str, since: Point, rebuild: &tidegate_protocol::Rebuild<'_>) {
        let granted: Vec<&Rows> = (0..self.log.len())
            .filter(|index| {
                let next = self.log.get(index + 1);
                // What a transaction left holds until the next one: also through the start of the grant.
                next.is_none_or(|next| Point::TransactionEnd { commit_lsn: next.commit } > since)
                    && self.granted_after(scope, *index)
            })
            .map(|index| &self.log[index].rows[name_static(scope)])
            .collect();
        for row in &rebuild.rows {
            let held = (&(row.table.0, row.key.to_row_key()), row.version);
            assert!(
                granted.iter().any(|rows| rows.get(held.0).is_some_and(|(version, _)| *version == held.1)),
                "V7: a row from before the grant in {scope}"
            );
        }
    }

    /// Whether the scope was granted once this transaction had ended.
    fn granted_after(&self, scope: &str, index: usize) -> bool {
        let mut changes = self.log[..=index].iter().flat_map(|transaction| &transaction.grants);
        // Everything is granted from the start.
        changes.rfind(|change| change.scope.0 == scope).is_none_or(|change| change.granted)
    }

    pub(super) fn point(&self, scope: &str, cursor: &[u8]) -> Point {
        self.press.keys.open_cursor(&ScopeName(scope.into()), cursor).expect("a cursor of this scope").point
    }

    pub(super) fn check(&mut self, seen: &Seen, fin: bool) {
        match seen {
            Seen::Subscribed { name, mode: tidegate_protocol::SubscriptionMode::Resume, .. } => {
                let cursor = self.client.cursor(name).expect("a resume of what it holds").to_vec();
                self.points.insert(name.clone(), self.point(name, &cursor));
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
                if let Some(since) = self.session.grants.since(&ScopeName(name.clone())) {
                    assert!(begin >= since, "V7: effects from before the grant in {name}");
                }
                assert!(self.client.assigned.contains(name), "V7: only under a grant");
                let of_page = |t: &Transaction| effects.iter().any(|effect| effect.tx == t.commit.0);
                let mut sources = self.log.iter().enumerate().filter(|(_, transaction)| of_page(transaction));
                assert!(
                    sources.all(|(index, _)| self.granted_after(name, index)),
                    "V7: a transaction's own removals come before its pages, in {name}"
                );
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
                self.check_announced();
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
    pub(super) fn check_cut(&mut self) {
        let at = (self.cut_at..=self.log.len()).find(|index| self.joined_stand_at(*index));
        self.cut_at = at.expect("V5: joined scopes move in lockstep");
        self.check_announced();
    }

    /// V6: whatever the client waits for is announced no later than with the first cut at or after it. Where the cut stands is known
    /// only from below: rows can be the same after two transactions.
    fn check_announced(&self) {
        let Some(cut) = self.cut_at.checked_sub(1).map(|last| self.log[last].commit) else { return };
        let silent = self.awaiting.iter().filter(|number| {
            self.accepted.get(number).copied().flatten().is_some_and(|commit| commit <= cut)
        });
        assert_eq!(
            silent.collect::<Vec<_>>(),
            Vec::<&u64>::new(),
            "V6: a cut at {cut} passed them in silence"
        );
    }

    pub(super) fn joined_stand_at(&self, index: usize) -> bool {
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

    pub(super) fn at_rest(&self) -> bool {
        let last = self.log.len().checked_sub(1);
        self.wanted.iter().all(|scope| {
            self.client.is_joined(scope)
                && last.is_none_or(|last| self.client.held[*scope].rows == self.log[last].rows[*scope])
        }) && self.awaiting.is_empty()
            && self.unanswered.is_empty()
    }
}
