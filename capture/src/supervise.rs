//! What follows a failure: wait and try again, go one by one, quarantine, or give up. The session that failed is gone; the next one
//! reads progress first, because a lost COMMIT may have succeeded.

use crate::acknowledge::IdleObservation;
use crate::config::Config;
use crate::decide::{Attempt, Next, decide};
use crate::endpoint::Endpoint;
use crate::error::Doing;
use crate::failure::{Disposition, SqlState};
use crate::heartbeat::{Heartbeat, State};
use crate::materialize::Materialized;
use crate::notify::{Hooks, Notifier};
use crate::ownership::{self, Claim};
use crate::poison::{self, Blocking};
use crate::progress::{self, Stream};
use crate::retention::Retention;
use crate::run::{Connections, session};
use crate::settings::{self, Purpose};
use crate::source::StreamThread;
use crate::{CaptureError, drift, reset, slot};
use sqlx::PgConnection;
use std::time::Duration;
use tidegate_model::{GenerationId, Lsn};
use tidegate_stream::Failure;
use uuid::Uuid;

/// One worker process, across its sessions.
pub(crate) struct Worker {
    pub(crate) id: Uuid,
    pub(crate) config: Config,
    pub(crate) endpoint: Endpoint,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) notifier: Notifier,
    retention: Retention,
    pub(crate) stream_thread: StreamThread,
    /// What was being materialized when the session ended.
    pub(crate) attempt: Option<Attempt>,
    /// After a failed group: until here one by one.
    pub(crate) singly_until: Option<Lsn>,
    /// Our last claim; a later one by somebody else ends us.
    claim: Option<Claim>,
    /// Consecutive failures, for the backoff.
    failures: u32,
    /// Consecutive internal errors of the server on one transaction.
    internal_failures: u32,
    /// What a first start waits for, once said.
    waits: Option<&'static str>,
    /// Whether this session got as far as the active stream: before that it has read nothing that could be poison.
    pub(crate) on_stream: bool,
    /// What has failed since the stream last moved.
    pub(crate) trouble: Option<Trouble>,
    /// Where the server's WAL ended when this session opened the stream: whatever an earlier session failed on lies before it.
    pub(crate) read_until: Lsn,
}

/// Failures without progress. Opening the stream again is none: until a commit, or a keepalive from past the failure, the heartbeat
/// says what is wrong and since when (Q4).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trouble {
    /// Sessions that the server ended with an error that does not pass, on no transaction in particular.
    refusals: u32,
}

impl Worker {
    pub(crate) fn new(config: Config, hooks: Hooks) -> Result<Worker, CaptureError> {
        let endpoint = Endpoint::parse(&config.database_url)?;
        let id = Uuid::new_v4();
        let heartbeat = Heartbeat::start(endpoint.clone(), id, config.limits);
        let notifier = Notifier::start(endpoint.clone(), id, config.limits, hooks);
        let retention = Retention::start(endpoint.clone(), id, config.limits);
        Ok(Worker {
            id,
            config,
            endpoint,
            heartbeat,
            notifier,
            retention,
            stream_thread: StreamThread::start()?,
            attempt: None,
            singly_until: None,
            claim: None,
            failures: 0,
            internal_failures: 0,
            waits: None,
            on_stream: false,
            trouble: None,
            read_until: Lsn::ZERO,
        })
    }

    /// One session after the other, until an error that waiting does not help.
    pub(crate) async fn supervise(&mut self) -> CaptureError {
        loop {
            self.on_stream = false;
            let error = match session(self).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let attempt = self.attempt.take();
            match decide(&error, attempt, self.internal_failures, self.refusals()) {
                Next::GiveUp => return error,
                Next::Singly(until) => {
                    tracing::info!(%error, until = %until, "a group failed: its transactions follow one by one");
                    self.singly_until = Some(until);
                }
                Next::Again => {
                    if attempt.is_some() && error.disposition() == Disposition::Internal {
                        self.internal_failures += 1;
                    }
                    let refused = attempt.is_none() && !error.disposition().passes();
                    let trouble = self.trouble.get_or_insert_default();
                    trouble.refusals += u32::from(refused && self.on_stream);
                    self.back_off(&error).await;
                }
                Next::Quarantine(failure, code) => {
                    if let Err(error) = self.quarantine(&failure, code).await {
                        return error;
                    }
                }
                Next::Wait => self.wait_for_operator().await,
                Next::Mend => self.wait_for_mending(&error).await,
            }
        }
    }

    /// Earlier refusals of the active stream, if that is what has failed.
    fn refusals(&self) -> Option<u32> {
        self.on_stream.then(|| self.trouble.map_or(0, |trouble| trouble.refusals))
    }

