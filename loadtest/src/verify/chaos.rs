//! Kills: the worker and the gateway by `kill -9`, PostgreSQL by immediate shutdown, under load. And the watch on the slot.

use super::aim::{self, Tally};
use super::census::Census;
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

/// What was killed, and where that hit.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Kills {
    /// `kill -9` of the worker. In the middle of a batch: a materialization had written and not committed.
    pub capture: Tally,
    /// `kill -9` of the gateway. In the middle of a batch: a push's transaction was open, or a durable batch had not reached every client.
    pub gateway: Tally,
    /// Immediate shutdowns of PostgreSQL. In the middle of a batch: as for the worker.
    pub postgres: Tally,
    /// Whether at least three quarters of each kind hit in the middle of a batch.
    pub three_quarters_in_mid_batch: bool,
}

/// `rounds` kills of each kind, each followed by a restart.
///
/// # Errors
/// When something does not come back.
pub async fn kill_rounds(
    programs: &mut Programs,
    pool: &PgPool,
    census: &Census,
    rounds: u32,
    rng: &mut Rng,
) -> anyhow::Result<Kills> {
    let mut kills = Kills::default();
    let bar = crate::report::progress(u64::from(rounds) * 3, "kills");
    for round in 0..rounds {
        let aimed = round % 4 != 3;
        for kind in 0..3 {
            // Random moments are the point here, not a wait for something.
            tokio::time::sleep(Duration::from_millis(rng.u64(400..1500))).await;
            let pause = Duration::from_millis(rng.u64(0..400));
            match kind {
                0 => {
                    kills.capture.count(aim::worker(&programs.capture, pool, aimed, rng).await?);
                    programs.capture.kill().await?;
                    tokio::time::sleep(pause).await;
                    programs.start_capture().await.context("restart capture")?;
                }
                1 => {
                    kills.gateway.count(aim::gateway(&programs.gateway, pool, census, aimed, rng).await?);
                    programs.gateway.kill().await?;
                    tokio::time::sleep(pause).await;
                    programs.start_gateway().await.context("restart the gateway")?;
                }
                _ => {
                    kills.postgres.count(aim::worker(&programs.capture, pool, aimed, rng).await?);
                    programs.crash_postgres().await?;
                    // It finds its transaction gone, as it would have without the look.
                    programs.capture.signal(libc::SIGCONT)?;
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let enough = |tally: &Tally| tally.in_mid_batch * 4 >= tally.kills * 3;
    kills.three_quarters_in_mid_batch =
        enough(&kills.capture) && enough(&kills.gateway) && enough(&kills.postgres);
    Ok(kills)
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
