//! Our types as PostgreSQL parameters: positions, and columns of a write list as whole arrays in binary form, written without an
//! intermediate value per element.

use bytes::Bytes;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};
use tidegate_model::Lsn;

const PG_LSN: u32 = 3220;
const PG_LSN_ARRAY: u32 = 3221;
const BYTEA: u32 = 17;
const BYTEA_ARRAY: u32 = 1001;

/// One `pg_lsn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SqlLsn(pub(crate) Lsn);

impl Type<Postgres> for SqlLsn {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(PG_LSN))
    }
}

impl Encode<'_, Postgres> for SqlLsn {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0.0.to_be_bytes());
        Ok(IsNull::No)
    }
}

impl<'r> Decode<'r, Postgres> for SqlLsn {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(SqlLsn(match value.format() {
            PgValueFormat::Binary => Lsn(u64::from_be_bytes(value.as_bytes()?.try_into()?)),
            PgValueFormat::Text => value.as_str()?.parse()?,
        }))
    }
}

/// A column of an array parameter: header once, then length and bytes per element.
fn encode_array<'e, E: 'e>(
    buffer: &mut PgArgumentBuffer,
    element_oid: u32,
    elements: &'e [E],
    bytes_of: impl Fn(&'e E, &mut PgArgumentBuffer) -> bool,
) -> Result<IsNull, BoxDynError> {
    buffer.extend_from_slice(&1_i32.to_be_bytes());
    let flags = buffer.len();
    buffer.extend_from_slice(&0_i32.to_be_bytes());
    buffer.extend_from_slice(&element_oid.to_be_bytes());
    buffer.extend_from_slice(&i32::try_from(elements.len())?.to_be_bytes());
    buffer.extend_from_slice(&1_i32.to_be_bytes());
    let mut nulls = false;
    for element in elements {
        let length = buffer.len();
        buffer.extend_from_slice(&(-1_i32).to_be_bytes());
        if bytes_of(element, buffer) {
            let written = i32::try_from(buffer.len() - length - 4)?;
            buffer[length..length + 4].copy_from_slice(&written.to_be_bytes());
        } else {
            nulls = true;
        }
    }
    if nulls {
        buffer[flags..flags + 4].copy_from_slice(&1_i32.to_be_bytes());
    }
    Ok(IsNull::No)
}

macro_rules! column {
    ($(#[$doc:meta])* $name:ident, $element:ty, $array_oid:ident, $oid:ident, |$value:ident, $buffer:ident| $write:expr) => {
        $(#[$doc])*
        pub(crate) struct $name<'e>(pub(crate) &'e [$element]);

        impl Type<Postgres> for $name<'_> {
            fn type_info() -> PgTypeInfo {
                PgTypeInfo::with_oid(Oid($array_oid))
            }
        }

        impl<'e> Encode<'e, Postgres> for $name<'e> {
            fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
                encode_array(buffer, $oid, self.0, |$value, $buffer| $write)
            }

            fn size_hint(&self) -> usize {
                20 + self.0.len() * 16
            }
        }
    };
}

column!(
    /// `pg_lsn[]`
    Lsns, Lsn, PG_LSN_ARRAY, PG_LSN, |lsn, buffer| {
        buffer.extend_from_slice(&lsn.0.to_be_bytes());
        true
    }
);
column!(
    /// `pg_lsn[]` with nulls.
    OptionalLsns, Option<Lsn>, PG_LSN_ARRAY, PG_LSN, |lsn, buffer| match lsn {
        Some(lsn) => {
            buffer.extend_from_slice(&lsn.0.to_be_bytes());
            true
        }
        None => false,
    }
);
column!(
    /// `bytea[]`
    Byteas, Bytes, BYTEA_ARRAY, BYTEA, |bytes, buffer| {
        buffer.extend_from_slice(bytes);
        true
    }
);
column!(
    /// `bytea[]` with nulls.
    OptionalByteas, Option<Bytes>, BYTEA_ARRAY, BYTEA, |bytes, buffer| match bytes {
        Some(bytes) => {
            buffer.extend_from_slice(bytes);
            true
        }
        None => false,
    }
);
