//! Third stage. Takes a [`Transaction`], gives a [`PairedTransaction`]: every row change has exactly its fence (F7, F8), and rows wait
//! in the order of the last event that touched each. Works on the compact index; records are read again piece by piece.

use crate::assemble::name_of;
use crate::layout::Layout;
use crate::manifest::verify_replay;
use crate::project::{PairedEvent, RowDelta};
use crate::record::{EventRecord, FenceRecord};
use crate::spool::{RecordReader, Sequence};
use crate::transaction::{Entry, Header, Identity, Transaction};
use crate::{Failure, FailureClass, StreamError};
use std::cmp::Ordering;
use std::sync::Arc;
use tidegate_model::{FenceId, MutationId, RegistryGeneration, RelationId, RowKey, RowVersion, Snapshot};
use uuid::Uuid;

/// Bounds of one piece of a transaction. A piece holds at least one row, whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceLimits {
    /// Rows.
    pub rows_max: usize,
    /// Bytes of row images.
    pub bytes_max: usize,
}

impl Default for PieceLimits {
    fn default() -> PieceLimits {
        PieceLimits { rows_max: 20_000, bytes_max: 16 << 20 }
    }
}

/// A source transaction whose row changes are paired with their fences.
pub struct PairedTransaction {
    header: Header,
    /// Sorted by row and ordinal; the event and the fence at one index belong together.
    events: Vec<Entry>,
    fences: Vec<Entry>,
    /// Index of each row's first event, ordered by the row's last event.
    rows: Vec<u32>,
    /// How many of `rows` have been handed out; `None` once the last piece has.
    handed_out: Option<usize>,
    records: RecordReader,
    bytes: u64,
    layouts: Vec<Arc<Layout>>,
    activations: Vec<(RegistryGeneration, u64)>,
    markers: Vec<Uuid>,
    manifest: Vec<u8>,
    registry: Arc<Snapshot>,
}

/// Some rows of one transaction, each with everything that the transaction did to it.
pub struct Piece {
    pub(crate) header: Header,
    pub(crate) rows: Vec<PieceRow>,
    /// Fences of client mutations, to be reconciled (F8).
    pub(crate) write_fences: Vec<WriteFence>,
    /// Present on the transaction's last piece.
    pub(crate) end: Option<PieceEnd>,
}

/// What a transaction carries besides rows.
pub(crate) struct PieceEnd {
    pub(crate) activations: Vec<(RegistryGeneration, u64)>,
    pub(crate) markers: Vec<Uuid>,
    pub(crate) manifest: Vec<u8>,
}

/// A row and what the transaction did to it.
pub(crate) struct PieceRow {
    pub(crate) key: RowKey,
    pub(crate) delta: RowDelta,
}

/// A fence that a client's mutation caused (F5).
#[derive(Debug)]
pub(crate) struct WriteFence {
    pub(crate) fence: FenceId,
    pub(crate) mutation: MutationId,
    pub(crate) relation: RelationId,
    pub(crate) key: String,
    pub(crate) version: RowVersion,
}

impl Piece {
    /// What identifies its transaction.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Rows in it.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of row images in it.
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.delta.bytes()).sum()
    }
}

impl Transaction {
    /// Pairs the k-th change of each row with the fence of the k-th lowest ordinal (F7).
    ///
    /// # Errors
    /// Any mismatch, as a blocking failure (F8): nothing is repaired by guessing. Or the spool's.
    pub fn pair(mut self) -> Result<PairedTransaction, StreamError> {
        let header = self.header;
        let place = |error: StreamError| error.at(header.commit_lsn, Some(header.end_lsn));
        self.check_fence_ids().map_err(place)?;
        self.events.sort_unstable();
        self.fences.sort_unstable();
        self.check_pairs().map_err(place)?;
        let rows = rows_by_last_event(&self.events);
        Ok(PairedTransaction {
            header,
            events: self.events,
            fences: self.fences,
            rows,
            handed_out: Some(0),
            records: self.records,
            bytes: self.bytes,
            layouts: self.layouts,
            activations: self.activations,
            markers: self.markers,
            manifest: self.manifest,
            registry: self.registry,
        })
    }

