//! A row image read back: value by value, borrowed, without knowing the columns' types.
//!
//! As much of MessagePack as `value.rs` writes, and no panic on any other bytes.

use rmp::Marker;

/// One value of a row image, borrowed; as much of it as templates and predicates can use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WireValue<'r> {
    /// SQL null.
    Nil,
    /// boolean
    Bool(bool),
    /// Any integer column.
    Int(i64),
    /// Any column whose wire form is a string.
    Str(&'r str),
    /// Anything else: its encoded bytes.
    Other(&'r [u8]),
}

impl<'r> WireValue<'r> {
    /// Text form for templates and grants; `None` for null and for types that registration does not allow there.
    pub fn text(&self) -> Option<std::borrow::Cow<'r, str>> {
        match *self {
            WireValue::Bool(value) => Some(if value { "true" } else { "false" }.into()),
            WireValue::Int(value) => Some(value.to_string().into()),
            WireValue::Str(text) => Some(text.into()),
            WireValue::Nil | WireValue::Other(_) => None,
        }
    }
}

/// Walks the values of a row image.
#[derive(Clone, Debug)]
pub struct RowReader<'r> {
    rest: &'r [u8],
    left: u32,
}

impl<'r> RowReader<'r> {
    /// Starts at the first value; `None` when `row` is not a row image.
    pub fn new(row: &'r [u8]) -> Option<RowReader<'r>> {
        let mut rest = row;
        let left = rmp::decode::read_array_len(&mut rest).ok()?;
        Some(RowReader { rest, left })
    }

    /// The next value with its encoded bytes; `None` at the end, and when the bytes are not MessagePack.
    pub fn next_value(&mut self) -> Option<(WireValue<'r>, &'r [u8])> {
        self.left = self.left.checked_sub(1)?;
        let length = value_length(self.rest)?;
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some((classify(bytes)?, bytes))
    }

    /// The value at `index`, counted from where the reader stands.
    pub fn nth_value(&mut self, index: usize) -> Option<(WireValue<'r>, &'r [u8])> {
        for _ in 0..index {
            self.next_value()?;
        }
        self.next_value()
    }
}

pub(crate) fn classify(bytes: &[u8]) -> Option<WireValue<'_>> {
    let mut rest = bytes;
    Some(match Marker::from_u8(*bytes.first()?) {
        Marker::Null => WireValue::Nil,
        Marker::True => WireValue::Bool(true),
        Marker::False => WireValue::Bool(false),
        Marker::FixPos(_)
        | Marker::FixNeg(_)
        | Marker::U8
        | Marker::U16
        | Marker::U32
        | Marker::U64
        | Marker::I8
        | Marker::I16
        | Marker::I32
        | Marker::I64 => WireValue::Int(rmp::decode::read_int(&mut rest).ok()?),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
            let length = rmp::decode::read_str_len(&mut rest).ok()? as usize;
            WireValue::Str(std::str::from_utf8(rest.get(..length)?).ok()?)
        }
        _ => WireValue::Other(bytes),
    })
}

/// Encoded length of the value at the front. Rows nest one level (arrays), so the walk is flat.
fn value_length(bytes: &[u8]) -> Option<usize> {
    let mut pending = 1u64;
    let mut at = 0usize;
    while pending > 0 {
        let mut rest = bytes.get(at..)?;
        let before = rest.len();
        let marker = Marker::from_u8(*rest.first()?);
        let body = match marker {
            Marker::Null | Marker::True | Marker::False | Marker::FixPos(_) | Marker::FixNeg(_) => {
                rest = &rest[1..];
                0
            }
            Marker::U8 | Marker::I8 => 2,
            Marker::U16 | Marker::I16 => 3,
            Marker::U32 | Marker::I32 | Marker::F32 => 5,
            Marker::U64 | Marker::I64 | Marker::F64 => 9,
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                rmp::decode::read_str_len(&mut rest).ok()? as usize
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                rmp::decode::read_bin_len(&mut rest).ok()? as usize
            }
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                pending += u64::from(rmp::decode::read_array_len(&mut rest).ok()?);
                0
            }
            _ => return None,
        };
        at = at.checked_add(before - rest.len())?.checked_add(body)?;
        pending -= 1;
    }
    (at <= bytes.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElementType::*;
    use crate::{ColumnType, encode_row_header, encode_text_value};

    #[test]
    fn a_row_reads_back_value_by_value() {
        let mut row = Vec::new();
        encode_row_header(6, &mut row);
        for (column_type, text) in [
            (ColumnType::Scalar(Int), Some("5")),
            (ColumnType::Scalar(String), None),
            (ColumnType::Array(String), Some("{a,b}")),
            (ColumnType::Scalar(Bytes), Some("\\xff")),
            (ColumnType::Scalar(Bool), Some("t")),
            (ColumnType::Scalar(String), Some("x")),
        ] {
            encode_text_value(column_type, text, &mut row).expect("valid");
        }
        let mut reader = RowReader::new(&row).expect("a row");
        let values: Vec<_> = std::iter::from_fn(|| reader.next_value().map(|(value, _)| value)).collect();
        assert_eq!(values.len(), 6);
        assert_eq!(
            (values[0], values[1], values[4], values[5]),
            (WireValue::Int(5), WireValue::Nil, WireValue::Bool(true), WireValue::Str("x"))
        );
        assert_eq!(
            RowReader::new(&row).and_then(|mut r| r.nth_value(5)).map(|v| v.0),
            Some(WireValue::Str("x"))
        );
        for end in 0..row.len() {
            let mut reader = RowReader::new(&row[..end]);
            while reader.as_mut().and_then(RowReader::next_value).is_some() {}
        }
    }
}
