//! `loadtest verify`: random writes by SQL and by push, disconnects, slow clients and kills; at the end every client's rows
//! and digests against the tables. Nothing lost, nothing twice, nothing half, and the slot never past the durable prefix.

mod aim;
mod census;
mod chaos;
mod client;
mod compare;
mod mutations;
mod programs;
mod writer;

use crate::report;
use crate::stage::Stage;
use anyhow::{Context, bail};
use census::Census;
use chaos::{Kills, SlotWatch};
use client::{Client, Findings, Phase};
use fastrand::Rng;
use programs::Programs;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use writer::Work;

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct Verify {
    /// Clients.
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Transactions per second by SQL.
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// Seconds of load before and after the kills.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Kills of each kind: capture, gateway, PostgreSQL.
    #[arg(long, default_value_t = 5)]
    kills: u32,
    /// Seed of all random choices; random and printed if not given.
    #[arg(long)]
    seed: Option<u64>,
}

/// Connections that write. Eight keep the rate through a commit's latency.
const WRITERS: u64 = 8;

#[derive(serde::Serialize)]
struct Report {
    seed: u64,
    postgres: u32,
    clients: usize,
    kills: Kills,
    commits: u64,
    commits_per_second: f64,
    interrupted: u64,
    slot: SlotWatch,
    findings: Findings,
    /// Accepted inserts whose row is not in the table.
    accepted_but_absent: u64,
    /// Refused inserts whose row is in the table.
    refused_but_present: u64,
    verified: bool,
}

/// Runs it.
///
/// # Errors
/// When something cannot be started, and when a promise was broken: the report says which.
pub async fn run(arguments: &Verify, binary: &Path, major: u32, json: bool) -> anyhow::Result<()> {
    let seed = arguments.seed.unwrap_or_else(|| Rng::new().u64(..));
    report::say(&format!("seed {seed}; starting PostgreSQL {major} and Tidegate"));
    let mut rng = Rng::with_seed(seed);
    let stage = Stage::set(binary, major, &[], include_str!("schema.sql")).await?;
    let mut programs = Programs::start(stage).await?;
    let pool = programs.stage.pool.clone();

    let work = Arc::new(Work::default());
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let rate = arguments.rate as f64 / WRITERS as f64;
        writers.spawn(writer::write(programs.stage.url.clone(), Arc::clone(&work), rate, rng.u64(..)));
    }
    let (phase, phases) = watch::channel(Phase::Load);
    let settled = Arc::new(AtomicUsize::new(0));
    let census = Arc::new(Census::default());
    let mut clients = JoinSet::new();
    for index in 0..arguments.clients {
        let token = token(&programs, index).await?;
        let client = Client::new(
            index,
            programs.address.clone(),
            token,
            (Arc::clone(&settled), Arc::clone(&census)),
            rng.u64(..),
        );
        clients.spawn(client.run(phases.clone()));
    }
    let stop_watch = Arc::new(AtomicBool::new(false));
    let slot_watch = tokio::spawn(chaos::watch_slot(
        crate::stage::pool(&programs.stage.url, 1).await?,
        Arc::clone(&stop_watch),
    ));

    let started = Instant::now();
    let load = Duration::from_secs(arguments.seconds);
    tokio::time::sleep(load).await;
    let kills = chaos::kill_rounds(&mut programs, &pool, &census, arguments.kills, &mut rng).await?;
    tokio::time::sleep(load).await;
    work.stop.store(true, Relaxed);
    while let Some(writer) = writers.join_next().await {
        writer.context("a writer panicked")??;
    }
    let took = started.elapsed();

    report::say("quiet; comparing every client with the tables");
    phase.send(Phase::Pause).ok();
    wait_for_writes(&settled, arguments.clients).await;
    let mut scopes: Vec<String> = (0..writer::LISTS).map(|list| format!("list:{list}")).collect();
    scopes.extend(["hot".to_owned(), "tally".to_owned()]);
    let mut expected = HashMap::new();
    for scope in scopes {
        let content = compare::expected(&pool, &scope).await?;
        expected.insert(scope, content);
    }
    phase.send(Phase::Settle(Arc::new(expected))).ok();
    let mut findings = Findings::default();
    while let Some(client) = clients.join_next().await {
        findings.merge(&client.context("a client panicked")??);
    }
    stop_watch.store(true, Relaxed);
    let slot = slot_watch.await.context("the slot's watch panicked")?;

    let present = "select count(*) from loadtest.item where id = any($1)";
    let found: i64 = sqlx::query_scalar(present)
        .bind(&findings.mutations.inserted)
        .fetch_one(&pool)
        .await
        .context("look for inserts")?;
    let refused: i64 = sqlx::query_scalar(present)
        .bind(&findings.mutations.refused)
        .fetch_one(&pool)
        .await
        .context("look for inserts")?;
    let mut report = Report {
        seed,
        postgres: major,
        clients: arguments.clients,
        kills,
        commits: work.commits.load(Relaxed),
        commits_per_second: work.commits.load(Relaxed) as f64 / took.as_secs_f64(),
        interrupted: work.interrupted.load(Relaxed),
        slot,
        accepted_but_absent: findings.mutations.inserted.len() as u64 - found as u64,
        refused_but_present: refused as u64,
        findings,
        verified: false,
    };
    report.verified = holds(&report);
    if json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    if !report.verified {
        bail!("a promise was broken (seed {seed}): see the report");
    }
    Ok(())
}

/// Everything that must be zero is zero, and what must have happened has.
fn holds(report: &Report) -> bool {
    let findings = &report.findings;
    let mutations = &findings.mutations;
    findings.faults.is_clean()
        && findings.differences == 0
        && findings.torn == 0
        && findings.own_write_missing == 0
        && mutations.undecided == 0
        && mutations.unmaterialized == 0
        && mutations.outcomes_changed == 0
        && report.accepted_but_absent == 0
        && report.refused_but_present == 0
        && report.slot.past_durable_prefix == 0
        && report.slot.samples > 0
        && findings.invariants_checked > 0
        && mutations.accepted > 0
}

async fn token(programs: &Programs, index: usize) -> anyhow::Result<String> {
    #[derive(serde::Deserialize)]
    struct Token {
        token: String,
    }
    let printed = programs.stage.run(&["token", &format!("user{index}"), "--valid-seconds", "86400"]).await?;
    let token: Token = serde_json::from_str(&printed).context("read the token")?;
    Ok(token.token)
}

/// Waits until every client has heard the outcome of each of its writes and seen it come round. Past the limit the run goes on:
/// what is still open is a finding.
async fn wait_for_writes(settled: &AtomicUsize, clients: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while settled.load(Relaxed) < clients && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
