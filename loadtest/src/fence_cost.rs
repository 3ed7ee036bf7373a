//! `loadtest fence-cost`: what fences cost the application. Updates of one row per transaction and of many rows in one, on three
//! tables alike: without triggers, with a minimal trigger, registered. No worker runs; each commit waits for the disk.

use crate::process::family_cpu_seconds;
use crate::report::{self, Series, Target};
use crate::stage::Stage;
use anyhow::{Context, bail};
use sqlx::{AssertSqlSafe, Executor};
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_floors::minimal_trigger;
use tidegate_floors::pgbench::{self, Bench, End};

/// Arguments of `fence-cost`.
#[derive(Debug, clap::Args)]
pub struct FenceCost {
    /// Rounds; the three tables take turns in each, and the first changes from round to round.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of single-row updates per table, number of clients and round.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    clients: Vec<u32>,
    /// Rows of each table; the bulk update changes all of them.
    #[arg(long, default_value_t = 100_000)]
    rows: u32,
}

/// Registered: at least this share of the minimal trigger's transactions per second.
const SINGLE_TARGET: f64 = 0.85;
/// Registered: at most this multiple of the minimal trigger's time per row.
const BULK_TARGET: f64 = 1.5;
/// In the order of [`SIDES`].
const TABLES: [&str; 3] = ["loadtest.plain", "loadtest.minimal", "loadtest.fenced"];
const SIDES: usize = TABLES.len();

/// One figure for each table.
#[derive(Clone, Debug, serde::Serialize)]
struct Sides {
    /// (a) Without triggers.
    plain: Series,
    /// (b) A minimal trigger.
    minimal: Series,
    /// Registered.
    fenced: Series,
}

impl From<[Vec<f64>; SIDES]> for Sides {
    fn from([plain, minimal, fenced]: [Vec<f64>; SIDES]) -> Sides {
        Sides { plain: plain.into(), minimal: minimal.into(), fenced: fenced.into() }
    }
}

#[derive(serde::Serialize)]
struct Single {
    clients: u32,
    transactions_per_second: Sides,
    /// Processor time of all of the server's processes, in microseconds per transaction.
    server_cpu_us: Sides,
    /// Registered against the minimal trigger, and against none, by round.
    fenced_over_minimal: Series,
    fenced_over_plain: Series,
    /// Share of all processors that the driver used while it drove the fastest side, at most.
    driver_share_max: f64,
    /// Transactions per second of the same driver where there is nothing to do: how far it is from being the limit.
    driver_alone_tps: f64,
}

#[derive(serde::Serialize)]
struct Bulk {
    rows: u32,
    us_per_row: Sides,
    /// Processor time of all of the server's processes, in microseconds per row.
    server_cpu_us: Sides,
    fenced_over_minimal: Series,
    fenced_over_plain: Series,
}

#[derive(serde::Serialize)]
struct Report {
    postgres: u32,
    rounds: usize,
    single: Vec<Single>,
    bulk: Bulk,
    /// Fences in the registered table, by key: each row must have exactly one version, and the newest must be alive.
    rows_without_version: i64,
    targets: Vec<Target>,
    targets_hold: bool,
}

