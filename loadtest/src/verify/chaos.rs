//! Kills: the worker and the gateway by `kill -9`, PostgreSQL by immediate shutdown, under load. And the watch on the slot.

use super::programs::Programs;
use anyhow::Context;
use fastrand::Rng;
use sqlx::PgPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How the slot was seen against the durable prefix.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct SlotWatch {
    /// Times both were read.
    pub samples: u64,
    /// Times the slot, read first, was past the durable prefix, read after it.
    pub past_durable_prefix: u64,
}

/// What was killed.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Kills {
    /// `kill -9` of the worker.
    pub capture: u32,
    /// `kill -9` of the gateway.
    pub gateway: u32,
    /// Immediate shutdowns of PostgreSQL.
    pub postgres: u32,
    /// Kills of worker or server at a moment when source transactions were committed but not yet materialized.
    pub in_mid_batch: u32,
}

/// `rounds` kills of each kind, at random moments, each followed by a restart.
///
/// # Errors
/// When something does not come back.
pub async fn kill_rounds(
    programs: &mut Programs,
    pool: &PgPool,
    rounds: u32,
    rng: &mut Rng,
) -> anyhow::Result<Kills> {
    let mut kills = Kills::default();
    let bar = crate::report::progress(u64::from(rounds) * 3, "kills");
    for _ in 0..rounds {
        for kind in 0..3 {
            // Random moments are the point here, not a wait for something.
            tokio::time::sleep(Duration::from_millis(rng.u64(400..1500))).await;
            let behind = is_behind(pool).await.unwrap_or(false);
            let pause = Duration::from_millis(rng.u64(0..400));
            match kind {
                0 => {
                    programs.capture.kill().await?;
                    kills.capture += 1;
                    tokio::time::sleep(pause).await;
                    programs.start_capture().await.context("restart capture")?;
                }
                1 => {
                    programs.gateway.kill().await?;
                    kills.gateway += 1;
                    tokio::time::sleep(pause).await;
                    programs.start_gateway().await.context("restart the gateway")?;
                }
                _ => {
                    programs.crash_postgres().await?;
                    kills.postgres += 1;
                }
            }
            kills.in_mid_batch += u32::from(behind && kind != 1);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(kills)
}

/// Whether WAL of committed transactions is waiting to be materialized right now.
async fn is_behind(pool: &PgPool) -> anyhow::Result<bool> {
    let behind = "select pg_current_wal_flush_lsn() > processed_end_lsn from tidegate.progress";
    sqlx::query_scalar(behind).fetch_one(pool).await.context("compare progress with the WAL")
}

/// Samples slot and progress until told to stop. The slot is read first: progress only grows, so a slot that is never ahead in
/// this order was never ahead at all (A5).
///
/// # Errors
/// Only if it panics; a crash of PostgreSQL is waited out.
pub async fn watch_slot(pool: PgPool, stop: Arc<AtomicBool>) -> SlotWatch {
    let mut watch = SlotWatch::default();
    while !stop.load(Relaxed) {
        if let Ok(ahead) = sample(&pool).await {
            watch.samples += 1;
            watch.past_durable_prefix += u64::from(ahead);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    watch
}

async fn sample(pool: &PgPool) -> Result<bool, sqlx::Error> {
    let slot: Option<String> = sqlx::query_scalar(
        "select s.confirmed_flush_lsn::text from pg_replication_slots s
         join tidegate.stream_generation g on g.slot_name = s.slot_name join tidegate.progress p on p.generation = g.id",
    )
    .fetch_optional(pool)
    .await?
    .flatten();
    let Some(slot) = slot else { return Ok(false) };
    sqlx::query_scalar("select $1::pg_lsn > processed_end_lsn from tidegate.progress")
        .bind(slot)
        .fetch_one(pool)
        .await
}
