//! `tidegate capture`: runs the worker until it is told to stop.

use crate::args::Args;
use crate::{connect, output, shutdown, target};
use anyhow::Context;
use sqlx::PgPool;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_capture::{Config, Hooks};

/// How often a starting worker's heartbeat is looked at.
const READY_POLL: Duration = Duration::from_millis(50);

/// Loads the schema, runs the worker, and prints a line when it streams.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let url = target::database_url(args)?;
    let pool = connect::pool(&url, 2).await?;
    tidegate_migrations::connect_and_load(&pool).await?;
    connect::warn_of_replication(&pool).await?;
    let started = now(&pool).await?;
    let ready = async {
        wait_until_streaming(&pool, &started).await?;
        output::print(args, &serde_json::json!({ "ready": true }), || "streaming".to_owned());
        anyhow::Ok(())
    };
    let worker = tidegate_capture::run(Config::new(url), shutdown::signal(), Hooks::default());
    tokio::pin!(worker);
    tokio::select! {
        ended = &mut worker => ended?,
        ready = ready => {
            ready?;
            worker.await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The server's clock, as text.
pub async fn now(pool: &PgPool) -> anyhow::Result<String> {
    sqlx::query_scalar("select clock_timestamp()::text")
        .fetch_one(pool)
        .await
        .context("read the server's clock")
}

/// Waits until a worker that began after `started` has a heartbeat that says it streams.
pub async fn wait_until_streaming(pool: &PgPool, started: &str) -> anyhow::Result<()> {
    let streaming = "select exists (select from tidegate.worker_heartbeat where state = 'streaming' and beat_at > $1::timestamptz)";
    loop {
        // The server may be restarting: that is the worker's to report.
        if let Ok(true) = sqlx::query_scalar(streaming).bind(started).fetch_one(pool).await {
            return Ok(());
        }
        tokio::time::sleep(READY_POLL).await;
    }
}
