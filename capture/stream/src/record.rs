//! Events and fences as they wait in a transaction's records between receipt and pairing. Private to this crate: neither stored
//! beyond the transaction nor sent anywhere.
//!
//! Each record begins with its identity, the bytes that the manifest covers; what follows is payload.

use crate::layout::Completeness;
use crate::manifest::operation_letter;
use bytes::{Buf, Bytes};
use std::io;
use tidegate_model::{FenceId, FenceMessage, MutationId, RelationId, RowOperation, RowVersion};
use uuid::Uuid;

/// A row change.
#[derive(Debug)]
pub(crate) struct EventRecord {
    pub(crate) operation: RowOperation,
    pub(crate) relation: RelationId,
    pub(crate) ordinal: u64,
    pub(crate) key: Bytes,
    /// Index of its layout in the transaction.
    pub(crate) layout: usize,
    /// Its new image; empty for a delete.
    pub(crate) row: Bytes,
    pub(crate) completeness: Completeness,
}

/// A fence.
#[derive(Debug)]
pub(crate) struct FenceRecord {
    pub(crate) operation: RowOperation,
    pub(crate) relation: RelationId,
    pub(crate) version: RowVersion,
    pub(crate) fence: FenceId,
    pub(crate) key: Bytes,
    pub(crate) mutation: Option<MutationId>,
}

/// Writes an event's identity into `out` (emptied first); the caller appends its payload by [`put_event_payload`].
pub(crate) fn put_event_identity(
    out: &mut Vec<u8>,
    operation: RowOperation,
    relation: RelationId,
    ordinal: u64,
    key: &[u8],
) {
    out.clear();
    out.push(b'E');
    put_common(out, operation, relation, ordinal);
    put_key(out, key);
}

/// Ends an event's record: its layout, how complete its image is, and the image, which `encode` appends.
pub(crate) fn put_event_payload<E>(
    out: &mut Vec<u8>,
    layout: usize,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<Completeness, E>,
) -> Result<(), E> {
    out.extend_from_slice(&(layout as u32).to_be_bytes());
    let flag = out.len();
    out.push(0);
    out[flag] = match encode(out)? {
        Completeness::Whole => 0,
        Completeness::Partial => 1,
    };
    Ok(())
}

/// Writes a fence's record into `out` (emptied first) and gives the length of its identity.
pub(crate) fn put_fence(out: &mut Vec<u8>, fence: &FenceMessage<'_>) -> usize {
    out.clear();
    out.push(b'F');
    put_common(out, fence.operation, fence.relation, fence.ordinal);
    out.extend_from_slice(fence.version.0.as_bytes());
    out.extend_from_slice(fence.fence.0.as_bytes());
    put_key(out, fence.key.as_bytes());
    let identity = out.len();
    if let Some(mutation) = fence.mutation {
        out.extend_from_slice(&mutation.0.to_be_bytes());
    }
    identity
}

fn put_common(out: &mut Vec<u8>, operation: RowOperation, relation: RelationId, ordinal: u64) {
    out.push(operation_letter(operation));
    out.extend_from_slice(&relation.0.to_be_bytes());
    out.extend_from_slice(&ordinal.to_be_bytes());
}

fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(&(key.len() as u32).to_be_bytes());
    out.extend_from_slice(key);
}

impl EventRecord {
    pub(crate) fn read(mut record: Bytes) -> io::Result<EventRecord> {
        let (operation, relation, ordinal) = common(&mut record, b'E')?;
        let key = key(&mut record)?;
        let layout = record.try_get_u32().map_err(damaged)? as usize;
        let completeness = match record.try_get_u8().map_err(damaged)? {
            0 => Completeness::Whole,
            _ => Completeness::Partial,
        };
        Ok(EventRecord { operation, relation, ordinal, key, layout, row: record, completeness })
    }
}

impl FenceRecord {
    pub(crate) fn read(mut record: Bytes) -> io::Result<FenceRecord> {
        let (operation, relation, _) = common(&mut record, b'F')?;
        let version = RowVersion(Uuid::from_u128(record.try_get_u128().map_err(damaged)?));
        let fence = FenceId(Uuid::from_u128(record.try_get_u128().map_err(damaged)?));
        let key = key(&mut record)?;
        let mutation =
            if record.is_empty() { None } else { Some(MutationId(record.try_get_i64().map_err(damaged)?)) };
        Ok(FenceRecord { operation, relation, version, fence, key, mutation })
    }
}

fn common(record: &mut Bytes, kind: u8) -> io::Result<(RowOperation, RelationId, u64)> {
    if record.try_get_u8().map_err(damaged)? != kind {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let operation = match record.try_get_u8().map_err(damaged)? {
        b'I' => RowOperation::Insert,
        b'U' => RowOperation::Update,
        b'D' => RowOperation::Delete,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let relation = RelationId(record.try_get_i32().map_err(damaged)?);
    let ordinal = record.try_get_u64().map_err(damaged)?;
    Ok((operation, relation, ordinal))
}

fn key(record: &mut Bytes) -> io::Result<Bytes> {
    let length = record.try_get_u32().map_err(damaged)? as usize;
    if record.len() < length {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(record.split_to(length))
}

/// Our own record does not read back: the medium is damaged.
fn damaged(_: bytes::TryGetError) -> io::Error {
    io::ErrorKind::InvalidData.into()
}
