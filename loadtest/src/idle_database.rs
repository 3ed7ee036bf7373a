//! `loadtest idle-database` (perf-I1): what a running worker costs a database in which nothing happens, against the same database
//! without one, alternating. WAL is what counts most: it is archived and shipped, and whoever writes it keeps the next idle
//! acknowledgement coming (A10).

use crate::process::family_cpu_seconds;
use crate::report::{self, Series, Target};
use crate::stage::Stage;
use anyhow::Context;
use std::path::Path;
use std::time::{Duration, Instant};

/// Arguments of `idle-database`.
#[derive(Debug, clap::Args)]
pub struct IdleDatabase {
    /// Rounds, each without a worker and then with one.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement. An idle acknowledgement is due once a minute: a whole number of minutes counts whole ones.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Seconds between the worker's start and the measurement, in which what the start wrote is acknowledged.
    #[arg(long, default_value_t = 15)]
    settle: u64,
}

const WAL_TARGET_BYTES_PER_HOUR: f64 = 1024.0 * 1024.0;
/// Of one core, in percent.
const CPU_TARGET_PERCENT: f64 = 0.5;

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Measured {
    wal_bytes_per_hour: f64,
    server_percent: f64,
    worker_percent: f64,
}

#[derive(serde::Serialize)]
struct Report {
    postgres: u32,
    rounds: usize,
    seconds: u64,
    /// Bytes of WAL per hour, without and with a worker.
    wal_bytes_per_hour_alone: Series,
    wal_bytes_per_hour: Series,
    /// Processor time in percent of one core: the server without and with a worker, and the worker.
    server_percent_alone: Series,
    server_percent: Series,
    worker_percent: Series,
    /// Worker, and what the server does more because of it, by round.
    percent_because_of_worker: Series,
    targets: Vec<Target>,
    targets_hold: bool,
}

/// Runs it.
///
/// # Errors
/// When something cannot be started or measured.
pub async fn run(arguments: &IdleDatabase, binary: &Path, major: u32, json: bool) -> anyhow::Result<()> {
    let schema = "create schema loadtest; create table loadtest.item (id bigint primary key, title text);
                  select tidegate.register_table('loadtest.item', '{\"scopes\": [{\"name\": \"all\"}]}')";
    report::say(&format!("starting PostgreSQL {major}; nothing will happen in it"));
    let stage = Stage::set(binary, major, &[], schema).await?;
    stage.start(&["capture"]).await.context("first start")?.stop().await.context("stop capture")?;
    let bar = report::progress(arguments.rounds as u64 * 2, "idle");
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        tokio::time::sleep(Duration::from_secs(arguments.settle)).await;
        alone.push(measure(&stage, arguments.seconds, None).await?);
        bar.inc(1);
        let mut worker = stage.start(&["capture"]).await.context("start capture")?;
        tokio::time::sleep(Duration::from_secs(arguments.settle)).await;
        with.push(measure(&stage, arguments.seconds, worker.pid()).await?);
        worker.stop().await.context("stop capture")?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let more: Vec<f64> = with
        .iter()
        .zip(&alone)
        .map(|(with, alone)| with.worker_percent + with.server_percent - alone.server_percent)
        .collect();
    let wal = series(&with, |measured| measured.wal_bytes_per_hour);
    let percent_because_of_worker = Series::from(more);
    let targets = vec![
        Target::at_most("bytes of WAL per hour", wal.median, WAL_TARGET_BYTES_PER_HOUR),
        Target::at_most("percent of a core", percent_because_of_worker.median, CPU_TARGET_PERCENT),
    ];
    let report = Report {
        postgres: major,
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        wal_bytes_per_hour_alone: series(&alone, |measured| measured.wal_bytes_per_hour),
        wal_bytes_per_hour: wal,
        server_percent_alone: series(&alone, |measured| measured.server_percent),
        server_percent: series(&with, |measured| measured.server_percent),
        worker_percent: series(&with, |measured| measured.worker_percent),
        percent_because_of_worker,
        targets_hold: targets.iter().all(|target| target.holds),
        targets,
    };
    print(&report, json)
}

async fn measure(stage: &Stage, seconds: u64, worker: Option<u32>) -> anyhow::Result<Measured> {
    let look = async || {
        let wal: i64 = sqlx::query_scalar("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
            .fetch_one(&stage.pool)
            .await
            .context("read the WAL's end")?;
        let server = family_cpu_seconds(stage.server.pid()?)?;
        let worker = worker.map_or(Ok(0.0), family_cpu_seconds)?;
        anyhow::Ok((Instant::now(), wal, server, worker))
    };
    let before = look().await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after = look().await?;
    let took = (after.0 - before.0).as_secs_f64();
    Ok(Measured {
        wal_bytes_per_hour: (after.1 - before.1) as f64 / took * 3600.0,
        server_percent: (after.2 - before.2) / took * 100.0,
        worker_percent: (after.3 - before.3) / took * 100.0,
    })
}

fn series(measured: &[Measured], figure: impl Fn(&Measured) -> f64) -> Series {
    measured.iter().map(figure).collect::<Vec<f64>>().into()
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    println!(
        "medians of {} rounds of {} s (lowest–highest), PostgreSQL {}",
        report.rounds, report.seconds, report.postgres
    );
    println!(
        "WAL, bytes per hour: {} with a worker, {} without",
        report.wal_bytes_per_hour, report.wal_bytes_per_hour_alone
    );
    println!(
        "percent of a core: worker {}, server {}, server without a worker {}",
        report.worker_percent, report.server_percent, report.server_percent_alone
    );
    for target in &report.targets {
        println!("{target}");
    }
    Ok(())
}