    /// Both lists are sorted by row and ordinal, so a row's pairs stand at the same indexes in both, and at the first row of which
    /// one list has fewer, its surplus has no partner.
    fn check_pairs(&mut self) -> Result<(), StreamError> {
        let mut at = 0;
        while let Some(identity) = first_identity(self.events.get(at), self.fences.get(at)) {
            let row_of = |entries: &[Entry]| {
                entries[at.min(entries.len())..].iter().take_while(|e| e.identity == identity).count()
            };
            let (events, fences) = (row_of(&self.events), row_of(&self.fences));
            match events.cmp(&fences) {
                Ordering::Greater => {
                    let relation = self.event_at(at)?.relation;
                    let what =
                        "a row change has no fence: a write bypassed the triggers, or its fence is misplaced";
                    return Err(self.failure(FailureClass::FenceMissing, relation, what));
                }
                Ordering::Less => {
                    let relation = self.fence_at(at)?.relation;
                    let what =
                        "a fence has no row change: the publication left it out, or the fence is forged";
                    return Err(self.failure(FailureClass::FenceWithoutRow, relation, what));
                }
                Ordering::Equal => {}
            }
            for pair in at..at + events {
                let fence = self.fences[pair];
                if pair > at && self.fences[pair - 1].rank() == fence.rank() {
                    let relation = self.fence_at(pair)?.relation;
                    let what = "two fences of one row share an ordinal";
                    return Err(self.failure(FailureClass::FenceDuplicate, relation, what));
                }
                if self.events[pair].operation_bits() != fence.operation_bits() {
                    let relation = self.fence_at(pair)?.relation;
                    let what = "a fence is for another operation than the row change at its place";
                    return Err(self.failure(FailureClass::FenceOperationMismatch, relation, what));
                }
            }
            at += events;
        }
        Ok(())
    }

    /// F8: fence ids are unique. Halves are compared first; only where two agree are the whole ids read.
    fn check_fence_ids(&mut self) -> Result<(), StreamError> {
        let mut halves = std::mem::take(&mut self.fence_ids);
        halves.sort_unstable();
        let mut suspects: Vec<u64> =
            halves.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        drop(halves);
        suspects.dedup();
        if suspects.is_empty() {
            return Ok(());
        }
        let mut seen = std::collections::HashSet::new();
        for at in 0..self.fences.len() {
            let fence = self.fence_at(at)?;
            let half = fence.fence.0.as_u64_pair().0;
            if suspects.binary_search(&half).is_ok() && !seen.insert(fence.fence) {
                return Err(self.failure(
                    FailureClass::FenceDuplicate,
                    fence.relation,
                    "two fences share their id",
                ));
            }
        }
        Ok(())
    }

    fn event_at(&mut self, at: usize) -> Result<EventRecord, StreamError> {
        Ok(EventRecord::read(self.records.record(Sequence::Events, self.events[at].offset())?)?)
    }

    fn fence_at(&mut self, at: usize) -> Result<FenceRecord, StreamError> {
        Ok(FenceRecord::read(self.records.record(Sequence::Fences, self.fences[at].offset())?)?)
    }

    fn failure(&self, class: FailureClass, relation: RelationId, what: &str) -> StreamError {
        let (events, fences) = (self.events.len(), self.fences.len());
        let what =
            format!("{}: {what} ({events} row changes, {fences} fences)", name_of(&self.registry, relation));
        Failure::new(class, what).of(relation).into()
    }
}

/// The smaller of the identities at the front of two sorted lists.
fn first_identity(event: Option<&Entry>, fence: Option<&Entry>) -> Option<Identity> {
    event.into_iter().chain(fence).map(|entry| entry.identity).min()
}

/// First index of each run of one identity, ordered by the rank of the run's last entry.
fn rows_by_last_event(events: &[Entry]) -> Vec<u32> {
    let mut rows: Vec<u32> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        if at == 0 || events[at - 1].identity != event.identity {
            rows.push(at as u32);
        }
    }
    rows.sort_unstable_by_key(|first| events[row_end(events, *first as usize) - 1].rank());
    rows
}

/// Index after the last event of the row whose first is at `first`.
fn row_end(events: &[Entry], first: usize) -> usize {
    let identity = events[first].identity;
    first + events[first..].iter().take_while(|event| event.identity == identity).count()
}

impl PairedTransaction {
    /// What identifies it.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The packed event manifest (R1).
    pub fn manifest(&self) -> &[u8] {
        &self.manifest
    }

    /// Rows that it changed.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of its records: what its rows take in memory, at most.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Nonces of the markers that it contains (B4).
    pub fn markers(&self) -> &[Uuid] {
        &self.markers
    }

