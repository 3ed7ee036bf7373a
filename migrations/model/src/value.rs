//! The wire form of column values: PostgreSQL's text output, under the pinned settings, to MessagePack.
//!
//! Snapshot and stream both come through [`encode_text_value`], so the same value has the same bytes in both (DT-03). Pinned:
//! `DateStyle` ISO, `IntervalStyle` iso_8601, `TimeZone` UTC, `bytea_output` hex, `extra_float_digits` 1 (shortest exact form).

use rmp::Marker;

/// Wire type of a captured column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// A single value.
    Scalar(ElementType),
    /// One-dimensional arrays with default bounds travel as arrays, all others as their text.
    Array(ElementType),
}

/// Wire type of a scalar, or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// boolean
    Bool,
    /// int2, int4
    Int,
    /// int8, exact over its whole range
    Int64,
    /// float4, NaN and infinities kept
    Float32,
    /// float8, NaN and infinities kept
    Float64,
    /// text, varchar, char(n), enums
    String,
    /// uuid
    Uuid,
    /// json and jsonb, as text, lossless
    Json,
    /// numeric, as text
    Numeric,
    /// date, as text
    Date,
    /// time without time zone, as text
    Time,
    /// time with time zone, as text
    TimeTz,
    /// timestamp without time zone, ISO 8601 where it is finite and not BC
    Timestamp,
    /// timestamp with time zone, in UTC, ISO 8601 where it is finite and not BC
    TimestampTz,
    /// interval, ISO 8601 text
    Interval,
    /// bytea
    Bytes,
}

const NAMES: [(&str, ElementType); 16] = [
    ("bool", ElementType::Bool),
    ("int", ElementType::Int),
    ("int64", ElementType::Int64),
    ("float32", ElementType::Float32),
    ("float64", ElementType::Float64),
    ("string", ElementType::String),
    ("uuid", ElementType::Uuid),
    ("json", ElementType::Json),
    ("numeric", ElementType::Numeric),
    ("date", ElementType::Date),
    ("time", ElementType::Time),
    ("timetz", ElementType::TimeTz),
    ("timestamp", ElementType::Timestamp),
    ("timestamptz", ElementType::TimestampTz),
    ("interval", ElementType::Interval),
    ("bytes", ElementType::Bytes),
];

impl ColumnType {
    /// Reads a wire type's name, such as `int64` or `array:string`.
    pub fn from_name(name: &str) -> Option<ColumnType> {
        let find = |name: &str| NAMES.iter().find(|(n, _)| *n == name).map(|(_, t)| *t);
        match name.strip_prefix("array:") {
            Some(element) => find(element).map(ColumnType::Array),
            None => find(name).map(ColumnType::Scalar),
        }
    }

    /// The wire type's name.
    pub fn name(self) -> String {
        let find = |element| NAMES.iter().find(|(_, t)| *t == element).map_or("", |(n, _)| *n);
        match self {
            ColumnType::Scalar(element) => find(element).to_owned(),
            ColumnType::Array(element) => format!("array:{}", find(element)),
        }
    }
}

impl serde::Serialize for ColumnType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl<'de> serde::Deserialize<'de> for ColumnType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        ColumnType::from_name(&name).ok_or_else(|| serde::de::Error::custom("unknown wire type"))
    }
}

