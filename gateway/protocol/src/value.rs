//! Keys and column values. A push may carry a value that no row can hold (half a surrogate pair, a NUL, an integer beyond 64
//! bits): it is read as [`Value::Invalid`], so that only its mutation is rejected, not the frame (DT-05).
//!
//! Everything here can be a row's content, so `Debug` shows kinds and lengths, never content (Q1).

use crate::opaque::Bin;
use crate::read::{Limits, Malformed, Reader};
use crate::wire::{IntoOwned, MutationNumber, Shape, Wire, owned_already};
use crate::write;
use rmp::Marker;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use tidegate_model::{RowKey, RowVersion};

/// A primary key as a server sends it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key<'a> {
    /// An integer of up to 64 bits, exact (DT-02).
    Int(i64),
    /// Text, compared by code points; may be empty.
    Text(Cow<'a, str>),
}

impl Key<'_> {
    /// The key as the model knows it.
    pub fn to_row_key(&self) -> RowKey {
        match self {
            Key::Int(value) => RowKey::Int(*value),
            Key::Text(text) => RowKey::Text(text.clone().into_owned()),
        }
    }
}

impl<'a> From<&'a RowKey> for Key<'a> {
    fn from(key: &'a RowKey) -> Self {
        match key {
            RowKey::Int(value) => Key::Int(*value),
            RowKey::Text(text) => Key::Text(Cow::Borrowed(text)),
        }
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Int(_) => f.write_str("integer key"),
            Key::Text(text) => write!(f, "text key of {} bytes", text.len()),
        }
    }
}

impl<'a> Wire<'a> for Key<'a> {
    const SHAPE: Shape = Shape::Key;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Key::Int(value) => write::int(out, *value),
            Key::Text(text) => write::str(out, text),
        }
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match Value::take(reader)? {
            Value::Int(value) => Ok(Key::Int(value)),
            Value::Str(text) => Ok(Key::Text(text)),
            _ => Err(Malformed::expected("key")),
        }
    }
}

impl IntoOwned for Key<'_> {
    type Owned = Key<'static>;
    fn into_owned(self) -> Key<'static> {
        match self {
            Key::Int(value) => Key::Int(value),
            Key::Text(text) => Key::Text(IntoOwned::into_owned(text)),
        }
    }
}

/// One value of a row.
#[derive(Clone, PartialEq)]
pub enum Value<'a> {
    /// SQL null. An omitted column is not in the map at all (DT-08).
    Nil,
    /// bool.
    Bool(bool),
    /// Any integer that fits 64 bits, exact.
    Int(i64),
    /// float32.
    F32(f32),
    /// float64.
    F64(f64),
    /// Every type whose wire form is text.
    Str(Cow<'a, str>),
    /// bytes.
    Bin(Bin<'a>),
    /// A one-dimensional array.
    Array(Elements<'a>),
    /// What no column can hold.
    Invalid(Invalid<'a>),
}

/// A value that is MessagePack but not a value of any row; kept as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid<'a> {
    /// Why.
    pub reason: InvalidReason,
    /// Its bytes, whole.
    pub raw: Bin<'a>,
}

/// Why a value is no value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidReason {
    /// A str that is not UTF-8, such as one cut inside a surrogate pair.
    NotUtf8,
    /// A str with a NUL, which PostgreSQL's text cannot hold.
    Nul,
    /// An integer beyond 64 bits with sign.
    IntegerRange,
    /// A map, or a MessagePack extension.
    Type,
    /// An array inside an array, or with an element that is itself invalid.
    Element,
    /// The second value of a column that was named twice.
    Duplicate,
}

impl InvalidReason {
    /// What to tell the client; has no part of the value.
    pub fn message(self) -> &'static str {
        match self {
            InvalidReason::NotUtf8 => "text is not well-formed UTF-8",
            InvalidReason::Nul => "text holds a NUL character",
            InvalidReason::IntegerRange => "integer is beyond 64 bits",
            InvalidReason::Type => "maps and extensions are not values of a column",
            InvalidReason::Element => "array holds an array or an invalid element",
            InvalidReason::Duplicate => "column is named twice",
        }
    }
}

owned_already!(InvalidReason);

