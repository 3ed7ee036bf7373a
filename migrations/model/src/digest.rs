//! Row and scope digests (V4): they prove that a client holds exactly a scope's rows. They guard against faults, not against
//! an adversary.

use crate::{RowKey, RowVersion, TableId};
use sha2::{Digest, Sha256};
use std::fmt;

/// First 16 bytes of SHA-256 over a row's table, key, version and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowDigest(pub [u8; 16]);

/// Digest of the row `row` (its wire bytes) under `key` and `version`. Variable parts are length-prefixed, so that no two
/// rows share an input.
pub fn row_digest(table: TableId, key: &RowKey, version: RowVersion, row: &[u8]) -> RowDigest {
    let key = key.digest_bytes();
    let mut hash = Sha256::new();
    hash.update(table.0.to_be_bytes());
    hash.update((key.len() as u32).to_be_bytes());
    hash.update(&key);
    hash.update(version.0.as_bytes());
    hash.update((row.len() as u32).to_be_bytes());
    hash.update(row);
    let full = hash.finalize();
    let mut out = [0; 16];
    out.copy_from_slice(&full[..16]);
    RowDigest(out)
}

/// Sum of a scope's row digests modulo 2^128: free of order, so kept by adding and subtracting.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ScopeDigest(pub u128);

impl ScopeDigest {
    /// A scope without rows.
    pub const EMPTY: ScopeDigest = ScopeDigest(0);

    /// With one more row.
    pub fn plus(self, row: RowDigest) -> ScopeDigest {
        ScopeDigest(self.0.wrapping_add(u128::from_be_bytes(row.0)))
    }

    /// With one row fewer.
    pub fn minus(self, row: RowDigest) -> ScopeDigest {
        ScopeDigest(self.0.wrapping_sub(u128::from_be_bytes(row.0)))
    }

    /// Sixteen bytes, big-endian: the stored and the wire form.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Reads the stored or wire form; `None` unless it is 16 bytes long.
    pub fn from_bytes(bytes: &[u8]) -> Option<ScopeDigest> {
        Some(ScopeDigest(u128::from_be_bytes(bytes.try_into().ok()?)))
    }
}

impl RowDigest {
    /// Reads the stored form; `None` unless it is 16 bytes long.
    pub fn from_bytes(bytes: &[u8]) -> Option<RowDigest> {
        Some(RowDigest(bytes.try_into().ok()?))
    }
}

impl fmt::Debug for RowDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::hex::write(f, &self.0)
    }
}

impl fmt::Debug for ScopeDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::hex::write(f, &self.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn v4_scope_digest_is_free_of_order_and_reversible() {
        let rows: Vec<_> = (0..50)
            .map(|n| {
                row_digest(
                    TableId(1),
                    &RowKey::Int(n),
                    RowVersion(Uuid::from_u128(n as u128)),
                    &[0x91, n as u8],
                )
            })
            .collect();
        let forward = rows.iter().fold(ScopeDigest::EMPTY, |d, r| d.plus(*r));
        let backward = rows.iter().rev().fold(ScopeDigest::EMPTY, |d, r| d.plus(*r));
        assert_eq!(forward, backward);
        assert_eq!(rows.iter().fold(forward, |d, r| d.minus(*r)), ScopeDigest::EMPTY);
    }

    #[test]
    fn v4_every_part_of_a_row_moves_its_digest() {
        let version = RowVersion(Uuid::from_u128(7));
        let base = row_digest(TableId(1), &RowKey::Text("k".into()), version, b"row");
        assert_ne!(base, row_digest(TableId(2), &RowKey::Text("k".into()), version, b"row"));
        assert_ne!(base, row_digest(TableId(1), &RowKey::Text("kr".into()), version, b"ow"));
        assert_ne!(base, row_digest(TableId(1), &RowKey::Text("k".into()), RowVersion::UNFENCED, b"row"));
        assert_ne!(base, row_digest(TableId(1), &RowKey::Text("k".into()), version, b"roW"));
    }
}
