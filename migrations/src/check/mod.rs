//! Whether a PostgreSQL can be used, before and after installation: what was found, what is needed, and the exact repair.
//!
//! ```text
//! facts.sql, stamp, problems ─ judge ─ Examination ─ `tidegate check`      judge: pure
//! ```
//!
//! Changes nothing: everything is read in one read-only transaction. Findings name settings, roles, tables and slots, never values of
//! rows, passwords or addresses (Q1). What is judged is the role that connects: the one that installs, registers and runs the worker.
//!
//! Absent here: whether the stream does its work, which readiness says; whether a table's definition fits, which `tidegate apply --plan`
//! says; and `max_locks_per_transaction`, whose default holds for hundreds of registered tables.

mod durability;
mod facts;
mod finding;
mod installed;
mod problem;
mod role;
mod server;
mod service;
mod version;

pub use finding::{Finding, Level, Repair, RepairKind};
pub use problem::{Part, Problem};
pub use service::{MANAGED, Managed, Service};

use crate::{LoadError, read_stamp};
use installed::State;
use serde::Serialize;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

/// Longest statement: catalogues are read in milliseconds.
const STATEMENT_TIMEOUT: &str = "set local statement_timeout = '30s'; set local lock_timeout = '10s'";

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// Who runs the server; `None` when it could not be asked.
    pub service: Option<Service>,
    /// In the order in which they matter.
    pub findings: Vec<Finding>,
}

/// Why an examination could not be made, although the server was reached.
#[derive(Debug, thiserror::Error)]
#[error("{action}: {source}")]
pub struct CheckError {
    /// What was being done.
    action: &'static str,
    /// The driver's error.
    source: sqlx::Error,
}

fn failed(action: &'static str) -> impl FnOnce(sqlx::Error) -> CheckError {
    move |source| CheckError { action, source }
}

impl Examination {
    /// Whether nothing fails. Warnings do not count.
    pub fn usable(&self) -> bool {
        self.findings.iter().all(|finding| finding.level != Level::Failure)
    }

    /// The findings of this name: more than one where tables have their own.
    pub fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Finding> {
        self.findings.iter().filter(move |finding| finding.name == name)
    }

    /// Of a server that gave no connection, with the reason that whoever tried has, which must carry no secret. `refused`: it answered,
    /// and would have to be asked otherwise.
    pub fn unreachable(reason: impl Into<String>, refused: bool) -> Examination {
        let repair = if refused {
            "Correct user, password or database in the URL; or let the server's pg_hba.conf admit them."
        } else {
            "Start PostgreSQL, or correct host and port in the URL."
        };
        let needed = "a server that answers and admits the role";
        let finding = Finding::failure("server", reason, needed, vec![Repair::act(repair)]);
        Examination { service: None, findings: vec![finding] }
    }
}

/// Examines the database of this connection, for its role. `tables`: those that are to be registered, as `schema.table`.
///
/// # Errors
/// [`CheckError`]: the server failed to answer a question that every role may ask.
pub async fn examine(connection: &mut PgConnection, tables: &[String]) -> Result<Examination, CheckError> {
    let mut transaction = connection.begin().await.map_err(failed("begin to examine"))?;
    let read_only = sqlx::raw_sql("set transaction isolation level repeatable read, read only");
    read_only.execute(&mut *transaction).await.map_err(failed("begin to examine"))?;
    sqlx::raw_sql(STATEMENT_TIMEOUT).execute(&mut *transaction).await.map_err(failed("begin to examine"))?;

    let (number, shown) = facts::version(&mut transaction).await.map_err(failed("ask for the version"))?;
    let version = version::of(number, &shown);
    let server = Finding::ok("server", "reached, and logged in", "a server that answers and admits the role");
    if version.level == Level::Failure && number < 150_000 {
        // What the other questions read is not there.
        return Ok(Examination { service: None, findings: vec![server, version] });
    }
    let facts = facts::read(&mut transaction, tables).await.map_err(failed("read the server's settings"))?;
    let mut findings = vec![server, version];
    findings.extend(server::judge(&facts));
    findings.extend(durability::judge(&facts));
    findings.extend(role::judge(&facts));
    let state = state(&mut transaction).await?;
    findings.extend(installed::judge(&state, &facts.role));
    transaction.rollback().await.map_err(failed("end the examination"))?;
    Ok(Examination { service: Some(Service::of(&facts)), findings })
}

async fn state(connection: &mut PgConnection) -> Result<State, CheckError> {
    let readable = async |connection: &mut PgConnection| {
        sqlx::query_scalar::<_, bool>(
            "select coalesce((select has_schema_privilege(n.oid, 'usage') and (c.oid is null or has_table_privilege(c.oid, 'select'))
                 from pg_namespace n left join pg_class c on c.relnamespace = n.oid and c.relname = 'schema_stamp'
                 where n.nspname = 'tidegate'), true)",
        )
        .fetch_one(connection)
        .await
        .map_err(failed("look for the schema"))
    };
    if !readable(&mut *connection).await? {
        return Ok(State::Unreadable);
    }
    let stamp = read_stamp(&mut *connection).await.map_err(|error| match error {
        LoadError::Database { action, source } => CheckError { action, source },
        other => {
            CheckError { action: "read the schema stamp", source: sqlx::Error::Protocol(other.to_string()) }
        }
    })?;
    match installed::state_of(stamp.as_ref()) {
        State::Current(_) => match installed::read(connection).await {
            Ok(registered) => Ok(State::Current(registered)),
            Err(error) if is_refused(&error) => Ok(State::Unreadable),
            Err(error) => Err(failed("compare what is registered")(error)),
        },
        other => Ok(other),
    }
}

/// SQLSTATE insufficient_privilege.
fn is_refused(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "42501")
}
