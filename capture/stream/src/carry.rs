//! What a batch knows of scopes and grant pairs, and what the pieces of one large transaction hand on to each other. A small
//! value; bounded by the scopes and pairs that it has touched.

use crate::needs::{GrantPair, NamedScope, ScopeAnswers, ScopeNeeds, ScopeTotals};
use crate::writes::{GrantEffectColumns, ScopeColumns, Writes};
use crate::{Failure, FailureClass};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use tidegate_model::{Lsn, RowDigest, ScopeId, ScopeName, Subject};

/// Scopes held between two pieces of one transaction, if the caller does not say: at about 250 bytes each, 50 MB.
const SCOPES_MAX: usize = 200_000;

/// Grant pairs that one transaction may touch: their counts before it must be kept to its end. At about 300 bytes each, 150 MB.
const PAIRS_MAX: usize = 500_000;

/// Hands a large transaction on from piece to piece. The default one begins a batch of its own.
pub struct Carry {
    pub(crate) scopes: Scopes,
    pub(crate) pairs: Pairs,
    /// Of the transaction whose last piece has not come yet.
    pub(crate) unfinished: Option<Unfinished>,
    scopes_max: usize,
}

impl Default for Carry {
    fn default() -> Carry {
        Carry::bounded(SCOPES_MAX)
    }
}

impl Carry {
    /// Holds at most `scopes_max` scopes from piece to piece; beyond it they are written out, and asked for again where needed.
    pub fn bounded(scopes_max: usize) -> Carry {
        Carry { scopes: Scopes::default(), pairs: Pairs::default(), unfinished: None, scopes_max }
    }

    /// Whether every transaction so far is complete: only then may the database transaction commit (R2).
    pub fn is_complete(&self) -> bool {
        self.unfinished.is_none()
    }
}

/// Sums of an unfinished transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unfinished {
    pub(crate) effect_count: i64,
    pub(crate) effect_bytes: i64,
}

/// Scopes by id, and the names under which rows found them.
#[derive(Default)]
pub(crate) struct Scopes {
    by_id: HashMap<ScopeId, Scope>,
    by_name: HashMap<ScopeName, usize>,
    names: Vec<(NamedScope, Option<ScopeId>)>,
    /// Names from here on have not been resolved.
    unresolved: usize,
}

struct Scope {
    totals: ScopeTotals,
    /// Last effect; `None` while the batch has not touched the scope.
    tail: Option<(Lsn, u64, i32)>,
    /// Index in `names` of a scope that is not stored yet.
    unstored: Option<usize>,
}

impl Scopes {
    /// Slot of a name.
    pub(crate) fn slot(&mut self, name: ScopeName) -> usize {
        match self.by_name.get(&name) {
            Some(slot) => *slot,
            None => {
                let slot = self.names.len();
                self.names.push((NamedScope { hash: name.hash(), name: name.clone() }, None));
                self.by_name.insert(name, slot);
                slot
            }
        }
    }

    /// Id of a resolved slot.
    pub(crate) fn id(&self, slot: usize) -> Result<ScopeId, Failure> {
        self.names.get(slot).and_then(|(_, id)| *id).ok_or_else(unanswered)
    }

    fn need(&self, ids: impl Iterator<Item = ScopeId>, needs: &mut ScopeNeeds) {
        let mut seen = std::collections::HashSet::new();
        needs.ids.extend(ids.filter(|id| !self.by_id.contains_key(id) && seen.insert(*id)));
        needs.names.extend(self.names[self.unresolved..].iter().map(|(name, _)| name.clone()));
    }

    fn resolve(&mut self, needs: &ScopeNeeds, answers: &ScopeAnswers) -> Result<(), Failure> {
        if needs.ids.len() != answers.ids.len() || needs.names.len() != answers.names.len() {
            return Err(unanswered());
        }
        for (id, totals) in needs.ids.iter().zip(&answers.ids) {
            let missing = || {
                Failure::new(FailureClass::ProjectionInconsistent, "a row is in a scope that does not exist")
            };
            let totals = totals.ok_or_else(missing)?;
            self.by_id.insert(*id, Scope { totals, tail: None, unstored: None });
        }
        for (slot, answer) in (self.unresolved..).zip(&answers.names) {
            self.names[slot].1 = Some(answer.id);
            let fresh = Scope {
                totals: answer.stored.unwrap_or_default(),
                tail: None,
                unstored: answer.stored.is_none().then_some(slot),
            };
            self.by_id.entry(answer.id).or_insert(fresh);
        }
        self.unresolved = self.names.len();
        Ok(())
    }

