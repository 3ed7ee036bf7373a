//! Last arrow. The wake travels by NOTIFY on a connection of its own after the commit, the first at once, then at most one per
//! `notify_interval`: inside the materialization commit it would take a global lock. It is a hint: losing one costs latency,
//! never data (S5).

use crate::config::Limits;
use crate::endpoint::Endpoint;
use crate::settings::{self, Purpose};
use sqlx::PgConnection;
use std::sync::Arc;
use tidegate_model::Wake;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// What a commit made visible. Handed out only after the commit has returned (V1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Generation and newest durable source transaction.
    pub wake: Wake,
    /// Source transactions in this commit.
    pub transactions: usize,
    /// Effects in this commit.
    pub effects: usize,
}

/// Callbacks into the process that runs the worker. They run on the worker's task: they must not block.
#[derive(Clone, Default)]
pub struct Hooks {
    /// After each materialization commit.
    pub on_committed: Option<Arc<dyn Fn(Committed) + Send + Sync>>,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").field("on_committed", &self.on_committed.is_some()).finish()
    }
}

/// The loop's end of the notifier.
pub(crate) struct Notifier {
    hooks: Hooks,
    wakes: watch::Sender<Option<Wake>>,
    task: JoinHandle<()>,
}

impl Notifier {
    pub(crate) fn start(endpoint: Endpoint, worker: Uuid, limits: Limits, hooks: Hooks) -> Notifier {
        let (wakes, seen) = watch::channel(None);
        Notifier { hooks, wakes, task: tokio::spawn(run(endpoint, worker, limits, seen)) }
    }

    /// Tells this process at once and everybody else soon.
    pub(crate) fn committed(&self, committed: Committed) {
        if let Some(hook) = &self.hooks.on_committed {
            hook(committed);
        }
        self.wakes.send_replace(Some(committed.wake));
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(endpoint: Endpoint, worker: Uuid, limits: Limits, mut seen: watch::Receiver<Option<Wake>>) {
    let mut connection: Option<PgConnection> = None;
    while seen.changed().await.is_ok() {
        let Some(wake) = *seen.borrow_and_update() else { continue };
        if let Err(error) = notify(&mut connection, &endpoint, worker, &limits, wake).await {
            tracing::debug!(%error, "wake not sent");
            connection = None;
            tokio::time::sleep(limits.backoff_min).await;
        }
        // Wakes of this moment are joined into the next one.
        tokio::time::sleep(limits.notify_interval).await;
    }
}

async fn notify(
    connection: &mut Option<PgConnection>,
    endpoint: &Endpoint,
    worker: Uuid,
    limits: &Limits,
    wake: Wake,
) -> Result<(), crate::CaptureError> {
    let connection = match connection {
        Some(connection) => connection,
        empty => empty.insert(settings::connect(endpoint, worker, Purpose::Notify, limits).await?),
    };
    sqlx::query("select pg_notify($1, $2)")
        .bind(Wake::CHANNEL)
        .bind(wake.payload())
        .execute(connection)
        .await
        .map_err(crate::CaptureError::sql("send the wake"))?;
    Ok(())
}
