//! Registrations from a file: their shape, the plan of what applying them would do, and applying them.
//!
//! The structs follow the tables of `tidegate.toml`. What a definition means, and whether it can work, is decided by
//! the SQL functions `tidegate.definition_plan`, `register_table` and `register_grant` alone.

use crate::lock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnection, PgDatabaseError, PgPool};
use sqlx::{ConnectOptions, Connection};
use std::time::Duration;

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definitions {
    /// `[[table]]`
    #[serde(default, rename = "table")]
    pub tables: Vec<TableDefinition>,
    /// `[[grant]]`
    #[serde(default, rename = "grant")]
    pub grants: Vec<GrantDefinition>,
}

/// One `[[table]]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableDefinition {
    /// Schema-qualified.
    pub name: String,
    /// Captured columns; with neither this nor `exclude`, all.
    pub columns: Option<Vec<String>>,
    /// Columns that are not captured.
    pub exclude: Option<Vec<String>>,
    /// `enabled` or `read_only`, which is the default.
    #[serde(default, deserialize_with = "write_of")]
    pub write: Option<String>,
    /// Lets clients write without row-level security.
    #[serde(default)]
    pub unrestricted: bool,
    /// `[[table.scope]]`
    #[serde(default, rename = "scope")]
    pub scopes: Vec<ScopeDefinition>,
}

/// Names the values instead of the type that is wrong. Which strings are right, the SQL says.
fn write_of<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    struct Write;
    impl serde::de::Visitor<'_> for Write {
        type Value = Option<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("write = \"enabled\" or write = \"read_only\"")
        }

        fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
            Ok(Some(value.to_owned()))
        }
    }
    input.deserialize_str(Write)
}

/// One `[[table.scope]]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ScopeDefinition {
    /// Template of the scope's name.
    pub name: String,
    /// Which rows are in it.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Not supported yet: handed over, so that the refusal is the same through both doors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<Value>,
}

/// One `[[grant]]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GrantDefinition {
    /// Template of the scope's name.
    pub scope: String,
    /// Table whose rows grant it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Which rows do.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Also for sockets without a token.
    #[serde(default)]
    pub anonymous: bool,
}

impl TableDefinition {
    /// What `tidegate.register_table` takes.
    pub fn to_json(&self) -> Value {
        json!({
            "columns": self.columns, "exclude": self.exclude, "write": self.write, "unrestricted": self.unrestricted,
            "scopes": self.scopes,
        })
    }
}

impl GrantDefinition {
    /// What `tidegate.register_grant` takes.
    pub fn to_json(&self) -> Value {
        json!(self)
    }
}

impl Definitions {
    /// What `tidegate.definition_plan` takes.
    pub fn to_json(&self) -> Value {
        let tables: Vec<Value> = self
            .tables
            .iter()
            .map(|table| {
                let mut value = table.to_json();
                value["name"] = json!(table.name);
                value
            })
            .collect();
        json!({ "tables": tables, "grants": self.grants })
    }
}

/// What applying one entry would do, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is registered exactly so.
    Unchanged,
    /// It is not registered yet.
    New,
    /// It is registered otherwise.
    Changed,
    /// It cannot be registered; see the reason.
    Refused,
}

/// One entry of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanEntry {
    /// `table` or `grant`.
    pub kind: String,
    /// Table name or scope template.
    pub name: String,
    /// What happens to it.
    pub status: Status,
    /// Why it is refused. Names tables, columns and positions, never values.
    pub reason: Option<String>,
    /// What to change.
    pub hint: Option<String>,
}

/// What applying a file would do, or did, entry by entry in the file's order, tables first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The entries.
    pub entries: Vec<PlanEntry>,
}

impl Plan {
    /// Whether nothing would change.
    pub fn is_unchanged(&self) -> bool {
        self.entries.iter().all(|entry| entry.status == Status::Unchanged)
    }

    /// The refused entries.
    pub fn refused(&self) -> impl Iterator<Item = &PlanEntry> {
        self.entries.iter().filter(|entry| entry.status == Status::Refused)
    }
}

/// Why definitions could not be planned or applied. In each case nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Some definitions cannot be registered: show the plan's refused entries.
    #[error("apply the definitions: {} of {} cannot be registered", .0.refused().count(), .0.entries.len())]
    Refused(Plan),
    /// L8: a table stayed locked. Try again at a quieter time.
    #[error("apply the definitions: a lock was not free in {attempts} attempts")]
    LockTimeout {
        /// How often.
        attempts: u32,
    },
    /// Anything else.
    #[error("{action}: {source}")]
    Database {
        /// What was being done.
        action: &'static str,
        /// The driver's error.
        source: sqlx::Error,
    },
}

fn failed(action: &'static str) -> impl FnOnce(sqlx::Error) -> ApplyError {
    move |source| ApplyError::Database { action, source }
}

/// How long an apply waits for what.
#[derive(Clone, Copy, Debug)]
pub struct ApplyOptions {
    /// L8: longest that an apply waits for one lock, and so the longest that the application's writes queue behind it.
    pub lock_timeout: Duration,
    /// How often an apply is tried before it gives up.
    pub attempts: u32,
}

impl Default for ApplyOptions {
    fn default() -> Self {
        // With the pauses between the attempts, about 40 s.
        Self { lock_timeout: Duration::from_secs(2), attempts: 10 }
    }
}