/// Runs it.
///
/// # Errors
/// When something cannot be started, or a row of the registered table has no version.
pub async fn run(arguments: &FenceCost, binary: &Path, major: u32, json: bool) -> anyhow::Result<()> {
    report::say(&format!("starting PostgreSQL {major}"));
    // A checkpoint in one round and none in another would be all that is measured; vacuum runs between the rounds instead.
    let settings = [("checkpoint_timeout", "1h"), ("max_wal_size", "16GB"), ("autovacuum", "off")];
    let stage = Stage::set(binary, major, &settings, &schema(arguments)).await?;
    for table in TABLES {
        bulk_update(&stage, table).await?;
    }
    let bar =
        report::progress((arguments.rounds * (arguments.clients.len() + 1) * SIDES) as u64, "measuring");
    let mut single = Vec::new();
    for clients in &arguments.clients {
        single.push(single_rows(&stage, arguments, *clients, &bar).await?);
    }
    let bulk = all_rows(&stage, arguments, &bar).await?;
    bar.finish_and_clear();
    let rows_without_version = without_version(&stage).await?;
    let mut targets: Vec<Target> = single
        .iter()
        .map(|single| {
            let what = format!("transactions/s, {} clients, fenced over minimal", single.clients);
            Target::at_least(&what, single.fenced_over_minimal.median, SINGLE_TARGET)
        })
        .collect();
    targets.push(Target::at_most(
        "time per row of a bulk update, fenced over minimal",
        bulk.fenced_over_minimal.median,
        BULK_TARGET,
    ));
    let targets_hold = targets.iter().all(|target| target.holds);
    let rounds = arguments.rounds;
    let report =
        Report { postgres: major, rounds, single, bulk, rows_without_version, targets, targets_hold };
    print(&report, json)?;
    if report.rows_without_version > 0 {
        bail!("{} rows of the registered table have no version", report.rows_without_version);
    }
    Ok(())
}

/// The tables are alike, published alike, and of the size that fits into the server's default buffers. Each page has room for a new
/// version of all of its rows: an update that must leave its page adds index entries, and whether it must would differ from table
/// to table by chance.
fn schema(arguments: &FenceCost) -> String {
    let table = |name: &str| {
        format!(
            "create table {name} (id bigint primary key, counter bigint not null, payload text not null) with (fillfactor = 45);
             insert into {name} select g, 0, repeat('x', 100) from generate_series(1, {}) g;",
            arguments.rows
        )
    };
    let [plain, minimal, fenced] = TABLES;
    format!(
        "create schema loadtest; {}{}{}
         create publication loadtest_floor for table {plain}, {minimal};
         {}
         select tidegate.register_table('{fenced}', '{{\"scopes\": [{{\"name\": \"all\"}}]}}');",
        table(plain),
        table(minimal),
        table(fenced),
        minimal_trigger::sql(minimal)
    )
}

/// Each side is first, second and last equally often.
fn turns(round: usize) -> impl Iterator<Item = usize> {
    (0..SIDES).map(move |turn| (round + turn) % SIDES)
}

/// Leaves no dead rows, and no dirty pages for the next measurement to write.
async fn tidy(stage: &Stage) -> anyhow::Result<()> {
    let mut connection = stage.pool.acquire().await.context("connect")?;
    for statement in ["vacuum", "checkpoint"] {
        connection.execute(statement).await.with_context(|| statement.to_owned())?;
    }
    Ok(())
}

async fn bulk_update(stage: &Stage, table: &str) -> anyhow::Result<Duration> {
    let mut connection = stage.pool.acquire().await.context("connect")?;
    let started = Instant::now();
    connection
        .execute(AssertSqlSafe(format!("update {table} set counter = counter + 1")))
        .await
        .with_context(|| format!("update every row of {table}"))?;
    Ok(started.elapsed())
}