    /// The registry in force at its end.
    pub fn registry(&self) -> &Arc<Snapshot> {
        &self.registry
    }

    /// Whether one piece holds it whole.
    pub fn fits(&self, limits: &PieceLimits) -> bool {
        self.rows.len() <= limits.rows_max && self.bytes <= limits.bytes_max as u64
    }

    /// R3: the identity is durable already; whether this is the transaction that was stored under it.
    ///
    /// # Errors
    /// [`FailureClass::ManifestMismatch`].
    pub fn verify_replay(&self, stored_manifest: &[u8]) -> Result<(), Failure> {
        verify_replay(stored_manifest, &self.manifest)
            .map_err(|f| f.at(self.header.commit_lsn, Some(self.header.end_lsn)))
    }

    /// The next rows, in the order of the last event that touched each; `None` after the last piece. A transaction without
    /// applicable events has one piece without rows (R4).
    ///
    /// # Errors
    /// A blocking failure where a row's events contradict each other or their fences; or the spool's.
    pub fn next_piece(&mut self, limits: &PieceLimits) -> Result<Option<Piece>, StreamError> {
        let Some(mut at) = self.handed_out else { return Ok(None) };
        let mut piece = Piece { header: self.header, rows: Vec::new(), write_fences: Vec::new(), end: None };
        piece.rows.reserve(limits.rows_max.min(self.rows.len() - at));
        let mut bytes = 0;
        while at < self.rows.len()
            && (piece.rows.is_empty() || (piece.rows.len() < limits.rows_max && bytes < limits.bytes_max))
        {
            let first = self.rows[at] as usize;
            let row = self
                .fold_row(first, &mut piece.write_fences)
                .map_err(|error| error.at(self.header.commit_lsn, Some(self.header.end_lsn)))?;
            bytes += row.delta.bytes();
            piece.rows.push(row);
            at += 1;
        }
        if at < self.rows.len() {
            self.handed_out = Some(at);
        } else {
            self.handed_out = None;
            piece.end = Some(PieceEnd {
                activations: std::mem::take(&mut self.activations),
                markers: std::mem::take(&mut self.markers),
                manifest: std::mem::take(&mut self.manifest),
            });
        }
        Ok(Some(piece))
    }

    /// Reads the pairs of one row in order and folds them into what the transaction did to it.
    fn fold_row(
        &mut self,
        first: usize,
        write_fences: &mut Vec<WriteFence>,
    ) -> Result<PieceRow, StreamError> {
        let mut folded: Option<PieceRow> = None;
        let mut first_key = None;
        for at in first..row_end(&self.events, first) {
            let event = EventRecord::read(self.records.record(Sequence::Events, self.events[at].offset())?)?;
            let fence = FenceRecord::read(self.records.record(Sequence::Fences, self.fences[at].offset())?)?;
            let damaged = || std::io::Error::from(std::io::ErrorKind::InvalidData);
            let layout = self.layouts.get(event.layout).ok_or_else(damaged)?;
            // The index says that these agree; here the keys themselves are compared.
            if event.key != fence.key
                || event.relation != fence.relation
                || first_key.as_ref().is_some_and(|key| *key != event.key)
            {
                let what = "a fence has another key than the row change at its place";
                return Err(layout.failure(FailureClass::FenceKeyMismatch, what).into());
            }
            debug_assert_eq!(event.operation, fence.operation, "compared when paired");
            let key = std::str::from_utf8(&event.key).map_err(|_| damaged())?;
            if let Some(mutation) = fence.mutation {
                let key = key.to_owned();
                write_fences.push(WriteFence {
                    fence: fence.fence,
                    mutation,
                    relation: fence.relation,
                    key,
                    version: fence.version,
                });
            }
            let paired = PairedEvent {
                operation: event.operation,
                ordinal: event.ordinal,
                row: event.row,
                completeness: event.completeness,
                version: fence.version,
                layout,
            };
            match &mut folded {
                Some(row) => row.delta.push(paired)?,
                None => {
                    let key = RowKey::from_text(layout.relation().key.key_type, key).ok_or_else(damaged)?;
                    folded = Some(PieceRow { key, delta: RowDelta::new(paired)? });
                }
            }
            first_key.get_or_insert(event.key);
        }
        folded.ok_or_else(|| StreamError::Spool(std::io::ErrorKind::InvalidData.into()))
    }
}
