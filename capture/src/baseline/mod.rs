//! Baselines (B), for a first start and for a reset: a candidate slot and its snapshot become a staged state, which catches up, is verified and activated. Each
//! phase is recorded, so that a process that dies resumes from the same slot and boundary, or discards the stage and starts over.
//!
//! Catch-up uses the worker's own intake and materialization (B3). What a baseline reads of application tables, it reads under
//! the one snapshot (R7).

mod activate;
mod binary;
mod candidate;
mod encode;
mod record;
mod stage;
mod text;
mod verify;

use crate::columns::SqlLsn;
use crate::error::Doing;
use crate::failpoints::fail_point;
use crate::failure::Disposition;
use crate::heartbeat::State;
use crate::intake::Intake;
use crate::materialize::{Materializer, Target};
use crate::ownership::{self, Claim};
use crate::progress::{self, Stream};
use crate::replay::Replay;
use crate::run::{Connections, catch_up};
use crate::source::{Gated, Server};
use crate::supervise::Worker;
use crate::{CaptureError, Refusal, registry};
use record::{Candidate, Kind, Left, Staged};
use sqlx::PgConnection;
use uuid::Uuid;

/// Makes the first generation. Blocking and transient failures end it; the next session resumes or starts over.
pub(crate) async fn first_start(
    worker: &mut Worker,
    sql: &mut Connections,
    claim: Claim,
) -> Result<Stream, CaptureError> {
    worker.heartbeat.state(State::Starting, Some("baseline".into()));
    let staged = match record::sweep(&mut sql.control, Kind::FirstStart, worker.endpoint.database()).await? {
        Left::Resumable(staged) => *staged,
        Left::Requested(_) | Left::Nothing => {
            candidate::check_registered(&mut sql.control, worker.config.limits.first_start_quiet).await?;
            candidate::check_prerequisites(&mut sql.control).await?;
            let candidate = record::begin(&mut sql.control, Kind::FirstStart, "first start").await?;
            make_stage(worker, sql, Kind::FirstStart, candidate).await?
        }
    };
    complete(worker, sql, claim, Kind::FirstStart, &staged).await
}

/// Replaces the stream where an operator has asked for it (Q3), else gives it back as it is. Until activation the old stream stays
/// blocked and unchanged (B11): this worker does nothing else meanwhile.
pub(crate) async fn reset_if_requested(
    worker: &mut Worker,
    sql: &mut Connections,
    claim: Claim,
    stream: Stream,
) -> Result<Stream, CaptureError> {
    let left = record::sweep(&mut sql.control, Kind::Reset, worker.endpoint.database()).await?;
    if matches!(left, Left::Nothing) {
        return Ok(stream);
    }
    worker.heartbeat.state(State::Starting, Some("stream reset".into()));
    let staged = match left {
        Left::Resumable(staged) => *staged,
        Left::Requested(candidate) => {
            candidate::check_prerequisites(&mut sql.control).await?;
            make_stage(worker, sql, Kind::Reset, candidate).await?
        }
        Left::Nothing => return Ok(stream),
    };
    complete(worker, sql, claim, Kind::Reset, &staged).await
}

async fn complete(
    worker: &mut Worker,
    sql: &mut Connections,
    claim: Claim,
    kind: Kind,
    staged: &Staged,
) -> Result<Stream, CaptureError> {
    if let Err(error) = finish(worker, sql, claim, staged).await {
        // The candidate is not a stream that could be quarantined: the next session resumes, or starts over.
        worker.attempt = None;
        if !is_hopeless(&error) {
            return Err(error);
        }
        // A transaction that cannot be caught up with may well be covered by a newer snapshot.
        record::start_over(&mut sql.control, &staged.candidate, kind, &error.reason()).await?;
        return Err(CaptureError::Waiting(format!("baseline: {}", error.reason())));
    }
    (worker.singly_until, worker.trouble) = (None, None);
    progress::read(&mut sql.writer)
        .await?
        .ok_or_else(|| Refusal::Inconsistent("an activated baseline left no progress").into())
}

/// Records an operator's will to start the stream anew.
pub(crate) async fn request_reset(connection: &mut PgConnection, reason: &str) -> Result<Uuid, CaptureError> {
    Ok(record::begin(connection, Kind::Reset, reason).await?.reset)
}

/// Whether trying the same stage again would fail again.
fn is_hopeless(error: &CaptureError) -> bool {
    match error {
        CaptureError::Blocked(_) => true,
        CaptureError::Failed { .. } => {
            matches!(error.disposition(), Disposition::Poison | Disposition::Internal)
        }
        _ => false,
    }
}

