//! `tidegate capture`: runs the worker until it is told to stop.

use crate::args::{Args, Capture};
use crate::{connect, output, shutdown, target};
use anyhow::Context;
use sqlx::PgPool;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_capture::{Config, Hooks};

/// How often a starting worker's heartbeat is looked at.
const READY_POLL: Duration = Duration::from_millis(50);

/// Loads the schema, runs the worker, and prints a line when it streams.
pub async fn run(args: &Args, capture: &Capture) -> anyhow::Result<ExitCode> {
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
    let worker = tidegate_capture::run(config(url, capture), shutdown::signal(), Hooks::default());
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

fn config(url: String, capture: &Capture) -> Config {
    let mut config = Config::new(url);
    let limits = &mut config.limits;
    if let Some(events) = capture.transaction_events_max {
        limits.transaction_events_max = events.get();
    }
    if let Some(bytes) = capture.transaction_bytes_max {
        limits.transaction_bytes_max = bytes.get();
    }
    if let Some(bytes) = capture.message_bytes_max {
        limits.message_bytes_max = bytes.get();
    }
    if let Some(seconds) = capture.retention_seconds {
        limits.retention_age = Duration::from_secs(seconds);
    }
    if let Some(bytes) = capture.retention_bytes {
        limits.retention_bytes = bytes.get();
    }
    config
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn parsed(arguments: &[&str]) -> Result<Capture, clap::Error> {
        let program = ["tidegate", "capture"];
        match Args::try_parse_from(program.iter().chain(arguments))?.command {
            Command::Capture(capture) => Ok(capture),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_limits_of_one_transaction_can_be_raised_and_are_never_none() {
        let own = config(String::new(), &parsed(&[]).expect("no arguments")).limits;
        assert_eq!(own.transaction_events_max, Config::new("").limits.transaction_events_max);
        let all = ["--transaction-events-max=7", "--transaction-bytes-max=8", "--message-bytes-max=9"];
        let raised = config(String::new(), &parsed(&all).expect("arguments")).limits;
        assert_eq!(
            (raised.transaction_events_max, raised.transaction_bytes_max, raised.message_bytes_max),
            (7, 8, 9)
        );
        assert!(parsed(&["--message-bytes-max=0"]).is_err());
    }

    #[test]
    fn retention_is_never_shorter_than_whoever_catches_up_needs() {
        let own = config(String::new(), &parsed(&[]).expect("no arguments")).limits;
        assert!(own.retention_age >= own.retention_min);
        let set = ["--retention-seconds=900", "--retention-bytes=1"];
        let set = config(String::new(), &parsed(&set).expect("arguments")).limits;
        assert_eq!((set.retention_age, set.retention_bytes), (Duration::from_secs(900), 1));
        let refused = parsed(&["--retention-seconds=899"]).expect_err("too short").to_string();
        assert!(refused.contains("899 is not in 900.."), "{refused}");
        assert!(parsed(&["--retention-bytes=0"]).is_err());
    }
}
