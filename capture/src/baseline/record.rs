//! The durable record of a baseline, phase by phase (B12), and what becomes of one whose process died.

use crate::columns::SqlLsn;
use crate::error::Doing;
use crate::{CaptureError, slot};
use sqlx::{PgConnection, Row};
use tidegate_model::{Lsn, RegistryGeneration, StateId};
use uuid::Uuid;

/// A baseline in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) reset: Uuid,
    pub(super) slot: String,
    pub(super) state: StateId,
}

/// One whose stage is durable: it can be caught up from its boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Staged {
    pub(super) candidate: Candidate,
    pub(super) consistent: Lsn,
    pub(super) caught_up: Lsn,
    pub(super) registry: RegistryGeneration,
}

/// Why a baseline is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// There is no stream yet.
    FirstStart,
    /// An operator authorized that the stream starts anew (Q3).
    Reset,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Kind::FirstStart => "first_start",
            Kind::Reset => "reset",
        }
    }
}

/// Records the intent, before the slot exists, so that every slot of ours can be swept.
pub(super) async fn begin(
    connection: &mut PgConnection,
    kind: Kind,
    reason: &str,
) -> Result<Candidate, CaptureError> {
    let reset = Uuid::new_v4();
    let slot = format!("tidegate_{}", &reset.simple().to_string()[..8]);
    let state: i32 = sqlx::query_scalar(
        "insert into tidegate.stream_reset (reset_id, kind, phase, slot_name, database_name, plugin, state_id, reason)
         values ($1, $3, 'recorded', $2::text::name, current_database(), 'pgoutput', nextval('tidegate.state_id'), $4)
         returning state_id",
    )
    .bind(reset)
    .bind(&slot)
    .bind(kind.as_str())
    .bind(reason)
    .fetch_one(connection)
    .await
    .doing("record the baseline")?;
    Ok(Candidate { reset, slot, state: StateId(state) })
}

/// Moves to a phase.
pub(super) async fn phase(
    connection: &mut PgConnection,
    reset: Uuid,
    phase: &str,
) -> Result<(), CaptureError> {
    sqlx::query(
        "update tidegate.stream_reset set phase = $2, phase_at = clock_timestamp() where reset_id = $1",
    )
    .bind(reset)
    .bind(phase)
    .execute(connection)
    .await
    .doing("record the baseline's phase")?;
    Ok(())
}

/// The slot exists: its consistent point, and the snapshot that goes with it.
pub(super) async fn slot_created(
    connection: &mut PgConnection,
    candidate: &Candidate,
    consistent: Lsn,
) -> Result<(), CaptureError> {
    sqlx::query(
        "update tidegate.stream_reset set phase = 'slot_created', phase_at = clock_timestamp(), consistent_lsn = $2, caught_up_lsn = $2
         where reset_id = $1",
    )
    .bind(candidate.reset)
    .bind(SqlLsn(consistent))
    .execute(connection)
    .await
    .doing("record the candidate slot")?;
    Ok(())
}

/// A barrier is about to be put into the WAL.
pub(super) async fn barrier_announced(
    connection: &mut PgConnection,
    reset: Uuid,
    nonce: Uuid,
) -> Result<(), CaptureError> {
    sqlx::query("update tidegate.stream_reset set barrier_nonce = $2, barrier_commit_lsn = null, barrier_end_lsn = null where reset_id = $1")
        .bind(reset)
        .bind(nonce)
        .execute(connection)
        .await
        .doing("record the barrier")?;
    Ok(())
}

/// The candidate has decoded the barrier itself (B4).
pub(super) async fn caught_up(
    connection: &mut PgConnection,
    reset: Uuid,
    barrier: &tidegate_stream::Marker,
) -> Result<(), CaptureError> {
    sqlx::query(
        "update tidegate.stream_reset set phase = 'caught_up', phase_at = clock_timestamp(), barrier_commit_lsn = $2, barrier_end_lsn = $3
         where reset_id = $1",
    )
    .bind(reset)
    .bind(SqlLsn(barrier.commit_lsn))
    .bind(SqlLsn(barrier.end_lsn))
    .execute(connection)
    .await
    .doing("record the barrier")?;
    Ok(())
}

/// The newest staged record with its registry and boundary.
pub(super) async fn staged(
    connection: &mut PgConnection,
    reset: Uuid,
) -> Result<Option<Staged>, CaptureError> {
    let row = sqlx::query(
        "select reset_id, slot_name::text, state_id, consistent_lsn, caught_up_lsn, registry_generation
         from tidegate.stream_reset
         where reset_id = $1 and consistent_lsn is not null and caught_up_lsn is not null and registry_generation is not null",
    )
    .bind(reset)
    .fetch_optional(connection)
    .await
    .doing("read the baseline's record")?;
    let staged = |row: sqlx::postgres::PgRow| -> Result<Staged, sqlx::Error> {
        Ok(Staged {
            candidate: Candidate {
                reset: row.try_get("reset_id")?,
                slot: row.try_get("slot_name")?,
                state: StateId(row.try_get("state_id")?),
            },
            consistent: row.try_get::<SqlLsn, _>("consistent_lsn")?.0,
            caught_up: row.try_get::<SqlLsn, _>("caught_up_lsn")?.0,
            registry: RegistryGeneration(row.try_get("registry_generation")?),
        })
    };
    row.map(staged).transpose().doing("read the baseline's record")
}

