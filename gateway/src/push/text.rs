//! Values in their wire form, as PostgreSQL's text input takes them. They travel as parameters, never inside a statement.
//!
//! What no column of the type can hold is refused here, before any SQL of its mutation runs (DT-05). What only PostgreSQL can
//! judge, such as the digits of a date, it judges. Messages name what a column takes, never the value. Pure.

use std::borrow::Cow;
use std::fmt::Write;
use tidegate_model::{ColumnType, ElementType};
use tidegate_protocol::Value;
use uuid::Uuid;

/// Largest integer that a double holds exactly with all its neighbours: 2^53.
const EXACT_IN_DOUBLE: u64 = 1 << 53;

/// Text of one column value; `None` for null. `pg_type` is the name of the column's base type.
///
/// # Errors
/// What the column takes instead.
pub(super) fn value_text<'v>(
    wire: ColumnType,
    pg_type: &str,
    value: &'v Value<'_>,
) -> Result<Option<Cow<'v, str>>, &'static str> {
    match (wire, value) {
        (_, Value::Nil) => Ok(None),
        (_, Value::Invalid(invalid)) => Err(invalid.reason.message()),
        (ColumnType::Scalar(element), value) => element_text(element, pg_type, value).map(Some),
        // The form of arrays that MessagePack's cannot express: more dimensions, other bounds.
        (ColumnType::Array(_), Value::Str(text)) => Ok(Some(Cow::Borrowed(text))),
        (ColumnType::Array(element), Value::Array(elements)) => {
            let mut literal = ArrayLiteral::new();
            for item in elements.iter() {
                match item {
                    Value::Nil => literal.push(None),
                    item => {
                        literal.push(Some(&element_text(element, pg_type.trim_start_matches('_'), &item)?))
                    }
                }
            }
            Ok(Some(Cow::Owned(literal.finish())))
        }
        (ColumnType::Array(_), _) => Err("an array is expected"),
    }
}

/// Text of a key in the form that PostgreSQL gives back, so that equal keys are equal texts.
///
/// # Errors
/// What a key of this type is.
pub(super) fn key_text(wire: ColumnType, pg_type: &str, value: &Value<'_>) -> Result<String, &'static str> {
    match value_text(wire, pg_type, value)? {
        None => Err("a key is never null"),
        Some(text) => Ok(text.into_owned()),
    }
}

fn element_text<'v>(
    element: ElementType,
    pg_type: &str,
    value: &'v Value<'_>,
) -> Result<Cow<'v, str>, &'static str> {
    Ok(match (element, value) {
        (ElementType::Bool, Value::Bool(true)) => "t".into(),
        (ElementType::Bool, Value::Bool(false)) => "f".into(),
        (ElementType::Bool, _) => return Err("a boolean is expected"),
        (ElementType::Int, Value::Int(value)) => {
            let (range, what) = match pg_type {
                "int2" => (i16::MIN.into()..=i16::MAX.into(), "an integer of 16 bits is expected"),
                _ => (i32::MIN.into()..=i32::MAX.into(), "an integer of 32 bits is expected"),
            };
            if !range.contains(value) {
                return Err(what);
            }
            value.to_string().into()
        }
        (ElementType::Int64, Value::Int(value)) => value.to_string().into(),
        // DT-02: a double is no integer, however round: it may have been rounded already.
        (ElementType::Int | ElementType::Int64, _) => return Err("an integer is expected"),
        (ElementType::Float32 | ElementType::Float64, Value::F32(value)) => {
            float_text((*value).into(), format_args!("{value:e}"))
        }
        (ElementType::Float32 | ElementType::Float64, Value::F64(value)) => {
            float_text(*value, format_args!("{value:e}"))
        }
        // Encoders write a round double as an integer.
        (ElementType::Float32 | ElementType::Float64, Value::Int(value))
            if value.unsigned_abs() <= EXACT_IN_DOUBLE =>
        {
            value.to_string().into()
        }
        (ElementType::Float32 | ElementType::Float64, _) => {
            return Err("a number that a double holds exactly is expected");
        }
        (ElementType::Bytes, Value::Bin(bytes)) => {
            let mut text = String::with_capacity(2 + 2 * bytes.len());
            text.push_str("\\x");
            bytes.iter().try_for_each(|byte| write!(text, "{byte:02x}")).map_err(|_| "bytes are expected")?;
            text.into()
        }
        (ElementType::Bytes, _) => return Err("bytes are expected"),
        (ElementType::Uuid, Value::Str(text)) => {
            Uuid::parse_str(text).map_err(|_| "a UUID is expected")?.to_string().into()
        }
        (
            ElementType::String
            | ElementType::Json
            | ElementType::Numeric
            | ElementType::Date
            | ElementType::Time
            | ElementType::TimeTz
            | ElementType::Timestamp
            | ElementType::TimestampTz
            | ElementType::Interval,
            Value::Str(text),
        ) => Cow::Borrowed(text),
        _ => return Err("text is expected"),
    })
}

