//! `loadtest capture`: how fast a backlog becomes durable effects, against PostgreSQL's own decoding to nowhere and against the same
//! rows by COPY (perf-C1, perf-C2); and whether the worker keeps up with writers without hindering them (perf-C3).

mod drain;
mod ground;
mod live;

use crate::report::{self, Series, Target};
use crate::stage::Stage;
use anyhow::Context;
use drain::Drained;
use ground::{Backlog, Checks, Kind, Scopes};
use std::path::Path;
use tidegate_floors::apply::Copies;
use tidegate_floors::pgbench::{self, Bench, End};
use tidegate_floors::recvlogical::{self, Mark};

/// Arguments of `capture`.
#[derive(Debug, clap::Args)]
pub struct Capture {
    /// What to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Large, Part::Single, Part::Live])]
    parts: Vec<Part>,
    /// Rounds; a new backlog in each, and the sides take turns at being first.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Kinds of large transactions.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Inserts, Kind::Updates, Kind::Mixed])]
    kinds: Vec<Kind>,
    /// Source transactions of a large backlog, of 1,000 row changes each.
    #[arg(long, default_value_t = 200)]
    transactions: u64,
    /// Source transactions of a backlog of single-row updates.
    #[arg(long, default_value_t = 100_000)]
    singles: u64,
    /// Rows that exist at the first start.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Seconds of live writing, each time.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// A part of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// perf-C1: a backlog of transactions of 1,000 rows.
    Large,
    /// perf-C2: a backlog of transactions of one row.
    Single,
    /// perf-C3: sixteen writers and a running worker.
    Live,
}

/// Row changes that share one commit under backlog, and so one transaction of the COPY floor.
const CHANGES_PER_COMMIT: u64 = 20_000;
const MEMORY_TARGET_BYTES: f64 = 256.0 * 1024.0 * 1024.0;
/// Writers of the backlog of single rows: enough to interleave, and none of them waits for the disk.
const SINGLE_WRITERS: u32 = 8;

/// One kind of large transactions.
#[derive(serde::Serialize)]
struct Large {
    kind: Kind,
    scopes_per_row: u64,
    changes: u64,
    /// Once it runs: from the first commit seen to the last.
    changes_per_second: Series,
    /// From the start of the process, connecting and first group included.
    changes_per_second_from_start: Series,
    /// (a) `pg_recvlogical` to nowhere.
    recvlogical_changes_per_second: Series,
    /// (b) The same rows by COPY.
    copy_changes_per_second: Series,
    over_recvlogical: Series,
    over_copy: Series,
    /// What COPY had to write in one round.
    copy_rows: u64,
    copy_bytes: u64,
    worker_cpu_us_per_change: Series,
    server_cpu_us_per_change: Series,
    memory_max_bytes: u64,
    checks: Checks,
}

/// Transactions of one row.
#[derive(serde::Serialize)]
struct Single {
    transactions: u64,
    transactions_per_second: Series,
    transactions_per_second_from_start: Series,
    recvlogical_transactions_per_second: Series,
    over_recvlogical: Series,
    worker_cpu_us_per_transaction: Series,
    server_cpu_us_per_transaction: Series,
    memory_max_bytes: u64,
    checks: Checks,
}

#[derive(serde::Serialize)]
struct Report {
    postgres: u32,
    rounds: usize,
    large: Vec<Large>,
    single: Option<Single>,
    live: Option<live::Live>,
    live_checks: Option<Checks>,
    targets: Vec<Target>,
    targets_hold: bool,
}

/// Runs it.
///
/// # Errors
/// When something cannot be started, and when what was materialized is not what was committed.
pub async fn run(arguments: &Capture, binary: &Path, major: u32, json: bool) -> anyhow::Result<()> {
    let mut report = Report {
        postgres: major,
        rounds: arguments.rounds,
        large: Vec::new(),
        single: None,
        live: None,
        live_checks: None,
        targets: Vec::new(),
        targets_hold: false,
    };
    if arguments.parts.contains(&Part::Large) {
        for kind in &arguments.kinds {
            for scopes in [Scopes::One, Scopes::Three] {
                report.large.push(large(arguments, binary, major, *kind, scopes).await?);
            }
        }
    }
    if arguments.parts.contains(&Part::Single) {
        report.single = Some(single(arguments, binary, major).await?);
    }
    if arguments.parts.contains(&Part::Live) {
        let (live, checks) = live(arguments, binary, major).await?;
        (report.live, report.live_checks) = (Some(live), Some(checks));
    }
    report.targets = targets(&report);
    report.targets_hold = report.targets.iter().all(|target| target.holds);
    print(&report, json)?;
    for checks in report.large.iter().map(|large| &large.checks) {
        checks.hold()?;
    }
    for checks in report.single.iter().map(|single| &single.checks).chain(&report.live_checks) {
        checks.hold()?;
    }
    Ok(())
}

/// First start over the rows that exist; then the worker is stopped.
async fn first_start(stage: &Stage) -> anyhow::Result<()> {
    stage.start(&["capture"]).await.context("first start")?.stop().await.context("stop capture")
}

