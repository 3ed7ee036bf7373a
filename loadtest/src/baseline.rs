//! `loadtest baseline`: the first start over existing rows against COPY of the same rows, and a client's rebuild of one large scope.

use crate::connection::{Connection, Identity};
use crate::replica::{Applied, Replica};
use crate::report;
use crate::stage::{Stage, address};
use anyhow::{Context, bail};
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_floors::copy::copy_through_client;
use tidegate_protocol::ServerFrame;

/// Arguments of `baseline`.
#[derive(Debug, clap::Args)]
pub struct Baseline {
    /// Rows that exist before the first start.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Rows per scope; the client rebuilds one scope.
    #[arg(long, default_value_t = 100_000)]
    scope_rows: u64,
    /// Copies to compare with, before and after the first start each.
    #[arg(long, default_value_t = 3)]
    copies: usize,
}

/// How long the first start may take.
const FIRST_START_TIMEOUT: Duration = Duration::from_secs(1800);
/// How long the client's rebuild may take.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(serde::Serialize)]
struct Report {
    rows: u64,
    copy_rows_per_second: Vec<f64>,
    copy_rows_per_second_median: f64,
    baseline_seconds: f64,
    baseline_rows_per_second: f64,
    /// Baseline against the median copy, out to a client and into a table.
    ratio_to_copy: f64,
    worker_resident_max_bytes: u64,
    rebuilt_rows: u64,
    rebuild_seconds: f64,
    rebuild_verified: bool,
}

/// Runs it.
///
/// # Errors
/// When something cannot be started, or the rebuilt scope is not what the table holds.
pub async fn run(arguments: &Baseline, binary: &Path, major: u32, json: bool) -> anyhow::Result<()> {
    report::say(&format!("creating {} rows", arguments.rows));
    let stage = Stage::set(binary, major, &[], &schema(arguments)).await?;
    let mut copies = Vec::new();
    let copy = async |copies: &mut Vec<f64>| -> anyhow::Result<()> {
        for _ in 0..arguments.copies {
            let copied =
                copy_through_client(&stage.pool, "loadtest.big", "id, scope_no, title, amount, made_at")
                    .await?;
            copies.push(copied.rows as f64 / copied.took.as_secs_f64());
        }
        Ok(())
    };
    report::say("copying the same rows for comparison");
    copy(&mut copies).await?;

    report::say("first start");
    let capture = tokio::time::timeout(FIRST_START_TIMEOUT, stage.start(&["capture"]))
        .await
        .context("first start in time")??;
    let took = "select extract(epoch from g.activated_at - r.started_at)::float8 from tidegate.stream_reset r
                join tidegate.stream_generation g on g.reset_id = r.reset_id";
    let baseline_seconds: f64 = sqlx::query_scalar(took)
        .fetch_one(&stage.pool)
        .await
        .context("read how long the first start took")?;
    let worker = capture.usage()?;
    copy(&mut copies).await?;

    report::say("rebuilding one scope");
    let gateway = stage.start(&["gateway", "--listen", "127.0.0.1:0"]).await?;
    let address = address(gateway.ready.url.as_deref().context("the gateway printed no URL")?)?;
    let started = Instant::now();
    let replica =
        tokio::time::timeout(REBUILD_TIMEOUT, rebuild(&address)).await.context("rebuild in time")??;
    let rebuild_seconds = started.elapsed().as_secs_f64();
    let rebuilt_rows = replica.scopes.get("big:0").map_or(0, |scope| scope.rows.held.len()) as u64;

    let mut sorted = copies.clone();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    let rate = arguments.rows as f64 / baseline_seconds;
    let report = Report {
        rows: arguments.rows,
        copy_rows_per_second: copies,
        copy_rows_per_second_median: median,
        baseline_seconds,
        baseline_rows_per_second: rate,
        ratio_to_copy: rate / median,
        worker_resident_max_bytes: worker.resident_max_bytes,
        rebuilt_rows,
        rebuild_seconds,
        rebuild_verified: replica.faults.is_clean()
            && rebuilt_rows == arguments.scope_rows.min(arguments.rows),
    };
    if json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    if !report.rebuild_verified {
        bail!("the rebuilt scope is not what the table holds");
    }
    Ok(())
}

fn schema(arguments: &Baseline) -> String {
    format!(
        "create schema loadtest;
         create table loadtest.big (id bigint primary key, scope_no int not null, title text not null, amount numeric(12, 2), made_at timestamptz);
         insert into loadtest.big select g, g / {}, 'row number ' || g, g * 0.37, timestamptz '2026-01-01' + g * interval '1 second'
             from generate_series(0, {}) g;
         analyze loadtest.big;
         select tidegate.register_table('loadtest.big', '{{\"scopes\": [{{\"name\": \"big:{{scope_no}}\"}}]}}');
         select tidegate.register_grant('{{\"scope\": \"big:0\", \"anonymous\": true}}')",
        arguments.scope_rows,
        arguments.rows - 1
    )
}

async fn rebuild(address: &str) -> anyhow::Result<Replica> {
    let (mut connection, _) = Connection::open(address, &Identity::fresh(None)).await?;
    connection.subscribe(Some("big:0"), None).await?;
    let mut replica = Replica::new(false);
    loop {
        let frame = connection.next().await?.context("the gateway closed the socket")?;
        if let ServerFrame::ErrorFrame(error) = &frame {
            bail!("the gateway refused the subscription: {}", error.code);
        }
        if let Applied::Joined(_) = replica.apply(frame, &mut |_, _| {}) {
            return Ok(replica);
        }
    }
}