    async fn back_off(&mut self, error: &CaptureError) {
        let limits = &self.config.limits;
        let delay = limits.backoff_min.saturating_mul(1 << self.failures.min(16)).min(limits.backoff_max);
        self.failures = self.failures.saturating_add(1);
        if let CaptureError::Unregistered(why) = error {
            if self.waits.replace(why) != Some(why) {
                tracing::info!("waiting: {why}");
            }
        } else {
            self.waits = None;
            tracing::warn!(%error, delay_ms = delay.as_millis() as u64, "session ended, trying again");
            metrics::counter!("tidegate_session_failures_total").increment(1);
        }
        self.heartbeat.state(State::Retrying, Some(error.reason()));
        tokio::time::sleep(delay).await;
    }

    /// Q1, Q2. A record that cannot be written blocks just as well: it is tried until it is.
    async fn quarantine(&mut self, failure: &Failure, code: Option<SqlState>) -> Result<(), CaptureError> {
        tracing::error!(%failure, "source transaction quarantined");
        self.heartbeat.state(State::Blocked, Some(CaptureError::blocked(failure.clone()).reason()));
        loop {
            match self.record(failure, code).await {
                Ok(()) => break,
                Err(killed @ CaptureError::Killed(_)) => return Err(killed),
                Err(error) => {
                    tracing::error!(%error, "poison record not written: blocked without one");
                    tokio::time::sleep(self.config.limits.backoff_max).await;
                }
            }
        }
        self.wait_for_operator().await;
        Ok(())
    }

    async fn record(&self, failure: &Failure, code: Option<SqlState>) -> Result<(), CaptureError> {
        let mut connection = self.control().await?;
        let stream = progress::read(&mut connection).await?;
        let (generation, processed) = stream
            .map_or((GenerationId(0), Lsn::ZERO), |stream| (stream.generation, stream.boundary.processed));
        poison::record(&mut connection, generation, failure, code, processed).await.map(drop)
    }

