//! G5, H6, F11 without a write: the catalogs are compared periodically and when a session begins.

use crate::poison::retry;
use crate::world::{ITEMS, Running, World};
use std::time::Duration;
use tidegate_capture::poison::RetryRequest;
use tidegate_embedded::pg_test;

const STREAMING: &str = "select state = 'streaming' from tidegate.worker_heartbeat";
const LISTS: &str = "create table public.lists (id text primary key, name text);
    select tidegate.register_table('public.lists', '{\"scopes\": [{\"name\": \"list:{id}\"}]}');";

fn start(world: &World) -> Running {
    let mut config = world.config();
    config.limits.drift_check_interval = Duration::from_millis(50);
    world.start_with(config)
}

/// Nothing follows: neither what another table has to say nor an idle acknowledgement.
async fn assert_blocked(world: &World) {
    let durable = "select format('%s %s %s', processed_end_lsn, acknowledged_end_lsn, confirmed_flush_lsn) from tidegate.progress, pg_replication_slots where slot_name = (select slot_name from tidegate.stream_generation)";
    let before = world.text(durable).await;
    world.sql("insert into lists values ('later', 'x')").await;
    world.sql("create table public.later as select clock_timestamp() as at").await;
    world
        .until(
            "a beat after it",
            "select beat_at > at and state = 'blocked' from tidegate.worker_heartbeat, public.later",
        )
        .await;
    world.sql("drop table public.later").await;
    assert_eq!(world.text(durable).await, before, "A7, A10");
}

pg_test!(
    Slots,
    async fn g5_dd01_a_renamed_table_blocks_without_a_write_and_a_retry_compares_again(world: World) {
        world.sql(ITEMS).await;
        world.sql(LISTS).await;
        let worker = start(&world);
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world.sql("alter table items rename to items_old").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'relation_drifted' and relation_id = 1 and retryable and explanation like 'public.items: %' and commit_lsn = (select processed_end_lsn from tidegate.progress))").await;
        world.until("the reason", "select state = 'blocked' and reason like '%public.items: the registered table is now public.items_old%' from tidegate.worker_heartbeat").await;
        assert_blocked(&world).await;
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world
            .until("a second attempt", "select attempts = 2 and status = 'active' from tidegate.poison")
            .await;
        world.sql("alter table items_old rename to items").await;
        assert_blocked_still(&world).await;
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world.settle().await;
        assert_eq!(world.text("select status from tidegate.poison").await, "resolved");
        world.until("the state to show", STREAMING).await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

/// The worker has looked again, and waits for an operator all the same.
async fn assert_blocked_still(world: &World) {
    world.sql("create table public.undone as select clock_timestamp() as at").await;
    world
        .until(
            "beats after it",
            "select beat_at > at + interval '500 ms' from tidegate.worker_heartbeat, public.undone",
        )
        .await;
    let both =
        "select state = 'blocked' and status = 'active' from tidegate.worker_heartbeat, tidegate.poison";
    assert!(world.scalar::<bool>(both).await, "undoing the DDL clears nothing by itself");
}

pg_test!(
    Slots,
    async fn g5_dd01_a_table_that_was_replaced_blocks_without_a_write_and_only_a_reset_leads_out(
        world: World,
    ) {
        world.sql(ITEMS).await;
        world.sql(LISTS).await;
        let worker = start(&world);
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world.sql("drop table items; create table items (id text primary key, list_id text, n int, body text); insert into items values ('a', 'other')").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'relation_replaced' and relation_id = 1 and not retryable)").await;
        world.until("the state to show", "select state = 'blocked' from tidegate.worker_heartbeat").await;
        assert_blocked(&world).await;
        assert_eq!(retry(&world).await, RetryRequest::ResetOnly);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn g5_a_worker_that_starts_on_a_drifted_table_processes_nothing(world: World) {
        world.sql(ITEMS).await;
        world.sql(LISTS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        world.sql("alter table items replica identity full").await;
        world.sql("insert into lists values ('later', 'x')").await;
        // Compared at the start, whatever the interval.
        let worker = world.start();
        world.until("poison", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'relation_drifted' and relation_id = 1)").await;
        assert!(world.effects().await.is_empty());
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn op08_h6_f11_publication_and_triggers_block_while_they_are_wrong(world: World) {
        world.sql(ITEMS).await;
        world.sql(LISTS).await;
        let worker = start(&world);
        world.until_streaming().await;
        for (damage, repair, reason) in [
            (
                "alter publication tidegate set (publish = 'insert')",
                "alter publication tidegate set (publish = 'insert, update, delete, truncate')",
                "the publication tidegate does not publish",
            ),
            (
                "alter publication tidegate drop table items",
                "alter publication tidegate add table items",
                "public.items: the table is not in the publication",
            ),
            (
                "alter table items disable trigger \"!tidegate_truncate\"",
                "alter table items enable always trigger \"!tidegate_truncate\"",
                "public.items: trigger \"!tidegate_truncate\" is not enabled always",
            ),
        ] {
            world.sql(damage).await;
            let shown = format!(
                "select state = 'blocked' and reason like '{reason}%' from tidegate.worker_heartbeat"
            );
            world.until(reason, &shown).await;
            assert_blocked(&world).await;
            world.sql(repair).await;
            world.settle().await;
            world.until("the state to show", STREAMING).await;
            world.sql("delete from lists").await;
            world.settle().await;
        }
        let records: i64 = world.scalar("select count(*) from tidegate.poison").await;
        assert_eq!(records, 0, "they clear by themselves: fences tell what was missed");
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn g5_a_registration_on_its_way_and_what_is_not_captured_are_no_drift(world: World) {
        world.sql(ITEMS).await;
        let worker = start(&world);
        world.until_streaming().await;
        // An open transaction, then one that committed and waits to be read: materialization of what precedes it is locked out.
        let mut open = world.pool().begin().await.expect("begin");
        sqlx::raw_sql(LISTS).execute(&mut *open).await.expect("register");
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        let mut lock = world.pool().begin().await.expect("begin");
        let locked = format!("lock table tidegate_projection.s{state}_p1 in access exclusive mode");
        sqlx::raw_sql(sqlx::AssertSqlSafe(locked)).execute(&mut *lock).await.expect("lock");
        world.sql("insert into items values ('a', 'L1')").await;
        world.until("the worker to wait", "select exists (select from pg_stat_activity where application_name like 'tidegate capture % materialize' and wait_event_type = 'Lock')").await;
        open.commit().await.expect("commit");
        // Not captured, not published before, not ours to refuse.
        world.sql("alter table items add column later int; alter table items drop column later").await;
        world.sql("create table public.other (id int primary key); alter publication tidegate add table public.other").await;
        lock.rollback().await.expect("rollback");
        world.sql("insert into lists values ('L1', 'x')").await;
        world.settle().await;
        world.sql("create table public.looked as select clock_timestamp() as at").await;
        world
            .until(
                "the worker to have looked",
                "select beat_at > at + interval '500 ms' and state = 'streaming' from tidegate.worker_heartbeat, public.looked",
            )
            .await;
        let records: i64 = world.scalar("select count(*) from tidegate.poison").await;
        assert_eq!(records, 0);
        world.assert_consistent().await;
        worker.stop().await;
    }
);
