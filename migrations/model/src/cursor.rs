//! Opaque, authenticated cursors and rebuild tokens (P9).
//!
//! A cursor proves that this server issued it for this scope; it grants nothing. Both kinds are sealed by one function, under
//! different domain bytes, so that one can never pass for the other.

use crate::{Lsn, Point, ScopeDigest, ScopeName, StreamGeneration};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::collections::BTreeMap;
use uuid::Uuid;

const TAG_BYTES: usize = 16;
const DOMAIN_CURSOR: u8 = 1;
const DOMAIN_REBUILD: u8 = 2;

/// The server that a position was observed on: positions of another one mean nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerIdentity {
    /// `pg_control_system().system_identifier`.
    pub system: u64,
    /// Timeline at which the position was observed.
    pub timeline: u32,
}

/// Where a client stands in one scope, with what it then holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Lineage of the stream.
    pub generation: StreamGeneration,
    /// The server then.
    pub server: ServerIdentity,
    /// The position: everything of the scope at or before it was delivered.
    pub point: Point,
    /// The scope's digest there.
    pub digest: ScopeDigest,
    /// The scope's row count there.
    pub row_count: u64,
}

/// How far a rebuild has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildToken {
    /// Lineage of the stream.
    pub generation: StreamGeneration,
    /// The server then.
    pub server: ServerIdentity,
    /// Earliest position among the pages so far: effects after it are replayed.
    pub earliest: Point,
    /// Relation and key index of the last row sent; `None` before the first.
    pub after: Option<(i32, Vec<u8>)>,
    /// Schema version of the rows sent.
    pub schema_version: i32,
}

/// Why a sealed value was refused. Each is answered by its name, never by a wrong page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// Truncated, or of an unknown format.
    #[error("cursor is malformed")]
    Malformed,
    /// Signed by a key that this database does not (or no longer) know.
    #[error("cursor was sealed with an unknown key")]
    UnknownKey,
    /// The seal does not fit: forged, altered, or issued for another scope.
    #[error("cursor does not belong to this scope or was altered")]
    Forged,
}

/// The keys that seal: the newest signs, all verify. Their secrets never appear in `Debug`.
#[derive(Clone)]
pub struct CursorKeys(BTreeMap<u32, [u8; 32]>);

impl std::fmt::Debug for CursorKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl CursorKeys {
    /// Takes (key id, secret) pairs; `None` when there is none, since then nothing could be sealed.
    pub fn new(keys: impl IntoIterator<Item = (u32, [u8; 32])>) -> Option<CursorKeys> {
        let keys: BTreeMap<_, _> = keys.into_iter().collect();
        (!keys.is_empty()).then_some(CursorKeys(keys))
    }

    /// Seals a cursor for `scope`.
    pub fn seal_cursor(&self, scope: &ScopeName, cursor: &Cursor) -> Vec<u8> {
        self.seal(DOMAIN_CURSOR, scope, |out| {
            write_origin(out, cursor.generation, cursor.server);
            write_point(out, cursor.point);
            out.extend_from_slice(&cursor.digest.to_bytes());
            out.extend_from_slice(&cursor.row_count.to_be_bytes());
        })
    }

    /// Opens a cursor that was sealed for `scope`.
    ///
    /// # Errors
    /// See [`CursorError`].
    pub fn open_cursor(&self, scope: &ScopeName, sealed: &[u8]) -> Result<Cursor, CursorError> {
        let mut body = Body(self.open(DOMAIN_CURSOR, scope, sealed)?);
        let (generation, server) = body.origin()?;
        let point = body.point()?;
        let digest = ScopeDigest(u128::from_be_bytes(body.array()?));
        let row_count = u64::from_be_bytes(body.array()?);
        body.end()?;
        Ok(Cursor { generation, server, point, digest, row_count })
    }

    /// Seals a rebuild continuation for `scope`.
    pub fn seal_rebuild(&self, scope: &ScopeName, token: &RebuildToken) -> Vec<u8> {
        self.seal(DOMAIN_REBUILD, scope, |out| {
            write_origin(out, token.generation, token.server);
            write_point(out, token.earliest);
            out.extend_from_slice(&token.schema_version.to_be_bytes());
            if let Some((relation, key)) = &token.after {
                out.extend_from_slice(&relation.to_be_bytes());
                out.extend_from_slice(key);
            }
        })
    }

    /// Opens a rebuild continuation that was sealed for `scope`.
    ///
    /// # Errors
    /// See [`CursorError`].
    pub fn open_rebuild(&self, scope: &ScopeName, sealed: &[u8]) -> Result<RebuildToken, CursorError> {
        let mut body = Body(self.open(DOMAIN_REBUILD, scope, sealed)?);
        let (generation, server) = body.origin()?;
        let earliest = body.point()?;
        let schema_version = i32::from_be_bytes(body.array()?);
        let after =
            if body.0.is_empty() { None } else { Some((i32::from_be_bytes(body.array()?), body.0.to_vec())) };
        Ok(RebuildToken { generation, server, earliest, after, schema_version })
    }

    /// `domain ‖ key id ‖ body ‖ tag`; the tag also covers the scope's name, which is not carried.
    fn seal(&self, domain: u8, scope: &ScopeName, write_body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let (key_id, secret) = self.0.last_key_value().expect("CursorKeys::new admits no empty set");
        let mut out = Vec::with_capacity(128);
        out.push(domain);
        out.extend_from_slice(&key_id.to_be_bytes());
        write_body(&mut out);
        let tag = mac(secret, scope, &out).finalize().into_bytes();
        out.extend_from_slice(&tag[..TAG_BYTES]);
        out
    }

