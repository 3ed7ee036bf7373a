//! What the capture scenarios stand on: a table like an application's, registered with one scope per row or three, backlogs of each
//! kind, and the count of what is wrong afterwards.

use crate::stage::Stage;
use anyhow::{Context, bail};
use sqlx::{AssertSqlSafe, Executor};
use std::path::Path;

/// Rows of one source transaction of the large kinds.
pub const ROWS_PER_TRANSACTION: u64 = 1000;

/// What a backlog consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// New rows.
    Inserts,
    /// Rows that are there; they stay in their scopes.
    Updates,
    /// Half updates, a tenth of which move to another list, a quarter inserts, a quarter deletes.
    Mixed,
}

/// How many scopes each row is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scopes {
    /// Its list's.
    One,
    /// Its list's, its owner's and its state's.
    Three,
}

impl Scopes {
    /// As a number.
    pub fn count(self) -> u64 {
        match self {
            Scopes::One => 1,
            Scopes::Three => 3,
        }
    }

    fn definition(self) -> &'static str {
        match self {
            Scopes::One => r#"{"scopes": [{"name": "list:{list_no}"}]}"#,
            Scopes::Three => {
                r#"{"scopes": [{"name": "list:{list_no}"}, {"name": "owner:{owner_no}"}, {"name": "state:{state_no}"}]}"#
            }
        }
    }
}

/// A stage with the table, `rows` of it from the first start.
///
/// # Errors
/// When it cannot be set.
pub async fn set(binary: &Path, major: u32, scopes: Scopes, rows: u64) -> anyhow::Result<Stage> {
    // A checkpoint comes before each measurement and in none, and vacuum between them: what a round does must not depend on when
    // the server thinks of either.
    let settings = [("checkpoint_timeout", "1h"), ("max_wal_size", "16GB"), ("autovacuum", "off")];
    let schema = include_str!("schema.sql")
        .replace("{rows}", &rows.to_string())
        .replace("{definition}", scopes.definition());
    Stage::set(binary, major, &settings, &schema).await
}

/// What there is to materialize.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    /// Source transactions.
    pub transactions: u64,
    /// Row changes.
    pub changes: u64,
}

/// Commits `transactions` of [`ROWS_PER_TRANSACTION`] row changes each.
///
/// # Errors
/// When a statement fails.
pub async fn commit_large(stage: &Stage, kind: Kind, transactions: u64) -> anyhow::Result<Backlog> {
    let name = match kind {
        Kind::Inserts => "commit_inserts",
        Kind::Updates => "commit_updates",
        Kind::Mixed => "commit_mixed",
    };
    let mut connection = stage.pool.acquire().await.context("connect")?;
    // How long the backlog's own commits waited for the disk is not in its WAL.
    connection.execute("set synchronous_commit = off").await.context("set up the connection")?;
    connection
        .execute(AssertSqlSafe(format!("call loadtest.{name}({transactions})")))
        .await
        .context("commit a backlog")?;
    connection.execute("reset synchronous_commit").await.context("set up the connection")?;
    Ok(Backlog { transactions, changes: transactions * ROWS_PER_TRANSACTION })
}

/// A last source transaction without rows. Everything before it is durable once the processed boundary has passed what this gives.
///
/// # Errors
/// When the server cannot be asked.
pub async fn finish_line(stage: &Stage) -> anyhow::Result<String> {
    sqlx::query_scalar("select pg_logical_emit_message(true, 'loadtest', 'finish')::text")
        .fetch_one(&stage.pool)
        .await
        .context("mark where the backlog ends")
}

/// Empties the table's dead rows, and flushes what is dirty.
///
/// # Errors
/// When a statement fails.
pub async fn tidy(stage: &Stage) -> anyhow::Result<()> {
    let mut connection = stage.pool.acquire().await.context("connect")?;
    connection.execute("vacuum (analyze)").await.context("vacuum")?;
    connection.execute("checkpoint").await.context("checkpoint")?;
    Ok(())
}

/// What must be zero, or equal to what was asked for, after everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Checks {
    /// Row changes that were committed.
    pub changes_committed: u64,
    /// Row changes in the records of source transactions.
    pub changes_recorded: u64,
    /// Source transactions that were committed.
    pub transactions_committed: u64,
    /// Their records.
    pub transactions_recorded: u64,
    /// Rows of the table whose projected version is not their newest fence's, and projected rows that the table does not have.
    pub rows_wrong: u64,
    /// Scopes whose digest or row count is not that of their rows.
    pub scopes_wrong: u64,
    /// Transactions in quarantine.
    pub poison: u64,
}

impl Checks {
    /// Whether nothing was lost, invented or blocked.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn hold(&self) -> anyhow::Result<()> {
        if self.changes_committed != self.changes_recorded
            || self.transactions_committed != self.transactions_recorded
            || self.rows_wrong + self.scopes_wrong + self.poison > 0
        {
            bail!("what was materialized is not what was committed: {self:?}");
        }
        Ok(())
    }
}

/// Compares everything that was recorded since the transaction `since` with `committed`, and the projected state with the table.
///
/// # Errors
/// When a table cannot be read.
pub async fn check(stage: &Stage, since: i64, committed: Backlog) -> anyhow::Result<Checks> {
    let (state, relation) = names(stage).await?;
    let sql = include_str!("check.sql")
        .replace("{state}", &state.to_string())
        .replace("{relation}", &relation.to_string());
    let (transactions, changes, rows_wrong, scopes_wrong, poison): (i64, i64, i64, i64, i64) =
        sqlx::query_as(AssertSqlSafe(sql))
            .bind(since)
            .fetch_one(&stage.pool)
            .await
            .context("compare what was materialized")?;
    Ok(Checks {
        changes_committed: committed.changes,
        changes_recorded: changes as u64,
        transactions_committed: committed.transactions,
        transactions_recorded: transactions as u64,
        rows_wrong: rows_wrong as u64,
        scopes_wrong: scopes_wrong as u64,
        poison: poison as u64,
    })
}

/// The projected state in force, and the table's relation.
///
/// # Errors
/// Before the first start.
pub async fn names(stage: &Stage) -> anyhow::Result<(i32, i32)> {
    sqlx::query_as(
        "select g.state_id, r.relation_id from tidegate.progress p
         join tidegate.stream_generation g on g.id = p.generation, tidegate.relation r",
    )
    .fetch_one(&stage.pool)
    .await
    .context("find the projected state")
}

/// The id of a transaction that is over: what comes later has a higher one.
///
/// # Errors
/// When the server cannot be asked.
pub async fn transaction_id(stage: &Stage) -> anyhow::Result<i64> {
    sqlx::query_scalar("select pg_current_xact_id()::text::bigint")
        .fetch_one(&stage.pool)
        .await
        .context("ask for a transaction id")
}