/// Where to go on.
pub(super) enum Left {
    /// Nothing was begun.
    Nothing,
    /// An operator's request that nobody has begun to serve.
    Requested(Candidate),
    /// A stage that can be caught up from its boundary.
    Resumable(Box<Staged>),
}

/// What the last process left behind: at most one stage that can be resumed; everything else is discarded, and no slot of ours
/// stays without a use. A reset is an operator's will: it is asked for until it is activated or withdrawn.
pub(super) async fn sweep(
    connection: &mut PgConnection,
    kind: Kind,
    database: &str,
) -> Result<Left, CaptureError> {
    let mut left = Left::Nothing;
    for (candidate, phase) in left_over(connection, kind).await? {
        if matches!(left, Left::Nothing) {
            let is_staged = matches!(phase.as_str(), "staged" | "caught_up" | "verified");
            if is_staged && is_alive(connection, &candidate, database).await? {
                left = match staged(connection, candidate.reset).await? {
                    Some(staged) => Left::Resumable(Box::new(staged)),
                    None => Left::Nothing,
                };
                continue;
            }
            if kind == Kind::Reset && phase == "recorded" {
                left = Left::Requested(candidate);
                continue;
            }
            if phase != "discarded" {
                start_over(connection, &candidate, kind, "left behind by a process that died").await?;
                if kind == Kind::Reset {
                    // The request that has just been renewed.
                    return Box::pin(sweep(connection, kind, database)).await;
                }
                continue;
            }
        }
        discard(connection, &candidate, "left behind by a process that died").await?;
    }
    Ok(left)
}

/// Gives a candidate up. What an operator has asked for is asked for anew.
pub(super) async fn start_over(
    connection: &mut PgConnection,
    candidate: &Candidate,
    kind: Kind,
    error: &str,
) -> Result<(), CaptureError> {
    if kind == Kind::Reset {
        let reason: String =
            sqlx::query_scalar("select reason from tidegate.stream_reset where reset_id = $1")
                .bind(candidate.reset)
                .fetch_one(&mut *connection)
                .await
                .doing("read the baseline's record")?;
        begin(connection, kind, &reason).await?;
    }
    discard(connection, candidate, error).await
}

/// Activated ones whose scaffolding is still there.
pub(super) async fn activated(connection: &mut PgConnection) -> Result<Vec<Candidate>, CaptureError> {
    let rows: Vec<(Uuid, String, i32)> = sqlx::query_as(
        "select reset_id, slot_name::text, state_id from tidegate.stream_reset where kind in ('first_start', 'reset') and phase = 'activated'",
    )
    .fetch_all(connection)
    .await
    .doing("look for unfinished baselines")?;
    Ok(rows
        .into_iter()
        .map(|(reset, slot, state)| Candidate { reset, slot, state: StateId(state) })
        .collect())
}

/// Once a stream exists, no other first start may be resumed.
pub(super) async fn discard_all(connection: &mut PgConnection) -> Result<(), CaptureError> {
    for candidate in
        left_over(connection, Kind::FirstStart).await?.into_iter().map(|(candidate, _)| candidate)
    {
        discard(connection, &candidate, "another first start was activated").await?;
    }
    Ok(())
}

/// Baselines that were never activated and still have something: newest first, with their phase.
async fn left_over(
    connection: &mut PgConnection,
    kind: Kind,
) -> Result<Vec<(Candidate, String)>, CaptureError> {
    let rows: Vec<(Uuid, String, i32, String)> = sqlx::query_as(
        "select r.reset_id, r.slot_name::text, r.state_id, r.phase from tidegate.stream_reset r
         where r.kind = $1 and (r.phase not in ('activated', 'cleaned', 'discarded')
             or r.phase = 'discarded' and exists (select from pg_replication_slots s where s.slot_name = r.slot_name))
         order by r.started_at desc",
    )
    .bind(kind.as_str())
    .fetch_all(connection)
    .await
    .doing("look for unfinished baselines")?;
    let candidate = |(reset, slot, state, phase)| (Candidate { reset, slot, state: StateId(state) }, phase);
    Ok(rows.into_iter().map(candidate).collect())
}

async fn is_alive(
    connection: &mut PgConnection,
    candidate: &Candidate,
    database: &str,
) -> Result<bool, CaptureError> {
    let facts = slot::release(connection, &candidate.slot).await?;
    Ok(slot::check_usable(&candidate.slot, facts.as_ref(), database).is_ok())
}

/// Gives a candidate up: nothing of it stays but its record.
pub(super) async fn discard(
    connection: &mut PgConnection,
    candidate: &Candidate,
    error: &str,
) -> Result<(), CaptureError> {
    slot::drop_if_exists(connection, &candidate.slot).await?;
    sqlx::query(
        "with gone as (select tidegate.drop_state($2))
         update tidegate.stream_reset
         set phase = 'discarded', phase_at = clock_timestamp(), error = $3
         from gone where reset_id = $1",
    )
    .bind(candidate.reset)
    .bind(candidate.state.0)
    .bind(error)
    .execute(connection)
    .await
    .doing("discard a baseline")?;
    tracing::info!(slot = candidate.slot, error, "baseline discarded");
    Ok(())
}
