//! The database of the model: transactions, what they leave behind, and every read of it.

use super::*;

impl World {
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

    /// What the client has pushed has run; nobody has heard of it.
    pub fn ran(&mut self) {
        for number in &self.unanswered {
            self.accepted.entry(*number).or_insert(None);
        }
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

    pub(super) fn rows_now(&self, bit: usize) -> Rows {
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

    pub(super) fn facts(&self, scope: &'static str) -> Option<ScopeFacts> {
        let (tail, state) = *self.states[scope].last()?;
        Some(ScopeFacts {
            scope: scope_id(scope),
            state,
            tail: Some(tail),
            floor: self.floors.get(scope).copied(),
        })
    }

    pub(super) fn anchor(&self) -> Anchor {
        let tip = self.tip();
        let written = tip.map_or(Lsn(1), |tip| Lsn(tip.0 + 1));
        Anchor {
            lineage: self.press.lineage,
            tip,
            registry: SV,
            processed: written,
            written: Some(written),
            removed: None,
        }
    }

    /// As the adapter reads: whole transactions within bounds, a large one in parts.
    pub(super) fn read_tail(&self, interest: &Interest) -> EffectBatch {
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
            if from.inside.is_none() {
                batch.grants.extend(large.grants.iter().cloned());
            }
            if batch.continues.is_none() {
                self.add_materialized(&mut batch, large);
            }
        } else {
            for transaction in rest().take(self.sizes.read_transactions as usize) {
                if batch.effects.len() + transaction.effects.len() > max {
                    break;
                }
                batch.effects.extend(transaction.effects.iter().cloned());
                batch.through = TailPosition::end_of(transaction.commit);
                batch.grants.extend(transaction.grants.iter().cloned());
                self.add_materialized(&mut batch, transaction);
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

    pub(super) fn add_materialized(&self, batch: &mut EffectBatch, transaction: &Transaction) {
        batch.materialized.extend(transaction.materialized.iter().map(|number| Materialized {
            commit_lsn: transaction.commit,
            client: self.key(),
            number: *number,
        }));
    }

    pub(super) fn scope_pages(
        &self,
        feed: &crate::hub::Feed,
        after: Point,
        through: Lsn,
        count: u64,
    ) -> ScopePages {
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

    /// A member who has always been granted everything reads a scope: its run is in the cache from now on.
    pub fn elder_rebuilds(&mut self, scope: usize, nth: u32) {
        let member = MemberId(u64::MAX);
        if self.elder.is_none() {
            let client = ClientKey { subject: Subject("elder".into()), client: self.client_id };
            let mailbox = Arc::new(Mailbox::new(1));
            self.core.request(Request::Register { member, client, mailbox: mailbox.clone() });
            self.elder = Some((mailbox, BTreeMap::new()));
        }
        let key = FeedKey { scope: ScopeName(SCOPES[scope].into()), nth };
        self.core.request(Request::Attach { member, feed: key.clone() });
        let (mailbox, feeds) = self.elder.as_mut().expect("just made");
        while let Some(message) = mailbox.pop() {
            if let Message::Attached(feed) = message {
                feeds.insert(feed.key(), feed);
            }
        }
        // Unknown until the next read of the tail has told about the scope.
        let Some(feed) = feeds.get(&key).cloned() else { return };
        let mut from = RebuildFrom::Start { since: Point::GenerationStart };
        loop {
            let (position, page) = self.rebuild_page(&feed, from);
            if page.done {
                return;
            }
            from = RebuildFrom::Next(position);
        }
    }

    pub(super) fn rebuild_page(
        &mut self,
        feed: &crate::hub::Feed,
        from: RebuildFrom,
    ) -> (RunPosition, Arc<RebuildPage>) {
        let bit = SCOPES.iter().position(|scope| *scope == feed.name.0).expect("known");
        let now = TailPosition { end: self.tip(), inside: None }.point();
        let (run, after) = match from {
            RebuildFrom::Start { since } => {
                self.runs.retain(|number, run| *number != feed.number.0 || run.may_be_joined(since));
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
                let page = Arc::new(RebuildPage { frame, sv: SV, read_at: now, after: next, done });
                self.rebuilt.insert(cached, page.clone());
                page
            }
        };
        (RunPosition { run, after: page.after.clone() }, page)
    }
}