    /// Q3: until an operator asks for a retry, or a reset has left the record behind.
    async fn wait_for_operator(&mut self) {
        // A retry is under way until it has succeeded: meanwhile the heartbeat stays as it is.
        self.trouble = Some(Trouble::default());
        let mut connection = None;
        loop {
            match self.blocking(&mut connection).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "poison not readable");
                    connection = None;
                }
            }
            tokio::select! {
                () = self.heartbeat.ownership_lost() => break,
                () = tokio::time::sleep(self.config.limits.poison_poll_interval) => {}
            }
        }
        (self.failures, self.internal_failures) = (0, 0);
    }

    /// Until a comparison finds something else, or nothing. It blocks as poison does, without a record: what was written meanwhile
    /// tells by itself, through its fences.
    async fn wait_for_mending(&mut self, error: &CaptureError) {
        tracing::error!(%error, "capture is blocked");
        self.heartbeat.state(State::Blocked, Some(error.reason()));
        self.trouble = Some(Trouble::default());
        let mut connection = None;
        loop {
            tokio::select! {
                () = self.heartbeat.ownership_lost() => break,
                () = tokio::time::sleep(self.config.limits.drift_check_interval) => {}
            }
            match self.is_unmended(&mut connection, error).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "catalogs not readable");
                    connection = None;
                }
            }
        }
        (self.failures, self.internal_failures) = (0, 0);
    }

    async fn is_unmended(
        &self,
        connection: &mut Option<PgConnection>,
        before: &CaptureError,
    ) -> Result<bool, CaptureError> {
        let connection = match connection {
            Some(connection) => connection,
            empty => empty.insert(self.control().await?),
        };
        // OP-01, as in `blocking`.
        if let Some(stream) = progress::read(connection).await? {
            self.measure_slot(connection, &stream.slot).await?;
        }
        if reset::is_requested(connection).await? {
            return Ok(false);
        }
        match drift::check(connection).await {
            Err(CaptureError::Drifted(now)) => Ok(now == before.to_string()),
            Err(CaptureError::Blocked(_)) | Ok(()) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is still nothing to do but wait.
    async fn blocking(&self, connection: &mut Option<PgConnection>) -> Result<bool, CaptureError> {
        let connection = match connection {
            Some(connection) => connection,
            empty => empty.insert(self.control().await?),
        };
        // OP-01: what a blocked stream retains is watched all the same.
        if let Some(stream) = progress::read(connection).await? {
            self.measure_slot(connection, &stream.slot).await?;
        }
        let blocking = poison::blocking(connection).await?;
        Ok(blocking.is_some_and(|poison| !poison.retrying) && !reset::is_requested(connection).await?)
    }

    async fn control(&self) -> Result<PgConnection, CaptureError> {
        settings::connect(&self.endpoint, self.id, Purpose::Control, &self.config.limits).await
    }

    /// Claims the stream for a new session. After the first claim only while nobody else has claimed since.
    pub(crate) async fn claim(&mut self, sql: &mut Connections) -> Result<Claim, CaptureError> {
        let mut pids = Vec::new();
        for connection in [&mut sql.writer, &mut sql.control] {
            let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
                .fetch_one(connection)
                .await
                .doing("read a pid")?;
            pids.push(pid);
        }
        let claim = ownership::claim(&mut sql.writer, self.id, &pids, self.claim).await?;
        self.claim = Some(claim);
        self.heartbeat.update(|status| status.claimed = true);
        Ok(claim)
    }

    /// Q2: an active poison blocks. One that an operator wants retried is tried alone.
    pub(crate) fn refuse_poison(
        &mut self,
        blocking: Option<Blocking>,
    ) -> Result<Option<Blocking>, CaptureError> {
        match blocking {
            Some(poison) if !poison.retrying => {
                let reason =
                    format!("poison {}: {} at {}", poison.id, poison.failure_class, poison.commit_lsn);
                self.heartbeat.state(State::Blocked, Some(reason));
                Err(CaptureError::PoisonActive(poison.id))
            }
            Some(poison) => {
                // One byte past its commit record's start: it, and what comes before it again, go one by one.
                let until = Lsn(poison.commit_lsn.0 + 1);
                self.singly_until = Some(self.singly_until.map_or(until, |other| other.max(until)));
                Ok(Some(poison))
            }
            None => Ok(None),
        }
    }

    /// The stream runs. Whether it flows is another matter after a failure.
    pub(crate) fn streaming(&mut self, claim: Claim, stream: &Stream, processed: Lsn) {
        self.retention.streaming(claim, stream);
        tracing::info!(slot = stream.slot, at = %stream.boundary.acknowledged, "streaming");
        let flows = self.trouble.is_none();
        self.heartbeat.update(|status| {
            if flows {
                status.state = State::Streaming;
                status.reason = None;
            }
            status.processed = Some(processed);
            status.materialized_commit = stream.materialized_commit;
            status.registry_generation = Some(stream.registry_generation);
        });
    }

    /// Something has got through.
    fn flows(&mut self) {
        if self.trouble.take().is_some() {
            self.failures = 0;
            self.heartbeat.state(State::Streaming, None);
        }
    }

    /// Whether the server has sent everything that it had when this session began, and nothing of it waits here: what an earlier
    /// session failed on is behind.
    pub(crate) fn has_read(&mut self, seen: IdleObservation) -> bool {
        let read =
            !seen.transaction_open && seen.pending_transactions == 0 && seen.keepalive_end >= self.read_until;
        if read {
            self.flows();
        }
        read
    }

    /// A commit has returned.
    pub(crate) fn committed(&mut self, done: &Materialized) {
        (self.failures, self.internal_failures) = (0, 0);
        if self.singly_until.is_some_and(|until| done.processed >= until) {
            self.singly_until = None;
        }
        metrics::counter!("tidegate_transactions_total").increment(done.transactions as u64);
        metrics::counter!("tidegate_events_total").increment(done.events);
        metrics::counter!("tidegate_effects_total").increment(done.effects as u64);
        metrics::histogram!("tidegate_group_transactions").record(done.transactions as f64);
        metrics::gauge!("tidegate_processed_lsn").set(done.processed.0 as f64);
        if let Some(id) = done.resolved {
            tracing::info!(poison = id, "poison resolved");
        }
        self.heartbeat.update(|status| {
            status.processed = Some(done.processed);
            status.materialized_commit = Some(done.commit_lsn);
            status.registry_generation = Some(done.registry);
            status.pending_since_pg_micros = None;
        });
        self.flows();
    }

    /// Transactions wait for a commit since then.
    pub(crate) fn pending(&self, since_pg_micros: Option<i64>) {
        self.heartbeat.update(|status| status.pending_since_pg_micros = since_pg_micros);
        metrics::gauge!("tidegate_pending_commit_age_seconds")
            .set(since_pg_micros.map_or(0.0, |since| (now_pg_micros() - since).max(0) as f64 / 1e6));
    }

    /// The boundary has moved without a transaction.
    pub(crate) fn idle(&self, processed: Lsn) {
        metrics::counter!("tidegate_idle_acknowledgements_total").increment(1);
        self.heartbeat.update(|status| status.processed = Some(processed));
    }

    /// The server's end of WAL, as far as it has been sent.
    pub(crate) fn seen_wal_end(&self, end: Lsn, processed: Lsn) {
        metrics::gauge!("tidegate_lag_bytes").set(end.bytes_since(processed) as f64);
    }

    /// What the slot retains (OP-01).
    pub(crate) async fn measure_slot(
        &self,
        control: &mut PgConnection,
        slot: &str,
    ) -> Result<(), CaptureError> {
        if let Some(retained) = slot::retained_bytes(control, slot).await? {
            metrics::gauge!("tidegate_retained_wal_bytes").set(retained as f64);
        }
        Ok(())
    }

    /// Says a last word.
    pub(crate) async fn stop(self, error: Option<&CaptureError>) {
        match error {
            None => tracing::info!("stopped"),
            Some(error) => tracing::error!(%error, "stopped"),
        }
        if !matches!(error, Some(CaptureError::Killed(_))) {
            self.heartbeat.stop(error.map(CaptureError::reason)).await;
        }
    }
}

fn now_pg_micros() -> i64 {
    /// 2000-01-01 in Unix time.
    const PG_EPOCH: Duration = Duration::from_secs(946_684_800);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.saturating_sub(PG_EPOCH).as_micros()).unwrap_or(i64::MAX)
}
