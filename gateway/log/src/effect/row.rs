//! The common shape of all rows that the effect log's statements return: one kind of thing per row, its fields in fixed columns.
//!
//! One statement is one snapshot, and several kinds of things must come from one snapshot, so they share one result.

use sqlx::postgres::{PgRow, PgValueRef};
use sqlx::{Row, ValueRef};
use tidegate_model::{ClientId, Lsn, RowVersion, ScopeDigest};
use uuid::Uuid;

use super::{EffectLogError, EffectPosition};

/// Column indices.
const KIND: usize = 0;
const LSN: usize = 1;
const EVENT: usize = 2;
const EFFECT: usize = 3;
const SCOPE: usize = 4;
const OP: usize = 5;
const TABLE: usize = 6;
const KEY: usize = 7;
const VERSION: usize = 8;
const ROW: usize = 9;
const SV: usize = 10;
const DIGEST: usize = 11;
const COUNT: usize = 12;
const TEXT1: usize = 13;
const TEXT2: usize = 14;

/// Kinds of rows.
pub(super) mod kind {
    pub const ANCHOR: i32 = 0;
    pub const BOUNDS: i32 = 1;
    pub const EFFECT: i32 = 2;
    pub const GRANT: i32 = 3;
    pub const MATERIALIZED: i32 = 4;
    pub const PENDING: i32 = 5;
    pub const NAME: i32 = 6;
    pub const FACTS: i32 = 7;
    pub const FLOOR: i32 = 8;
    pub const BEFORE: i32 = 9;
    pub const HELD: i32 = 10;
    pub const MARK: i32 = 11;
}

/// One row, its columns read without copies.
pub(super) struct Fields<'r>(pub &'r PgRow);

fn malformed(what: &'static str) -> EffectLogError {
    EffectLogError::Malformed(what)
}

impl<'r> Fields<'r> {
    fn raw(&self, column: usize) -> Result<PgValueRef<'r>, EffectLogError> {
        self.0.try_get_raw(column).map_err(|_| malformed("a column is missing"))
    }

    fn optional(&self, column: usize) -> Result<Option<&'r [u8]>, EffectLogError> {
        let value = self.raw(column)?;
        if value.is_null() {
            return Ok(None);
        }
        value.as_bytes().map(Some).map_err(|_| malformed("a column is not binary"))
    }

    fn array<const N: usize>(&self, column: usize) -> Result<[u8; N], EffectLogError> {
        self.optional(column)?
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(malformed("a column is null or of another width"))
    }

    fn text(&self, column: usize) -> Result<&'r str, EffectLogError> {
        let bytes = self.optional(column)?.ok_or(malformed("a text is null"))?;
        std::str::from_utf8(bytes).map_err(|_| malformed("a text is not UTF-8"))
    }

    pub fn kind(&self) -> Result<i32, EffectLogError> {
        self.array(KIND).map(i32::from_be_bytes)
    }

    fn optional_lsn(&self, column: usize) -> Result<Option<Lsn>, EffectLogError> {
        match self.optional(column)? {
            None => Ok(None),
            Some(bytes) => {
                let bytes = bytes.try_into().map_err(|_| malformed("a WAL position has another width"))?;
                Ok(Some(Lsn(u64::from_be_bytes(bytes))))
            }
        }
    }

    pub fn lsn(&self) -> Result<Option<Lsn>, EffectLogError> {
        self.optional_lsn(LSN)
    }

    pub fn some_lsn(&self) -> Result<Lsn, EffectLogError> {
        self.lsn()?.ok_or(malformed("a WAL position is null"))
    }

    pub fn event(&self) -> Result<i64, EffectLogError> {
        self.array(EVENT).map(i64::from_be_bytes)
    }

    /// Of an anchor.
    pub fn processed(&self) -> Result<Lsn, EffectLogError> {
        self.array(KEY).map(|bytes| Lsn(u64::from_be_bytes(bytes)))
    }

    /// Of an anchor.
    pub fn written(&self) -> Result<Option<Lsn>, EffectLogError> {
        self.optional_lsn(ROW)
    }

    /// Of an anchor.
    pub fn removed(&self) -> Result<Option<Lsn>, EffectLogError> {
        self.optional_lsn(DIGEST)
    }

    pub fn effect(&self) -> Result<i32, EffectLogError> {
        self.array(EFFECT).map(i32::from_be_bytes)
    }

    pub fn position(&self) -> Result<EffectPosition, EffectLogError> {
        Ok(EffectPosition {
            commit_lsn: self.some_lsn()?,
            event_ordinal: self.event()? as u64,
            effect_ordinal: self.effect()? as u32,
        })
    }

    pub fn optional_position(&self) -> Result<Option<EffectPosition>, EffectLogError> {
        if self.lsn()?.is_none() { Ok(None) } else { self.position().map(Some) }
    }

    pub fn scope(&self) -> Result<i64, EffectLogError> {
        self.array(SCOPE).map(i64::from_be_bytes)
    }

    pub fn optional_scope(&self) -> Result<Option<i64>, EffectLogError> {
        if self.optional(SCOPE)?.is_none() { Ok(None) } else { self.scope().map(Some) }
    }

    pub fn op(&self) -> Result<i16, EffectLogError> {
        self.array(OP).map(i16::from_be_bytes)
    }

    pub fn table(&self) -> Result<i32, EffectLogError> {
        self.array(TABLE).map(i32::from_be_bytes)
    }

    pub fn key(&self) -> Result<&'r [u8], EffectLogError> {
        self.optional(KEY)?.ok_or(malformed("a key is null"))
    }

    pub fn uuid(&self) -> Result<Uuid, EffectLogError> {
        self.array(VERSION).map(Uuid::from_bytes)
    }

    pub fn version(&self) -> Result<RowVersion, EffectLogError> {
        self.uuid().map(RowVersion)
    }

    pub fn client(&self) -> Result<ClientId, EffectLogError> {
        self.uuid().map(ClientId)
    }

    pub fn row(&self) -> Result<Option<&'r [u8]>, EffectLogError> {
        self.optional(ROW)
    }

    pub fn sv(&self) -> Result<i32, EffectLogError> {
        self.array(SV).map(i32::from_be_bytes)
    }

    pub fn digest(&self) -> Result<ScopeDigest, EffectLogError> {
        self.array(DIGEST).map(|bytes| ScopeDigest(u128::from_be_bytes(bytes)))
    }

    pub fn hash(&self, of_key: bool) -> Result<[u8; 32], EffectLogError> {
        self.array(if of_key { KEY } else { DIGEST })
    }

    pub fn count(&self) -> Result<i64, EffectLogError> {
        self.array(COUNT).map(i64::from_be_bytes)
    }

    pub fn text1(&self) -> Result<&'r str, EffectLogError> {
        self.text(TEXT1)
    }

    pub fn text2(&self) -> Result<&'r str, EffectLogError> {
        self.text(TEXT2)
    }
}
