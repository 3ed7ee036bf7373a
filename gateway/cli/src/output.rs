//! How results, progress and errors reach a person or a program.

use crate::args::{Args, LogFormat};
use std::io::IsTerminal;

/// Logs go to standard error; results go to standard output.
pub fn start_logging(args: &Args) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_new(&args.log).unwrap_or_else(|_| EnvFilter::new("info,sqlx=error"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
        LogFormat::Json => builder.json().init(),
    }
}

/// A result: text for people, or with `--json` one line of JSON.
pub fn print(args: &Args, json: &serde_json::Value, text: impl FnOnce() -> String) {
    use std::io::Write;
    let result = if args.json { json.to_string() } else { text() };
    // A reader that has gone, as `head` does, has what it wanted.
    writeln!(std::io::stdout(), "{result}").ok();
}

/// One line, or one JSON object with `--json`.
pub fn print_error(args: &Args, error: &anyhow::Error) {
    if args.json {
        println!("{}", serde_json::json!({ "error": chain(error) }));
    } else {
        eprintln!("tidegate: {}", chain(error));
    }
}

/// An error with its causes, each once: most of ours say theirs already.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// PostgreSQL's message without its DETAIL, which may quote row values (Q1).
pub fn database_error(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(database) => match database.code() {
            Some(code) => format!("{} (SQLSTATE {code})", database.message()),
            None => database.message().to_owned(),
        },
        sqlx::Error::Configuration(_) => "the database URL is not valid".to_owned(),
        other => other.to_string(),
    }
}

/// A table with a header, padded to its columns' widths.
pub fn table(header: &[String], rows: &[Vec<Option<String>>]) -> String {
    let cell = |value: &Option<String>| value.as_deref().unwrap_or("").replace('\n', "↵");
    let mut widths: Vec<usize> = header.iter().map(|name| name.chars().count()).collect();
    for row in rows {
        for (width, value) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell(value).chars().count());
        }
    }
    let line = |cells: Vec<String>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut out = line(header.to_vec());
    out += &line(widths.iter().map(|width| "-".repeat(*width)).collect());
    for row in rows {
        out += &line(row.iter().map(cell).collect());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_an_error_tells_itself_is_not_told_twice() {
        let io = std::io::Error::other("no space left");
        let own = tidegate_embedded::Error::Io { what: "write server.conf".into(), source: io };
        let error = anyhow::Error::from(own).context("start the private PostgreSQL");
        assert_eq!(chain(&error), "start the private PostgreSQL: write server.conf: no space left");
    }

    #[test]
    fn a_table_pads_to_its_widest_cell_and_keeps_one_line_per_row() {
        let header = ["id".to_owned(), "title".to_owned()];
        let rows = [vec![Some("1".into()), Some("a\nb".into())], vec![Some("22".into()), None]];
        assert_eq!(table(&header, &rows), "id  title\n--  -----\n1   a↵b\n22\n");
    }
}
