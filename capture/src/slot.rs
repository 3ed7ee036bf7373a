//! What the server says about a slot, what follows from it at start (A8, A9), and who holds it.

use crate::columns::SqlLsn;
use crate::error::Doing;
use crate::progress::{Boundary, Stream};
use crate::source::Server;
use crate::{CaptureError, Refusal};
use sqlx::{PgConnection, Row};
use std::time::Duration;
use tidegate_model::Lsn;

/// A slot as `pg_replication_slots` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotFacts {
    pub(crate) plugin: Option<String>,
    pub(crate) database: Option<String>,
    pub(crate) temporary: bool,
    pub(crate) invalidated: bool,
    pub(crate) confirmed: Option<Lsn>,
    pub(crate) restart: Option<Lsn>,
    pub(crate) active_pid: Option<i32>,
}

/// Reads one slot.
pub(crate) async fn read(
    connection: &mut PgConnection,
    slot: &str,
) -> Result<Option<SlotFacts>, CaptureError> {
    // `conflicting` (16+) and `invalidation_reason` (17+) say more, `wal_status` says it on all.
    let row = sqlx::query(
        "select plugin::text, database::text, temporary, wal_status, confirmed_flush_lsn, restart_lsn, active_pid
         from pg_replication_slots where slot_name = $1::text::name",
    )
    .bind(slot)
    .fetch_optional(connection)
    .await
    .doing("read the slot")?;
    let facts = |row: sqlx::postgres::PgRow| -> Result<SlotFacts, sqlx::Error> {
        let wal_status: Option<String> = row.try_get("wal_status")?;
        Ok(SlotFacts {
            plugin: row.try_get("plugin")?,
            database: row.try_get("database")?,
            temporary: row.try_get("temporary")?,
            invalidated: wal_status.as_deref() == Some("lost"),
            confirmed: row.try_get::<Option<SqlLsn>, _>("confirmed_flush_lsn")?.map(|lsn| lsn.0),
            restart: row.try_get::<Option<SqlLsn>, _>("restart_lsn")?.map(|lsn| lsn.0),
            active_pid: row.try_get("active_pid")?,
        })
    };
    row.map(facts).transpose().doing("read the slot")
}

/// The slot's confirmed position, read back after a status update (A4).
pub(crate) async fn confirmed_flush(connection: &mut PgConnection, slot: &str) -> Result<Lsn, CaptureError> {
    match read(connection, slot).await? {
        Some(facts) => facts.confirmed.ok_or_else(|| Refusal::SlotInvalidated(slot.to_owned()).into()),
        None => Err(Refusal::SlotMissing(slot.to_owned()).into()),
    }
}

/// WAL that the slot keeps from being removed.
pub(crate) async fn retained_bytes(
    connection: &mut PgConnection,
    slot: &str,
) -> Result<Option<i64>, CaptureError> {
    let bytes: Option<Option<i64>> = sqlx::query_scalar(
        "select (pg_current_wal_lsn() - restart_lsn)::int8 from pg_replication_slots where slot_name = $1::text::name",
    )
    .bind(slot)
    .fetch_optional(connection)
    .await
    .doing("measure the slot")?;
    Ok(bytes.flatten())
}

/// OID of the database that this connection is in.
pub(crate) async fn database_oid(connection: &mut PgConnection) -> Result<i64, CaptureError> {
    sqlx::query_scalar("select oid::int8 from pg_database where datname = current_database()")
        .fetch_one(connection)
        .await
        .doing("read the database's identity")
}

/// Compares the server with the one that the generation was made on (A9, OP-03).
pub(crate) fn check_server(stream: &Stream, server: &Server, database_oid: i64) -> Result<(), Refusal> {
    if stream.system_identifier != server.system_identifier {
        return Err(Refusal::OtherCluster);
    }
    if stream.database_oid != database_oid {
        return Err(Refusal::OtherDatabase);
    }
    if stream.timeline != server.timeline {
        return Err(Refusal::OtherTimeline { expected: stream.timeline, actual: server.timeline });
    }
    Ok(())
}

/// Requires a permanent pgoutput slot of this database with its WAL (H7).
pub(crate) fn check_usable(slot: &str, facts: Option<&SlotFacts>, database: &str) -> Result<Lsn, Refusal> {
    let facts = facts.ok_or_else(|| Refusal::SlotMissing(slot.to_owned()))?;
    let found = match facts {
        SlotFacts { temporary: true, .. } => Some("a temporary slot".to_owned()),
        SlotFacts { plugin: Some(plugin), .. } if plugin != "pgoutput" => Some(format!("plugin {plugin}")),
        SlotFacts { plugin: None, .. } => Some("a physical slot".to_owned()),
        SlotFacts { database: Some(other), .. } if other != database => Some("another database's".to_owned()),
        _ => None,
    };
    if let Some(found) = found {
        return Err(Refusal::SlotForeign { slot: slot.to_owned(), found });
    }
    match facts.confirmed {
        Some(confirmed) if !facts.invalidated => Ok(confirmed),
        _ => Err(Refusal::SlotInvalidated(slot.to_owned())),
    }
}

