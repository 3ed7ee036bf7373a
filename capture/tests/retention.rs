//! Retention: effects that nobody needs any more go beside the running stream, and the floors of their scopes with them.

use crate::reset::{SECOND, poisoned, request};
use crate::world::{ITEMS, World};
use sqlx::AssertSqlSafe;
use std::time::Duration;
use tidegate_capture::Config;
use tidegate_embedded::pg_test;

const EFFECTS: &str = "select count(*) from tidegate.effect";
const RECORDS: &str = "select count(*) from tidegate.source_transaction";

/// Looks often, and keeps nothing that is acknowledged.
fn keeping_nothing(world: &World) -> Config {
    let mut config = world.eager();
    config.limits.retention_interval = Duration::from_millis(20);
    (config.limits.retention_min, config.limits.retention_age) = (Duration::ZERO, Duration::ZERO);
    config.limits.retention_batch = 7;
    config
}

/// Ten transactions over three scopes, one of them of many effects.
async fn write(world: &World, round: usize) {
    for n in 0..9 {
        world.sql(&format!("insert into items values ('{round}.{n}', 'L{}', 1, 'x')", n % 3)).await;
    }
    world.sql("update items set n = n + 1; delete from items where id like '%.0'").await;
    world.settle().await;
}

pg_test!(
    Slots,
    async fn p9_retention_moves_each_floor_with_the_effects_that_go(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start_with(keeping_nothing(&world));
        world.until_streaming().await;
        for round in 0..3 {
            write(&world, round).await;
            world.until("every effect to go", "select not exists (select from tidegate.effect)").await;
            // The floors stand where the scopes do: whoever is there goes on.
            let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
            let behind = format!(
                "select count(*) from tidegate_projection.s{state}_scope where
                (tail_commit_lsn, tail_event_ordinal, tail_effect_ordinal, row_count, digest) is distinct from
                (floor_commit_lsn, floor_event_ordinal, floor_effect_ordinal, floor_row_count, floor_digest)"
            );
            assert_eq!(world.scalar::<i64>(&behind).await, 0);
            world.assert_consistent().await;
            // The newest transaction is known for as long as it is the newest.
            world.until("the records to go", "select count(*) = 1 from tidegate.source_transaction").await;
        }
        let told = "select r.removed_through = t.commit_lsn from tidegate.retention r, (select max(tail_commit_lsn) as commit_lsn from all_scopes) t";
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        world
            .sql(&format!("create view public.all_scopes as table tidegate_projection.s{state}_scope"))
            .await;
        assert!(world.holds(told).await, "whole transactions are known to be gone");
        // R3: what is acknowledged is not delivered again, so nothing misses its record.
        world.stop_and_release(worker).await;
        let worker = world.start();
        world.until_streams(&worker).await;
        write(&world, 3).await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn retention_keeps_what_is_young_and_of_the_rest_what_there_is_room_for(world: World) {
        world.sql(ITEMS).await;
        let mut config = keeping_nothing(&world);
        config.limits.retention_age = Duration::from_secs(3600);
        let worker = world.start_with(config.clone());
        world.until_streaming().await;
        write(&world, 0).await;
        let (effects, records) = (world.scalar::<i64>(EFFECTS).await, world.scalar::<i64>(RECORDS).await);
        world.until_beats().await;
        assert_eq!(world.scalar::<i64>(EFFECTS).await, effects, "younger than an hour");
        world.stop_and_release(worker).await;
        // As if two hours had passed for all but the last four.
        world.sql("update tidegate.source_transaction set committed_at = committed_at - interval '2 hours' where commit_lsn not in
            (select commit_lsn from tidegate.source_transaction order by commit_lsn desc limit 4)").await;
        let young = "select count(*) from tidegate.effect where commit_lsn in
            (select commit_lsn from tidegate.source_transaction where committed_at > now() - interval '1 hour')";
        let young: i64 = world.scalar(young).await;
        let worker = world.start_with(config.clone());
        world.until("the old records to go", "select count(*) = 5 from tidegate.source_transaction").await;
        assert!(records > 5);
        assert_eq!(world.scalar::<i64>(EFFECTS).await, young, "of the newest old one only its record stays");
        world.stop_and_release(worker).await;
        // Room for less: the oldest go, but the minimum holds.
        let last: i64 = world
            .scalar("select effect_bytes from tidegate.source_transaction where effect_bytes > 0 order by commit_lsn desc limit 1")
            .await;
        config.limits.retention_bytes = last as u64;
        config.limits.retention_min = Duration::from_secs(3600);
        let worker = world.start_with(config.clone());
        world.until_streams(&worker).await;
        world.until_beats().await;
        assert_eq!(world.scalar::<i64>(EFFECTS).await, young, "the minimum holds");
        world.stop_and_release(worker).await;
        config.limits.retention_min = Duration::ZERO;
        let worker = world.start_with(config);
        let kept = format!(
            "select sum(effect_bytes) = {last} from tidegate.source_transaction t
            where exists (select from tidegate.effect e where e.commit_lsn = t.commit_lsn)"
        );
        world.until("all but the last to go", &kept).await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn retention_waits_for_nobody_and_takes_a_scope_from_its_beginning(world: World) {
        world.sql(ITEMS).await;
        let mut config = keeping_nothing(&world);
        config.limits.retention_age = Duration::from_secs(3600);
        let worker = world.start_with(config.clone());
        world.until_streaming().await;
        write(&world, 0).await;
        world.stop_and_release(worker).await;
        // Somebody holds one scope, as a materialization does that has not committed.
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        let mut held = world.pool().begin().await.expect("begin");
        let sql = format!(
            "select scope_id from tidegate_projection.s{state}_scope where name = 'list:L1' for update"
        );
        let scope: i64 =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *held).await.expect("the scope");
        let of_it = format!("select count(*) from tidegate.effect where scope_id = {scope}");
        let before: i64 = world.scalar(&of_it).await;
        config.limits.retention_age = Duration::ZERO;
        // Larger than the log, so that the held scope's effects do not fill every batch.
        config.limits.retention_batch = 1000;
        let worker = world.start_with(config);
        let others = format!("select not exists (select from tidegate.effect where scope_id <> {scope})");
        world.until("the others' effects to go", &others).await;
        assert_eq!(world.scalar::<i64>(&of_it).await, before);
        world.assert_consistent().await;
        held.rollback().await.expect("rollback");
        world.until("the rest to go", "select not exists (select from tidegate.effect)").await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn retention_beside_writers_disturbs_nothing(world: World) {
        world.sql(ITEMS).await;
        let mut config = keeping_nothing(&world);
        config.limits.retention_interval = Duration::from_millis(1);
        let worker = world.start_with(config);
        world.until_streaming().await;
        let writer = async |number: usize| {
            for round in 0..25 {
                let scope = format!("L{}", round % 3);
                world.sql(&format!("insert into items select '{number}.{round}.' || g, '{scope}', g, 'x' from generate_series(1, 5) g")).await;
                world
                    .sql(&format!(
                        "update items set n = n + 1, list_id = 'L' || n % 3 where id like '{number}.{}.%'",
                        round / 2
                    ))
                    .await;
            }
        };
        tokio::join!(writer(0), writer(1), writer(2));
        world.settle().await;
        world.assert_consistent().await;
        world.until("every effect to go", "select not exists (select from tidegate.effect)").await;
        world.assert_consistent().await;
        let failures: i64 = world.scalar("select count(*) from tidegate.poison").await;
        assert_eq!(failures, 0);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn b11_retention_removes_what_the_generation_before_a_reset_has_left(world: World) {
        let worker = poisoned(&world).await;
        request(&world).await;
        world.until("the new generation", SECOND).await;
        let left = "select exists (select from tidegate.effect where generation = 1)";
        assert!(world.holds(left).await);
        world.stop_and_release(worker).await;
        // The usual age: what no cursor leads to is not kept for it.
        let mut config = world.config();
        config.limits.retention_interval = Duration::from_millis(20);
        config.limits.retention_batch = 1;
        let worker = world.start_with(config);
        let gone = "select not exists (select from tidegate.effect where generation = 1)
            and not exists (select from tidegate.source_transaction where generation = 1)";
        world.until("the old generation to go", gone).await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);
