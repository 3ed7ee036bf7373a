//! The golden vectors hold for this crate. The SDK's tests read the same files.

use crate::bless;
use crate::json::{frame_to_msgpack, from_msgpack, hex, to_msgpack, unhex};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_model::{ColumnType, Template, TemplatePart, encode_text_value};
use tidegate_protocol::*;

const LIMITS: Limits = Limits::FROM_CLIENT;

fn vectors(file: &str) -> Vec<Json> {
    let mut content: Json = serde_json::from_str(&bless::read(&format!("vectors/{file}.json"))).unwrap();
    let Json::Array(vectors) = content["vectors"].take() else { panic!("{file} has vectors") };
    let names: BTreeSet<_> = vectors.iter().map(name).collect();
    assert_eq!(names.len(), vectors.len(), "{file}: names are unique");
    vectors
}

fn name(vector: &Json) -> &str {
    vector["name"].as_str().expect("a vector has a name")
}

fn text<'v>(vector: &'v Json, field: &str) -> &'v str {
    vector[field].as_str().unwrap_or_else(|| panic!("{}: no {field}", name(vector)))
}

/// Compares a field of each vector with what we make of it, or blesses the file.
fn check(file: &str, field: &str, actual: impl Fn(&Json) -> String) {
    let relative = format!("vectors/{file}.json");
    for vector in vectors(file) {
        let actual = actual(&vector);
        if bless::blessing() {
            let blessed = bless::with_field(&bless::read(&relative), name(&vector), field, &actual);
            std::fs::write(bless::path(&relative), blessed).unwrap();
        } else {
            assert_eq!(text(&vector, field), actual, "{file}: {}", name(&vector));
        }
    }
}

/// What the receiver of frames of this direction would write after reading.
fn rewrite(to_server: bool, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    if to_server {
        ClientFrame::decode(bytes, &LIMITS).map(|frame| frame.encode())
    } else {
        ServerFrame::decode(bytes, &LIMITS).map(|frame| frame.encode())
    }
}

fn check_frames(file: &str, to_server: bool) {
    check(file, "hex", |vector| hex(&frame_to_msgpack(&vector["frame"])));
    for vector in vectors(file) {
        let bytes = unhex(text(&vector, "hex"));
        assert_eq!(from_msgpack(&bytes), vector["frame"], "{}", name(&vector));
        assert_eq!(rewrite(to_server, &bytes), Ok(bytes), "{}", name(&vector));
    }
}

#[test]
fn frames_from_clients_are_as_the_vectors_say() {
    check_frames("frames_client", true);
}

#[test]
fn frames_from_the_server_are_as_the_vectors_say() {
    check_frames("frames_server", false);
}

#[test]
fn every_frame_has_a_typical_and_an_edge_vector() {
    let mut count = BTreeMap::new();
    for vector in [vectors("frames_client"), vectors("frames_server")].concat() {
        *count.entry(text(&vector["frame"], "t").to_owned()).or_insert(0) += 1;
    }
    for frame in frames() {
        // A frame without fields is one sequence of bytes.
        let least = if frame.fields.is_empty() { 1 } else { 2 };
        assert!(count.get(frame.name).is_some_and(|count| *count >= least), "{}", frame.name);
    }
}

#[test]
fn encodings_that_are_not_canonical_are_read() {
    for vector in vectors("frames_accepted") {
        let canonical = frame_to_msgpack(&vector["frame"]);
        let bytes = unhex(text(&vector, "hex"));
        assert_ne!(bytes, canonical, "{}", name(&vector));
        let to_server = text(&vector, "direction") == "to_server";
        assert_eq!(rewrite(to_server, &bytes), Ok(canonical), "{}", name(&vector));
    }
}

#[test]
fn bytes_that_are_no_frame_are_refused_with_their_code() {
    for vector in vectors("frames_refused") {
        let error =
            rewrite(text(&vector, "direction") == "to_server", &unhex(text(&vector, "hex"))).unwrap_err();
        assert_eq!(error.code().as_str(), text(&vector, "code"), "{}: {error}", name(&vector));
    }
}

