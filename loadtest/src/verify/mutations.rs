//! A client's writes: numbered, resent until decided, and followed until they have come round.

use super::writer::LISTS;
use crate::connection::next_reference;
use fastrand::Rng;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tidegate_protocol::{
    Base, Columns, ErrorFrame, Mutation, MutationNumber, MutationOp, MutationStatus, Outcome, Push,
    RegistryGeneration, RowKey, RowVersion, TableId, Value,
};
use uuid::Uuid;

/// Most batches without an outcome.
const OUTSTANDING_MAX: usize = 4;

/// How a client's mutations ended.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Tally {
    /// Numbers given.
    pub pushed: u64,
    /// Accepted.
    pub accepted: u64,
    /// Precondition did not hold.
    pub conflicts: u64,
    /// Refused.
    pub rejected: u64,
    /// Without an outcome at the end: must be zero.
    pub undecided: u64,
    /// Accepted but never announced: must be zero.
    pub unmaterialized: u64,
    /// A second outcome that differed from the first: must be zero.
    pub outcomes_changed: u64,
    /// Batches sent again.
    pub resent: u64,
    /// Ids of accepted inserts, for the oracle.
    #[serde(skip)]
    pub inserted: Vec<i64>,
    /// Ids of inserts that were refused, for the oracle.
    #[serde(skip)]
    pub refused: Vec<i64>,
}

impl Tally {
    /// Adds another client's.
    pub fn merge(&mut self, other: &Tally) {
        self.pushed += other.pushed;
        self.accepted += other.accepted;
        self.conflicts += other.conflicts;
        self.rejected += other.rejected;
        self.undecided += other.undecided;
        self.unmaterialized += other.unmaterialized;
        self.outcomes_changed += other.outcomes_changed;
        self.resent += other.resent;
        self.inserted.extend(&other.inserted);
        self.refused.extend(&other.refused);
    }
}

#[derive(Debug)]
struct Entry {
    mutation: Mutation<'static>,
    batch: Uuid,
    atomic: bool,
    outcome: Option<(MutationStatus, Option<RowVersion>)>,
    materialized: bool,
    /// List and id, where it inserts.
    inserts: Option<(i64, i64)>,
}

/// A client's mutations, by number.
#[derive(Debug)]
pub struct Mutations {
    rng: Rng,
    owner: i64,
    next: u64,
    entries: BTreeMap<u64, Entry>,
    sv: RegistryGeneration,
    resent: u64,
    outcomes_changed: u64,
    resend_due: bool,
}

impl Mutations {
    /// None yet; `owner` keeps the ids of its inserts apart from those of others.
    pub fn new(owner: i64, seed: u64) -> Mutations {
        Mutations {
            rng: Rng::with_seed(seed),
            owner,
            next: 1,
            entries: BTreeMap::new(),
            sv: RegistryGeneration(0),
            resent: 0,
            outcomes_changed: 0,
            resend_due: false,
        }
    }

    /// A session has begun under this schema version.
    pub fn connected(&mut self, sv: RegistryGeneration) {
        self.sv = sv;
    }

    /// Accepted, and not announced as materialized yet.
    pub fn awaited(&self) -> Vec<u64> {
        let waits = |entry: &Entry| {
            !entry.materialized && matches!(entry.outcome, Some((MutationStatus::Accepted, _)))
        };
        self.entries.iter().filter(|(_, entry)| waits(entry)).map(|(number, _)| *number).collect()
    }

    /// Outcomes up to this number are known without a gap.
    pub fn acked(&self) -> u64 {
        self.entries
            .iter()
            .find(|(_, entry)| entry.outcome.is_none())
            .map_or(self.next, |(number, _)| *number)
            - 1
    }

    /// Whether nothing is left to hear.
    pub fn is_settled(&self) -> bool {
        self.entries.values().all(|entry| match entry.outcome {
            None => false,
            Some((MutationStatus::Accepted, _)) => entry.materialized,
            Some(_) => true,
        })
    }

    /// The batches without an outcome, to be sent again in order.
    pub fn resend(&mut self) -> Vec<Push<'static>> {
        let mut batches: Vec<(Uuid, bool, Vec<Mutation<'static>>)> = Vec::new();
        for entry in self.entries.values().filter(|entry| entry.outcome.is_none()) {
            match batches.last_mut() {
                Some((batch, _, mutations)) if *batch == entry.batch => {
                    mutations.push(entry.mutation.clone())
                }
                _ => batches.push((entry.batch, entry.atomic, vec![entry.mutation.clone()])),
            }
        }
        self.resent += batches.len() as u64;
        batches.into_iter().map(|(batch, atomic, mutations)| self.push(batch, atomic, mutations)).collect()
    }