/// One backlog, drained by the worker and decoded to nowhere, in the order that the round asks for.
async fn both(stage: &Stage, round: usize, mark: Mark, backlog: Backlog) -> anyhow::Result<(Drained, f64)> {
    let finish = ground::finish_line(stage).await?;
    let end = recvlogical::end_of_backlog(&stage.pool).await?;
    let receive = async || {
        ground::tidy(stage).await?;
        recvlogical::receive(&stage.server, stage.database(), "tidegate", &mark, &end).await
    };
    let mut received = None;
    if round.is_multiple_of(2) {
        received = Some(receive().await?);
    }
    ground::tidy(stage).await?;
    let drained = drain::drain(stage, backlog, &finish).await?;
    let received = match received {
        Some(received) => received,
        None => receive().await?,
    };
    mark.remove(&stage.pool).await?;
    Ok((drained, received.as_secs_f64()))
}

async fn large(
    arguments: &Capture,
    binary: &Path,
    major: u32,
    kind: Kind,
    scopes: Scopes,
) -> anyhow::Result<Large> {
    report::say(&format!("large transactions: {kind:?}, {} scopes per row", scopes.count()));
    let stage = ground::set(binary, major, scopes, arguments.rows).await?;
    first_start(&stage).await?;
    let since = ground::transaction_id(&stage).await?;
    let (state, relation) = ground::names(&stage).await?;
    let copies = Copies::create(&stage.pool, state, relation).await?;
    let bar = report::progress(arguments.rounds as u64, "rounds");
    let mut committed = Backlog { transactions: 0, changes: 0 };
    let (mut drains, mut received, mut copied) = (Vec::new(), Vec::new(), Vec::new());
    let (mut copy_rows, mut copy_bytes) = (0, 0);
    for round in 0..arguments.rounds {
        let mark = Mark::now(&stage.pool, "loadtest_floor").await?;
        let backlog = ground::commit_large(&stage, kind, arguments.transactions).await?;
        committed.transactions += backlog.transactions;
        committed.changes += backlog.changes;
        let before = ground::transaction_id(&stage).await?;
        let (drained, took) = both(&stage, round, mark, backlog).await?;
        let commits = backlog.changes.div_ceil(CHANGES_PER_COMMIT);
        let rows = copies.rows_since(&stage.pool, before, commits).await?;
        let copy = copies.apply(&stage.pool, &rows).await?;
        (copy_rows, copy_bytes) = (rows.rows, rows.bytes);
        drains.push(drained);
        received.push(backlog.changes as f64 / took);
        copied.push(backlog.changes as f64 / copy.as_secs_f64());
        bar.inc(1);
    }
    bar.finish_and_clear();
    let changes = arguments.transactions * ground::ROWS_PER_TRANSACTION;
    let per = changes as f64;
    let rate = series(&drains, Drained::changes_per_second);
    let (received, copied) = (Series::from(received), Series::from(copied));
    Ok(Large {
        kind,
        scopes_per_row: scopes.count(),
        changes,
        over_recvlogical: rate.over(&received),
        over_copy: rate.over(&copied),
        changes_per_second: rate,
        changes_per_second_from_start: series(&drains, |drained| per / drained.whole.as_secs_f64()),
        recvlogical_changes_per_second: received,
        copy_changes_per_second: copied,
        copy_rows,
        copy_bytes,
        worker_cpu_us_per_change: series(&drains, |drained| drained.worker_cpu_seconds * 1e6 / per),
        server_cpu_us_per_change: series(&drains, |drained| drained.server_cpu_seconds * 1e6 / per),
        memory_max_bytes: memory(&drains),
        checks: ground::check(&stage, since, committed).await?,
    })
}