#[test]
fn dt03_column_values_are_as_the_vectors_say() {
    check("values", "hex", |vector| {
        let column_type = ColumnType::from_name(text(vector, "type")).expect("a wire type");
        let mut out = Vec::new();
        encode_text_value(column_type, vector["text"].as_str(), &mut out).unwrap();
        hex(&out)
    });
    for vector in vectors("values") {
        let bytes = unhex(text(&vector, "hex"));
        assert_eq!(from_msgpack(&bytes), vector["value"], "{}", name(&vector));
        let mut again = Vec::new();
        to_msgpack(&vector["value"], None, &mut again);
        assert_eq!(again, bytes, "{}", name(&vector));
        let row = [&[0x91], &bytes[..]].concat();
        let values = decode_row(&row).unwrap();
        assert!(!matches!(values[..], [Value::Invalid(_)]), "{}", name(&vector));
        again.clear();
        values[0].put(&mut again);
        assert_eq!(again, bytes, "{}", name(&vector));
    }
}

#[test]
fn dt08_scope_names_are_as_the_vectors_say() {
    for vector in vectors("scope_names") {
        let template: Template = serde_json::from_value(vector["template"].clone()).unwrap();
        let scope = template.render(|part| {
            let value = match part {
                TemplatePart::Column(column) => &vector["values"][column],
                TemplatePart::Subject(_) => &vector["values"]["subject"],
                TemplatePart::Text(_) => unreachable!("a text is not a hole"),
            };
            value.as_str().map(Cow::Borrowed)
        });
        assert_eq!(
            scope.as_ref().map(|scope| scope.0.as_str()),
            vector["scope"].as_str(),
            "{}",
            name(&vector)
        );
    }
}

fn row_of(vector: &Json) -> (TableId, RowKey, RowVersion, Vec<u8>) {
    let key = match &vector["key"] {
        Json::String(text) => RowKey::Text(text.clone()),
        Json::Number(number) => RowKey::Int(number.as_i64().unwrap()),
        large => RowKey::Int(text(large, "$int").parse().unwrap()),
    };
    let version = unhex(text(vector, "version")).try_into().unwrap();
    let table = TableId(vector["table"].as_i64().unwrap() as i32);
    (table, key, RowVersion(uuid::Uuid::from_bytes(version)), unhex(text(vector, "row")))
}

#[test]
fn v4_row_digests_are_as_the_vectors_say() {
    // The input is put together here as PROTOCOL.md says it, not by the code under test.
    check("row_digests", "input", |vector| {
        let (table, key, version, row) = row_of(vector);
        let key = match &key {
            RowKey::Int(value) => [&[1], &value.to_be_bytes()[..]].concat(),
            RowKey::Text(text) => [&[2], text.as_bytes()].concat(),
        };
        let length = |bytes: &[u8]| (bytes.len() as u32).to_be_bytes();
        let table = (table.0 as u32).to_be_bytes();
        hex(&[&table[..], &length(&key), &key, version.0.as_bytes(), &length(&row), &row].concat())
    });
    check("row_digests", "digest", |vector| {
        let (table, key, version, row) = row_of(vector);
        hex(&row_digest(table, &key, version, &row).0)
    });
    let mut digests = BTreeSet::new();
    for vector in vectors("row_digests") {
        let sha256 = Sha256::digest(unhex(text(&vector, "input")));
        assert_eq!(hex(&sha256[..16]), text(&vector, "digest"), "{}", name(&vector));
        assert!(
            digests.insert(text(&vector, "digest").to_owned()),
            "{}: no two rows share one",
            name(&vector)
        );
    }
}

#[test]
fn v4_scope_digests_are_as_the_vectors_say() {
    check("scope_digests", "digest", |vector| {
        let rows = vector["rows"].as_array().unwrap().iter();
        let digest = rows.fold(ScopeDigest::EMPTY, |digest, row| {
            digest.plus(RowDigest(unhex(row.as_str().unwrap()).try_into().unwrap()))
        });
        hex(&digest.to_bytes())
    });
}
