//! B1. Creates the candidate slot and hands over its snapshot: one boundary. Bounded from outside, because the server waits for every
//! open writer without a timeout of its own, and its walsender outlives us.

use super::record::{self, Candidate};
use crate::error::Doing;
use crate::failpoints::fail_point;
use crate::heartbeat::State;
use crate::source::{CreatedSlot, Gated};
use crate::supervise::Worker;
use crate::{CaptureError, Refusal};
use sqlx::PgConnection;
use std::collections::HashMap;
use std::time::Duration;
use tidegate_model::Lsn;

/// A slot with its exported snapshot. The snapshot can be imported as long as `session` lives and does nothing else.
pub(super) struct Exported {
    pub(super) session: Gated,
    pub(super) snapshot: String,
    /// Filenodes of the registered relations, by OID, before the slot was created.
    pub(super) filenodes: HashMap<u32, u32>,
}

/// How often a waiting creation shows what it waits for.
const SHOW_INTERVAL: Duration = Duration::from_secs(2);

/// Once a stream exists, a table that holds rows can no longer simply be registered: a first start waits for the first
/// registration, and lets in what is being registered now.
pub(super) async fn check_registered(
    control: &mut PgConnection,
    quiet: Duration,
) -> Result<(), CaptureError> {
    let newest: Option<f64> = sqlx::query_scalar(
        "select extract(epoch from clock_timestamp() - max(registered_at))::float8 from tidegate.relation where state = 'active'",
    )
    .fetch_one(control)
    .await
    .doing("look for registrations")?;
    match newest {
        None => Err(CaptureError::Unregistered("nothing is registered yet: register a table first")),
        Some(age) if age < quiet.as_secs_f64() => {
            Err(CaptureError::Unregistered("tables are being registered"))
        }
        Some(_) => Ok(()),
    }
}

/// G5: refuses a drifted table. To compare its keys with our versions would run its owner's casts as this role.
pub(super) async fn check_drift(sql: &mut PgConnection) -> Result<(), CaptureError> {
    let drifted: Option<(String, String)> =
        sqlx::query_as("select relation, problem from tidegate.relation_problems() limit 1")
            .fetch_optional(sql)
            .await
            .doing("compare the tables with their registration")?;
    match drifted {
        Some((relation, problem)) => Err(CaptureError::Waiting(format!("{relation}: {problem}"))),
        None => Ok(()),
    }
}

/// What must hold before a slot is worth creating.
pub(super) async fn check_prerequisites(control: &mut PgConnection) -> Result<(), CaptureError> {
    let (version, wal_level, publication, prepared): (i32, String, bool, i64) = sqlx::query_as(
        "select current_setting('server_version_num')::int4, current_setting('wal_level'),
                exists (select from pg_publication where pubname = 'tidegate'), (select count(*) from pg_prepared_xacts)",
    )
    .fetch_one(&mut *control)
    .await
    .doing("check the server")?;
    if !(150_000..190_000).contains(&version) {
        return Err(Refusal::ServerVersion(version.unsigned_abs() / 10_000).into());
    }
    if wal_level != "logical" {
        return Err(Refusal::WalLevel(wal_level).into());
    }
    if !publication {
        // A slot decodes with the catalog of its time: one that is older than the publication could never decode a row.
        return Err(CaptureError::Waiting(
            "the publication tidegate does not exist: run `tidegate migrate`".into(),
        ));
    }
    if prepared > 0 {
        let what = format!(
            "{prepared} prepared transactions exist: the slot can be created once they are committed or rolled back"
        );
        return Err(CaptureError::Waiting(what));
    }
    check_drift(control).await
}

/// Creates the slot and records it.
pub(super) async fn create(
    worker: &Worker,
    control: &mut PgConnection,
    candidate: &Candidate,
) -> Result<Exported, CaptureError> {
    let filenodes = filenodes(control).await?;
    let limits = &worker.config.limits;
    let mut session = Gated::connect(
        &worker.stream_thread,
        &worker.endpoint,
        worker.id,
        limits,
        &candidate.slot,
        Lsn::ZERO,
    )
    .await?;
    let walsender = session.walsender_pid;
    let created = bounded(worker, control, session.create_slot(&candidate.slot)).await;
    let CreatedSlot { consistent_lsn, snapshot } = match created {
        Ok(created) => created,
        Err(error) => {
            end(control, walsender).await?;
            return Err(error);
        }
    };
    fail_point!(BASELINE_SLOT_CREATED);
    record::slot_created(control, candidate, consistent_lsn).await?;
    fail_point!(BASELINE_SLOT_RECORDED);
    Ok(Exported { session, snapshot, filenodes })
}

/// Filenodes of everything registered: a rewrite between now and the import of the snapshot would read as an empty table.
pub(super) async fn filenodes(connection: &mut PgConnection) -> Result<HashMap<u32, u32>, CaptureError> {
    let rows: Vec<(i64, Option<i64>)> = sqlx::query_as(
        "select relation_oid::int8, pg_relation_filenode(relation_oid)::int8 from tidegate.relation where state <> 'removed'",
    )
    .fetch_all(connection)
    .await
    .doing("read filenodes")?;
    Ok(rows.into_iter().filter_map(|(oid, node)| Some((oid as u32, node? as u32))).collect())
}

async fn bounded(
    worker: &Worker,
    control: &mut PgConnection,
    creation: impl Future<Output = Result<CreatedSlot, CaptureError>>,
) -> Result<CreatedSlot, CaptureError> {
    let deadline = tokio::time::Instant::now() + worker.config.limits.slot_creation_timeout;
    let mut creation = std::pin::pin!(creation);
    let mut blockers = String::new();
    loop {
        let show = (tokio::time::Instant::now() + SHOW_INTERVAL).min(deadline);
        tokio::select! {
            biased;
            created = &mut creation => return created,
            () = tokio::time::sleep_until(show) => {}
        }
        blockers = match writers(control).await {
            Ok(found) => found,
            Err(_) => blockers,
        };
        let reason = format!("the slot waits for open writers: {blockers}");
        tracing::info!(reason, "baseline");
        if tokio::time::Instant::now() >= deadline {
            return Err(CaptureError::Waiting(reason));
        }
        worker.heartbeat.state(State::Starting, Some(reason));
    }
}

/// Who holds a transaction id open: process ids and since when, no statement text (it may hold values).
async fn writers(control: &mut PgConnection) -> Result<String, CaptureError> {
    let found: Vec<String> = sqlx::query_scalar(
        "select format('process %s of %s since %s', pid, usename, to_char(xact_start at time zone 'UTC', 'HH24:MI:SS'))
         from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid() order by xact_start limit 5",
    )
    .fetch_all(control)
    .await
    .doing("look for open writers")?;
    Ok(if found.is_empty() { "none that can be seen".into() } else { found.join(", ") })
}

async fn end(control: &mut PgConnection, pid: i32) -> Result<(), CaptureError> {
    sqlx::query("select pg_terminate_backend($1)")
        .bind(pid)
        .execute(control)
        .await
        .doing("end the walsender")?;
    Ok(())
}