    fn push(&self, batch: Uuid, atomic: bool, mutations: Vec<Mutation<'static>>) -> Push<'static> {
        Push {
            reference: next_reference(),
            batch,
            atomic,
            sv: self.sv,
            acked: MutationNumber(self.acked()),
            mutations,
        }
    }

    /// A new random batch, unless enough are under way.
    pub fn next_push(
        &mut self,
        table: TableId,
        known: Option<(RowKey, RowVersion)>,
    ) -> Option<Push<'static>> {
        if self.entries.values().filter(|entry| entry.outcome.is_none()).count() >= OUTSTANDING_MAX {
            return None;
        }
        let atomic = self.rng.u32(0..4) == 0;
        let title = |rng: &mut Rng| ("title", Value::Str(Cow::Owned(format!("pushed {}", rng.u32(..)))));
        let mut mutations = Vec::new();
        match (self.rng.u32(0..4), known) {
            (0, _) | (_, None) => {
                let id = 5_000_000 + self.owner * 100_000 + self.next as i64;
                let list = self.rng.i64(0..LISTS);
                let columns = columns([("list_no", Value::Int(list)), title(&mut self.rng)]);
                mutations.push((
                    self.mutation(table, MutationOp::Insert, Value::Int(id), Base::None, columns),
                    Some((list, id)),
                ));
                if self.rng.bool() {
                    let after = Base::After(MutationNumber(self.next - 1));
                    let columns = columns_of(title(&mut self.rng));
                    mutations.push((
                        self.mutation(table, MutationOp::Update, Value::Int(id), after, columns),
                        None,
                    ));
                }
            }
            (kind, Some((key, version))) => {
                let key = match key {
                    RowKey::Int(value) => Value::Int(value),
                    RowKey::Text(text) => Value::Str(Cow::Owned(text)),
                };
                let base = if kind == 1 { Base::None } else { Base::Version(version) };
                let columns = columns_of(title(&mut self.rng));
                mutations.push((self.mutation(table, MutationOp::Update, key, base, columns), None));
            }
        }
        let batch = Uuid::from_u128(self.rng.u128(..));
        for (mutation, inserts) in &mutations {
            let entry = Entry {
                mutation: mutation.clone(),
                batch,
                atomic,
                outcome: None,
                materialized: false,
                inserts: *inserts,
            };
            self.entries.insert(mutation.number.0, entry);
        }
        Some(self.push(batch, atomic, mutations.into_iter().map(|(mutation, _)| mutation).collect()))
    }

    fn mutation(
        &mut self,
        table: TableId,
        op: MutationOp,
        key: Value<'static>,
        base: Base,
        cols: Columns<'static>,
    ) -> Mutation<'static> {
        let number = MutationNumber(self.next);
        self.next += 1;
        Mutation { number, table, op, key, base, cols }
    }

    /// Takes the server's word. The first one stands.
    pub fn outcome(&mut self, outcome: &Outcome<'_>) {
        for result in &outcome.results {
            let Some(entry) = self.entries.get_mut(&result.number.0) else { continue };
            let told = (result.status, result.version);
            match &entry.outcome {
                None => entry.outcome = Some(told),
                Some(first) => self.outcomes_changed += u64::from(*first != told),
            }
        }
    }

    /// Nothing was decided: what is undecided is due to be sent again.
    pub fn refused(&mut self, error: &ErrorFrame<'_>) {
        self.resend_due |= error.of.as_deref() == Some("push") && error.retryable;
    }

    /// What to send again because the server could not decide it, if anything.
    pub fn resend_due(&mut self) -> Vec<Push<'static>> {
        if std::mem::take(&mut self.resend_due) { self.resend() } else { Vec::new() }
    }

    /// Notes that a mutation has come round; false if it was not awaited.
    pub fn materialized(&mut self, number: u64) -> bool {
        match self.entries.get_mut(&number) {
            Some(entry) if !entry.materialized => {
                entry.materialized = true;
                true
            }
            _ => false,
        }
    }

    /// List and id of the row that a mutation inserted.
    pub fn inserted(&self, number: u64) -> Option<(i64, i64)> {
        self.entries.get(&number)?.inserts
    }

    /// How they ended.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally {
            pushed: self.next - 1,
            resent: self.resent,
            outcomes_changed: self.outcomes_changed,
            ..Tally::default()
        };
        for entry in self.entries.values() {
            match entry.outcome {
                None => tally.undecided += 1,
                Some((MutationStatus::Accepted, _)) => {
                    tally.accepted += 1;
                    tally.unmaterialized += u64::from(!entry.materialized);
                }
                Some((MutationStatus::Conflict, _)) => tally.conflicts += 1,
                Some(_) => tally.rejected += 1,
            }
            match (entry.inserts, entry.outcome) {
                (Some((_, id)), Some((MutationStatus::Accepted, _))) => tally.inserted.push(id),
                (Some((_, id)), Some(_)) => tally.refused.push(id),
                _ => {}
            }
        }
        tally
    }
}

fn columns<const N: usize>(values: [(&'static str, Value<'static>); N]) -> Columns<'static> {
    Columns(values.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect())
}

fn columns_of(value: (&'static str, Value<'static>)) -> Columns<'static> {
    columns([value])
}
