//! A change of the wire cannot slip in unnoticed: everything that two programs must agree on is pinned, by version.

use crate::bless;
use crate::text::words;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use tidegate_protocol::*;

/// Version, and the hash of the wire that it names.
const PINNED: (u32, &str) = (3, "c34fc0a12848dc74f3641db4c911977e");

#[test]
fn the_wire_is_the_one_that_this_version_names() {
    let hash = Sha256::digest(the_wire().as_bytes());
    let hash = crate::json::hex(&hash[..16]);
    assert_eq!(
        (PROTOCOL_VERSION, hash.as_str()),
        PINNED,
        "The wire has changed. If programs of before and after still understand each other (a new frame that is sent only to those \
         who know it, a new nullable field, a new element at the end of a tuple, a new code), pin the new hash. If not, this is \
         another protocol version: number, subprotocol and path change with it."
    );
}

/// All names, orders and types of the table, all codes, and all golden vectors; no meanings.
fn the_wire() -> String {
    let mut wire = format!("{PROTOCOL_VERSION} {SUBPROTOCOL} {SOCKET_PATH}\n");
    for frame in frames() {
        writeln!(wire, "{:?} {}{}", frame.direction, frame.name, fields(frame.fields)).unwrap();
    }
    for list in words() {
        let words: Vec<_> = list.words.iter().map(|(word, _)| *word).collect();
        writeln!(wire, "{}: {}", list.name, words.join(" ")).unwrap();
    }
    for code in ErrorCode::ALL {
        writeln!(wire, "error {code} {} {:?}", code.retryable(), code.closes().map(CloseCode::number))
            .unwrap();
    }
    RejectionCode::ALL.iter().for_each(|code| writeln!(wire, "{} {code}", code.status().as_str()).unwrap());
    RebuildReason::ALL.iter().for_each(|code| writeln!(wire, "rebuild {code}").unwrap());
    CloseCode::ALL.iter().for_each(|code| writeln!(wire, "close {code} {}", code.number()).unwrap());
    let mut files: Vec<_> =
        std::fs::read_dir(bless::path("vectors")).unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort();
    for file in files {
        let file = file.into_string().unwrap();
        let mut content: Json = serde_json::from_str(&bless::read(&format!("vectors/{file}"))).unwrap();
        let Json::Array(vectors) = content["vectors"].take() else { panic!("{file} has vectors") };
        for vector in vectors {
            writeln!(wire, "{file} {}", texts(&vector)).unwrap();
        }
    }
    wire
}

/// The text fields of a vector but `about`, by name: they say all that the others say.
fn texts(vector: &Json) -> String {
    let mut texts: Vec<_> = vector
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| *name != "about")
        .filter_map(|(name, value)| Some(format!("{name}={:?}", value.as_str()?)))
        .collect();
    texts.sort();
    texts.join(" ")
}

fn fields(fields: &[Field]) -> String {
    let text = |field: &Field| {
        format!("{}{}: {}", field.name, if field.nullable { "?" } else { "" }, shape(&field.shape))
    };
    format!("{{{}}}", fields.iter().map(text).collect::<Vec<_>>().join(", "))
}

fn shape(this: &Shape) -> String {
    match this {
        Shape::List(item) => format!("[{}]", shape(item)),
        Shape::Record(record) => fields(record.fields),
        Shape::Tuple(record) => format!("tuple {}", fields(record.fields)),
        Shape::Word(words) | Shape::Number(words) => words.name.to_owned(),
        simple => format!("{simple:?}"),
    }
}
