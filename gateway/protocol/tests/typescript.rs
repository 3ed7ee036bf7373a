//! The SDK's types of frames and codes, made from the tables. The SDK's decoder and encoder are checked against them by the
//! compiler, and by the golden vectors.

use crate::bless;
use crate::text::{one_line, records, words};
use std::fmt::Write;
use tidegate_protocol::*;

const FILE: &str = "../../client-sdk-ts/src/protocol/frames.ts";

const HEAD: &str = "\
/**
 * Frames and codes of Tidegate's wire protocol.
 *
 * Generated from the tables in gateway/protocol/src. Do not edit: change the table, then run
 * `TIDEGATE_BLESS=1 cargo nextest run -p tidegate-protocol`.
 */

";

const BASIC: &str = "\
/** A primary key as the server sends it: integers of 64 bits are exact. */
export type Key = bigint | string;
/** What must hold for a mutation to run: a row version, or the version that an earlier mutation of this client produced. */
export type Base = Uint8Array | { readonly after: number };

";

/// Lines of a comment end here.
const WIDTH: usize = 118;

#[test]
fn typescript_of_the_sdk_is_made_from_the_table() {
    bless::file_is(FILE, &generate());
}

fn generate() -> String {
    let mut out = HEAD.to_owned();
    writeln!(out, "export const PROTOCOL_VERSION = {PROTOCOL_VERSION};").unwrap();
    writeln!(out, "export const SUBPROTOCOL = '{SUBPROTOCOL}';").unwrap();
    writeln!(out, "export const SOCKET_PATH = '{SOCKET_PATH}';\n").unwrap();
    out.push_str(BASIC);
    for words in words() {
        let wire =
            |(word, _): &(&str, _)| if words.number { (*word).to_owned() } else { format!("'{word}'") };
        let union: Vec<_> = words.words.iter().map(wire).collect();
        let meanings: Vec<_> =
            words.words.iter().map(|(word, doc)| format!("- `{word}`: {}", one_line(doc))).collect();
        comment("", &meanings.join("\n"), &mut out);
        writeln!(out, "export type {} = {};\n", words.name, union.join(" | ")).unwrap();
    }
    for (record, shape, direction) in records() {
        comment("", &one_line(record.doc), &mut out);
        match shape {
            Shape::Tuple(_) => tuple(record, &mut out),
            _ => {
                let name = format!("{}{}", record.name, parameter(record.fields, " = unknown"));
                interface(&name, None, record.fields, direction, &mut out);
            }
        }
    }
    for (direction, union, about) in [
        (
            Direction::ToServer,
            "ClientFrame",
            "A frame that clients send. `V` is how the client holds a column value.",
        ),
        (Direction::ToClient, "ServerFrame", "A frame that the server sends."),
    ] {
        let frames: Vec<_> = frames().filter(|frame| frame.direction == direction).collect();
        for frame in &frames {
            comment("", &one_line(frame.doc), &mut out);
            let name = format!("{}{}", frame.type_name, parameter(frame.fields, " = unknown"));
            interface(&name, Some(frame.name), frame.fields, direction, &mut out);
        }
        comment("", about, &mut out);
        let any = frames.iter().any(|frame| !parameter(frame.fields, "").is_empty());
        writeln!(out, "export type {union}{} =", if any { "<V = unknown>" } else { "" }).unwrap();
        for (at, frame) in frames.iter().enumerate() {
            let end = if at + 1 == frames.len() { ";\n" } else { "" };
            writeln!(out, "  | {}{}{end}", frame.type_name, parameter(frame.fields, "")).unwrap();
        }
    }
    codes(
        "ErrorCode",
        "Code of an `error` frame.",
        ErrorCode::ALL,
        ErrorCode::meaning,
        ErrorCode::advice,
        &mut out,
    );
    codes(
        "RejectionCode",
        "Code of a mutation's durable outcome other than `accepted`.",
        RejectionCode::ALL,
        RejectionCode::meaning,
        RejectionCode::advice,
        &mut out,
    );
    codes(
        "RebuildReason",
        "Why a subscription rebuilds.",
        RebuildReason::ALL,
        RebuildReason::meaning,
        RebuildReason::advice,
        &mut out,
    );
    comment("", "WebSocket close codes, by the reason that `bye` gives.", &mut out);
    out.push_str("export const CLOSE_CODES = {\n");
    for code in CloseCode::ALL {
        comment("  ", &format!("{} {}", one_line(code.meaning()), one_line(code.advice())), &mut out);
        writeln!(out, "  {code}: {},", code.number()).unwrap();
    }
    out.push_str("} as const;\n");
    out
}