async fn all_rows(
    stage: &Stage,
    arguments: &FenceCost,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<Bulk> {
    let mut us: [Vec<f64>; SIDES] = Default::default();
    let mut cpu_us: [Vec<f64>; SIDES] = Default::default();
    let rows = f64::from(arguments.rows);
    for round in 0..arguments.rounds {
        for side in turns(round) {
            tidy(stage).await?;
            let before = family_cpu_seconds(stage.server.pid()?)?;
            us[side].push(bulk_update(stage, TABLES[side]).await?.as_secs_f64() * 1e6 / rows);
            cpu_us[side].push((family_cpu_seconds(stage.server.pid()?)? - before) * 1e6 / rows);
            bar.inc(1);
        }
    }
    let us = Sides::from(us);
    Ok(Bulk {
        rows: arguments.rows,
        fenced_over_minimal: us.fenced.over(&us.minimal),
        fenced_over_plain: us.fenced.over(&us.plain),
        us_per_row: us,
        server_cpu_us: cpu_us.into(),
    })
}

async fn single_rows(
    stage: &Stage,
    arguments: &FenceCost,
    clients: u32,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<Single> {
    let mut tps: [Vec<f64>; SIDES] = Default::default();
    let mut cpu_us: [Vec<f64>; SIDES] = Default::default();
    let mut driver_share_max = 0.0_f64;
    let end = End::After(Duration::from_secs(arguments.seconds));
    for round in 0..arguments.rounds {
        for side in turns(round) {
            tidy(stage).await?;
            let script = format!(
                "\\set id random(1, {})\nupdate {} set counter = counter + 1 where id = :id;\n",
                arguments.rows, TABLES[side]
            );
            let before = family_cpu_seconds(stage.server.pid()?)?;
            let benched =
                pgbench::run(&stage.server, stage.database(), &bench(&script, clients, end)).await?;
            let cpu = family_cpu_seconds(stage.server.pid()?)? - before;
            tps[side].push(benched.tps);
            cpu_us[side].push(cpu * 1e6 / benched.transactions.max(1) as f64);
            driver_share_max = driver_share_max.max(benched.driver_share);
            bar.inc(1);
        }
    }
    let alone = pgbench::run(&stage.server, stage.database(), &bench("select 1;\n", clients, end)).await?;
    let tps = Sides::from(tps);
    Ok(Single {
        clients,
        fenced_over_minimal: tps.fenced.over(&tps.minimal),
        fenced_over_plain: tps.fenced.over(&tps.plain),
        transactions_per_second: tps,
        server_cpu_us: cpu_us.into(),
        driver_share_max,
        driver_alone_tps: alone.tps,
    })
}

fn bench(script: &str, clients: u32, end: End) -> Bench<'_> {
    Bench { script, clients, end, rate: None, synchronous: true }
}

/// Rows whose fence is missing: fences that were skipped would be cheap.
async fn without_version(stage: &Stage) -> anyhow::Result<i64> {
    let relation: i32 = sqlx::query_scalar("select relation_id from tidegate.relation")
        .fetch_one(&stage.pool)
        .await
        .context("find the registered table")?;
    let missing = format!(
        "select count(*) from {} t left join tidegate.row_version_{relation} v on v.key = t.id and v.alive where v.key is null",
        TABLES[2]
    );
    sqlx::query_scalar(AssertSqlSafe(missing)).fetch_one(&stage.pool).await.context("look for versions")
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    println!("medians of {} rounds (lowest–highest), PostgreSQL {}", report.rounds, report.postgres);
    for single in &report.single {
        let (tps, cpu) = (&single.transactions_per_second, &single.server_cpu_us);
        println!("single-row updates, {} clients", single.clients);
        println!("  no trigger       {} transactions/s, server {} CPU-µs each", tps.plain, cpu.plain);
        println!("  minimal trigger  {} transactions/s, server {} CPU-µs each", tps.minimal, cpu.minimal);
        println!("  registered       {} transactions/s, server {} CPU-µs each", tps.fenced, cpu.fenced);
        println!(
            "  registered over minimal {}, over none {}; the driver used {:.0}% of the machine, alone it does {:.0} transactions/s",
            single.fenced_over_minimal,
            single.fenced_over_plain,
            single.driver_share_max * 100.0,
            single.driver_alone_tps
        );
    }
    let us = &report.bulk.us_per_row;
    println!("one update of {} rows, µs per row", report.bulk.rows);
    println!("  no trigger {}   minimal trigger {}   registered {}", us.plain, us.minimal, us.fenced);
    let cpu = &report.bulk.server_cpu_us;
    println!("  server's CPU: {}, {}, {}", cpu.plain, cpu.minimal, cpu.fenced);
    println!(
        "  registered over minimal {}, over none {}",
        report.bulk.fenced_over_minimal, report.bulk.fenced_over_plain
    );
    for target in &report.targets {
        println!("{target}");
    }
    Ok(())
}
