//! Plays Tidegate's own tables, strictly: an insert finds nothing, an update and a delete find their row. Answers a batch's needs
//! and executes its writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_model::{Lsn, RowDigest, RowVersion, ScopeDigest, ScopeId, ScopeName, Snapshot, Subject};
use tidegate_stream::*;
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow {
    pub version: Uuid,
    pub row: Vec<u8>,
    pub digest: [u8; 16],
    /// Names, not ids: ids are surrogates, which may differ between runs (R2).
    pub scopes: Vec<String>,
    pub grants: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredScope {
    pub row_count: i64,
    pub digest: [u8; 16],
    pub tail: (Lsn, i64, i32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEffect {
    pub op: i16,
    pub table: i32,
    pub key: Vec<u8>,
    pub version: Uuid,
    pub row: Option<Vec<u8>>,
    pub schema_version: i32,
    pub digest_after: [u8; 16],
    pub count_after: i64,
}

/// End, xid, commit time, events, effects, effect bytes, manifest.
pub type StoredTransaction = (Lsn, i64, i64, i64, i64, i64, Vec<u8>);

/// Every table, with scopes by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    pub transactions: BTreeMap<Lsn, StoredTransaction>,
    pub rows: BTreeMap<(i32, Vec<u8>), StoredRow>,
    pub scopes: BTreeMap<String, StoredScope>,
    pub edges: BTreeMap<(String, i32, Vec<u8>), ()>,
    /// By scope and position (P2).
    pub effects: BTreeMap<(String, Lsn, i64, i32), StoredEffect>,
    pub grant_effects: BTreeMap<(Lsn, i32), (i16, String, String)>,
    pub grants: BTreeMap<(String, String), (i64, Option<Lsn>)>,
    pub fences: BTreeMap<Uuid, (i64, i32, String, Uuid, Lsn)>,
    pub activations: BTreeMap<(i32, Lsn), i64>,
}

#[derive(Clone, Default)]
pub struct Store {
    pub tables: Tables,
    pub ids: BTreeMap<i64, String>,
    names: BTreeMap<String, i64>,
    /// Fresh ids are spread, so that their order says nothing.
    next_id: i64,
}

impl Store {
    /// Materializes whole transactions in one batch.
    pub fn group(&mut self, transactions: Vec<PairedTransaction>) -> Result<(), Failure> {
        let everything = PieceLimits { rows_max: usize::MAX, bytes_max: usize::MAX };
        let mut batch = Batch::new();
        for mut transaction in transactions {
            let piece =
                transaction.next_piece(&everything).map_err(blocked)?.expect("every transaction has a piece");
            assert!(transaction.next_piece(&everything).map_err(blocked)?.is_none());
            batch.push(piece);
        }
        let carry = self.run(batch)?;
        assert!(carry.is_complete());
        Ok(())
    }

    /// Materializes one transaction piece by piece.
    pub fn pieces(
        &mut self,
        mut transaction: PairedTransaction,
        limits: &PieceLimits,
    ) -> Result<usize, Failure> {
        // One scope at a time: the rest is written out between pieces, and read again.
        let (mut carry, mut pieces) = (Carry::bounded(limits.rows_max % 3), 0);
        while let Some(piece) = transaction.next_piece(limits).map_err(blocked)? {
            let mut batch = Batch::resume(carry);
            batch.push(piece);
            carry = self.run(batch)?;
            pieces += 1;
        }
        assert!(carry.is_complete());
        Ok(pieces)
    }

    fn run(&mut self, mut batch: Batch) -> Result<Carry, Failure> {
        for needs in batch.row_needs().relations {
            for key in needs.present.iter().chain(&needs.absent) {
                if let Some(old) = self.old_row(needs.relation.0, key) {
                    batch.provide_row(needs.relation, key, old);
                }
            }
        }
        let batch = batch.project()?;
        let answers = self.answer(batch.needs());
        let (writes, carry) = batch.finish(answers)?;
        self.execute(writes);
        Ok(carry)
    }

    fn old_row(&self, relation: i32, key: &[u8]) -> Option<OldRow> {
        let row = self.tables.rows.get(&(relation, key.to_vec()))?;
        let grants = row.grants.as_deref().map_or(Vec::new(), |json| {
            let pairs: Vec<(String, String)> = serde_json::from_str(json).expect("pairs");
            pairs.into_iter().map(|(subject, scope)| (Subject(subject), ScopeName(scope))).collect()
        });
        Some(OldRow {
            version: RowVersion(row.version),
            row: row.row.clone().into(),
            digest: RowDigest(row.digest),
            scopes: row.scopes.iter().map(|name| ScopeId(self.names[name])).collect(),
            grants,
        })
    }

    fn totals(&self, name: &str) -> Option<ScopeTotals> {
        let scope = self.tables.scopes.get(name)?;
        Some(ScopeTotals {
            row_count: scope.row_count,
            digest: ScopeDigest(u128::from_be_bytes(scope.digest)),
        })
    }

    fn answer(&mut self, needs: &ScopeNeeds) -> ScopeAnswers {
        let ids = needs.ids.iter().map(|id| self.totals(&self.ids[&id.0])).collect();
        let names = needs.names.iter().map(|named| {
            assert_eq!(named.hash, named.name.hash());
            let stored = self.totals(&named.name.0);
            let id = match self.names.get(&named.name.0) {
                Some(id) => *id,
                None => {
                    self.next_id += 1;
                    let id = (self.next_id * 7919) % 100_003;
                    self.names.insert(named.name.0.clone(), id);
                    self.ids.insert(id, named.name.0.clone());
                    id
                }
            };
            ScopeAnswer { id: ScopeId(id), stored }
        });
        let names = names.collect();
        let pairs = needs.pairs.iter();
        let pairs = pairs.map(|pair| {
            self.tables.grants.get(&(pair.subject.0.clone(), pair.scope.0.clone())).map_or(0, |g| g.0)
        });
        ScopeAnswers { ids, names, pairs: pairs.collect() }
    }

    fn execute(&mut self, writes: Writes) {
        let tables = &mut self.tables;
        let t = &writes.transactions;
        for at in 0..t.commit_lsn.len() {
            let record = (
                t.end_lsn[at],
                t.xid[at],
                t.committed_at_pg_micros[at],
                t.event_count[at],
                t.effect_count[at],
                t.effect_bytes[at],
                t.manifest[at].clone(),
            );
            assert!(
                tables.transactions.insert(t.commit_lsn[at], record).is_none(),
                "R3: a transaction is recorded once"
            );
        }
        for projection in &writes.projections {
            let relation = projection.relation.0;
            for (columns, exists) in [(&projection.insert, false), (&projection.update, true)] {
                for at in 0..columns.key_index.len() {
                    let ids = columns.scope_ids[at].trim_matches(['{', '}']);
                    let mut scopes: Vec<String> = ids
                        .split(',')
                        .filter(|id| !id.is_empty())
                        .map(|id| self.ids[&id.parse().expect("an id")].clone())
                        .collect();
                    scopes.sort();
                    let row = StoredRow {
                        version: columns.version[at],
                        row: columns.row[at].to_vec(),
                        digest: columns.digest[at],
                        scopes,
                        grants: columns.grants[at].clone(),
                    };
                    let before = tables.rows.insert((relation, columns.key_index[at].to_vec()), row);
                    assert_eq!(before.is_some(), exists, "insert finds nothing, update finds its row");
                }
            }
            for key in &projection.delete {
                assert!(tables.rows.remove(&(relation, key.to_vec())).is_some(), "delete finds its row");
            }
        }
        for (columns, new) in [(&writes.new_scopes.totals, true), (&writes.scopes, false)] {
            for at in 0..columns.scope_id.len() {
                let scope = StoredScope {
                    row_count: columns.row_count[at],
                    digest: columns.digest[at],
                    tail: (
                        columns.tail_commit_lsn[at],
                        columns.tail_event_ordinal[at],
                        columns.tail_effect_ordinal[at],
                    ),
                };
                let name = self.ids[&columns.scope_id[at]].clone();
                if new {
                    assert_eq!(name, writes.new_scopes.name[at]);
                }
                assert_eq!(
                    tables.scopes.insert(name, scope).is_none(),
                    new,
                    "a scope is inserted once, then updated"
                );
            }
        }
        for (columns, added) in [(&writes.edges_removed, false), (&writes.edges_added, true)] {
            for at in 0..columns.scope_id.len() {
                let edge = (
                    self.ids[&columns.scope_id[at]].clone(),
                    columns.relation_id[at],
                    columns.key_index[at].to_vec(),
                );
                let before = if added { tables.edges.insert(edge, ()) } else { tables.edges.remove(&edge) };
                assert_eq!(before.is_none(), added);
            }
        }
        let e = &writes.effects;
        for at in 0..e.len() {
            let effect = StoredEffect {
                op: e.op[at],
                table: e.table_id[at],
                key: e.key[at].to_vec(),
                version: e.version[at],
                row: e.row[at].as_ref().map(|row| row.to_vec()),
                schema_version: e.schema_version[at],
                digest_after: e.digest_after[at],
                count_after: e.count_after[at],
            };
            let name = self.ids[&e.scope_id[at]].clone();
            let position = (name, e.commit_lsn[at], e.event_ordinal[at], e.effect_ordinal[at]);
            assert!(tables.effects.insert(position, effect).is_none(), "P5: a position is taken once");
        }
        let g = &writes.grant_effects;
        for at in 0..g.commit_lsn.len() {
            let effect = (g.op[at], g.subject[at].clone(), g.scope[at].clone());
            assert!(tables.grant_effects.insert((g.commit_lsn[at], g.ordinal[at]), effect).is_none());
        }
        let removed = &writes.grants_removed;
        for at in 0..removed.subject_hash.len() {
            let hash = (removed.subject_hash[at], removed.scope_hash[at]);
            let pair = tables
                .grants
                .keys()
                .find(|pair| pair_hash(pair) == hash)
                .cloned()
                .expect("the pair is there");
            tables.grants.remove(&pair);
        }
        let set = &writes.grants_set;
        for at in 0..set.subject.len() {
            let pair = (set.subject[at].clone(), set.scope[at].clone());
            assert_eq!(pair_hash(&pair), (set.keys.subject_hash[at], set.keys.scope_hash[at]));
            let kept = tables.grants.get(&pair).and_then(|stored| stored.1);
            tables.grants.insert(pair, (set.row_count[at], set.since_commit_lsn[at].or(kept)));
        }
        let f = &writes.fences;
        for at in 0..f.fence_id.len() {
            let fence = (
                f.mutation_id[at],
                f.relation_id[at],
                f.key[at].clone(),
                f.version[at],
                f.materialized_commit_lsn[at],
            );
            assert!(tables.fences.insert(f.fence_id[at], fence).is_none(), "F8: a fence is reconciled once");
        }
        let a = &writes.activations;
        for at in 0..a.commit_lsn.len() {
            tables
                .activations
                .insert((a.registry_generation[at].0, a.commit_lsn[at]), a.first_event_ordinal[at]);
        }
    }
}

fn pair_hash(pair: &(String, String)) -> ([u8; 32], [u8; 32]) {
    (ScopeName(pair.0.clone()).hash(), ScopeName(pair.1.clone()).hash())
}

/// Blocking failures are what these tests look at; a spool in memory does not fail.
pub fn blocked(error: StreamError) -> Failure {
    match error {
        StreamError::Blocked(failure) => failure,
        StreamError::Spool(error) => panic!("the spool failed: {error}"),
    }
}

pub fn assembler(registry: Arc<Snapshot>) -> Assembler {
    Assembler::new(registry, Limits::default(), MemorySpool::factory())
}

/// Feeds whole frames and gives the transactions that come out; snapshots are made on demand.
pub fn feed(assembler: &mut Assembler, frames: &[Vec<u8>]) -> Result<Vec<Transaction>, Failure> {
    let mut transactions = Vec::new();
    for frame in frames {
        match assembler.frame(frame).map_err(blocked)? {
            Step::Continue => {}
            Step::NeedsSnapshot { generation, .. } => {
                assembler
                    .provide_snapshot(Arc::new(crate::source::registry(generation.0)))
                    .map_err(blocked)?;
            }
            Step::Transaction(transaction) => transactions.push(*transaction),
        }
    }
    Ok(transactions)
}

/// Assembles and pairs one transaction.
pub fn paired(
    assembler: &mut Assembler,
    frames: &crate::source::Frames,
) -> Result<PairedTransaction, Failure> {
    let mut transactions = feed(assembler, &frames.all())?;
    assert_eq!(transactions.len(), 1);
    transactions.remove(0).pair().map_err(blocked)
}

/// Runs one transaction through everything.
pub fn apply(store: &mut Store, frames: &crate::source::Frames) -> Result<(), Failure> {
    let transaction = paired(&mut assembler(crate::source::fixture()), frames)?;
    store.group(vec![transaction])
}