/// B11, B12: what a process that died right after an activation, or in a first start that another process completed, left behind.
pub(crate) async fn finish_left_over(control: &mut PgConnection) -> Result<(), CaptureError> {
    for candidate in record::activated(control).await? {
        activate::clean(control, &candidate).await?;
    }
    record::discard_all(control).await
}

/// recorded → slot_created → staged
async fn make_stage(
    worker: &Worker,
    sql: &mut Connections,
    kind: Kind,
    candidate: Candidate,
) -> Result<Staged, CaptureError> {
    fail_point!(BASELINE_RECORDED);
    let made = async {
        let exported = candidate::create(worker, &mut sql.control, &candidate).await?;
        stage::stage(worker, sql, &candidate, exported).await
    };
    match made.await {
        Ok(()) => {}
        Err(killed @ CaptureError::Killed(_)) => return Err(killed),
        Err(error) => {
            // Best effort: the sweep of the next session does it otherwise.
            if let Err(second) = record::start_over(&mut sql.control, &candidate, kind, &error.reason()).await
            {
                tracing::debug!(error = %second, "baseline not discarded yet");
            }
            // What cannot be staged is no transaction of the stream: it must not overwrite a record of one.
            return Err(match error {
                CaptureError::Blocked(failure) => CaptureError::Waiting(format!("baseline: {failure}")),
                error => error,
            });
        }
    }
    fail_point!(BASELINE_STAGED);
    record::staged(&mut sql.control, candidate.reset)
        .await?
        .ok_or_else(|| Refusal::Inconsistent("a staged baseline has no record").into())
}

/// staged → caught_up → verified → activated → cleaned
async fn finish(
    worker: &mut Worker,
    sql: &mut Connections,
    claim: Claim,
    staged: &Staged,
) -> Result<(), CaptureError> {
    let (server, barrier, visible) = reach_barrier(worker, sql, claim, staged).await?;
    fail_point!(BASELINE_CAUGHT_UP);
    worker.heartbeat.state(State::Starting, Some("baseline: verifying".into()));
    verify::verify(&mut sql.control, &staged.candidate).await?;
    record::phase(&mut sql.control, staged.candidate.reset, "verified").await?;
    fail_point!(BASELINE_VERIFIED);
    activate::activate(&mut sql.writer, claim, staged, &server, barrier.end_lsn, &visible).await?;
    fail_point!(BASELINE_ACTIVATED);
    activate::clean(&mut sql.writer, &staged.candidate).await
}

/// Streams from the candidate slot until it has decoded a marker that we put into the WAL (B4).
async fn reach_barrier(
    worker: &mut Worker,
    sql: &mut Connections,
    claim: Claim,
    staged: &Staged,
) -> Result<(Server, tidegate_stream::Marker, String), CaptureError> {
    let candidate = &staged.candidate;
    worker.heartbeat.state(State::Starting, Some("baseline: catching up".into()));
    let gated = Gated::connect(
        &worker.stream_thread,
        &worker.endpoint,
        worker.id,
        &worker.config.limits,
        &candidate.slot,
        staged.caught_up,
    )
    .await?;
    let server = gated.server.clone();
    ownership::record_walsender(&mut sql.writer, claim, gated.walsender_pid).await?;
    let mut source = gated.start(&worker.stream_thread, &worker.config.limits).await?;
    let registry = registry::load(&mut sql.control, staged.registry).await?;
    let target = Target::Candidate { reset: candidate.reset, state: candidate.state };
    let mut intake = Intake::new(registry, Replay::new(target, staged.caught_up), &worker.config, None);
    let limits = worker.config.limits;
    let mut materializer =
        Materializer::new(&mut sql.writer, claim, target, staged.caught_up, None, &limits).await?;

    let nonce = Uuid::new_v4();
    record::barrier_announced(&mut sql.control, candidate.reset, nonce).await?;
    let visible = emit_marker(&mut sql.control, nonce).await?;
    fail_point!(BASELINE_MARKED);
    let barrier = catch_up(worker, &mut source, &mut intake, &mut materializer, sql, nonce).await?;
    record::caught_up(&mut sql.control, candidate.reset, &barrier).await?;
    Ok((server, barrier, visible))
}

/// Puts the barrier into the WAL. Returns what was committed before it, for B6.
async fn emit_marker(connection: &mut PgConnection, nonce: Uuid) -> Result<String, CaptureError> {
    let (visible, _): (String, SqlLsn) = sqlx::query_as(
        "select pg_current_snapshot()::text, pg_logical_emit_message(true, $1, '1:' || $2::uuid)",
    )
    .bind(tidegate_model::MARKER_PREFIX)
    .bind(nonce)
    .fetch_one(connection)
    .await
    .doing("emit the barrier")?;
    Ok(visible)
}
