//! One backlog drained by the worker: started, watched until everything is durable, stopped.

use super::ground::Backlog;
use crate::process::family_cpu_seconds;
use crate::stage::Stage;
use anyhow::{Context, bail};
use std::time::{Duration, Instant};

/// How long a backlog may take.
const LIMIT: Duration = Duration::from_secs(600);
/// Between two looks at progress.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What draining took.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// From the start of the process until everything was durable.
    pub whole: Duration,
    /// From the first commit seen until everything was durable: what a longer backlog would go on at.
    pub steady: Duration,
    /// Row changes and transactions in `steady`.
    pub steady_changes: u64,
    pub steady_transactions: u64,
    /// The worker's most resident memory, in bytes.
    pub memory_max_bytes: u64,
    /// Processor time of the worker, and of the server meanwhile.
    pub worker_cpu_seconds: f64,
    pub server_cpu_seconds: f64,
}

impl Drained {
    /// Row changes per second, once it runs.
    pub fn changes_per_second(&self) -> f64 {
        self.steady_changes as f64 / self.steady.as_secs_f64()
    }

    /// Source transactions per second, once it runs.
    pub fn transactions_per_second(&self) -> f64 {
        self.steady_transactions as f64 / self.steady.as_secs_f64()
    }
}

/// Starts a worker on what is there, and stops it once the boundary has passed `finish`.
///
/// # Errors
/// When it does not get there in time, or a transaction is in quarantine.
pub async fn drain(stage: &Stage, backlog: Backlog, finish: &str) -> anyhow::Result<Drained> {
    let mut watch = stage.pool.acquire().await.context("connect")?;
    let begun: String = sqlx::query_scalar("select processed_end_lsn::text from tidegate.progress")
        .fetch_one(&mut *watch)
        .await
        .context("read progress")?;
    let server = stage.server.pid()?;
    let server_before = family_cpu_seconds(server)?;
    let started = Instant::now();
    let starting = stage.start(&["capture"]);
    let watching = async {
        let mut first: Option<(Instant, u64, u64)> = None;
        loop {
            let (moved, done, poisoned): (bool, bool, bool) = sqlx::query_as(
                "select processed_end_lsn > $1::pg_lsn, processed_end_lsn > $2::pg_lsn, exists (select from tidegate.poison)
                 from tidegate.progress",
            )
            .bind(&begun)
            .bind(finish)
            .fetch_one(&mut *watch)
            .await
            .context("read progress")?;
            let now = Instant::now();
            if poisoned {
                bail!("a transaction of the backlog is in quarantine");
            }
            if done {
                return Ok((now, first.unwrap_or((started, 0, 0))));
            }
            if moved && first.is_none() {
                // The rows that were durable when it was looked at: one statement sees one moment.
                let (transactions, changes): (i64, i64) = sqlx::query_as(
                    "select count(*), coalesce(sum(event_count), 0)::bigint from tidegate.source_transaction
                     where commit_lsn >= $1::pg_lsn and event_count > 0",
                )
                .bind(&begun)
                .fetch_one(&mut *watch)
                .await
                .context("count what is durable")?;
                first = Some((Instant::now(), transactions as u64, changes as u64));
            }
            if started.elapsed() > LIMIT {
                bail!("the backlog was not drained in time");
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let (worker, watched) = tokio::join!(starting, watching);
    let mut worker = worker.context("start capture")?;
    let (ended, (from, transactions, changes)) = watched?;
    let usage = worker.usage()?;
    let server_cpu_seconds = family_cpu_seconds(server)? - server_before;
    worker.stop().await.context("stop capture")?;
    Ok(Drained {
        whole: ended - started,
        steady: ended - from,
        steady_changes: backlog.changes.saturating_sub(changes),
        steady_transactions: backlog.transactions.saturating_sub(transactions),
        memory_max_bytes: usage.resident_max_bytes,
        worker_cpu_seconds: usage.cpu_seconds,
        server_cpu_seconds,
    })
}
