//! Last stage, around `project`, `membership` and `effects`. Takes pieces of paired transactions in stream order, asks for old
//! state in two rounds, gives the [`Writes`] of one database transaction. Pure: what it needs is data, and so are the answers.
//!
//! Transactions of one batch see each other in order and are each evaluated at their own end; only physical writes are netted (R2).

mod end_state;
mod materialize;

use crate::Failure;
use crate::carry::Carry;
use crate::membership::evaluate;
use crate::needs::{OldRow, RelationRowNeeds, RowNeeds, ScopeAnswers, ScopeNeeds};
use crate::pair::{Piece, PieceEnd, WriteFence};
use crate::project::RowDelta;
use crate::transaction::Header;
use crate::writes::Writes;
use bytes::Bytes;
use end_state::write_rows;
use materialize::materialize;
use std::collections::HashMap;
use tidegate_model::{
    Relation, RelationId, RowDigest, RowKey, RowOperation, RowVersion, ScopeId, TableId, row_digest,
};

/// Digest of a projected row; rows of a dependency, which no client sees, are digested under table 0, which no table has.
pub fn projected_digest(relation: &Relation, key: &RowKey, version: RowVersion, row: &[u8]) -> RowDigest {
    row_digest(relation.table_id.unwrap_or(TableId(0)), key, version, row)
}

/// A batch that still takes pieces and old rows.
#[derive(Default)]
pub struct Batch {
    carry: Carry,
    transactions: Vec<PendingTransaction>,
    rows: Vec<RowState>,
    relations: Vec<RelationRows>,
}

/// A batch whose rows are projected and whose membership is evaluated: it waits for scopes and pairs.
pub struct ProjectedBatch {
    batch: Batch,
    needs: ScopeNeeds,
}

struct PendingTransaction {
    header: Header,
    changes: Vec<Change>,
    write_fences: Vec<WriteFence>,
    end: Option<PieceEnd>,
}

/// What one transaction does to one row.
struct Change {
    row: usize,
    delta: RowDelta,
    after: Option<Image>,
    /// Slots of pairs that the row begins to grant, and ceases to.
    granted: Vec<usize>,
    revoked: Vec<usize>,
}

/// A row image with what follows from it.
struct Image {
    row: Bytes,
    digest: RowDigest,
    /// Slots of the scopes that the row is in.
    scopes: Vec<usize>,
}

/// A row that the batch touches.
struct RowState {
    key: RowKey,
    key_index: Bytes,
    wire_key: Bytes,
    relation: RelationId,
    table: Option<TableId>,
    /// First operation on it: says whether the projection must have it.
    first: RowOperation,
    /// As the projection has it.
    stored: Option<OldRow>,
    /// As the batch has projected it so far.
    current: Option<(RowVersion, Bytes)>,
    /// Slots of the pairs that it grants, as projected so far.
    grants: Vec<usize>,
    /// As effects have been worked out so far.
    live: Option<(RowDigest, Vec<ScopeId>)>,
}

struct RelationRows {
    relation: RelationId,
    by_key: HashMap<Bytes, usize>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// A batch for the next piece of a large transaction.
    pub fn resume(carry: Carry) -> Batch {
        Batch { carry, ..Batch::default() }
    }

    /// Number of rows that it touches.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Number of transactions in it, complete or not.
    pub fn transactions(&self) -> usize {
        self.transactions.len()
    }

    /// Adds a piece. Whole transactions follow each other; a piece of a large transaction has a batch of its own.
    pub fn push(&mut self, piece: Piece) {
        debug_assert!(
            self.transactions.last().is_none_or(|t| t.end.is_some()),
            "only a whole transaction is followed by another"
        );
        let changes = piece.rows.into_iter().map(|row| {
            let at = self.row(row.key, &row.delta);
            Change { row: at, delta: row.delta, after: None, granted: Vec::new(), revoked: Vec::new() }
        });
        let changes = changes.collect();
        self.transactions.push(PendingTransaction {
            header: piece.header,
            changes,
            write_fences: piece.write_fences,
            end: piece.end,
        });
    }

    fn row(&mut self, key: RowKey, delta: &RowDelta) -> usize {
        let relation = delta.layout.relation();
        let rows = match self.relations.iter().position(|rows| rows.relation == relation.relation_id) {
            Some(at) => &mut self.relations[at],
            None => {
                self.relations.push(RelationRows { relation: relation.relation_id, by_key: HashMap::new() });
                self.relations.last_mut().expect("pushed above")
            }
        };
        let key_index = Bytes::from(key.index_bytes());
        *rows.by_key.entry(key_index).or_insert_with_key(|key_index| {
            self.rows.push(RowState {
                wire_key: key.wire().into(),
                key,
                key_index: key_index.clone(),
                relation: relation.relation_id,
                table: relation.table_id,
                first: delta.first,
                stored: None,
                current: None,
                grants: Vec::new(),
                live: None,
            });
            self.rows.len() - 1
        })
    }