impl<'a> Value<'a> {
    fn kind(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool(_) => "bool",
            Value::Int(_) => "integer",
            Value::F32(_) => "float32",
            Value::F64(_) => "float64",
            Value::Str(_) => "text",
            Value::Bin(_) => "bytes",
            Value::Array(_) => "array",
            Value::Invalid(_) => "invalid value",
        }
    }

    fn text(bytes: &'a [u8], raw: &'a [u8]) -> Value<'a> {
        let invalid = |reason| Value::Invalid(Invalid { reason, raw: raw.into() });
        match std::str::from_utf8(bytes) {
            Err(_) => invalid(InvalidReason::NotUtf8),
            Ok(text) if text.contains('\0') => invalid(InvalidReason::Nul),
            Ok(text) => Value::Str(Cow::Borrowed(text)),
        }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl<'a> Wire<'a> for Value<'a> {
    const SHAPE: Shape = Shape::Value;

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Value::Nil => write::nil(out),
            Value::Bool(value) => write::bool(out, *value),
            Value::Int(value) => write::int(out, *value),
            Value::F32(value) => write::f32(out, *value),
            Value::F64(value) => write::f64(out, *value),
            Value::Str(value) => write::str(out, value),
            Value::Bin(value) => write::bin(out, value),
            Value::Array(elements) => {
                write::array(out, elements.count as usize);
                out.extend_from_slice(&elements.raw);
            }
            Value::Invalid(invalid) => out.extend_from_slice(&invalid.raw),
        }
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let before = reader.rest();
        let raw = |reader: &Reader<'a>| &before[..before.len() - reader.rest().len()];
        let invalid = |reason, raw: &'a [u8]| Value::Invalid(Invalid { reason, raw: raw.into() });
        Ok(match reader.peek()? {
            Marker::Null => {
                reader.nil()?;
                Value::Nil
            }
            Marker::True | Marker::False => Value::Bool(reader.bool()?),
            Marker::F32 => {
                reader.bytes(1)?;
                Value::F32(f32::from_be_bytes(reader.fixed()?))
            }
            Marker::F64 => {
                reader.bytes(1)?;
                Value::F64(f64::from_be_bytes(reader.fixed()?))
            }
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let bytes = reader.str_bytes()?;
                Value::text(bytes, raw(reader))
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Value::Bin(reader.bin()?.into()),
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let mut inner = reader.clone();
                let all = reader.skip()?;
                match Elements::take(&mut inner)? {
                    Some(elements) => Value::Array(elements),
                    None => invalid(InvalidReason::Element, all),
                }
            }
            Marker::FixMap(_)
            | Marker::Map16
            | Marker::Map32
            | Marker::FixExt1
            | Marker::FixExt2
            | Marker::FixExt4
            | Marker::FixExt8
            | Marker::FixExt16
            | Marker::Ext8
            | Marker::Ext16
            | Marker::Ext32 => invalid(InvalidReason::Type, reader.skip()?),
            _ => match reader.int()? {
                Some(value) => Value::Int(value),
                None => invalid(InvalidReason::IntegerRange, raw(reader)),
            },
        })
    }
}

impl IntoOwned for Value<'_> {
    type Owned = Value<'static>;
    fn into_owned(self) -> Value<'static> {
        match self {
            Value::Nil => Value::Nil,
            Value::Bool(value) => Value::Bool(value),
            Value::Int(value) => Value::Int(value),
            Value::F32(value) => Value::F32(value),
            Value::F64(value) => Value::F64(value),
            Value::Str(text) => Value::Str(IntoOwned::into_owned(text)),
            Value::Bin(bytes) => Value::Bin(bytes.into_owned()),
            Value::Array(elements) => {
                Value::Array(Elements { count: elements.count, raw: elements.raw.into_owned() })
            }
            Value::Invalid(invalid) => {
                Value::Invalid(Invalid { reason: invalid.reason, raw: invalid.raw.into_owned() })
            }
        }
    }
}

/// The elements of an array value, none of them an array or invalid. Kept as bytes: nothing is allocated for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements<'a> {
    count: u32,
    raw: Bin<'a>,
}