    /// Moves a scope's totals by one effect and gives them as they are after it.
    pub(crate) fn apply(
        &mut self,
        id: ScopeId,
        before: Option<RowDigest>,
        after: Option<RowDigest>,
        at: (Lsn, u64, i32),
    ) -> Result<ScopeTotals, Failure> {
        let scope = self.by_id.get_mut(&id).ok_or_else(unanswered)?;
        let mut totals = scope.totals;
        if let Some(before) = before {
            totals = ScopeTotals { row_count: totals.row_count - 1, digest: totals.digest.minus(before) };
        }
        if let Some(after) = after {
            totals = ScopeTotals { row_count: totals.row_count + 1, digest: totals.digest.plus(after) };
        }
        if totals.row_count < 0 {
            return Err(Failure::new(
                FailureClass::ProjectionInconsistent,
                "a scope loses more rows than it has",
            ));
        }
        (scope.totals, scope.tail) = (totals, Some(at));
        Ok(totals)
    }

    /// Writes out what was touched, in the order of ids.
    fn write(&mut self, writes: &mut Writes) {
        let mut touched: Vec<_> = self.by_id.iter_mut().filter(|(_, scope)| scope.tail.is_some()).collect();
        touched.sort_unstable_by_key(|(id, _)| **id);
        for (id, scope) in touched {
            let Some((commit_lsn, event, effect)) = scope.tail.take() else { continue };
            let columns = match scope.unstored.take() {
                None => &mut writes.scopes,
                Some(slot) => {
                    let name = &self.names[slot].0;
                    writes.new_scopes.name_hash.push(name.hash);
                    writes.new_scopes.name.push(name.name.0.clone());
                    &mut writes.new_scopes.totals
                }
            };
            push_totals(columns, *id, scope.totals, (commit_lsn, event, effect));
        }
    }
}

fn push_totals(columns: &mut ScopeColumns, id: ScopeId, totals: ScopeTotals, tail: (Lsn, u64, i32)) {
    columns.scope_id.push(id.0);
    columns.row_count.push(totals.row_count);
    columns.digest.push(totals.digest.to_bytes());
    columns.tail_commit_lsn.push(tail.0);
    columns.tail_event_ordinal.push(tail.1 as i64);
    columns.tail_effect_ordinal.push(tail.2);
}

/// (subject, scope) pairs and how many rows grant each.
#[derive(Default)]
pub(crate) struct Pairs {
    index: HashMap<(Subject, ScopeName), usize>,
    pairs: Vec<Pair>,
    /// Pairs whose count the unfinished transaction has moved.
    touched: Vec<usize>,
}

struct Pair {
    key: GrantPair,
    /// As stored before the batch; `None` until it is needed and answered.
    stored: Option<i64>,
    /// Now.
    count: i64,
    /// At the end of the transaction before.
    count_before: i64,
    /// Where it began to hold, if that is within the batch.
    since: Option<Lsn>,
    needed: bool,
}

impl Pairs {
    /// Slot of a pair.
    pub(crate) fn slot(&mut self, pair: (Subject, ScopeName)) -> usize {
        match self.index.get(&pair) {
            Some(slot) => *slot,
            None => {
                let slot = self.pairs.len();
                let (subject, scope) = pair.clone();
                let subject_hash = Sha256::digest(subject.0.as_bytes()).into();
                let key = GrantPair { subject_hash, scope_hash: scope.hash(), subject, scope };
                self.pairs.push(Pair {
                    key,
                    stored: None,
                    count: 0,
                    count_before: 0,
                    since: None,
                    needed: false,
                });
                self.index.insert(pair, slot);
                slot
            }
        }
    }

    /// The pair in a slot.
    pub(crate) fn pair(&self, slot: usize) -> &GrantPair {
        &self.pairs[slot].key
    }

    /// Memory is bounded, whatever a transaction does to grants (TX-07).
    pub(crate) fn bounded(&self) -> Result<(), Failure> {
        if self.pairs.len() <= PAIRS_MAX {
            return Ok(());
        }
        let what = format!("it touches more than {PAIRS_MAX} pairs of subject and scope");
        Err(Failure::new(FailureClass::TransactionTooLarge, what))
    }

    /// The count of this pair will move.
    pub(crate) fn need(&mut self, slot: usize) {
        self.pairs[slot].needed = true;
    }

