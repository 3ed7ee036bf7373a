//! Session settings that every connection of the worker pins and checks: the same value must have the same bytes in snapshot and
//! stream, and a commit must be on disk when it returns (R2).

use crate::config::Limits;
use crate::endpoint::Endpoint;
use crate::error::Doing;
use crate::failure::Fault;
use crate::{CaptureError, Refusal};
use sqlx::{ConnectOptions, Connection, PgConnection, Row};
use std::time::Duration;
use uuid::Uuid;

/// What a connection is for; part of its `application_name`, so that operators and a takeover can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Claims the stream, writes effects, records progress.
    Materialize,
    /// Reads the slot, polls poison, writes metrics.
    Control,
    /// Writes the heartbeat.
    Heartbeat,
    /// Removes what is kept no longer.
    Retention,
    /// Sends the wake.
    Notify,
    /// Reads the snapshot of a baseline.
    Snapshot,
    /// The walsender.
    Stream,
}

impl Purpose {
    fn word(self) -> &'static str {
        match self {
            Purpose::Materialize => "materialize",
            Purpose::Control => "control",
            Purpose::Heartbeat => "heartbeat",
            Purpose::Retention => "retention",
            Purpose::Notify => "notify",
            Purpose::Snapshot => "snapshot",
            Purpose::Stream => "stream",
        }
    }
}

/// Begins every `application_name` of ours.
pub(crate) const APPLICATION_PREFIX: &str = "tidegate capture ";

/// `tidegate capture 1a2b3c4d stream`: within PostgreSQL's 63 bytes.
pub(crate) fn application_name(worker: Uuid, purpose: Purpose) -> String {
    format!("{APPLICATION_PREFIX}{} {}", &worker.simple().to_string()[..8], purpose.word())
}

/// Values that text output depends on, and what keeps a session from being ended or stalled in the wrong place.
fn pinned(purpose: Purpose, idle_in_transaction: Duration) -> Vec<(&'static str, String)> {
    let idle = match purpose {
        // The snapshot must live as long as the copy takes; a walsender is never idle in a transaction of ours.
        Purpose::Snapshot | Purpose::Stream => "0".to_owned(),
        // A stopped process must not hold the worker row for ever.
        _ => format!("{}ms", idle_in_transaction.as_millis()),
    };
    let synchronous_commit = match purpose {
        // What a crash brings back is removed again; scopes stay locked no longer than the batch takes.
        Purpose::Retention => "off",
        _ => "on",
    };
    let mut settings = vec![
        ("DateStyle", "ISO, MDY".to_owned()),
        ("IntervalStyle", "iso_8601".to_owned()),
        ("TimeZone", "UTC".to_owned()),
        ("bytea_output", "hex".to_owned()),
        // Any positive value means: the shortest text that reads back to the same number.
        ("extra_float_digits", "1".to_owned()),
        ("search_path", "pg_catalog".to_owned()),
        ("statement_timeout", "0".to_owned()),
        ("lock_timeout", "0".to_owned()),
        ("idle_in_transaction_session_timeout", idle),
        ("synchronous_commit", synchronous_commit.to_owned()),
        ("default_transaction_read_only", "off".to_owned()),
        ("default_transaction_isolation", "read committed".to_owned()),
    ];
    if purpose != Purpose::Stream {
        settings.extend([
            // A policy that would hide rows from a baseline is an error, not a smaller table.
            ("row_security", "off".to_owned()),
            // Statements with arrays of thousands of elements look expensive to the planner; compiling them costs more.
            ("jit", "off".to_owned()),
        ]);
    }
    settings
}

/// Connects, pins, checks.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    worker: Uuid,
    purpose: Purpose,
    limits: &Limits,
) -> Result<PgConnection, CaptureError> {
    let settings = pinned(purpose, limits.idle_in_transaction_timeout);
    let options = endpoint
        .sql()
        .application_name(&application_name(worker, purpose))
        .extra_float_digits(1_i8)
        .options(settings.iter().map(|(name, value)| (*name, value.as_str())))
        // Errors are ours to report, without values; statements are never logged.
        .disable_statement_logging();
    let mut connection = PgConnection::connect_with(&options).await.map_err(refuse_pooler)?;
    check(&mut connection, &settings).await?;
    Ok(connection)
}

/// PgBouncer refuses what it does not track with 08P01, a code that PostgreSQL itself uses for broken clients only.
fn refuse_pooler(error: sqlx::Error) -> CaptureError {
    if let sqlx::Error::Database(database) = &error
        && database.message().starts_with("unsupported startup parameter")
    {
        return Refusal::Pooler.into();
    }
    CaptureError::sql("connect to the database")(error)
}

async fn check(
    connection: &mut PgConnection,
    settings: &[(&'static str, String)],
) -> Result<(), CaptureError> {
    let names: Vec<&str> = settings.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = settings.iter().map(|(_, value)| value.as_str()).collect();
    // Both sides through set_config's own normal form: `60000ms` is shown as `1min`.
    let rows = sqlx::query(
        "select n as name, current_setting(n) as shown, set_config(n, v, true) as wanted
         from unnest($1::text[], $2::text[]) as t(n, v)",
    )
    .bind(&names)
    .bind(&values)
    .fetch_all(&mut *connection)
    .await
    .doing("check the session's settings")?;
    for row in rows {
        let (shown, wanted): (String, String) =
            (row.try_get("shown").doing("read a setting")?, row.try_get("wanted").doing("read a setting")?);
        if shown != wanted {
            return Err(Refusal::Setting { name: row.try_get("name").doing("read a setting")? }.into());
        }
    }
    Ok(())
}

/// The startup option string for the replication connection, which has no other way to be told.
pub(crate) fn replication_options() -> String {
    pinned(Purpose::Stream, Duration::ZERO)
        .iter()
        .map(|(name, value)| format!("-c {name}={}", value.replace('\\', "\\\\").replace(' ', "\\ ")))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Checks the same on a replication session that has not started streaming.
pub(crate) async fn check_replication(
    client: &mut pgwire_replication::ReplicationClient,
) -> Result<(), CaptureError> {
    for (name, value) in pinned(Purpose::Stream, Duration::ZERO) {
        let rows = client.simple_query(&format!("show {name}")).await.map_err(|error| {
            match Fault::from(&error) {
                fault if fault.code.is_some_and(|code| code.as_str() == "08P01") => Refusal::Pooler.into(),
                fault => {
                    CaptureError::Failed { doing: "check the replication session's settings".into(), fault }
                }
            }
        })?;
        let shown = rows.first().and_then(|row| row.first().cloned().flatten());
        if shown.as_deref() != Some(value.as_bytes()) {
            return Err(Refusal::Setting { name: name.to_owned() }.into());
        }
    }
    Ok(())
}