async fn single(arguments: &Capture, binary: &Path, major: u32) -> anyhow::Result<Single> {
    report::say("transactions of a single row");
    let stage = ground::set(binary, major, Scopes::One, arguments.rows).await?;
    first_start(&stage).await?;
    let since = ground::transaction_id(&stage).await?;
    let each = arguments.singles.div_ceil(u64::from(SINGLE_WRITERS));
    let backlog = {
        let transactions = each * u64::from(SINGLE_WRITERS);
        Backlog { transactions, changes: transactions }
    };
    let script = format!(
        "\\set id random(1, {})\nupdate loadtest.change set counter = counter + 1 where id = :id;\n",
        arguments.rows
    );
    let bar = report::progress(arguments.rounds as u64, "rounds");
    let mut committed = Backlog { transactions: 0, changes: 0 };
    let (mut drains, mut received) = (Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        let mark = Mark::now(&stage.pool, "loadtest_floor").await?;
        let end = End::Transactions(each);
        let bench = Bench { script: &script, clients: SINGLE_WRITERS, end, rate: None, synchronous: false };
        let benched = pgbench::run(&stage.server, stage.database(), &bench).await?;
        committed.transactions += benched.transactions;
        committed.changes += benched.transactions;
        let (drained, took) = both(&stage, round, mark, backlog).await?;
        drains.push(drained);
        received.push(backlog.transactions as f64 / took);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let per = backlog.transactions as f64;
    let rate = series(&drains, Drained::transactions_per_second);
    let received = Series::from(received);
    Ok(Single {
        transactions: backlog.transactions,
        over_recvlogical: rate.over(&received),
        transactions_per_second: rate,
        transactions_per_second_from_start: series(&drains, |drained| per / drained.whole.as_secs_f64()),
        recvlogical_transactions_per_second: received,
        worker_cpu_us_per_transaction: series(&drains, |drained| drained.worker_cpu_seconds * 1e6 / per),
        server_cpu_us_per_transaction: series(&drains, |drained| drained.server_cpu_seconds * 1e6 / per),
        memory_max_bytes: memory(&drains),
        checks: ground::check(&stage, since, committed).await?,
    })
}

async fn live(arguments: &Capture, binary: &Path, major: u32) -> anyhow::Result<(live::Live, Checks)> {
    report::say("sixteen writers and a running worker");
    let stage = ground::set(binary, major, Scopes::One, arguments.rows).await?;
    first_start(&stage).await?;
    let since = ground::transaction_id(&stage).await?;
    let live = live::run(&stage, arguments.rounds, arguments.seconds, arguments.rows).await?;
    let committed = Backlog { transactions: live.transactions, changes: live.transactions };
    let checks = ground::check(&stage, since, committed).await?;
    Ok((live, checks))
}

fn series(drains: &[Drained], figure: impl Fn(&Drained) -> f64) -> Series {
    drains.iter().map(figure).collect::<Vec<f64>>().into()
}

fn memory(drains: &[Drained]) -> u64 {
    drains.iter().map(|drained| drained.memory_max_bytes).max().unwrap_or(0)
}

fn targets(report: &Report) -> Vec<Target> {
    let mut targets = Vec::new();
    for large in &report.large {
        let what = format!("{:?}, {} scopes per row", large.kind, large.scopes_per_row).to_lowercase();
        targets.push(Target::at_least(&format!("changes/s over COPY, {what}"), large.over_copy.median, 0.5));
        targets.push(Target::at_most(
            &format!("worker's memory in bytes, {what}"),
            large.memory_max_bytes as f64,
            MEMORY_TARGET_BYTES,
        ));
    }
    if let Some(single) = &report.single {
        targets.push(Target::at_least(
            "single-row transactions/s over pg_recvlogical",
            single.over_recvlogical.median,
            0.2,
        ));
    }
    if let Some(live) = &report.live {
        targets.push(Target::at_most("seconds of lag while paced, the worst", live.paced_lag_max_s.max, 1.0));
        targets.push(Target::at_least(
            "paced writers' rate with the worker over without",
            live.paced_tps.over(&live.paced_alone_tps).median,
            0.98,
        ));
    }
    targets
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    println!("medians of {} rounds (lowest–highest), PostgreSQL {}", report.rounds, report.postgres);
    for large in &report.large {
        println!(
            "{:?} in transactions of 1,000, {} scopes per row, changes/s",
            large.kind, large.scopes_per_row
        );
        println!(
            "  durable effects {}, from start {}",
            large.changes_per_second, large.changes_per_second_from_start
        );
        println!(
            "  pg_recvlogical {}   COPY {}",
            large.recvlogical_changes_per_second, large.copy_changes_per_second
        );
        println!("  over pg_recvlogical {}   over COPY {}", large.over_recvlogical, large.over_copy);
        println!(
            "  CPU-µs per change: worker {}, server {}; worker's memory {:.0} MiB",
            large.worker_cpu_us_per_change,
            large.server_cpu_us_per_change,
            large.memory_max_bytes as f64 / f64::from(1 << 20)
        );
    }
    if let Some(single) = &report.single {
        println!("transactions of one row, transactions/s");
        println!(
            "  durable {}, from start {}   pg_recvlogical {}   over it {}",
            single.transactions_per_second,
            single.transactions_per_second_from_start,
            single.recvlogical_transactions_per_second,
            single.over_recvlogical
        );
        println!(
            "  CPU-µs each: worker {}, server {}; worker's memory {:.0} MiB",
            single.worker_cpu_us_per_transaction,
            single.server_cpu_us_per_transaction,
            single.memory_max_bytes as f64 / f64::from(1 << 20)
        );
    }
    if let Some(live) = &report.live {
        println!("16 writers: alone {} transactions/s, flat out", live.alone_tps);
        println!(
            "  paced at {:.0}: alone {} at {} ms, with the worker {} at {} ms; lag {} s, worst {} s",
            live.pace_tps,
            live.paced_alone_tps,
            live.paced_alone_latency_ms,
            live.paced_tps,
            live.paced_latency_ms,
            live.paced_lag_median_s,
            live.paced_lag_max_s
        );
        println!(
            "  flat out with the worker: {} transactions/s, worst lag {} s, caught up {} s after they stopped",
            live.flat_out_tps, live.flat_out_lag_max_s, live.flat_out_catch_up_s
        );
    }
    for target in &report.targets {
        println!("{target}");
    }
    Ok(())
}
