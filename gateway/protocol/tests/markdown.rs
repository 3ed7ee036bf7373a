//! The tables of `PROTOCOL.md`, made from the frame table and the lists of codes. The prose around them is written by hand.

use crate::bless;
use crate::text::{one_line, records, words};
use std::fmt::Write;
use tidegate_protocol::*;

const FILE: &str = "PROTOCOL.md";

#[test]
fn tables_of_the_documentation_are_made_from_the_table() {
    let mut text = bless::read(FILE);
    for (name, content) in [
        ("frames to the server", frame_tables(Direction::ToServer)),
        ("frames to the client", frame_tables(Direction::ToClient)),
        ("types", type_tables()),
        ("error codes", error_codes()),
        ("rejection codes", rejection_codes()),
        ("rebuild reasons", rebuild_reasons()),
        ("close codes", close_codes()),
    ] {
        let begin = format!("<!-- generated: {name} -->\n");
        let start =
            text.find(&begin).unwrap_or_else(|| panic!("{FILE} has a place for {name}")) + begin.len();
        let end = start + text[start..].find("<!-- end -->").expect("a generated part ends");
        text.replace_range(start..end, &format!("\n{content}\n"));
    }
    bless::file_is(FILE, &text);
}

fn frame_tables(direction: Direction) -> String {
    let mut out = String::new();
    for frame in frames().filter(|frame| frame.direction == direction) {
        section("###", &format!("`{}`", frame.name), frame.doc, frame.fields, &mut out);
    }
    out.trim_end().to_owned() + "\n"
}

fn type_tables() -> String {
    let mut out = String::new();
    for (record, shape, _) in records() {
        let kind = if matches!(shape, Shape::Tuple(_)) { "array" } else { "map" };
        section("###", &format!("{} ({kind})", record.name), record.doc, record.fields, &mut out);
    }
    for list in words() {
        writeln!(out, "### {} ({})\n", list.name, if list.number { "uint" } else { "str" }).unwrap();
        out.push_str("| value | meaning |\n| --- | --- |\n");
        for (word, meaning) in list.words {
            writeln!(out, "| `{word}` | {} |", one_line(meaning)).unwrap();
        }
        out.push('\n');
    }
    out.trim_end().to_owned() + "\n"
}

fn section(level: &str, title: &str, doc: &str, fields: &[Field], out: &mut String) {
    writeln!(out, "{level} {title}\n\n{}\n", one_line(doc)).unwrap();
    if !fields.is_empty() {
        out.push_str("| field | type | meaning |\n| --- | --- | --- |\n");
    }
    for field in fields {
        let optional = if field.nullable { " or nil" } else { "" };
        writeln!(out, "| `{}` | {}{optional} | {} |", field.name, type_of(&field.shape), one_line(field.doc))
            .unwrap();
    }
    if !fields.is_empty() {
        out.push('\n');
    }
}

fn type_of(shape: &Shape) -> String {
    match shape {
        Shape::Bool => "bool".to_owned(),
        Shape::Uint => "uint".to_owned(),
        Shape::Str => "str".to_owned(),
        Shape::Bin => "bin".to_owned(),
        Shape::Bin16 => "bin16".to_owned(),
        Shape::Key => "key".to_owned(),
        Shape::Value => "value".to_owned(),
        Shape::Columns => "map of value".to_owned(),
        Shape::Base => "bin16 or `{after: uint}`".to_owned(),
        Shape::Word(words) | Shape::Number(words) => words.name.to_owned(),
        Shape::List(item) => format!("array of {}", type_of(item)),
        Shape::Record(record) | Shape::Tuple(record) => record.name.to_owned(),
    }
}

fn error_codes() -> String {
    let mut out = "| code | who acts | retryable | closes | meaning | what to do |\n| --- | --- | --- | --- | --- | --- |\n".to_owned();
    for code in ErrorCode::ALL {
        let closes = code.closes().map_or(String::new(), |close| close.number().to_string());
        writeln!(
            out,
            "| `{code}` | {} | {} | {closes} | {} | {} |",
            code.remedy().as_str(),
            if code.retryable() { "yes" } else { "no" },
            one_line(code.meaning()),
            one_line(code.advice()),
        )
        .unwrap();
    }
    out
}

fn rejection_codes() -> String {
    let mut out =
        "| code | status | who acts | meaning | what to do |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for code in RejectionCode::ALL {
        writeln!(
            out,
            "| `{code}` | {} | {} | {} | {} |",
            code.status().as_str(),
            code.remedy().as_str(),
            one_line(code.meaning()),
            one_line(code.advice()),
        )
        .unwrap();
    }
    out
}

fn rebuild_reasons() -> String {
    let mut out = "| reason | meaning | what to do |\n| --- | --- | --- |\n".to_owned();
    for code in RebuildReason::ALL {
        writeln!(out, "| `{code}` | {} | {} |", one_line(code.meaning()), one_line(code.advice())).unwrap();
    }
    out
}

fn close_codes() -> String {
    let mut out =
        "| number | reason in `bye` | who acts | meaning | what to do |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for code in CloseCode::ALL {
        writeln!(
            out,
            "| {} | `{code}` | {} | {} | {} |",
            code.number(),
            code.remedy().as_str(),
            one_line(code.meaning()),
            one_line(code.advice()),
        )
        .unwrap();
    }
    out
}
