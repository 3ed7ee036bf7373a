//! Exactly one worker owns the stream. Claiming it raises the epoch; each materialization transaction compares the epoch under
//! the row's lock, so an old worker that was paused and wakes up can write nothing.

use crate::error::Doing;
use crate::failpoints::fail_point;
use crate::progress::schema_missing;
use crate::settings::APPLICATION_PREFIX;
use crate::{CaptureError, Refusal};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// Proof of a claim; valid until somebody claims later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) worker: Uuid,
    pub(crate) epoch: i64,
}

/// Claims the stream for `worker`, whose SQL connections are `backend_pids`. Ends the previous owner's connections first, so that
/// an open transaction of it cannot hold the row's lock. A worker that has claimed before (`before`) claims again only if nobody
/// else has since: two workers never take the stream from each other in turns.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    worker: Uuid,
    backend_pids: &[i32],
    before: Option<Claim>,
) -> Result<Claim, CaptureError> {
    if let Some(before) = before {
        let epoch: Option<i64> = sqlx::query_scalar("select epoch from tidegate.worker")
            .fetch_optional(&mut *connection)
            .await
            .map_err(schema_missing("read the worker row"))?;
        if epoch != Some(before.epoch) {
            return Err(CaptureError::OwnershipLost);
        }
    }
    end_previous(connection, worker).await?;
    let row = sqlx::query(
        "update tidegate.worker
         set epoch = epoch + 1, worker_id = $1, backend_pids = $2, walsender_pid = null, claimed_at = clock_timestamp()
         where $3::int8 is null or epoch = $3
         returning epoch",
    )
    .bind(worker)
    .bind(backend_pids)
    .bind(before.map(|before| before.epoch))
    .fetch_optional(&mut *connection)
    .await
    .map_err(schema_missing("claim the stream"))?;
    let row = match row {
        Some(row) => row,
        None if before.is_some() => return Err(CaptureError::OwnershipLost),
        None => return Err(Refusal::Inconsistent("the worker row is missing").into()),
    };
    let epoch = row.try_get(0).doing("claim the stream")?;
    // Between the two statements above another worker may have claimed: the later claim wins, and sees to our end.
    end_previous(connection, worker).await?;
    fail_point!(OWNERSHIP_CLAIMED);
    Ok(Claim { worker, epoch })
}

/// Ends every capture connection of this database that is not `worker`'s. By `application_name`: stored process ids may belong
/// to somebody else by now, and a worker that died before it stored them has none.
async fn end_previous(connection: &mut PgConnection, worker: Uuid) -> Result<(), CaptureError> {
    sqlx::query(
        "select pg_terminate_backend(a.pid)
         from pg_stat_activity a
         where a.datname = current_database() and a.pid <> pg_backend_pid()
           and starts_with(a.application_name, $1) and not starts_with(a.application_name, $2)
           and (a.backend_type = 'walsender' or a.pid = any (select unnest(backend_pids) from tidegate.worker))",
    )
    .bind(APPLICATION_PREFIX)
    .bind(format!("{APPLICATION_PREFIX}{}", &worker.simple().to_string()[..8]))
    .execute(connection)
    .await
    .map_err(schema_missing("end the previous worker"))?;
    Ok(())
}

/// Stores the walsender's process id, so that a takeover and the readiness page know it.
pub(crate) async fn record_walsender(
    connection: &mut PgConnection,
    claim: Claim,
    walsender_pid: i32,
) -> Result<(), CaptureError> {
    let done = sqlx::query("update tidegate.worker set walsender_pid = $2 where epoch = $1")
        .bind(claim.epoch)
        .bind(walsender_pid)
        .execute(connection)
        .await
        .doing("record the walsender")?;
    if done.rows_affected() == 1 { Ok(()) } else { Err(CaptureError::OwnershipLost) }
}