impl<'a> Elements<'a> {
    /// An array of these values; `None` if one is an array or invalid.
    pub fn new(values: &[Value<'_>]) -> Option<Elements<'static>> {
        let mut raw = Vec::new();
        for value in values {
            if matches!(value, Value::Array(_) | Value::Invalid(_)) {
                return None;
            }
            value.put(&mut raw);
        }
        Some(Elements { count: u32::try_from(values.len()).ok()?, raw: raw.into() })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'_>> {
        let unlimited = Limits { frame_bytes_max: usize::MAX, items_max: 0 };
        let mut reader = Reader::new(&self.raw, &unlimited).expect("no frame is too long");
        (0..self.count).map(move |_| Value::take(&mut reader).expect("checked when the array was made"))
    }

    /// `None` when an element is an array or invalid.
    fn take(reader: &mut Reader<'a>) -> Result<Option<Elements<'a>>, Malformed> {
        let count = reader.array()?;
        let before = reader.rest();
        for _ in 0..count {
            let nested = matches!(reader.peek()?, Marker::FixArray(_) | Marker::Array16 | Marker::Array32);
            if nested || matches!(Value::take(reader)?, Value::Invalid(_)) {
                return Ok(None);
            }
        }
        Ok(Some(Elements { count, raw: before[..before.len() - reader.rest().len()].into() }))
    }
}

/// The columns that a mutation sets, by name. Omitted means unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns<'a>(pub Vec<(Cow<'a, str>, Value<'a>)>);

impl<'a> Columns<'a> {
    /// The value of one column.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.0.iter().find(|(column, _)| column == name).map(|(_, value)| value)
    }

    /// The first invalid value, with its column.
    pub fn invalid(&self) -> Option<(&str, InvalidReason)> {
        self.0.iter().find_map(|(name, value)| match value {
            Value::Invalid(invalid) => Some((name.as_ref(), invalid.reason)),
            _ => None,
        })
    }
}

impl<'a> Wire<'a> for Columns<'a> {
    const SHAPE: Shape = Shape::Columns;
    const NULLABLE: bool = true;
    fn put(&self, out: &mut Vec<u8>) {
        write::map(out, self.0.len());
        for (name, value) in &self.0 {
            write::str(out, name);
            value.put(out);
        }
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        if reader.nil()? {
            return Ok(Columns::default());
        }
        let mut columns = Vec::new();
        let mut seen = HashSet::new();
        for _ in 0..reader.map()? {
            let name = reader.str()?;
            let before = reader.rest();
            let mut value = Value::take(reader)?;
            if !seen.insert(name) {
                let raw = before[..before.len() - reader.rest().len()].into();
                value = Value::Invalid(Invalid { reason: InvalidReason::Duplicate, raw });
            }
            columns.push((Cow::Borrowed(name), value));
        }
        Ok(Columns(columns))
    }
    fn absent() -> Option<Self> {
        Some(Columns::default())
    }
    fn is_absent(&self) -> bool {
        self.0.is_empty()
    }
}

impl IntoOwned for Columns<'_> {
    type Owned = Columns<'static>;
    fn into_owned(self) -> Columns<'static> {
        Columns(
            self.0
                .into_iter()
                .map(|(name, value)| (IntoOwned::into_owned(name), value.into_owned()))
                .collect(),
        )
    }
}

/// What must hold for a mutation to run (F10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// Nothing. (An insert still requires that the row does not exist.)
    #[default]
    None,
    /// The row has this version; nil: it exists and no fence has touched it.
    Version(RowVersion),
    /// The row has the version that this earlier mutation of the same client produced.
    After(MutationNumber),
}

impl<'a> Wire<'a> for Base {
    const SHAPE: Shape = Shape::Base;
    const NULLABLE: bool = true;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Base::None => write::nil(out),
            Base::Version(version) => version.put(out),
            Base::After(number) => {
                write::map(out, 1);
                write::str(out, "after");
                number.put(out);
            }
        }
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match reader.peek()? {
            Marker::Null => reader.nil().map(|_| Base::None),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => RowVersion::take(reader).map(Base::Version),
            _ => {
                let mut after = None;
                for _ in 0..reader.map()? {
                    match reader.name()? {
                        "after" => after = Some(MutationNumber::take(reader)?),
                        _ => drop(reader.skip()?),
                    }
                }
                after.map(Base::After).ok_or(Malformed::expected("bin16 or {after}"))
            }
        }
    }
    fn absent() -> Option<Self> {
        Some(Base::None)
    }
    fn is_absent(&self) -> bool {
        *self == Base::None
    }
}

owned_already!(Base);

/// Reads a row's wire form: the MessagePack array inside a frame's `row` bin.
pub fn decode_row(row: &[u8]) -> Result<Vec<Value<'_>>, Malformed> {
    let mut reader = Reader::new(row, &Limits { frame_bytes_max: usize::MAX, items_max: u32::MAX })?;
    let values = Vec::take(&mut reader)?;
    reader.end()?;
    Ok(values)
}
