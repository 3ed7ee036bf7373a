//! MessagePack to and from the JSON notation of the golden vectors. Shares no code with the crate's own codecs, so that a vector
//! checks them from outside.
//!
//! What JSON lacks is an object with one key: `$int` (integers beyond 2^53), `$bin`, `$f32`, `$f64`, `$str` (text that is not UTF-8,
//! in hexadecimal).

use rmp::{Marker, encode};
use serde_json::{Map, Value as Json, json};
use tidegate_protocol::{Field, Shape, UINT_MAX, frames};

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2), "whole bytes");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// The whole of `bytes` as one value.
pub fn from_msgpack(mut bytes: &[u8]) -> Json {
    let value = value_from(&mut bytes);
    assert!(bytes.is_empty(), "one value");
    value
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

fn value_from(bytes: &mut &[u8]) -> Json {
    let marker = Marker::from_u8(bytes[0]);
    let mut length = |skip: usize| {
        let digits = &take(bytes, 1 + skip)[1..];
        digits.iter().fold(0usize, |value, byte| value << 8 | usize::from(*byte))
    };
    match marker {
        Marker::FixStr(count) => text(take(bytes, 1 + usize::from(count)).split_at(1).1),
        Marker::Str8 => length(1).pipe(|count| text(take(bytes, count))),
        Marker::Str16 => length(2).pipe(|count| text(take(bytes, count))),
        Marker::Str32 => length(4).pipe(|count| text(take(bytes, count))),
        Marker::Bin8 => length(1).pipe(|count| json!({ "$bin": hex(take(bytes, count)) })),
        Marker::Bin16 => length(2).pipe(|count| json!({ "$bin": hex(take(bytes, count)) })),
        Marker::Bin32 => length(4).pipe(|count| json!({ "$bin": hex(take(bytes, count)) })),
        Marker::FixArray(count) => length(0).pipe(|_| array(bytes, usize::from(count))),
        Marker::Array16 => length(2).pipe(|count| array(bytes, count)),
        Marker::Array32 => length(4).pipe(|count| array(bytes, count)),
        Marker::FixMap(count) => length(0).pipe(|_| map(bytes, usize::from(count))),
        Marker::Map16 => length(2).pipe(|count| map(bytes, count)),
        Marker::Map32 => length(4).pipe(|count| map(bytes, count)),
        Marker::Null => length(0).pipe(|_| Json::Null),
        Marker::True => length(0).pipe(|_| Json::Bool(true)),
        Marker::False => length(0).pipe(|_| Json::Bool(false)),
        Marker::F32 => json!({ "$f32": float(rmp::decode::read_f32(bytes).unwrap()) }),
        Marker::F64 => json!({ "$f64": float(rmp::decode::read_f64(bytes).unwrap()) }),
        _ => match rmp::decode::read_int::<i64, _>(bytes).unwrap() {
            value if value.unsigned_abs() <= UINT_MAX => json!(value),
            value => json!({ "$int": value.to_string() }),
        },
    }
}

trait Pipe: Sized {
    fn pipe<R>(self, then: impl FnOnce(Self) -> R) -> R {
        then(self)
    }
}
impl Pipe for usize {}

fn text(bytes: &[u8]) -> Json {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "$str": hex(bytes) }),
    }
}

fn array(bytes: &mut &[u8], count: usize) -> Json {
    (0..count).map(|_| value_from(bytes)).collect()
}

fn map(bytes: &mut &[u8], count: usize) -> Json {
    let pairs = (0..count).map(|_| {
        let Json::String(name) = value_from(bytes) else { panic!("names are text") };
        (name, value_from(bytes))
    });
    Json::Object(pairs.collect::<Map<_, _>>())
}

/// Shortest exact form that JavaScript's `Number` reads as well.
fn float(value: impl Into<f64> + std::fmt::Debug + Copy) -> String {
    match value.into() {
        wide if wide.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => format!("{value:?}"),
    }
}

/// The frame in canonical form: fields in the order of the table, everything as short as it can be.
pub fn frame_to_msgpack(frame: &Json) -> Vec<u8> {
    let name = frame["t"].as_str().expect("a frame has a type");
    let spec = frames().find(|spec| spec.name == name).expect("a frame of the table");
    let fields: Vec<_> = spec.fields.iter().filter(|field| frame.get(field.name).is_some()).collect();
    let known = 1 + fields.len();
    assert_eq!(frame.as_object().unwrap().len(), known, "{name}: only fields of the table");
    let mut out = Vec::new();
    encode::write_map_len(&mut out, known as u32).unwrap();
    encode::write_str(&mut out, "t").unwrap();
    encode::write_str(&mut out, name).unwrap();
    fields.into_iter().for_each(|field| pair(field, &frame[field.name], &mut out));
    out
}

fn pair(field: &Field, value: &Json, out: &mut Vec<u8>) {
    encode::write_str(out, field.name).unwrap();
    to_msgpack(value, Some(&field.shape), out);
}

/// One value. A shape says how the fields of a map are ordered; without one they are ordered by name.
pub fn to_msgpack(value: &Json, shape: Option<&Shape>, out: &mut Vec<u8>) {
    match value {
        Json::Null => encode::write_nil(out).unwrap(),
        Json::Bool(value) => encode::write_bool(out, *value).unwrap(),
        Json::Number(value) => {
            encode::write_sint(out, value.as_i64().expect("floats are written as $f64")).unwrap();
        }
        Json::String(value) => encode::write_str(out, value).unwrap(),
        Json::Array(items) => {
            encode::write_array_len(out, items.len() as u32).unwrap();
            for (at, item) in items.iter().enumerate() {
                let shape = match shape {
                    Some(Shape::List(item)) => Some(*item),
                    Some(Shape::Tuple(record)) => Some(&record.fields[at].shape),
                    _ => None,
                };
                to_msgpack(item, shape, out);
            }
        }
        Json::Object(map) => match (map.iter().next(), shape) {
            (Some((kind, Json::String(text))), _) if kind.starts_with('$') => special(kind, text, out),
            (_, Some(Shape::Record(record))) => {
                let fields: Vec<_> =
                    record.fields.iter().filter(|field| map.contains_key(field.name)).collect();
                assert_eq!(fields.len(), map.len(), "{}: only fields of the table", record.name);
                encode::write_map_len(out, map.len() as u32).unwrap();
                fields.into_iter().for_each(|field| pair(field, &map[field.name], out));
            }
            _ => {
                encode::write_map_len(out, map.len() as u32).unwrap();
                for (name, value) in map {
                    encode::write_str(out, name).unwrap();
                    to_msgpack(value, None, out);
                }
            }
        },
    }
}

fn special(kind: &str, text: &str, out: &mut Vec<u8>) {
    match kind {
        "$int" => {
            encode::write_sint(out, text.parse().unwrap()).unwrap();
        }
        "$bin" => encode::write_bin(out, &unhex(text)).unwrap(),
        "$f32" => encode::write_f32(out, text.parse().unwrap()).unwrap(),
        "$f64" => encode::write_f64(out, text.parse().unwrap()).unwrap(),
        "$str" => {
            let bytes = unhex(text);
            encode::write_str_len(out, bytes.len() as u32).unwrap();
            out.extend(bytes);
        }
        _ => panic!("unknown notation {kind}"),
    }
}