fn float_text<'v>(value: f64, digits: std::fmt::Arguments<'_>) -> Cow<'v, str> {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        digits.to_string().into()
    }
}

/// Text of a one-dimensional array, every element quoted: nothing in a value can look like syntax.
pub(super) struct ArrayLiteral(String);

impl ArrayLiteral {
    pub(super) fn new() -> ArrayLiteral {
        ArrayLiteral("{".to_owned())
    }

    pub(super) fn push(&mut self, element: Option<&str>) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        match element {
            None => self.0.push_str("NULL"),
            Some(text) => {
                self.0.push('"');
                for c in text.chars() {
                    if matches!(c, '"' | '\\') {
                        self.0.push('\\');
                    }
                    self.0.push(c);
                }
                self.0.push('"');
            }
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_protocol::Elements;

    fn scalar(element: ElementType, pg_type: &str, value: Value<'_>) -> Result<Option<String>, &'static str> {
        value_text(ColumnType::Scalar(element), pg_type, &value).map(|text| text.map(Cow::into_owned))
    }

    #[test]
    fn dt02_integers_are_exact_and_doubles_are_refused() {
        for value in [i64::MIN, -9007199254740993, 9007199254740993, i64::MAX] {
            assert_eq!(scalar(ElementType::Int64, "int8", Value::Int(value)), Ok(Some(value.to_string())));
        }
        assert!(scalar(ElementType::Int64, "int8", Value::F64(9007199254740993.0)).is_err());
        assert!(scalar(ElementType::Int, "int4", Value::F64(1.0)).is_err());
        assert!(scalar(ElementType::Int, "int4", Value::Int(2_147_483_648)).is_err());
        assert!(scalar(ElementType::Int, "int2", Value::Int(32_768)).is_err());
        assert!(scalar(ElementType::Int64, "int8", Value::Str("1".into())).is_err());
    }

    #[test]
    fn dt03_floats_keep_nan_infinity_and_every_digit() {
        for (value, text) in [
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (0.1, "1e-1"),
            (-0.0, "-0e0"),
            (f64::MAX, "1.7976931348623157e308"),
        ] {
            assert_eq!(scalar(ElementType::Float64, "float8", Value::F64(value)), Ok(Some(text.to_owned())));
        }
        assert_eq!(scalar(ElementType::Float64, "float8", Value::Int(3)), Ok(Some("3".to_owned())));
        assert!(scalar(ElementType::Float64, "float8", Value::Int(9007199254740993)).is_err());
    }

    #[test]
    fn dt08_null_and_empty_are_not_the_same() {
        assert_eq!(scalar(ElementType::String, "text", Value::Nil), Ok(None));
        assert_eq!(scalar(ElementType::String, "text", Value::Str("".into())), Ok(Some(String::new())));
        assert_eq!(
            scalar(ElementType::String, "text", Value::Str("NULL".into())),
            Ok(Some("NULL".to_owned()))
        );
    }

    #[test]
    fn array_elements_cannot_look_like_syntax() {
        let values =
            [Value::Str("a\"b\\,{}".into()), Value::Nil, Value::Str("NULL".into()), Value::Str("".into())];
        let array = Value::Array(Elements::new(&values).expect("plain values"));
        let text = value_text(ColumnType::Array(ElementType::String), "_text", &array);
        assert_eq!(text.as_ref().map(|t| t.as_deref()), Ok(Some("{\"a\\\"b\\\\,{}\",NULL,\"NULL\",\"\"}")));
        let bytes = [Value::Bin(vec![0, 255].into())];
        let array = Value::Array(Elements::new(&bytes).expect("plain values"));
        let text = value_text(ColumnType::Array(ElementType::Bytes), "_bytea", &array);
        assert_eq!(text.as_ref().map(|t| t.as_deref()), Ok(Some("{\"\\\\x00ff\"}")));
        assert_eq!(
            value_text(ColumnType::Array(ElementType::Int), "_int4", &Value::Int(1)),
            Err("an array is expected")
        );
    }

    #[test]
    fn uuids_become_canonical() {
        let upper = Value::Str("6BA7B810-9DAD-11D1-80B4-00C04FD430C8".into());
        let text = key_text(ColumnType::Scalar(ElementType::Uuid), "uuid", &upper);
        assert_eq!(text.as_deref(), Ok("6ba7b810-9dad-11d1-80b4-00c04fd430c8"));
        assert!(key_text(ColumnType::Scalar(ElementType::Uuid), "uuid", &Value::Str("x".into())).is_err());
        assert!(key_text(ColumnType::Scalar(ElementType::String), "text", &Value::Nil).is_err());
    }
}