/// PostgreSQL's text was not a value of the column's type. Carries no part of the value (Q1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("value is not a valid {0}")]
pub struct ValueError(pub &'static str);

/// Begins a row: the header of an array of `columns` values. Each value follows, by [`encode_text_value`].
pub fn encode_row_header(columns: usize, out: &mut Vec<u8>) {
    infallible(rmp::encode::write_array_len(out, columns as u32));
}

/// Appends one value, given as PostgreSQL's text output, or nil.
///
/// # Errors
/// [`ValueError`] when the text is not a value of `column_type`; `out` is then as before.
pub fn encode_text_value(
    column_type: ColumnType,
    text: Option<&str>,
    out: &mut Vec<u8>,
) -> Result<(), ValueError> {
    let Some(text) = text else {
        out.push(Marker::Null.to_u8());
        return Ok(());
    };
    let start = out.len();
    let result = match column_type {
        ColumnType::Scalar(element) => encode_element(element, text, out),
        ColumnType::Array(element) => encode_array(element, text, out),
    };
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn encode_element(element: ElementType, text: &str, out: &mut Vec<u8>) -> Result<(), ValueError> {
    match element {
        ElementType::Bool => out.push(match text {
            "t" => Marker::True.to_u8(),
            "f" => Marker::False.to_u8(),
            _ => return Err(ValueError("boolean")),
        }),
        ElementType::Int | ElementType::Int64 => {
            write_int(out, text.parse().map_err(|_| ValueError("integer"))?)
        }
        ElementType::Float32 => {
            infallible(rmp::encode::write_f32(out, text.parse().map_err(|_| ValueError("float4"))?))
        }
        ElementType::Float64 => {
            infallible(rmp::encode::write_f64(out, text.parse().map_err(|_| ValueError("float8"))?))
        }
        ElementType::Bytes => return encode_bytea(text, out),
        ElementType::Timestamp | ElementType::TimestampTz => encode_timestamp(text, out),
        ElementType::String
        | ElementType::Uuid
        | ElementType::Json
        | ElementType::Numeric
        | ElementType::Date
        | ElementType::Time
        | ElementType::TimeTz
        | ElementType::Interval => write_str(out, text),
    }
    Ok(())
}

fn encode_bytea(text: &str, out: &mut Vec<u8>) -> Result<(), ValueError> {
    let digits = text.strip_prefix("\\x").ok_or(ValueError("bytea"))?.as_bytes();
    if digits.len() % 2 != 0 {
        return Err(ValueError("bytea"));
    }
    infallible(rmp::encode::write_bin_len(out, (digits.len() / 2) as u32));
    let digit = |d: u8| (d as char).to_digit(16).ok_or(ValueError("bytea"));
    for pair in digits.chunks_exact(2) {
        out.push((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    }
    Ok(())
}

/// `2026-11-30 18:55:34.5+00` becomes `2026-11-30T18:55:34.5Z`, which every language parses; `infinity` and BC dates, which
/// ISO 8601 lacks, stay PostgreSQL's text.
fn encode_timestamp(text: &str, out: &mut Vec<u8>) {
    let iso =
        text.split_once(' ').filter(|(_, time)| !time.contains(' ') && text.as_bytes()[0].is_ascii_digit());
    let Some((date, time)) = iso else { return write_str(out, text) };
    let (time, zone) = time.strip_suffix("+00").map_or((time, ""), |time| (time, "Z"));
    infallible(rmp::encode::write_str_len(out, (date.len() + 1 + time.len() + zone.len()) as u32));
    for part in [date, "T", time, zone] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Arrays of one dimension with default bounds become arrays; anything else is its text, which is valid input for PostgreSQL.
fn encode_array(element: ElementType, text: &str, out: &mut Vec<u8>) -> Result<(), ValueError> {
    const ERROR: ValueError = ValueError("array");
    let Some(body) = text.strip_prefix('{') else {
        write_str(out, text);
        return Ok(());
    };
    let body = body.strip_suffix('}').ok_or(ERROR)?;
    if body.starts_with('{') {
        write_str(out, text);
        return Ok(());
    }
    if body.is_empty() {
        infallible(rmp::encode::write_array_len(out, 0));
        return Ok(());
    }
    let mut encoded = Vec::with_capacity(body.len());
    let mut count = 0u32;
    let mut rest = body;
    loop {
        let after = if let Some(quoted) = rest.strip_prefix('"') {
            let mut value = String::new();
            let mut chars = quoted.char_indices();
            let end = loop {
                match chars.next().ok_or(ERROR)? {
                    (at, '"') => break at,
                    (_, '\\') => value.push(chars.next().ok_or(ERROR)?.1),
                    (_, c) => value.push(c),
                }
            };
            encode_element(element, &value, &mut encoded)?;
            &quoted[end + 1..]
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            match &rest[..end] {
                "NULL" => encoded.push(Marker::Null.to_u8()),
                "" => return Err(ERROR),
                value => encode_element(element, value, &mut encoded)?,
            }
            &rest[end..]
        };
        count += 1;
        if after.is_empty() {
            break;
        }
        rest = after.strip_prefix(',').ok_or(ERROR)?;
    }
    infallible(rmp::encode::write_array_len(out, count));
    out.extend_from_slice(&encoded);
    Ok(())
}

/// Appends the smallest integer form.
pub(crate) fn write_int(out: &mut Vec<u8>, value: i64) {
    infallible(rmp::encode::write_sint(out, value));
}

/// Appends a string.
pub(crate) fn write_str(out: &mut Vec<u8>, text: &str) {
    infallible(rmp::encode::write_str(out, text));
}

/// Writing to a `Vec` cannot fail; a length beyond 4 GiB cannot occur, since PostgreSQL's values end at 1 GiB.
fn infallible<T, E>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(_) => unreachable!("writing MessagePack to memory cannot fail"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WireValue;
    use crate::row::classify;
    use ElementType::*;

    fn encode(column_type: ColumnType, text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        encode_text_value(column_type, Some(text), &mut out).expect("a valid value");
        out
    }

    fn text_of(element: ElementType, text: &str) -> std::string::String {
        let bytes = encode(ColumnType::Scalar(element), text);
        match classify(&bytes) {
            Some(WireValue::Str(text)) => text.to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dt03_odd_values_keep_every_digit() {
        assert_eq!(text_of(Timestamp, "2026-11-30 18:55:34.123456"), "2026-11-30T18:55:34.123456");
        assert_eq!(text_of(TimestampTz, "2026-11-30 18:55:34+00"), "2026-11-30T18:55:34Z");
        assert_eq!(text_of(TimestampTz, "294276-12-31 23:59:59.999999+00"), "294276-12-31T23:59:59.999999Z");
        for unchanged in ["infinity", "-infinity", "4713-01-01 00:00:00 BC", "0044-03-15 00:00:00+00 BC"] {
            assert_eq!(text_of(TimestampTz, unchanged), unchanged);
        }
        assert_eq!(text_of(Date, "0044-03-15 BC"), "0044-03-15 BC");
        assert_eq!(text_of(Numeric, "NaN"), "NaN");
        assert_eq!(text_of(Interval, "P-1DT2H3M"), "P-1DT2H3M");
        assert_eq!(encode(ColumnType::Scalar(Float64), "-Infinity"), [0xcb, 0xff, 0xf0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode(ColumnType::Scalar(Float32), "1.5"), [0xca, 0x3f, 0xc0, 0, 0]);
        assert!(encode(ColumnType::Scalar(Float64), "NaN").starts_with(&[0xcb, 0x7f, 0xf8]));
    }

    #[test]
    fn dt02_integers_are_exact_over_their_whole_range() {
        for value in [i64::MIN, -9007199254740993, -33, -1, 0, 127, 128, 65535, 9007199254740993, i64::MAX] {
            let bytes = encode(ColumnType::Scalar(Int64), &value.to_string());
            assert_eq!(classify(&bytes), Some(WireValue::Int(value)));
        }
    }

    #[test]
    fn arrays_travel_as_arrays_only_where_one_dimensional_with_default_bounds() {
        let array = |text| encode(ColumnType::Array(String), text);
        assert_eq!(array("{}"), [0x90]);
        assert_eq!(array("{a,NULL,\"NULL\",\"\",\"a\\\"b\\\\\",\"x,y\"}")[..3], [0x96, 0xa1, b'a']);
        assert_eq!(encode(ColumnType::Array(Int), "{1,NULL,-1}"), [0x93, 1, 0xc0, 0xff]);
        for text in ["{{1,2},{3,4}}", "[0:1]={1,2}"] {
            let bytes = encode(ColumnType::Array(Int), text);
            assert_eq!(classify(&bytes), Some(WireValue::Str(text)));
        }
        assert_eq!(encode(ColumnType::Array(Bytes), "{\"\\\\x00ff\"}"), [0x91, 0xc4, 2, 0, 0xff]);
    }

    #[test]
    fn malformed_text_is_refused_and_leaves_nothing_behind() {
        let cases = [
            (ColumnType::Scalar(Bool), "true"),
            (ColumnType::Scalar(Int), "1.5"),
            (ColumnType::Scalar(Int64), "9223372036854775808"),
            (ColumnType::Scalar(Bytes), "\\x0"),
            (ColumnType::Scalar(Bytes), "\\xzz"),
            (ColumnType::Scalar(Bytes), "00"),
            (ColumnType::Array(Int), "{1,"),
            (ColumnType::Array(Int), "{1,}"),
            (ColumnType::Array(String), "{\"a}"),
            (ColumnType::Array(Int), "{a}"),
        ];
        for (column_type, text) in cases {
            let mut out = vec![7];
            assert!(encode_text_value(column_type, Some(text), &mut out).is_err(), "{text}");
            assert_eq!(out, [7]);
        }
    }
}
