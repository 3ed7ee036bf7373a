//! A1, A2: what the processed boundary says.

use crate::grouping::{Random, items_transaction};
use crate::world::observer::Observer;
use crate::world::{ITEMS, World};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_embedded::pg_test;
use tidegate_model::Lsn;

/// The boundary and the complete records, in one snapshot.
const LOOK: &str = "select p.processed_end_lsn::text, (select coalesce(array_agg(t.commit_lsn::text), '{}') from tidegate.source_transaction t
        where t.effect_count = (select count(*) from tidegate.effect e where e.generation = t.generation and e.commit_lsn = t.commit_lsn))
    from tidegate.progress p";

type Look = (Lsn, BTreeSet<Lsn>);

async fn look(world: &World) -> Look {
    let (processed, records): (String, Vec<String>) =
        sqlx::query_as(LOOK).fetch_one(world.pool()).await.expect("a look");
    let parse = |text: String| text.parse().expect("a position");
    (parse(processed), records.into_iter().map(parse).collect())
}

pg_test!(
    Slots,
    async fn a1_what_commits_before_the_boundary_is_durable_at_every_moment(world: World) {
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        world.sql(ITEMS).await;
        let worker = world.start_with(world.eager());
        world.until_streaming().await;
        world.settle().await;
        let observer = Observer::start(&world).await;
        let stop = Arc::new(AtomicBool::new(false));
        let (pool, stopped) = (world.pool().clone(), stop.clone());
        let looks = tokio::spawn(async move {
            let mut looks: Vec<(String, Vec<String>)> = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                looks.push(sqlx::query_as(LOOK).fetch_one(&pool).await.expect("a look"));
            }
            looks
        });
        // Transactions overlap, so they commit in another order than they began in; some are rolled back.
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let pool = world.pool().clone();
                tokio::spawn(async move {
                    let mut random = Random(seed * 31 + writer + 1);
                    for _ in 0..30 {
                        let Ok(mut transaction) = pool.begin().await else { continue };
                        let sql = items_transaction(&mut random);
                        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *transaction).await;
                        tokio::task::yield_now().await;
                        if done.is_ok() && random.below(5) > 0 {
                            let _ = transaction.commit().await;
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.expect("a writer");
        }
        world.write_noise().await;
        world.settle().await;
        stop.store(true, Ordering::Relaxed);
        let looks = looks.await.expect("looks");
        let decoded = observer.assert_recorded(&world).await;
        let mut moved = BTreeSet::new();
        for (processed, records) in looks {
            let processed: Lsn = processed.parse().expect("a position");
            let records = records.iter().map(|text| text.parse().expect("a position"));
            let records: BTreeSet<Lsn> = records.filter(|commit| *commit >= observer.from).collect();
            let due: BTreeSet<Lsn> =
                decoded.iter().map(|t| t.commit_lsn).filter(|commit| *commit < processed).collect();
            assert_eq!(
                records, due,
                "at {processed}: all that commits before it is complete, and nothing else"
            );
            moved.insert(processed);
        }
        assert!(moved.len() > 3, "seen on its way: {moved:?}");
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a1_the_boundary_is_no_pull_cursor_and_passes_the_newest_effect(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.eager());
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        let before = world.standing().await;
        world.write_noise().await;
        let passed = format!(
            "select processed_end_lsn > '{}'::pg_lsn + 100000 from tidegate.progress",
            before.processed
        );
        world.until("the boundary to move", &passed).await;
        let after = world.standing().await;
        assert_eq!((after.newest, after.effects), (before.newest, before.effects));
        let (processed, records) = look(&world).await;
        assert!(records.iter().all(|record| *record < processed));
        let marks = "select materialized_end_lsn < processed_end_lsn from tidegate.progress";
        assert!(
            world.scalar::<bool>(marks).await,
            "P7: the mark of what was materialized stays where it was"
        );
        worker.stop().await;
    }
);

/// Five transactions: one row, several, none of ours, larger than a piece, a deletion.
async fn write(world: &World, round: i32) {
    world.sql(&format!("insert into items values ('one{round}', 'L1')")).await;
    world
        .sql(&format!("insert into items select 'some{round}-' || g, 'L2' from generate_series(1, 3) g"))
        .await;
    world.sql("select pg_logical_emit_message(true, 'someone else', 'x')").await;
    world
        .sql(&format!("insert into items select 'many{round}-' || g, 'L3' from generate_series(1, 60) g"))
        .await;
    world.sql(&format!("delete from items where id = 'one{round}'")).await;
}

/// Boundaries that materialization left behind, in order.
async fn boundaries(world: &World) -> Vec<Lsn> {
    let rows: Vec<String> = sqlx::query_scalar(
        "select processed::text from public.progress_history h where xid is not null order by h.id",
    )
    .fetch_all(world.pool())
    .await
    .expect("the history");
    let mut boundaries: Vec<Lsn> = rows.iter().map(|text| text.parse().expect("a position")).collect();
    boundaries.dedup();
    boundaries
}

pg_test!(
    Slots,
    async fn a2_after_a_materialized_transaction_the_boundary_is_its_end(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        world.until_acknowledged().await;
        world.stop_and_release(worker).await;
        let observer = Observer::start(&world).await;
        world.keep_history().await;
        // One transaction per commit, the large one in pieces: the boundary takes every end, and no other value.
        let mut singly = world.without_idle();
        (singly.limits.group_transactions_max, singly.limits.group_events_max) = (1, 20);
        let worker = world.start_with(singly);
        write(&world, 1).await;
        world.settle().await;
        let ends: Vec<Lsn> = observer.assert_recorded(&world).await.iter().map(|t| t.end_lsn).collect();
        assert_eq!(boundaries(&world).await, ends);
        world.until_acknowledged().await;
        world.stop_and_release(worker).await;
        // Several per commit: only ends, and at last the last one.
        for round in 2..6 {
            write(&world, round).await;
        }
        world.sql("truncate public.progress_history").await;
        let marker = world.emit_marker().await;
        let lock = world.lock_projection(1).await;
        let worker = world.start_with(world.without_idle());
        world.until_gathered(&marker).await;
        lock.rollback().await.expect("rollback");
        world.settle().await;
        let decoded = observer.assert_recorded(&world).await;
        let grouped = boundaries(&world).await;
        assert!(grouped.len() < 20, "{} commits for 22 transactions", grouped.len());
        assert!(grouped.iter().all(|end| decoded.iter().any(|t| t.end_lsn == *end)));
        assert_eq!(grouped.last(), decoded.last().map(|t| &t.end_lsn));
        assert!(decoded.iter().all(|t| t.commit_lsn < t.end_lsn), "an end is not a commit position");
        worker.stop().await;
    }
);
