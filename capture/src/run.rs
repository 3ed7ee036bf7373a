//! The worker's awaits, in their order. One session: connect, claim, reconcile, stream; then, over and over, receive, materialize,
//! acknowledge, notify. Whatever fails ends the session; [`supervise`](crate::supervise) decides what follows.

use crate::acknowledge::{Acknowledger, IdleObservation};
use crate::config::Config;
use crate::decide::Attempt;
use crate::drift::DriftCheck;
use crate::failpoints::fail_point;
use crate::intake::Intake;
use crate::materialize::{Materialized, Materializer, Target};
use crate::notify::{Committed, Hooks};
use crate::ownership::{self, Claim};
use crate::progress::{self, ProgressWriter, Stream};
use crate::replay::Replay;
use crate::settings::{self, Purpose};
use crate::slot::{self, Reconciliation};
use crate::source::{Gated, Source};
use crate::supervise::Worker;
use crate::{CaptureError, baseline, poison, registry};
use sqlx::PgConnection;
use std::convert::Infallible;
use std::time::Instant;
use tidegate_model::{Lsn, Wake};

/// Runs the worker until `shutdown` completes. Dropping the future is as good as a crash: everything durable stays, everything
/// else comes again.
///
/// # Errors
/// What needs somebody's act: see [`CaptureError`]. What passes by itself, and poison, is waited out inside.
pub async fn run(
    config: Config,
    shutdown: impl Future<Output = ()>,
    hooks: Hooks,
) -> Result<(), CaptureError> {
    let mut worker = Worker::new(config, hooks)?;
    let ended = tokio::select! {
        biased;
        () = shutdown => Ok(()),
        error = worker.supervise() => Err(error),
    };
    worker.stop(ended.as_ref().err()).await;
    ended
}

/// SQL connections of one session.
pub(crate) struct Connections {
    /// Claims, materializes, records progress.
    pub(crate) writer: PgConnection,
    /// Reads registry, slot and poison beside it.
    pub(crate) control: PgConnection,
}

/// From nothing to streaming, and then streaming until something fails.
pub(crate) async fn session(worker: &mut Worker) -> Result<Infallible, CaptureError> {
    let mut sql = connect(worker).await?;
    let claim = worker.claim(&mut sql).await?;
    let stream = match progress::read(&mut sql.writer).await? {
        Some(stream) => {
            baseline::finish_left_over(&mut sql.control).await?;
            baseline::reset_if_requested(worker, &mut sql, claim, stream).await?
        }
        None => baseline::first_start(worker, &mut sql, claim).await?,
    };
    let mut retrying = worker.refuse_poison(poison::blocking(&mut sql.control).await?)?;
    let mut drift = DriftCheck::begin(&mut sql.control, worker.config.limits.drift_check_interval).await?;
    if let Some(poison) = retrying.take_if(|poison| poison.is_drift()) {
        poison::resolve_alone(&mut sql.writer, poison.id, "the catalogs agree again").await?;
    }
    worker.on_stream = true;
    let (mut source, boundary) = open_stream(worker, &mut sql, claim, &stream).await?;
    let in_force =
        progress::registry_in_force(&mut sql.control, stream.generation, boundary.acknowledged).await?;
    let registry = registry::load(&mut sql.control, in_force).await?;

    let target = Target::Live { generation: stream.generation, state: stream.state };
    let replay = Replay::new(target, boundary.processed);
    let mut intake = Intake::new(registry, replay, &worker.config, worker.singly_until);
    let mut materializer = Materializer::new(
        &mut sql.writer,
        claim,
        target,
        boundary.processed,
        retrying,
        &worker.config.limits,
    )
    .await?;
    let mut acknowledger = Acknowledger::new(&boundary, Instant::now());
    acknowledger.report(acknowledger.resumed(), &source)?;
    worker.streaming(claim, &stream, boundary.processed);

    loop {
        let due = acknowledger.next_due(intake.idle(), &worker.config.limits);
        let due = due.map_or(drift.due(), |due| due.min(drift.due()));
        receive(worker, &mut source, &mut intake, &mut sql.control, Some(due)).await?;
        // G5: nothing is processed or acknowledged past it.
        drift.run(&mut sql.control).await?;
        if !intake.group().is_empty() {
            let done = materialize(worker, &mut source, &mut intake, &mut materializer, &mut sql).await?;
            let position = acknowledger.committed(done.processed);
            acknowledger.report(position, &source)?;
            worker.committed(&done);
            worker.notifier.committed(Committed {
                wake: Wake { generation: stream.token, commit_lsn: done.commit_lsn },
                transactions: done.transactions,
                effects: done.effects,
            });
        }
        if let Some(failure) = intake.take_failure() {
            return Err(failure);
        }
        if let Some(seen) = intake.idle()
            && worker.has_read(seen)
            && let Some(id) = materializer.retried_at_boundary()
        {
            poison::resolve_alone(&mut sql.writer, id, "read on").await?;
            materializer.resolved();
        }
        let moved =
            acknowledge(worker, &mut acknowledger, &source, intake.idle(), &stream, claim, &mut sql).await?;
        materializer.idle(moved);
    }
}

async fn connect(worker: &Worker) -> Result<Connections, CaptureError> {
    let limits = &worker.config.limits;
    Ok(Connections {
        writer: settings::connect(&worker.endpoint, worker.id, Purpose::Materialize, limits).await?,
        control: settings::connect(&worker.endpoint, worker.id, Purpose::Control, limits).await?,
    })
}