    fn open<'s>(&self, domain: u8, scope: &ScopeName, sealed: &'s [u8]) -> Result<&'s [u8], CursorError> {
        let (signed, tag) = sealed.split_last_chunk::<TAG_BYTES>().ok_or(CursorError::Malformed)?;
        let (header, body) = signed.split_first_chunk::<5>().ok_or(CursorError::Malformed)?;
        if header[0] != domain {
            return Err(CursorError::Malformed);
        }
        let key_id = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        let secret = self.0.get(&key_id).ok_or(CursorError::UnknownKey)?;
        // Constant-time comparison.
        mac(secret, scope, signed).verify_truncated_left(tag).map_err(|_| CursorError::Forged)?;
        Ok(body)
    }
}

fn mac(secret: &[u8; 32], scope: &ScopeName, signed: &[u8]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(&scope.hash());
    mac.update(signed);
    mac
}

fn write_origin(out: &mut Vec<u8>, generation: StreamGeneration, server: ServerIdentity) {
    out.extend_from_slice(generation.0.as_bytes());
    out.extend_from_slice(&server.system.to_be_bytes());
    out.extend_from_slice(&server.timeline.to_be_bytes());
}

fn write_point(out: &mut Vec<u8>, point: Point) {
    let (kind, lsn, event, effect) = match point {
        Point::GenerationStart => (0, Lsn::ZERO, 0, 0),
        Point::Effect { commit_lsn, event_ordinal, effect_ordinal } => {
            (1, commit_lsn, event_ordinal, effect_ordinal)
        }
        Point::TransactionEnd { commit_lsn } => (2, commit_lsn, 0, 0),
    };
    out.push(kind);
    out.extend_from_slice(&lsn.0.to_be_bytes());
    out.extend_from_slice(&event.to_be_bytes());
    out.extend_from_slice(&effect.to_be_bytes());
}

/// What is left of an opened body. Its seal held, so a short read means another version of this program sealed it.
struct Body<'b>(&'b [u8]);

impl Body<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], CursorError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(CursorError::Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    fn origin(&mut self) -> Result<(StreamGeneration, ServerIdentity), CursorError> {
        let generation = StreamGeneration(Uuid::from_bytes(self.array()?));
        let system = u64::from_be_bytes(self.array()?);
        let timeline = u32::from_be_bytes(self.array()?);
        Ok((generation, ServerIdentity { system, timeline }))
    }

    fn point(&mut self) -> Result<Point, CursorError> {
        let [kind] = self.array()?;
        let commit_lsn = Lsn(u64::from_be_bytes(self.array()?));
        let event_ordinal = u64::from_be_bytes(self.array()?);
        let effect_ordinal = u32::from_be_bytes(self.array()?);
        match kind {
            0 => Ok(Point::GenerationStart),
            1 => Ok(Point::Effect { commit_lsn, event_ordinal, effect_ordinal }),
            2 => Ok(Point::TransactionEnd { commit_lsn }),
            _ => Err(CursorError::Malformed),
        }
    }

    fn end(&self) -> Result<(), CursorError> {
        if self.0.is_empty() { Ok(()) } else { Err(CursorError::Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RowKey;

    fn keys() -> CursorKeys {
        CursorKeys::new([(1, [1; 32]), (2, [2; 32])]).expect("two keys")
    }

    fn cursor() -> Cursor {
        Cursor {
            generation: StreamGeneration(Uuid::from_u128(9)),
            server: ServerIdentity { system: 77, timeline: 3 },
            point: Point::Effect { commit_lsn: Lsn(1 << 40), event_ordinal: 1 << 33, effect_ordinal: 5 },
            digest: ScopeDigest(42),
            row_count: 1000,
        }
    }

    #[test]
    fn p9_cursor_opens_only_for_its_scope_and_unaltered() {
        let scope = ScopeName("list:L1".into());
        let sealed = keys().seal_cursor(&scope, &cursor());
        assert_eq!(keys().open_cursor(&scope, &sealed), Ok(cursor()));
        assert_eq!(keys().open_cursor(&ScopeName("list:L2".into()), &sealed), Err(CursorError::Forged));
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert!(keys().open_cursor(&scope, &altered).is_err(), "byte {at}");
            assert!(keys().open_cursor(&scope, &sealed[..at]).is_err(), "truncated to {at}");
        }
        assert!(keys().open_cursor(&scope, &[]).is_err());
        assert!(keys().open_rebuild(&scope, &sealed).is_err(), "a cursor is no rebuild token");
    }

    #[test]
    fn p9_earlier_keys_stay_valid_and_foreign_keys_do_not() {
        let scope = ScopeName("catalog".into());
        let old = CursorKeys::new([(1, [1; 32])]).expect("one key");
        let sealed = old.seal_cursor(&scope, &cursor());
        assert_eq!(keys().open_cursor(&scope, &sealed), Ok(cursor()));
        let other = CursorKeys::new([(7, [1; 32])]).expect("one key");
        assert_eq!(other.open_cursor(&scope, &sealed), Err(CursorError::UnknownKey));
        let same_id = CursorKeys::new([(1, [9; 32])]).expect("one key");
        assert_eq!(same_id.open_cursor(&scope, &sealed), Err(CursorError::Forged));
    }

    #[test]
    fn p9_rebuild_tokens_round_trip() {
        let scope = ScopeName("catalog".into());
        for after in [None, Some((4, vec![2])), Some((4, RowKey::Text("é".into()).index_bytes()))] {
            let token = RebuildToken {
                generation: cursor().generation,
                server: cursor().server,
                earliest: Point::GenerationStart,
                after,
                schema_version: 3,
            };
            assert_eq!(keys().open_rebuild(&scope, &keys().seal_rebuild(&scope, &token)), Ok(token));
        }
    }
}