    fn needed(&self) -> impl Iterator<Item = usize> {
        self.pairs
            .iter()
            .enumerate()
            .filter(|(_, pair)| pair.needed && pair.stored.is_none())
            .map(|(slot, _)| slot)
    }

    fn resolve(&mut self, answers: &[i64]) -> Result<(), Failure> {
        let needed: Vec<usize> = self.needed().collect();
        if needed.len() != answers.len() {
            return Err(unanswered());
        }
        for (slot, count) in needed.into_iter().zip(answers) {
            let pair = &mut self.pairs[slot];
            (pair.stored, pair.count, pair.count_before) = (Some(*count), *count, *count);
        }
        Ok(())
    }

    /// One row more (`+1`) or fewer (`-1`) grants the pair.
    pub(crate) fn add(&mut self, slot: usize, rows: i64) {
        self.pairs[slot].count += rows;
        self.touched.push(slot);
    }

    /// The transaction ends: what has changed for whom, in the order of subject and scope. Counts in between do not matter (R6).
    pub(crate) fn settle(
        &mut self,
        commit_lsn: Lsn,
        effects: &mut GrantEffectColumns,
    ) -> Result<(), Failure> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable_by(|a, b| {
            let key = |slot: &usize| (&self.pairs[*slot].key.subject, &self.pairs[*slot].key.scope);
            key(a).cmp(&key(b))
        });
        touched.dedup();
        let mut ordinal = 0;
        for slot in touched {
            let pair = &mut self.pairs[slot];
            if pair.count < 0 {
                return Err(Failure::new(
                    FailureClass::ProjectionInconsistent,
                    "a grant is lost by more rows than gave it",
                ));
            }
            let op = match (pair.count_before > 0, pair.count > 0) {
                (false, true) => {
                    pair.since = Some(commit_lsn);
                    Some(1)
                }
                (true, false) => {
                    pair.since = None;
                    Some(2)
                }
                _ => None,
            };
            pair.count_before = pair.count;
            if let Some(op) = op {
                effects.commit_lsn.push(commit_lsn);
                effects.ordinal.push(ordinal);
                effects.op.push(op);
                effects.subject.push(pair.key.subject.0.clone());
                effects.scope.push(pair.key.scope.0.clone());
                ordinal += 1;
            }
        }
        Ok(())
    }

    fn write(&self, writes: &mut Writes) {
        let mut moved: Vec<_> = self
            .pairs
            .iter()
            .filter(|pair| pair.stored.is_some_and(|stored| stored != pair.count || pair.since.is_some()))
            .collect();
        moved.sort_unstable_by_key(|pair| (pair.key.subject_hash, pair.key.scope_hash));
        for pair in moved {
            let keys = if pair.count > 0 {
                writes.grants_set.subject.push(pair.key.subject.0.clone());
                writes.grants_set.scope.push(pair.key.scope.0.clone());
                writes.grants_set.row_count.push(pair.count);
                writes.grants_set.since_commit_lsn.push(pair.since);
                &mut writes.grants_set.keys
            } else {
                &mut writes.grants_removed
            };
            keys.subject_hash.push(pair.key.subject_hash);
            keys.scope_hash.push(pair.key.scope_hash);
        }
    }
}

impl Carry {
    /// Round 2: what is not known yet, `ids` being the scopes that rows were in.
    pub(crate) fn needs(&self, ids: impl Iterator<Item = ScopeId>) -> ScopeNeeds {
        let mut needs = ScopeNeeds::default();
        self.scopes.need(ids, &mut needs);
        needs.pairs = self.pairs.needed().map(|slot| self.pairs.pair(slot).clone()).collect();
        needs
    }

    /// Takes the answers of round 2.
    pub(crate) fn resolve(&mut self, needs: &ScopeNeeds, answers: &ScopeAnswers) -> Result<(), Failure> {
        self.scopes.resolve(needs, answers)?;
        self.pairs.resolve(&answers.pairs)
    }

    /// Writes out scopes and pairs: at the end of a batch all of them, between pieces only what would take too much memory.
    pub(crate) fn write(&mut self, writes: &mut Writes) {
        if self.is_complete() {
            self.pairs.write(writes);
            self.pairs = Pairs::default();
        }
        if self.is_complete() || self.scopes.by_id.len() > self.scopes_max {
            self.scopes.write(writes);
            self.scopes = Scopes::default();
        }
    }
}

fn unanswered() -> Failure {
    Failure::new(FailureClass::ProjectionInconsistent, "the answers do not fit what was needed")
}
