//! The types of fields: how each is described in the table, written, and read.

use crate::read::{Malformed, Reader};
use crate::write;
use std::borrow::Cow;
use tidegate_model::{ClientId, RegistryGeneration, RowVersion, ScopeDigest, TableId};
use uuid::Uuid;

/// Largest `uint` of the wire: 2^53 - 1, so that every client may hold one as a double.
pub const UINT_MAX: u64 = (1 << 53) - 1;

/// A wire type, as the frame table shows it. Documentation and TypeScript are made from these.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// true or false.
    Bool,
    /// An unsigned integer up to [`UINT_MAX`].
    Uint,
    /// UTF-8 text.
    Str,
    /// Bytes.
    Bin,
    /// Exactly 16 bytes.
    Bin16,
    /// A primary key: an integer of 64 bits, or a str.
    Key,
    /// A value of a row: nil, bool, integer, float, str, bin, or an array of these.
    Value,
    /// A map from column name to [`Shape::Value`].
    Columns,
    /// One word of a closed list.
    Word(&'static Words),
    /// One number of a closed list.
    Number(&'static Words),
    /// An array of one type.
    List(&'static Shape),
    /// A map with the named fields.
    Record(&'static Record),
    /// An array whose elements have a name and type each.
    Tuple(&'static Record),
    /// A bin16, or a map `{after: uint}`.
    Base,
}

/// A closed list: each entry with its wire form (a word, or a number in decimal) and its meaning.
#[derive(Debug)]
pub struct Words {
    /// Name of the type.
    pub name: &'static str,
    /// Wire form and meaning.
    pub words: &'static [(&'static str, &'static str)],
}

/// A map or tuple inside a frame.
#[derive(Debug)]
pub struct Record {
    /// Name of the type.
    pub name: &'static str,
    /// What it is.
    pub doc: &'static str,
    /// In wire order.
    pub fields: &'static [Field],
}

/// One field of a frame, map or tuple.
#[derive(Debug)]
pub struct Field {
    /// Name on the wire; in a tuple only a name for readers.
    pub name: &'static str,
    /// Its type.
    pub shape: Shape,
    /// Whether it may be nil; in maps also absent, which is how we write it.
    pub nullable: bool,
    /// What it means.
    pub doc: &'static str,
}

/// A type that a field can have.
pub trait Wire<'a>: Sized {
    /// What the table says of it.
    const SHAPE: Shape;
    /// Whether the field may be nil or absent.
    const NULLABLE: bool = false;
    /// Writes the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads the value.
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed>;
    /// The value of an absent field, where that is allowed.
    fn absent() -> Option<Self> {
        None
    }
    /// Whether maps leave this value out.
    fn is_absent(&self) -> bool {
        false
    }
}

/// Cuts a value loose from the frame that it was read from.
pub trait IntoOwned {
    /// The same type without borrows.
    type Owned;
    /// Copies what is borrowed.
    fn into_owned(self) -> Self::Owned;
}

macro_rules! owned_already {
    ($($ty:ty),* $(,)?) => {$(
        impl $crate::wire::IntoOwned for $ty {
            type Owned = $ty;
            fn into_owned(self) -> $ty {
                self
            }
        }
    )*};
}
pub(crate) use owned_already;

owned_already!(bool, u32, u64, Uuid, ClientId, RowVersion, ScopeDigest, TableId, RegistryGeneration);
owned_already!(ScopeNumber, MutationNumber);

/// The number that a gateway gives a scope for one socket's subscription. Never reused within a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeNumber(pub u32);

/// A client's count of its mutations, from 1 (V3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MutationNumber(pub u64);

macro_rules! uints {
    ($($ty:ty, $what:literal, $read:expr, $write:expr;)*) => {$(
        impl<'a> Wire<'a> for $ty {
            const SHAPE: Shape = Shape::Uint;
            fn put(&self, out: &mut Vec<u8>) {
                let write: fn(&$ty) -> u64 = $write;
                write::uint(out, write(self));
            }
            fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
                let read: fn(u64) -> Option<$ty> = $read;
                read(reader.uint()?).ok_or(Malformed::expected($what))
            }
        }
    )*};
}

uints! {
    u64, "uint", Some, |value| *value;
    u32, "uint of 32 bits", |value| value.try_into().ok(), |value| u64::from(*value);
    ScopeNumber, "uint of 32 bits", |value| value.try_into().ok().map(ScopeNumber), |value| u64::from(value.0);
    MutationNumber, "uint", |value| Some(MutationNumber(value)), |value| value.0;
    TableId, "uint of 31 bits", |value| value.try_into().ok().map(TableId), |value| u64::from(value.0.unsigned_abs());
    RegistryGeneration, "uint of 31 bits", |value| value.try_into().ok().map(RegistryGeneration),
        |value| u64::from(value.0.unsigned_abs());
}

macro_rules! bin16s {
    ($($ty:ty, $read:expr, $write:expr;)*) => {$(
        impl<'a> Wire<'a> for $ty {
            const SHAPE: Shape = Shape::Bin16;
            fn put(&self, out: &mut Vec<u8>) {
                let write: fn(&$ty) -> [u8; 16] = $write;
                write::bin(out, &write(self));
            }
            fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
                let read: fn([u8; 16]) -> $ty = $read;
                Ok(read(reader.bin16()?))
            }
        }
    )*};
}

bin16s! {
    Uuid, Uuid::from_bytes, |value| value.into_bytes();
    ClientId, |bytes| ClientId(Uuid::from_bytes(bytes)), |value| value.0.into_bytes();
    RowVersion, |bytes| RowVersion(Uuid::from_bytes(bytes)), |value| value.0.into_bytes();
    ScopeDigest, |bytes| ScopeDigest(u128::from_be_bytes(bytes)), |value| value.to_bytes();
}

impl<'a> Wire<'a> for bool {
    const SHAPE: Shape = Shape::Bool;
    fn put(&self, out: &mut Vec<u8>) {
        write::bool(out, *self);
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.bool()
    }
}

impl<'a> Wire<'a> for Cow<'a, str> {
    const SHAPE: Shape = Shape::Str;
    fn put(&self, out: &mut Vec<u8>) {
        write::str(out, self);
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.str().map(Cow::Borrowed)
    }
}

