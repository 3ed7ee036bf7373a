//! One whole source transaction as `assemble` leaves it: a compact index in memory, the images in records that may have been
//! spooled. Plain data; `pair` takes it from here.

use crate::layout::Layout;
use crate::spool::RecordReader;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tidegate_model::{KeyType, Lsn, RegistryGeneration, RelationId, RowOperation, Snapshot};
use uuid::Uuid;

/// Bounds of what one transaction may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of records kept in memory while a transaction is received; beyond it they are spooled.
    pub memory_bytes: usize,
    /// Applicable row changes of one transaction. At 64 bytes of index each, the default of 3,500,000 takes 224 MB.
    pub events_max: usize,
    /// Bytes of records of one transaction, spooled or not.
    pub bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory_bytes: 16 << 20, events_max: 3_500_000, bytes_max: 16 << 30 }
    }
}

/// What identifies a source transaction and when it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Position of its commit record: its identity within the generation (R1).
    pub commit_lsn: Lsn,
    /// End of its commit record: what may be acknowledged once it is durable (A2).
    pub end_lsn: Lsn,
    /// Transaction id, without epoch.
    pub xid: u32,
    /// Commit time in microseconds since 2000-01-01, as PostgreSQL counts.
    pub committed_at_pg_micros: i64,
    /// All published row changes, applicable or not (P4).
    pub event_count: u64,
}

/// A source transaction, complete.
pub struct Transaction {
    pub(crate) header: Header,
    /// Row changes of registered relations, in decoded order.
    pub(crate) events: Vec<Entry>,
    /// Their fences, in decoded order.
    pub(crate) fences: Vec<Entry>,
    /// Leading halves of the fence ids, in decoded order.
    pub(crate) fence_ids: Vec<u64>,
    pub(crate) records: RecordReader,
    /// Bytes of its records, spooled or not.
    pub(crate) bytes: u64,
    /// Layouts that events refer to.
    pub(crate) layouts: Vec<Arc<Layout>>,
    /// Registry generations activated, with the ordinal of the first event under each (G3).
    pub(crate) activations: Vec<(RegistryGeneration, u64)>,
    pub(crate) markers: Vec<Uuid>,
    /// Packed (R1).
    pub(crate) manifest: Vec<u8>,
    /// In force at its end; names relations in explanations.
    pub(crate) registry: Arc<Snapshot>,
}

impl Transaction {
    /// What identifies it.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Nonces of the markers that it contains (B4).
    pub fn markers(&self) -> &[Uuid] {
        &self.markers
    }

    /// The registry in force at its end.
    pub fn registry(&self) -> &Arc<Snapshot> {
        &self.registry
    }
}

/// A row's identity within a transaction, compact and ordered arbitrarily: relation and key for integers, a hash of both for
/// text. Two rows share one with a probability of 2^-96; pairing compares the keys themselves as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity([u32; 3]);

impl Identity {
    /// `None` when `key` is not a key of its type.
    pub(crate) fn new(relation: RelationId, key_type: KeyType, key: &str) -> Option<Identity> {
        let relation = relation.0 as u32;
        match key_type {
            KeyType::Int | KeyType::Int64 => {
                let key: i64 = key.parse().ok()?;
                Some(Identity([relation, (key >> 32) as u32, key as u32]))
            }
            KeyType::String => {
                let mut hash = Sha256::new();
                hash.update(relation.to_be_bytes());
                hash.update(key.as_bytes());
                let full = hash.finalize();
                let word =
                    |at: usize| u32::from_be_bytes([full[at], full[at + 1], full[at + 2], full[at + 3]]);
                Some(Identity([word(0), word(4), word(8)]))
            }
        }
    }
}

/// One event or fence in the index: 28 bytes, so that millions fit in memory. Ordered by row, then by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) identity: Identity,
    /// Ordinal, most significant half first, so that the derived order is numeric.
    rank: [u32; 2],
    /// Offset of the record, shifted by two; below it the operation.
    place: [u32; 2],
}

impl Entry {
    pub(crate) fn new(identity: Identity, rank: u64, offset: u64, operation: RowOperation) -> Entry {
        let place = offset << 2 | operation as u64;
        Entry { identity, rank: halves(rank), place: halves(place) }
    }

    /// Event ordinal, or the fence's own ordinal.
    pub(crate) fn rank(&self) -> u64 {
        joined(self.rank)
    }

    /// Offset of the record.
    pub(crate) fn offset(&self) -> u64 {
        joined(self.place) >> 2
    }

    /// Two bits that tell operations apart.
    pub(crate) fn operation_bits(&self) -> u32 {
        self.place[1] & 3
    }
}

fn halves(number: u64) -> [u32; 2] {
    [(number >> 32) as u32, number as u32]
}

fn joined(halves: [u32; 2]) -> u64 {
    u64::from(halves[0]) << 32 | u64::from(halves[1])
}

/// TX-07: the figures in [`Limits`] rest on this.
const _: () = assert!(size_of::<Entry>() == 28);
