//! The packed event manifest of a source transaction (R1, R3): which events it had, and a digest of what they were. Pure.
//!
//! Stored form, version 1: `0x01`, sixteen bytes of digest, then one group per run: ordinals skipped since the previous run's
//! end, length, relation id (three LEB128 numbers), operation (`I`, `U`, `D`). The digest is the first half of SHA-256 over every applicable
//! event and fence as decoded: kind, operation, relation, ordinal, key, and for fences version and fence id. Versions and fence ids
//! are random, so equal digests mean the same transaction. Row images are left out: a version names one.

use crate::{Failure, FailureClass};
use sha2::{Digest, Sha256};
use tidegate_model::{RelationId, RowOperation};

const FORMAT: u8 = 1;
const DIGEST_BYTES: usize = 16;

/// Consecutive events of one relation with one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Ordinal of the first (P4).
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Their relation.
    pub relation: RelationId,
    /// Their operation.
    pub operation: RowOperation,
}

/// A manifest, unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Digest of the content.
    pub digest: [u8; DIGEST_BYTES],
    /// Applicable events in order.
    pub runs: Vec<Run>,
}

impl Manifest {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut packer = Packer::default();
        self.runs.iter().for_each(|run| packer.push(*run));
        packer.finish(self.digest)
    }

    /// Reads the stored form; `None` when it is not one.
    pub fn decode(stored: &[u8]) -> Option<Manifest> {
        let (&FORMAT, rest) = stored.split_first()? else { return None };
        let (digest, mut rest) = rest.split_first_chunk::<DIGEST_BYTES>()?;
        let (mut runs, mut end) = (Vec::new(), 0u64);
        while !rest.is_empty() {
            let first = end.checked_add(number(&mut rest)?)?;
            let count = number(&mut rest)?;
            end = first.checked_add(count)?;
            let relation = RelationId(i32::try_from(number(&mut rest)?).ok()?);
            let (operation, after) = rest.split_first()?;
            rest = after;
            let operation = match operation {
                b'I' => RowOperation::Insert,
                b'U' => RowOperation::Update,
                b'D' => RowOperation::Delete,
                _ => return None,
            };
            runs.push(Run { first, count, relation, operation });
        }
        Some(Manifest { digest: *digest, runs })
    }

    /// Number of applicable events.
    pub fn events(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }
}

/// R3: whether a replayed transaction is the one that was stored under its identity.
///
/// # Errors
/// [`FailureClass::ManifestMismatch`] with both event counts.
pub fn verify_replay(stored: &[u8], replayed: &[u8]) -> Result<(), Failure> {
    if stored == replayed {
        return Ok(());
    }
    let count =
        |manifest: &[u8]| Manifest::decode(manifest).map_or("unreadable".into(), |m| m.events().to_string());
    Err(Failure::new(
        FailureClass::ManifestMismatch,
        format!(
            "the replayed transaction differs from the one stored under its identity (applicable events: stored {}, replayed {})",
            count(stored),
            count(replayed)
        ),
    ))
}

/// Grows while a transaction is received.
#[derive(Default)]
pub(crate) struct ManifestBuilder {
    content: Sha256,
    packer: Packer,
    open: Option<Run>,
}

impl ManifestBuilder {
    /// Adds an applicable event. `identity` are the bytes that say what it was.
    pub(crate) fn event(
        &mut self,
        ordinal: u64,
        relation: RelationId,
        operation: RowOperation,
        identity: &[u8],
    ) {
        self.content.update(identity);
        match &mut self.open {
            Some(run)
                if run.relation == relation
                    && run.operation == operation
                    && run.first + run.count == ordinal =>
            {
                run.count += 1
            }
            open => {
                if let Some(run) = open.replace(Run { first: ordinal, count: 1, relation, operation }) {
                    self.packer.push(run);
                }
            }
        }
    }

    /// Adds an applicable fence.
    pub(crate) fn fence(&mut self, identity: &[u8]) {
        self.content.update(identity);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        if let Some(run) = self.open.take() {
            self.packer.push(run);
        }
        let full = self.content.finalize();
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&full[..DIGEST_BYTES]);
        self.packer.finish(digest)
    }
}

/// Packs runs.
#[derive(Default)]
struct Packer {
    packed: Vec<u8>,
    end: u64,
}

impl Packer {
    fn push(&mut self, run: Run) {
        if self.packed.is_empty() {
            self.packed.resize(1 + DIGEST_BYTES, 0);
        }
        put_number(&mut self.packed, run.first - self.end);
        put_number(&mut self.packed, run.count);
        put_number(&mut self.packed, run.relation.0 as u32 as u64);
        self.packed.push(operation_letter(run.operation));
        self.end = run.first + run.count;
    }

    fn finish(mut self, digest: [u8; DIGEST_BYTES]) -> Vec<u8> {
        self.packed.resize(self.packed.len().max(1 + DIGEST_BYTES), 0);
        self.packed[0] = FORMAT;
        self.packed[1..=DIGEST_BYTES].copy_from_slice(&digest);
        self.packed
    }
}

/// One letter per operation, as in fence messages.
pub(crate) fn operation_letter(operation: RowOperation) -> u8 {
    match operation {
        RowOperation::Insert => b'I',
        RowOperation::Update => b'U',
        RowOperation::Delete => b'D',
    }
}

/// Appends a number as LEB128.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a LEB128 number.
fn number(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