fn codes<C: std::fmt::Display + Copy>(
    name: &str,
    about: &str,
    all: &[C],
    meaning: fn(C) -> &'static str,
    advice: fn(C) -> &'static str,
    out: &mut String,
) {
    comment("", about, out);
    writeln!(out, "export type {name} =").unwrap();
    for (at, code) in all.iter().enumerate() {
        comment("  ", &format!("{} {}", one_line(meaning(*code)), one_line(advice(*code))), out);
        writeln!(out, "  | '{code}'{}", if at + 1 == all.len() { ";\n" } else { "" }).unwrap();
    }
}

/// `<V>` where a column value is somewhere inside.
fn parameter(fields: &[Field], default: &str) -> String {
    fn has_value(shape: &Shape) -> bool {
        match shape {
            Shape::Value | Shape::Columns => true,
            Shape::List(item) => has_value(item),
            Shape::Record(record) | Shape::Tuple(record) => {
                record.fields.iter().any(|field| has_value(&field.shape))
            }
            _ => false,
        }
    }
    if fields.iter().any(|field| has_value(&field.shape)) { format!("<V{default}>") } else { String::new() }
}

fn interface(name: &str, frame: Option<&str>, fields: &[Field], direction: Direction, out: &mut String) {
    writeln!(out, "export interface {name} {{").unwrap();
    if let Some(frame) = frame {
        writeln!(out, "  readonly t: '{frame}';").unwrap();
    }
    for field in fields {
        comment("  ", &one_line(field.doc), out);
        let ty = type_of(&field.shape);
        // A writer leaves out what it does not have; a reader has a null for it.
        match (field.nullable, direction) {
            (true, Direction::ToServer) => writeln!(out, "  readonly {}?: {ty} | undefined;", field.name),
            (true, Direction::ToClient) => writeln!(out, "  readonly {}: {ty} | null;", field.name),
            (false, _) => writeln!(out, "  readonly {}: {ty};", field.name),
        }
        .unwrap();
    }
    out.push_str("}\n\n");
}

fn tuple(record: &Record, out: &mut String) {
    writeln!(out, "export type {} = readonly [", record.name).unwrap();
    for field in record.fields {
        comment("  ", &one_line(field.doc), out);
        let nullable = if field.nullable { " | null" } else { "" };
        writeln!(out, "  {}: {}{nullable},", field.name, type_of(&field.shape)).unwrap();
    }
    out.push_str("];\n\n");
}

fn type_of(shape: &Shape) -> String {
    match shape {
        Shape::Bool => "boolean".to_owned(),
        Shape::Uint => "number".to_owned(),
        Shape::Str => "string".to_owned(),
        Shape::Bin | Shape::Bin16 => "Uint8Array".to_owned(),
        Shape::Key => "Key".to_owned(),
        Shape::Value => "V".to_owned(),
        Shape::Columns => "{ readonly [column: string]: V }".to_owned(),
        Shape::Base => "Base".to_owned(),
        Shape::Word(words) | Shape::Number(words) => words.name.to_owned(),
        Shape::List(item) => format!("readonly {}[]", type_of(item)),
        Shape::Record(record) | Shape::Tuple(record) => {
            format!("{}{}", record.name, parameter(record.fields, ""))
        }
    }
}

/// A comment before a declaration; each line of `text` is a paragraph.
fn comment(indent: &str, text: &str, out: &mut String) {
    if !text.contains('\n') && indent.len() + text.chars().count() + 7 <= WIDTH {
        writeln!(out, "{indent}/** {text} */").unwrap();
        return;
    }
    writeln!(out, "{indent}/**").unwrap();
    for paragraph in text.lines() {
        let mut line = format!("{indent} *");
        for word in paragraph.split(' ') {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                writeln!(out, "{line}").unwrap();
                line = format!("{indent} *");
            }
            line.push(' ');
            line.push_str(word);
        }
        writeln!(out, "{line}").unwrap();
    }
    writeln!(out, "{indent} */").unwrap();
}