/// What [`apply`] would do. Reads only.
///
/// # Errors
/// [`ApplyError::Database`].
pub async fn plan(pool: &PgPool, definitions: &Definitions) -> Result<Plan, ApplyError> {
    let mut connection = pool.acquire().await.map_err(failed("connect to plan the definitions"))?;
    plan_on(&mut connection, definitions).await
}

async fn plan_on(connection: &mut PgConnection, definitions: &Definitions) -> Result<Plan, ApplyError> {
    type Row = (String, String, String, Option<String>, Option<String>);
    let rows: Vec<Row> =
        sqlx::query_as("select kind, name, status, reason, hint from tidegate.definition_plan($1)")
            .bind(definitions.to_json())
            .fetch_all(connection)
            .await
            .map_err(failed("plan the definitions"))?;
    let entries = rows
        .into_iter()
        .map(|(kind, name, status, reason, hint)| PlanEntry {
            kind,
            name,
            status: match status.as_str() {
                "unchanged" => Status::Unchanged,
                "new" => Status::New,
                "changed" => Status::Changed,
                _ => Status::Refused,
            },
            reason,
            hint,
        })
        .collect();
    Ok(Plan { entries })
}

/// Registers everything that is new or changed, in one transaction: all of it or nothing. Unchanged definitions take no lock and
/// write nothing (L5). Registered tables and grants that the file lacks stay.
///
/// # Errors
/// See [`ApplyError`].
pub async fn apply(pool: &PgPool, definitions: &Definitions) -> Result<Plan, ApplyError> {
    apply_with(pool, definitions, ApplyOptions::default()).await
}

/// As [`apply`], with limits of the caller's.
///
/// # Errors
/// See [`ApplyError`].
pub async fn apply_with(
    pool: &PgPool,
    definitions: &Definitions,
    options: ApplyOptions,
) -> Result<Plan, ApplyError> {
    let mut connection =
        pool.connect_options().connect().await.map_err(failed("connect to apply the definitions"))?;
    let applied = apply_on(&mut connection, definitions, options).await;
    let _ = connection.close().await;
    applied
}

async fn apply_on(
    connection: &mut PgConnection,
    definitions: &Definitions,
    options: ApplyOptions,
) -> Result<Plan, ApplyError> {
    let plan = plan_on(connection, definitions).await?;
    // A grant may be refused only because the table it reads is not yet as this file says; a table never is.
    if plan.is_unchanged() || plan.refused().any(|entry| entry.kind == "table") {
        return if plan.is_unchanged() { Ok(plan) } else { Err(ApplyError::Refused(plan)) };
    }
    sqlx::query("select set_config('lock_timeout', $1, false)")
        // 0 would mean to wait for ever.
        .bind(options.lock_timeout.as_millis().max(1).to_string())
        .execute(&mut *connection)
        .await
        .map_err(failed("set the lock timeout"))?;
    let mut attempt = 1;
    loop {
        match register_all(connection, definitions, plan.clone()).await {
            Err(ApplyError::Database { source, .. }) if lock::was_not_free(&source) => {
                if attempt >= options.attempts {
                    return Err(ApplyError::LockTimeout { attempts: attempt });
                }
                tracing::warn!(attempt, "a table was locked: try again");
                lock::let_others_pass(attempt).await;
                attempt += 1;
            }
            other => return other,
        }
    }
}

async fn register_all(
    connection: &mut PgConnection,
    definitions: &Definitions,
    mut plan: Plan,
) -> Result<Plan, ApplyError> {
    let mut transaction = connection.begin().await.map_err(failed("begin to apply the definitions"))?;
    sqlx::query("set transaction isolation level read committed")
        .execute(&mut *transaction)
        .await
        .map_err(failed("begin to apply the definitions"))?;
    let tables = definitions.tables.iter().map(|table| (Some(table.name.as_str()), table.to_json()));
    let grants = definitions.grants.iter().map(|grant| (None, grant.to_json()));
    for (index, (name, definition)) in tables.chain(grants).enumerate() {
        let query = match name {
            Some(name) => {
                sqlx::query_scalar("select tidegate.register_table($2, $1)").bind(definition).bind(name)
            }
            None => sqlx::query_scalar("select tidegate.register_grant($1)").bind(definition),
        };
        let entry = &mut plan.entries[index];
        match query.fetch_one(&mut *transaction).await {
            Ok(status) => {
                let status: String = status;
                entry.status = match status.as_str() {
                    "unchanged" => Status::Unchanged,
                    "changed" => Status::Changed,
                    _ => Status::New,
                };
                (entry.reason, entry.hint) = (None, None);
            }
            Err(source) => {
                let Some(refusal) = refusal_of(&source) else {
                    return Err(ApplyError::Database { action: "register a definition", source });
                };
                entry.status = Status::Refused;
                (entry.reason, entry.hint) = (Some(refusal.message), refusal.hint);
                return Err(ApplyError::Refused(plan));
            }
        }
    }
    transaction.commit().await.map_err(failed("commit the registrations"))?;
    Ok(plan)
}

/// What the registration functions refuse with SQLSTATE `TG001` (cannot work), `TG002` (needs a bootstrap) or `TG003` (not from
/// here).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// SQLSTATE.
    pub code: String,
    /// Why.
    pub message: String,
    /// What to change.
    pub hint: Option<String>,
}

/// The refusal in an error of a registration function, if it is one.
pub fn refusal_of(error: &sqlx::Error) -> Option<Refusal> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    error.code().starts_with("TG").then(|| Refusal {
        code: error.code().to_owned(),
        message: error.message().to_owned(),
        hint: error.hint().map(str::to_owned),
    })
}
