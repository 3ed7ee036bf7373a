//! H3. A task of its own writes the heartbeat, so that a long apply does not look like a dead worker. The row is unlogged: losing
//! it in a crash rightly reads as "unknown". Its commit record is all the WAL that a beat costs.

use crate::columns::SqlLsn;
use crate::config::Limits;
use crate::endpoint::Endpoint;
use crate::settings::{self, Purpose};
use sqlx::PgConnection;
use tidegate_model::{Lsn, RegistryGeneration};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// What the worker is doing, as readiness sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Streaming,
    Retrying,
    Blocked,
    Stopped,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Streaming => "streaming",
            State::Retrying => "retrying",
            State::Blocked => "blocked",
            State::Stopped => "stopped",
        }
    }
}

/// The heartbeat's content. Its positions may trail durable progress, never lead it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Status {
    /// Whether this worker has claimed the stream: before that it has nothing to say.
    pub(crate) claimed: bool,
    pub(crate) state: State,
    pub(crate) reason: Option<String>,
    pub(crate) processed: Option<Lsn>,
    pub(crate) materialized_commit: Option<Lsn>,
    pub(crate) registry_generation: Option<RegistryGeneration>,
    /// Commit time of the oldest transaction received and not durable, microseconds since 2000-01-01.
    pub(crate) pending_since_pg_micros: Option<i64>,
}

/// The loop's end of the heartbeat.
pub(crate) struct Heartbeat {
    status: watch::Sender<Status>,
    lost: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// Starts the task. It beats as soon as the stream has been claimed.
    pub(crate) fn start(endpoint: Endpoint, worker: Uuid, limits: Limits) -> Heartbeat {
        let (status, seen) = watch::channel(Status {
            claimed: false,
            state: State::Starting,
            reason: None,
            processed: None,
            materialized_commit: None,
            registry_generation: None,
            pending_since_pg_micros: None,
        });
        let (lost_sender, lost) = watch::channel(false);
        let beats = Beats { endpoint, worker, limits, seen, lost: lost_sender, connection: None };
        Heartbeat { status, lost, task: tokio::spawn(beats.run()) }
    }

    /// Changes the content. A change of state or reason is written at once, positions with the next beat.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_if_modified(|status| {
            let before = (status.claimed, status.state, status.reason.clone());
            change(status);
            before != (status.claimed, status.state, status.reason.clone())
        });
    }

    /// State and reason together.
    pub(crate) fn state(&self, state: State, reason: Option<String>) {
        self.update(|status| {
            status.state = state;
            status.reason = reason;
        });
    }

    /// Completes when a beat found another worker's claim. Never completes otherwise.
    pub(crate) async fn ownership_lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|lost| *lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Writes a last beat and ends.
    pub(crate) async fn stop(mut self, reason: Option<String>) {
        self.state(State::Stopped, reason);
        // Closing the channel lets the task write what it has not written, then end.
        let (closed, _) = watch::channel(self.status.borrow().clone());
        drop(std::mem::replace(&mut self.status, closed));
        let task = std::mem::replace(&mut self.task, tokio::spawn(std::future::ready(())));
        let _ = tokio::time::timeout(STOP_TIMEOUT, task).await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How long a stopping worker waits for its last beat. Losing it costs only the word "stopped".
const STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

struct Beats {
    endpoint: Endpoint,
    worker: Uuid,
    limits: Limits,
    seen: watch::Receiver<Status>,
    lost: watch::Sender<bool>,
    connection: Option<PgConnection>,
}

impl Beats {
    async fn run(mut self) {
        loop {
            let status = self.seen.borrow_and_update().clone();
            if status.claimed {
                match self.beat(&status).await {
                    Ok(true) => {}
                    Ok(false) => {
                        self.lost.send_replace(true);
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "heartbeat not written");
                        self.connection = None;
                    }
                }
            }
            match tokio::time::timeout(self.limits.heartbeat_interval, self.seen.changed()).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(_)) => {
                    let last = self.seen.borrow().clone();
                    if last != status {
                        let _ = self.beat(&last).await;
                    }
                    return;
                }
            }
        }
    }

    /// Writes one beat; `false` when another worker owns the stream.
    async fn beat(&mut self, status: &Status) -> Result<bool, crate::CaptureError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => {
                let new =
                    settings::connect(&self.endpoint, self.worker, Purpose::Heartbeat, &self.limits).await?;
                empty.insert(new)
            }
        };
        let done = sqlx::query(include_str!("heartbeat.sql"))
            .bind(self.worker)
            .bind(status.state.as_str())
            .bind(&status.reason)
            .bind(status.processed.map(SqlLsn))
            .bind(status.materialized_commit.map(SqlLsn))
            .bind(status.registry_generation.map(|generation| generation.0))
            .bind(status.pending_since_pg_micros)
            .execute(connection)
            .await
            .map_err(crate::CaptureError::sql("write the heartbeat"))?;
        Ok(done.rows_affected() == 1)
    }
}
