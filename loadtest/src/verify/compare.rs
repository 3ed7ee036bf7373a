//! The oracle: what each scope must hold, by plain SQL on the application's tables.

use anyhow::Context;
use sqlx::{PgPool, Row};
use std::collections::{BTreeMap, HashMap};
use tidegate_protocol::{Manifest, RowKey, Value, decode_row};

use crate::replica::Scope;

/// Rows by (table name, key), each as its columns' text.
pub type Content = BTreeMap<(String, RowKey), Vec<Option<String>>>;

/// What the tables say that a scope holds.
///
/// # Errors
/// When the tables cannot be read.
pub async fn expected(pool: &PgPool, scope: &str) -> anyhow::Result<Content> {
    let (item, note, tally) = match scope.split_once(':') {
        Some(("list", number)) => {
            number.parse::<i64>().context("a list's scope name")?;
            (format!("list_no = {number}"), format!("list_no = {number}"), "false".to_owned())
        }
        _ if scope == "hot" => {
            ("hot and list_no is not null".to_owned(), "false".to_owned(), "false".to_owned())
        }
        _ => ("false".to_owned(), "false".to_owned(), "true".to_owned()),
    };
    let mut content = Content::new();
    let items = format!(
        "select id, array[id::text, list_no::text, title, balance::text, hot::text, big] from loadtest.item where {item}"
    );
    for row in sqlx::query(sqlx::AssertSqlSafe(items)).fetch_all(pool).await.context("read loadtest.item")? {
        content.insert(("loadtest.item".into(), RowKey::Int(row.get(0))), row.get(1));
    }
    let notes = format!("select id, array[id, list_no::text, body] from loadtest.note where {note}");
    for row in sqlx::query(sqlx::AssertSqlSafe(notes)).fetch_all(pool).await.context("read loadtest.note")? {
        content.insert(("loadtest.note".into(), RowKey::Text(row.get(0))), row.get(1));
    }
    let tallies =
        format!("select id::bigint, array[id::text, changes::text] from loadtest.tally where {tally}");
    for row in
        sqlx::query(sqlx::AssertSqlSafe(tallies)).fetch_all(pool).await.context("read loadtest.tally")?
    {
        content.insert(("loadtest.tally".into(), RowKey::Int(row.get(0))), row.get(1));
    }
    Ok(content)
}

/// What a client holds.
///
/// # Errors
/// When a row is not of the protocol's form.
pub fn held(scope: &Scope, manifest: &Manifest<'_>) -> anyhow::Result<Content> {
    let names: HashMap<_, _> =
        manifest.tables.iter().map(|table| (table.id, table.name.to_string())).collect();
    let mut content = Content::new();
    for ((table, key), held) in &scope.rows.held {
        let row = held.row.as_deref().context("the replica keeps no rows")?;
        let values = decode_row(row).ok().context("decode a held row")?.iter().map(text).collect();
        content.insert((names.get(table).cloned().unwrap_or_default(), key.clone()), values);
    }
    Ok(content)
}

fn text(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Nil => None,
        Value::Bool(value) => Some(value.to_string()),
        Value::Int(value) => Some(value.to_string()),
        Value::Str(text) => Some(text.to_string()),
        other => Some(format!("{other:?}")),
    }
}

/// How many rows one side lacks or has otherwise. A count alone: values stay out of the report.
pub fn differences(expected: &Content, held: &Content) -> u64 {
    let missing = expected.iter().filter(|(id, row)| held.get(*id) != Some(row)).count();
    let surplus = held.keys().filter(|id| !expected.contains_key(*id)).count();
    (missing + surplus) as u64
}
