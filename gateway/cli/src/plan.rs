//! What `tidegate apply --plan` shows: the library's plan, with what changes in each table, also in a database without our schema.
//!
//! There it rehearses: the schema is loaded in a transaction that is rolled back, so that each definition is judged by the very functions
//! that would apply it. Nothing of the application's is locked: the schema's own objects are new.

use crate::connect;
use anyhow::{Context, anyhow, bail};
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tidegate_migrations::definition::{self, Definitions, Plan, Status};
use tidegate_migrations::notice::{self, Notices};
use tidegate_migrations::{Installed, Schema, installed};

/// A plan with everything that is said about it.
#[derive(Debug)]
pub struct Shown {
    /// Entry by entry.
    pub plan: Plan,
    /// For each entry, what differs from what is registered.
    pub changes: Vec<Vec<Change>>,
    /// Remarks; none where something is refused.
    pub notices: Notices,
    /// Whether the schema is there already.
    pub installed: bool,
}

/// One difference between what is registered and what the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `columns`, `exclude`, `write`, `unrestricted`, or `scope`.
    pub what: &'static str,
    /// As it is registered; null for nothing.
    pub from: Value,
    /// As the file has it; null for nothing.
    pub to: Value,
}

/// Plans, and changes nothing.
///
/// # Errors
/// When the database cannot be asked, or its schema is of another version.
pub async fn plan(options: &PgConnectOptions, definitions: &Definitions) -> anyhow::Result<Shown> {
    // One connection, so that everything is asked in one transaction.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .min_connections(0)
        .connect_with(options.clone())
        .await
        .context("connect to plan")?;
    let shown = plan_on(&pool, definitions).await;
    // The server rolls back what a closed connection leaves open.
    pool.close().await;
    shown
}

async fn plan_on(pool: &PgPool, definitions: &Definitions) -> anyhow::Result<Shown> {
    let state = installed(&mut *pool.acquire().await.context("connect to plan")?).await?;
    match state {
        Installed::Current => {}
        Installed::Missing => rehearse(pool).await?,
        Installed::Other => {
            bail!("Tidegate's schema in this database is of another version: run `tidegate migrate` first")
        }
    }
    connect::warn_of_replication(pool).await?;
    let plan = definition::plan(pool, definitions).await?;
    let changes = changes(pool, definitions, &plan).await?;
    // What is refused is said alone: the rest is for a file that can be applied.
    let notices = match plan.refused().next() {
        None => notice::notices(pool, definitions).await?,
        Some(_) => Notices::default(),
    };
    Ok(Shown { plan, changes, notices, installed: state == Installed::Current })
}

/// Loads the schema in a transaction that nobody commits.
async fn rehearse(pool: &PgPool) -> anyhow::Result<()> {
    let mut connection = pool.acquire().await.context("connect to plan")?;
    let begin = "begin; set local lock_timeout = '2s'; set local client_min_messages = warning; set local search_path = pg_catalog, pg_temp;
        set local check_function_bodies = on; set local row_security = on;
        set local tidegate.stamped_generation = 0; select pg_advisory_xact_lock(hashtextextended('tidegate load', 0))";
    let rehearsal = async {
        sqlx::raw_sql(begin).execute(&mut *connection).await?;
        for file in Schema::full().files {
            sqlx::raw_sql(file.text).execute(&mut *connection).await?;
        }
        Ok(())
    };
    rehearsal.await.map_err(|error: sqlx::Error| {
        anyhow!(
            "Tidegate's schema is not in this database, and cannot be tried out there ({}): `tidegate check` says what is missing; or run `tidegate migrate` first",
            crate::output::database_error(&error)
        )
    })
}

async fn changes(pool: &PgPool, definitions: &Definitions, plan: &Plan) -> anyhow::Result<Vec<Vec<Change>>> {
    let mut changes = vec![Vec::new(); plan.entries.len()];
    // Tables come first, in the file's order.
    for (index, table) in definitions.tables.iter().enumerate() {
        if !matches!(plan.entries[index].status, Status::New | Status::Changed) {
            continue;
        }
        let (registered, wanted): (Option<Value>, Value) = sqlx::query_as(
            "select (select r.definition from tidegate.relation r, tidegate.qualified_name($1, 'table') p
                     where r.schema_name = p[1] and r.table_name = p[2] and r.state <> 'removed' and r.kind = 'synced'),
                    tidegate.normal_table($2, 'table')",
        )
        .bind(&table.name)
        .bind(table.to_json())
        .fetch_one(pool)
        .await
        .context("compare with what is registered")?;
        changes[index] = difference(&registered.unwrap_or_else(nothing), &wanted);
    }
    Ok(changes)
}

/// A table's definition that says nothing: what a new one is compared with.
fn nothing() -> Value {
    json!({ "columns": null, "exclude": null, "write": "read_only", "unrestricted": false, "scopes": [] })
}

/// What differs between two definitions in normal form.
fn difference(from: &Value, to: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    for what in ["columns", "exclude", "write", "unrestricted"] {
        if from[what] != to[what] {
            changes.push(Change { what, from: from[what].clone(), to: to[what].clone() });
        }
    }
    let scopes = |value: &Value| value["scopes"].as_array().cloned().unwrap_or_default();
    let (before, after) = (scopes(from), scopes(to));
    let gone = before.iter().filter(|scope| !after.contains(scope));
    changes.extend(gone.map(|scope| Change { what: "scope", from: scope.clone(), to: Value::Null }));
    let come = after.iter().filter(|scope| !before.contains(scope));
    changes.extend(come.map(|scope| Change { what: "scope", from: Value::Null, to: scope.clone() }));
    changes
}

impl Change {
    /// One line, such as `+ scope board:{board_id}` or `write: read_only -> enabled`.
    pub fn line(&self) -> String {
        let Change { what, from, to } = self;
        match (*what, from.is_null()) {
            ("scope", true) => format!("+ scope {}", scope(to)),
            ("scope", false) => format!("- scope {}", scope(from)),
            _ => format!("{what}: {} -> {}", value(what, from), value(what, to)),
        }
    }
}

fn scope(scope: &Value) -> String {
    let name = scope["name"].as_str().unwrap_or_default();
    match scope["where"].as_str() {
        Some(condition) => format!("{name} where {condition}"),
        None => name.to_owned(),
    }
}

fn value(what: &str, value: &Value) -> String {
    match value {
        Value::Null if what == "columns" => "all".to_owned(),
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(names) => {
            names.iter().map(|name| name.as_str().unwrap_or_default()).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(from: &Value, to: &Value) -> Vec<String> {
        difference(from, to).iter().map(Change::line).collect()
    }

    #[test]
    fn a_change_is_told_by_what_differs_alone() {
        let to = json!({ "columns": null, "exclude": ["note"], "write": "enabled", "unrestricted": true,
            "scopes": [{ "name": "board:{board_id}" }, { "name": "open", "where": "open" }] });
        assert_eq!(
            lines(&nothing(), &to),
            [
                "exclude: none -> note",
                "write: read_only -> enabled",
                "unrestricted: false -> true",
                "+ scope board:{board_id}",
                "+ scope open where open"
            ]
        );
        let mut other = to.clone();
        other["columns"] = json!(["id", "board_id"]);
        other["exclude"] = Value::Null;
        other["scopes"] = json!([{ "name": "board:{board_id}" }, { "name": "open", "where": "not open" }]);
        assert_eq!(
            lines(&to, &other),
            [
                "columns: all -> id, board_id",
                "exclude: note -> none",
                "- scope open where open",
                "+ scope open where not open"
            ]
        );
        assert!(lines(&to, &to).is_empty());
    }
}