impl IntoOwned for Cow<'_, str> {
    type Owned = Cow<'static, str>;
    fn into_owned(self) -> Cow<'static, str> {
        Cow::Owned(Cow::into_owned(self))
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    const SHAPE: Shape = T::SHAPE;
    const NULLABLE: bool = true;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.put(out),
            None => write::nil(out),
        }
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        if reader.nil()? { Ok(None) } else { T::take(reader).map(Some) }
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

impl<T: IntoOwned> IntoOwned for Option<T> {
    type Owned = Option<T::Owned>;
    fn into_owned(self) -> Self::Owned {
        self.map(T::into_owned)
    }
}

/// Elements reserved at once when a list begins. Longer ones grow as their elements really arrive, so that a length alone costs
/// little memory.
const RESERVE_MAX: usize = 1024;

impl<'a, T: Wire<'a>> Wire<'a> for Vec<T> {
    const SHAPE: Shape = Shape::List(&T::SHAPE);
    fn put(&self, out: &mut Vec<u8>) {
        write::array(out, self.len());
        self.iter().for_each(|item| item.put(out));
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = reader.array()? as usize;
        let mut items = Vec::with_capacity(count.min(RESERVE_MAX));
        for _ in 0..count {
            items.push(T::take(reader)?);
        }
        Ok(items)
    }
}

impl<T: IntoOwned> IntoOwned for Vec<T> {
    type Owned = Vec<T::Owned>;
    fn into_owned(self) -> Self::Owned {
        self.into_iter().map(T::into_owned).collect()
    }
}