    /// Round 1: old rows, by relation.
    pub fn row_needs(&self) -> RowNeeds {
        let needs = |rows: &RelationRows| RelationRowNeeds {
            relation: rows.relation,
            present: Vec::new(),
            absent: Vec::new(),
        };
        let mut relations: Vec<RelationRowNeeds> = self.relations.iter().map(needs).collect();
        for row in &self.rows {
            let Some(needs) = relations.iter_mut().find(|needs| needs.relation == row.relation) else {
                continue;
            };
            match row.first {
                RowOperation::Insert => needs.absent.push(row.key_index.clone()),
                RowOperation::Update | RowOperation::Delete => needs.present.push(row.key_index.clone()),
            }
        }
        RowNeeds { relations }
    }

    /// Answers round 1 for one row that exists. Rows that were not asked for are ignored.
    pub fn provide_row(&mut self, relation: RelationId, key_index: &[u8], old: OldRow) {
        let rows = self.relations.iter().find(|rows| rows.relation == relation);
        let Some(row) = rows.and_then(|rows| rows.by_key.get(key_index)) else { return };
        let row = &mut self.rows[*row];
        row.current = Some((old.version, old.row.clone()));
        let mut scopes = old.scopes.clone();
        scopes.sort_unstable();
        row.live = Some((old.digest, scopes));
        let mut grants: Vec<usize> =
            old.grants.iter().map(|pair| self.carry.pairs.slot(pair.clone())).collect();
        grants.sort_unstable();
        row.grants = grants;
        row.stored = Some(old);
    }

    /// Applies every transaction to the rows, evaluates membership at each transaction's end, and asks for round 2.
    ///
    /// # Errors
    /// A blocking failure, placed at its transaction.
    pub fn project(mut self) -> Result<ProjectedBatch, Failure> {
        for transaction in &mut self.transactions {
            let header = transaction.header;
            for change in &mut transaction.changes {
                let row = &mut self.rows[change.row];
                project_change(change, row, &mut self.carry)
                    .map_err(|f| f.at(header.commit_lsn, Some(header.end_lsn)))?;
            }
        }
        let ids = self
            .rows
            .iter()
            .filter_map(|row| row.live.as_ref())
            .flat_map(|(_, scopes)| scopes.iter().copied());
        let needs = self.carry.needs(ids);
        Ok(ProjectedBatch { batch: self, needs })
    }
}

fn project_change(change: &mut Change, row: &mut RowState, carry: &mut Carry) -> Result<(), Failure> {
    let delta = &change.delta;
    let relation = delta.layout.relation();
    let image = delta.apply(row.current.as_ref().map(|(version, row)| (*version, row)))?;
    let mut grants = Vec::new();
    change.after = image.as_ref().map(|image| {
        let membership = evaluate(delta.layout.snapshot(), relation, image);
        grants = membership.grants.into_iter().map(|pair| carry.pairs.slot(pair)).collect();
        Image {
            digest: projected_digest(relation, &row.key, delta.version, image),
            row: image.clone(),
            scopes: membership.scopes.into_iter().map(|name| carry.scopes.slot(name)).collect(),
        }
    });
    if grants != row.grants {
        grants.sort_unstable();
        change.granted =
            grants.iter().copied().filter(|slot| row.grants.binary_search(slot).is_err()).collect();
        change.revoked =
            row.grants.iter().copied().filter(|slot| grants.binary_search(slot).is_err()).collect();
        change.granted.iter().chain(&change.revoked).for_each(|slot| carry.pairs.need(*slot));
        row.grants = grants;
        carry.pairs.bounded()?;
    }
    row.current = image.map(|image| (delta.version, image));
    Ok(())
}

impl ProjectedBatch {
    /// Round 2: scopes and grant pairs.
    pub fn needs(&self) -> &ScopeNeeds {
        &self.needs
    }

    /// Works out edges, effects and totals, transaction by transaction, and gives everything that is to be written. The
    /// caller commits only if the [`Carry`] is complete, and hands it to the next piece otherwise.
    ///
    /// # Errors
    /// A blocking failure, placed at its transaction where one is to blame.
    pub fn finish(self, answers: ScopeAnswers) -> Result<(Writes, Carry), Failure> {
        let Batch { mut carry, transactions, mut rows, relations } = self.batch;
        let place = |failure: Failure, header: &Header| failure.at(header.commit_lsn, Some(header.end_lsn));
        carry.resolve(&self.needs, &answers).map_err(|failure| match transactions.as_slice() {
            [only] => place(failure, &only.header),
            _ => failure,
        })?;
        let mut writes = Writes::default();
        for transaction in transactions {
            let header = transaction.header;
            materialize(transaction, &mut rows, &mut carry, &mut writes)
                .map_err(|failure| place(failure, &header))?;
        }
        write_rows(&rows, &relations, &carry, &mut writes);
        carry.write(&mut writes);
        Ok((writes, carry))
    }
}