/// What brings slot and acknowledgement together at start (A8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reconciliation {
    /// They agree.
    Agreed,
    /// An advance was lost in a crash: the slot is brought to the acknowledgement.
    Advance(Lsn),
    /// A status update arrived and its record did not: the slot's position becomes the acknowledgement.
    Adopt(Lsn),
}

/// The decision of A8, over positions alone.
pub(crate) fn reconcile(
    slot: Lsn,
    start: Lsn,
    boundary: Boundary,
    flush: Lsn,
) -> Result<Reconciliation, Refusal> {
    let Boundary { processed, acknowledged } = boundary;
    // First of all: PostgreSQL clamps or accepts a position beyond its WAL, and then delivers nothing, silently.
    if processed > flush {
        return Err(Refusal::ProgressPastServer { processed, flush });
    }
    if slot < start {
        return Err(Refusal::SlotBeforeStart { slot, start });
    }
    if slot > processed {
        return Err(Refusal::SlotPastProcessed { slot, processed });
    }
    Ok(match slot.cmp(&acknowledged) {
        std::cmp::Ordering::Less => Reconciliation::Advance(acknowledged),
        std::cmp::Ordering::Equal => Reconciliation::Agreed,
        std::cmp::Ordering::Greater => Reconciliation::Adopt(slot),
    })
}

/// Advances an inactive slot.
pub(crate) async fn advance(connection: &mut PgConnection, slot: &str, to: Lsn) -> Result<(), CaptureError> {
    sqlx::query("select pg_replication_slot_advance($1::text::name, $2)")
        .bind(slot)
        .bind(SqlLsn(to))
        .execute(connection)
        .await
        .doing("advance the slot to the acknowledgement")?;
    Ok(())
}

/// How long the previous holder may take to let go of the slot.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
const RELEASE_POLL: Duration = Duration::from_millis(20);

/// Ends whoever streams from the slot, and waits until it is free: the stream is ours by epoch.
pub(crate) async fn release(
    connection: &mut PgConnection,
    slot: &str,
) -> Result<Option<SlotFacts>, CaptureError> {
    let deadline = tokio::time::Instant::now() + RELEASE_TIMEOUT;
    loop {
        let facts = read(connection, slot).await?;
        let Some(pid) = facts.as_ref().and_then(|facts| facts.active_pid) else { return Ok(facts) };
        if tokio::time::Instant::now() >= deadline {
            return Err(CaptureError::Waiting(format!("process {pid} holds slot {slot} and does not end")));
        }
        sqlx::query("select pg_terminate_backend($1)")
            .bind(pid)
            .execute(&mut *connection)
            .await
            .doing("end the slot's previous holder")?;
        // The server has no signal for "released": its own view is polled, bounded by the deadline above.
        tokio::time::sleep(RELEASE_POLL).await;
    }
}

/// Drops a slot if it exists, whoever streams from it.
pub(crate) async fn drop_if_exists(connection: &mut PgConnection, slot: &str) -> Result<(), CaptureError> {
    if release(connection, slot).await?.is_some() {
        sqlx::query("select pg_drop_replication_slot($1::text::name)")
            .bind(slot)
            .execute(connection)
            .await
            .doing("drop a slot")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(slot: u64, acknowledged: u64, processed: u64, flush: u64) -> Result<Reconciliation, Refusal> {
        let boundary = Boundary { processed: Lsn(processed), acknowledged: Lsn(acknowledged) };
        reconcile(Lsn(slot), Lsn(100), boundary, Lsn(flush))
    }

    #[test]
    fn a8_behind_is_advanced_between_is_adopted_outside_is_refused() {
        use Reconciliation::*;
        assert_eq!(decide(200, 200, 300, 400), Ok(Agreed));
        assert_eq!(decide(100, 200, 300, 400), Ok(Advance(Lsn(200))));
        assert_eq!(decide(250, 200, 300, 400), Ok(Adopt(Lsn(250))));
        assert_eq!(decide(300, 200, 300, 400), Ok(Adopt(Lsn(300))));
        assert_eq!(
            decide(99, 200, 300, 400),
            Err(Refusal::SlotBeforeStart { slot: Lsn(99), start: Lsn(100) })
        );
        let past = Refusal::SlotPastProcessed { slot: Lsn(301), processed: Lsn(300) };
        assert_eq!(decide(301, 200, 300, 400), Err(past));
        let restored = Refusal::ProgressPastServer { processed: Lsn(300), flush: Lsn(299) };
        assert_eq!(decide(250, 200, 300, 299), Err(restored));
    }
}