/// A9: reconcile, require that slot and acknowledgement agree, then stream explicitly from there.
async fn open_stream(
    worker: &mut Worker,
    sql: &mut Connections,
    claim: Claim,
    stream: &Stream,
) -> Result<(Source, progress::Boundary), CaptureError> {
    let mut boundary = stream.boundary;
    let facts = slot::release(&mut sql.control, &stream.slot).await?;
    let confirmed = slot::check_usable(&stream.slot, facts.as_ref(), worker.endpoint.database())?;
    let limits = worker.config.limits;
    let start = confirmed.max(boundary.acknowledged);
    let gated =
        Gated::connect(&worker.stream_thread, &worker.endpoint, worker.id, &limits, &stream.slot, start)
            .await?;
    slot::check_server(stream, &gated.server, slot::database_oid(&mut sql.control).await?)?;
    let mut writer =
        ProgressWriter { connection: &mut sql.writer, epoch: claim.epoch, generation: stream.generation };
    match slot::reconcile(confirmed, stream.consistent, boundary, gated.server.flush)? {
        Reconciliation::Agreed => {}
        Reconciliation::Advance(to) => slot::advance(&mut sql.control, &stream.slot, to).await?,
        Reconciliation::Adopt(at) => {
            writer.record_acknowledged(at).await?;
            boundary.acknowledged = at;
        }
    }
    if slot::confirmed_flush(&mut sql.control, &stream.slot).await? != boundary.acknowledged {
        return Err(CaptureError::Waiting(
            "the slot is not at the acknowledgement after reconciliation".into(),
        ));
    }
    fail_point!(SLOT_RECONCILED);
    worker.read_until = gated.server.flush;
    ownership::record_walsender(&mut sql.writer, claim, gated.walsender_pid).await?;
    Ok((gated.start(&worker.stream_thread, &limits).await?, boundary))
}

/// Waits for something to do, then takes what has arrived, as far as one commit may reach.
async fn receive(
    worker: &Worker,
    source: &mut Source,
    intake: &mut Intake,
    control: &mut PgConnection,
    due: Option<Instant>,
) -> Result<(), CaptureError> {
    if intake.group().is_empty() && !intake.is_full() {
        let event = tokio::select! {
            biased;
            () = worker.heartbeat.ownership_lost() => return Err(CaptureError::OwnershipLost),
            event = source.receive() => event,
            () = until(due) => return Ok(()),
        };
        intake.take(event, control).await?;
    }
    while !intake.is_full() && !intake.is_old(Instant::now()) {
        match source.try_receive().transpose() {
            Some(event) => intake.take(event, control).await?,
            None => break,
        }
    }
    worker.pending(intake.pending_since_pg_micros());
    Ok(())
}

/// Makes the group durable. While the server works on it, the next group is received.
async fn materialize(
    worker: &mut Worker,
    source: &mut Source,
    intake: &mut Intake,
    materializer: &mut Materializer,
    sql: &mut Connections,
) -> Result<Materialized, CaptureError> {
    let mut group = intake.take_group();
    worker.attempt = Attempt::of(&group);
    let mut work = std::pin::pin!(materializer.materialize(&mut sql.writer, &mut group));
    let done = loop {
        tokio::select! {
            biased;
            done = &mut work => break done?,
            event = source.receive(), if !intake.is_full() => {
                // A failure is not about the group: it waits inside until that is durable.
                if let Err(error) = intake.take(event, &mut sql.control).await {
                    worker.attempt = None;
                    return Err(error);
                }
            }
        }
    };
    worker.attempt = None;
    Ok(done)
}

/// What acknowledgement owes by now: an idle boundary, a position to be read back. Gives the processed boundary.
async fn acknowledge(
    worker: &Worker,
    acknowledger: &mut Acknowledger,
    source: &Source,
    idle: Option<IdleObservation>,
    stream: &Stream,
    claim: Claim,
    sql: &mut Connections,
) -> Result<Lsn, CaptureError> {
    let limits = &worker.config.limits;
    let now = Instant::now();
    let mut writer =
        ProgressWriter { connection: &mut sql.writer, epoch: claim.epoch, generation: stream.generation };
    if let Some(seen) = idle {
        if acknowledger.wants_idle(seen, limits, now) {
            let position = acknowledger.record_idle(seen, &mut writer, now).await?;
            acknowledger.report(position, source)?;
            worker.idle(position.lsn());
        }
        worker.seen_wal_end(seen.keepalive_end, acknowledger.processed());
    }
    if acknowledger.next_read_back(limits).is_some_and(|due| due <= now) {
        acknowledger.read_back(&stream.slot, &mut sql.control, &mut writer, now).await?;
        worker.measure_slot(&mut sql.control, &stream.slot).await?;
    }
    Ok(acknowledger.processed())
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// The catch-up of a candidate (B3): the same intake and the same materialization, until the barrier's marker has come.
pub(crate) async fn catch_up(
    worker: &mut Worker,
    source: &mut Source,
    intake: &mut Intake,
    materializer: &mut Materializer,
    sql: &mut Connections,
    nonce: uuid::Uuid,
) -> Result<tidegate_stream::Marker, CaptureError> {
    intake.end_group_at(nonce);
    loop {
        receive(worker, source, intake, &mut sql.control, None).await?;
        if !intake.group().is_empty() {
            let done = materialize(worker, source, intake, materializer, sql).await?;
            if let Some(marker) = done.markers.iter().find(|marker| marker.nonce == nonce) {
                return Ok(*marker);
            }
        }
        if let Some(failure) = intake.take_failure() {
            return Err(failure);
        }
    }
}
