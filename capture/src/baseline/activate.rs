//! B9. One transaction installs the staged state: the generation, the pointer to slot and state, both boundaries at the barrier's
//! end. It holds the worker row, so nobody else can activate or stream meanwhile.

use super::record::{self, Candidate, Staged};
use crate::CaptureError;
use crate::columns::SqlLsn;
use crate::error::Doing;
use crate::failpoints::fail_point;
use crate::ownership::Claim;
use crate::slot::{self, database_oid};
use crate::source::Server;
use sqlx::{Acquire, AssertSqlSafe, PgConnection};
use tidegate_model::Lsn;
use tidegate_stream::{Failure, FailureClass};

/// Activates. `visible` is the snapshot in which the barrier was emitted: every fence visible there must be accounted for (B6).
pub(super) async fn activate(
    writer: &mut PgConnection,
    claim: Claim,
    staged: &Staged,
    server: &Server,
    barrier_end: Lsn,
    visible: &str,
) -> Result<(), CaptureError> {
    let candidate = &staged.candidate;
    let mut transaction = writer.begin().await.doing("begin activation")?;
    let epoch: i64 = sqlx::query_scalar("select epoch from tidegate.worker for update")
        .fetch_one(&mut *transaction)
        .await
        .doing("lock the worker row")?;
    if epoch != claim.epoch {
        return Err(CaptureError::OwnershipLost);
    }
    let database_oid = database_oid(&mut transaction).await?;
    let generation: i32 = sqlx::query_scalar(include_str!("activate_generation.sql"))
        .bind(candidate.reset)
        .bind(&server.system_identifier)
        .bind(server.timeline)
        .bind(database_oid)
        .bind(SqlLsn(barrier_end))
        .fetch_one(&mut *transaction)
        .await
        .doing("create the generation")?;
    account_for_fences(&mut transaction, candidate, generation, visible).await?;
    // Q3: what a reset leaves behind no longer blocks.
    sqlx::query(
        "update tidegate.poison set status = 'resolved', resolved_at = clock_timestamp() where status in ('active', 'retrying')",
    )
    .execute(&mut *transaction)
    .await
    .doing("leave poison behind")?;
    sqlx::query(
        "insert into tidegate.audit (actor, action, subject, outcome)
         select 'worker', 'stream.' || kind, jsonb_build_object('reset', $1::uuid, 'generation', $2::int4), 'activated'
         from tidegate.stream_reset where reset_id = $1",
    )
    .bind(candidate.reset)
    .bind(generation)
    .execute(&mut *transaction)
    .await
    .doing("audit the activation")?;
    record::phase(&mut transaction, candidate.reset, "activated").await?;
    fail_point!(BASELINE_ACTIVATING);
    transaction.commit().await.doing("commit the activation")
}

/// B5, B6: covered by the snapshot, or materialized by catch-up, or later than the barrier. Nothing else may be pending.
async fn account_for_fences(
    transaction: &mut PgConnection,
    candidate: &Candidate,
    generation: i32,
    visible: &str,
) -> Result<(), CaptureError> {
    let (recorded, covered): (i64, i64) = sqlx::query_as(
        "with done as (
             update tidegate.write_fence f set covered_by = c.reset_id
             from tidegate.reset_coverage c
             where c.reset_id = $1 and c.generation = $2 and f.fence_id = c.fence_id
               and f.materialized_commit_lsn is null and f.covered_by is null
             returning 1)
         select (select count(*) from tidegate.reset_coverage where reset_id = $1), (select count(*) from done)",
    )
    .bind(candidate.reset)
    .bind(generation)
    .fetch_one(&mut *transaction)
    .await
    .doing("cover fences")?;
    let sql = format!(
        "with done as (
             update tidegate.write_fence f set generation = $1, materialized_commit_lsn = s.commit_lsn
             from tidegate_projection.s{0}_fence s
             where f.fence_id = s.fence_id and f.materialized_commit_lsn is null and f.covered_by is null
             returning 1)
         select (select count(*) from tidegate_projection.s{0}_fence), (select count(*) from done),
                (select count(*) from tidegate.write_fence f
                 where f.materialized_commit_lsn is null and f.covered_by is null
                   and pg_visible_in_snapshot(f.xid, $2::pg_snapshot)
                   and not exists (select from tidegate_projection.s{0}_fence s where s.fence_id = f.fence_id)
                   and not exists (select from tidegate.reset_coverage c where c.fence_id = f.fence_id and c.reset_id = $3))",
        candidate.state
    );
    let (staged, materialized, forgotten): (i64, i64, i64) = sqlx::query_as(AssertSqlSafe(sql))
        .bind(generation)
        .bind(visible)
        .bind(candidate.reset)
        .fetch_one(transaction)
        .await
        .doing("reconcile fences of the catch-up")?;
    if recorded == covered && staged == materialized && forgotten == 0 {
        return Ok(());
    }
    let what = format!(
        "{covered} of {recorded} covered fences and {materialized} of {staged} caught-up fences were pending, {forgotten} are in neither"
    );
    Err(Failure::new(FailureClass::WriteFenceMismatch, what).into())
}

/// B11: the candidate's own scaffolding goes, and slots and projected states of earlier generations. Their effects stay for the
/// retention to remove: nobody can reach them, as every cursor of theirs is refused (P3).
pub(super) async fn clean(connection: &mut PgConnection, candidate: &Candidate) -> Result<(), CaptureError> {
    let earlier: Vec<(String, i32)> = sqlx::query_as(
        "select slot_name::text, state_id from tidegate.stream_generation
         where id <> (select generation from tidegate.progress)",
    )
    .fetch_all(&mut *connection)
    .await
    .doing("look for earlier generations")?;
    for (slot, state) in earlier {
        slot::drop_if_exists(connection, &slot).await?;
        sqlx::query("select tidegate.drop_state($1)")
            .bind(state)
            .execute(&mut *connection)
            .await
            .doing("drop an earlier generation's state")?;
    }
    let mut transaction = connection.begin().await.doing("clean up after a baseline")?;
    let sql = format!("drop table if exists tidegate_projection.s{}_fence", candidate.state);
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await.doing("clean up after a baseline")?;
    record::phase(&mut transaction, candidate.reset, "cleaned").await?;
    transaction.commit().await.doing("clean up after a baseline")
}
