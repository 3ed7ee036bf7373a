//! TX-02 for the effect log: an effect never appears behind one that a reader has passed.

use crate::grouping::{Random, items_transaction};
use crate::reset;
use crate::world::points::{Armed, Pause};
use crate::world::{ITEMS, World};
use sqlx::postgres::PgPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_capture::{CaptureError, failpoints as at};
use tidegate_embedded::pg_test;

/// An effect, by its place in the log of a generation.
type Place = (i32, String, i64, i32, i64);

/// Effects behind a place, in order.
async fn behind(pool: &PgPool, last: Option<&Place>) -> Vec<Place> {
    let (generation, commit, event, effect, scope) = last.cloned().unwrap_or((0, "0/0".into(), 0, 0, 0));
    sqlx::query_as(
        "select e.generation, e.commit_lsn::text, e.event_ordinal, e.effect_ordinal, e.scope_id from tidegate.effect e
         where (e.generation, e.commit_lsn, e.event_ordinal, e.effect_ordinal, e.scope_id) > ($1, $2::pg_lsn, $3, $4, $5)
         order by e.generation, e.commit_lsn, e.event_ordinal, e.effect_ordinal, e.scope_id",
    )
    .bind(generation)
    .bind(commit)
    .bind(event)
    .bind(effect)
    .bind(scope)
    .fetch_all(pool)
    .await
    .expect("effects")
}

/// Reads what is behind its place again and again, as a client does with its cursor.
fn read_on(pool: &PgPool, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<Vec<Place>> {
    let (pool, stop) = (pool.clone(), stop.clone());
    tokio::spawn(async move {
        let mut read: Vec<Place> = Vec::new();
        loop {
            let last_look = stop.load(Ordering::Relaxed);
            read.extend(behind(&pool, read.last()).await);
            if last_look {
                return read;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

pg_test!(
    Slots,
    async fn tx02_r5_a_reader_that_moves_on_misses_nothing_whoever_writes(world: World) {
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        let mut random = Random(seed + 1);
        world.sql(ITEMS).await;
        let mut worker = world.start();
        world.until_streaming().await;
        let stop = Arc::new(AtomicBool::new(false));
        let client = read_on(world.pool(), &stop);
        for round in 0..60 {
            // Two writers whose sequences, clocks and transaction ids disagree with the order of their commits.
            let mut early = world.pool().begin().await.expect("begin");
            let sql = format!("insert into items values ('early{round}', 'L{}')", round % 3);
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *early).await.expect("insert");
            world.sql(&format!("begin; {} commit", items_transaction(&mut random))).await;
            early.commit().await.expect("commit");
            match round % 20 {
                // Another worker takes over, and a worker dies.
                7 => {
                    world.until_streams(&worker).await;
                    let next = world.start();
                    assert!(matches!(worker.ended().await, CaptureError::OwnershipLost));
                    worker = next;
                }
                15 => {
                    worker.kill().await;
                    worker = world.start();
                }
                _ => {}
            }
        }
        world.settle().await;
        stop.store(true, Ordering::Relaxed);
        let read = client.await.expect("a reader");
        assert!(read.len() >= 60);
        assert_eq!(
            read,
            behind(world.pool(), None).await,
            "what one reads on the way is what another reads at the end"
        );
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Private,
    async fn tx02_r5_while_effects_are_written_nobody_else_writes_any_and_a_reset_exposes_none_of_them(
        world: Armed,
    ) {
        world.sql(ITEMS).await;
        let mut config = world.config();
        config.limits.idle_in_transaction_timeout = Duration::from_secs(1);
        let first = world.start_apart_with(config);
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        let client = behind(world.pool(), None).await;
        assert_eq!(client.len(), 1);
        // Its effects have their places; they are not committed.
        let mut pause = Pause::at(at::MATERIALIZE_WRITTEN);
        world.sql("insert into items values ('b', 'L1')").await;
        pause.reached().await;
        let owner = "begin; select from tidegate.worker for update nowait; commit";
        assert_eq!(world.refused(owner).await, "55P03", "whoever writes effects must hold this row");
        assert_eq!(behind(world.pool(), client.last()).await, []);
        // A reset waits for it like anybody else, until the server ends a transaction that idles; its backfill is another worker's.
        reset::request(&world).await;
        let second = world.start();
        world.until("the new generation", reset::SECOND).await;
        world.sql("insert into items values ('c', 'L1')").await;
        world.settle().await;
        let on = behind(world.pool(), client.last()).await;
        pause.release();
        assert!(matches!(first.ended().await, CaptureError::OwnershipLost));
        // The stopped batch never shows: its row came with the baseline. Nothing appears behind what the client has passed.
        let late = behind(world.pool(), None).await;
        assert_eq!(late, [client, on.clone()].concat());
        assert_eq!(on.iter().map(|place| place.0).collect::<Vec<_>>(), [2]);
        world.assert_consistent().await;
        second.stop().await;
    }
);
