//! A8: what a start makes of the slot that it finds.

use crate::world::observer::Observer;
use crate::world::points::{Armed, is_killed, kill_at};
use crate::world::standing::{SLOT, Standing};
use crate::world::{ITEMS, Running, World};
use tidegate_capture::{CaptureError, Refusal, failpoints as at};
use tidegate_embedded::Stop;
use tidegate_embedded::pg_test;

/// The slot of the stream, by name.
const NAME: &str = "(select slot_name from tidegate.stream_generation)";

/// Starts a worker, which dies as soon as slot and acknowledgement are reconciled, and says where they stand then.
async fn reconciled(world: &World) -> Standing {
    kill_at(at::SLOT_RECONCILED);
    is_killed(world.start_with(world.without_idle()), at::SLOT_RECONCILED).await;
    world.standing().await
}

/// Keeps the slot as it stands now under another name.
async fn keep(world: &World, name: &str) {
    world.until_released().await;
    world.sql(&format!("select pg_copy_logical_replication_slot({NAME}, '{name}_' || {NAME})")).await;
}

/// Puts the slot back to where it stood when it was kept.
async fn put_back(world: &World, name: &str) {
    world.until_released().await;
    world.sql(&format!("select pg_drop_replication_slot({NAME})")).await;
    world.sql(&format!("select pg_copy_logical_replication_slot('{name}_' || {NAME}, {NAME})")).await;
}

async fn insert(world: &World, n: i32) {
    world.sql(&format!("insert into items values ('{n}', 'L1')")).await;
}

/// Streams until everything is acknowledged, and stops.
async fn run_through(world: &World, worker: Running) -> Standing {
    world.settle().await;
    let at = world.until_acknowledged().await;
    world.stop_and_release(worker).await;
    at
}

pg_test!(
    Slots,
    async fn a8_every_place_that_a_slot_may_stand_at_is_reconciled(world: Armed) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.without_idle());
        world.until_streaming().await;
        let first = run_through(&world, worker).await;
        let observer = Observer::start(&world).await;
        keep(&world, "first").await;

        // Level: nothing to do.
        assert_eq!(reconciled(&world).await, first);

        // Behind the acknowledgement, at the generation's start or after it: advanced to it.
        insert(&world, 1).await;
        let second = run_through(&world, world.start_with(world.without_idle())).await;
        put_back(&world, "first").await;
        assert_eq!(world.standing().await.slot, first.slot);
        assert_eq!(reconciled(&world).await, second, "advanced");

        // Between acknowledgement and boundary, and at the boundary: adopted, the boundary stays.
        keep(&world, "second").await;
        kill_at(at::MATERIALIZE_COMMITTED);
        insert(&world, 2).await;
        is_killed(world.start_with(world.without_idle()), at::MATERIALIZE_COMMITTED).await;
        kill_at(at::MATERIALIZE_COMMITTED);
        insert(&world, 3).await;
        // Its start tells the server the boundary at once: the slot moves, the record does not.
        is_killed(world.start_with(world.without_idle()), at::MATERIALIZE_COMMITTED).await;
        let boundary = world.standing().await.processed;
        let ends: Vec<_> = observer.transactions(&world).await.iter().map(|t| t.end_lsn).collect();
        let [.., between, last] = ends[..] else { panic!("four transactions") };
        assert_eq!(last, boundary);
        put_back(&world, "second").await;
        world.sql(&format!("select pg_replication_slot_advance({NAME}, '{between}')")).await;
        let now = world.standing().await;
        assert!(now.acknowledged < now.slot && now.slot < now.processed, "{now:?}");
        let adopted = reconciled(&world).await;
        assert_eq!((adopted.acknowledged, adopted.slot, adopted.processed), (between, between, boundary));
        world.sql(&format!("select pg_replication_slot_advance({NAME}, '{boundary}')")).await;
        let adopted = reconciled(&world).await;
        assert_eq!((adopted.acknowledged, adopted.slot, adopted.processed), (boundary, boundary, boundary));

        // From each of them the stream goes on, and nothing was lost or repeated on the way.
        let worker = world.start_with(world.without_idle());
        run_through(&world, worker).await;
        observer.assert_recorded(&world).await;
        world.assert_consistent().await;
        assert_eq!(world.effects().await.len(), 3);
    }
);

pg_test!(
    Slots,
    async fn a8_a_slot_before_the_start_of_the_generation_is_refused(world: World) {
        world.sql(ITEMS).await;
        // A slot from before the baseline, of the right plugin and database.
        world
            .sql("select pg_create_logical_replication_slot('early_' || current_database(), 'pgoutput')")
            .await;
        insert(&world, 1).await;
        let worker = world.start_with(world.without_idle());
        world.until_streaming().await;
        let before = run_through(&world, worker).await;
        world.sql(&format!("select pg_drop_replication_slot({NAME})")).await;
        world
            .sql(&format!("select pg_copy_logical_replication_slot('early_' || current_database(), {NAME})"))
            .await;
        insert(&world, 2).await;
        let early = world.standing().await.slot;
        let error = world.start().ended().await;
        assert!(matches!(error, CaptureError::Refused(Refusal::SlotBeforeStart { .. })), "{error}");
        let now = world.standing().await;
        assert_eq!((now.slot, now.processed, now.effects), (early, before.processed, before.effects));
        world.until("the reason", "select state = 'stopped' and reason like '%before the generation''s start%' from tidegate.worker_heartbeat").await;
    }
);

pg_test!(
    Slots,
    async fn a8_a_slot_past_the_processed_boundary_is_refused(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        insert(&world, 1).await;
        world.sql(&format!("select pg_replication_slot_advance({NAME}, pg_current_wal_lsn())")).await;
        let before = world.standing().await;
        assert!(before.slot > before.processed);
        let error = world.start().ended().await;
        assert!(matches!(error, CaptureError::Refused(Refusal::SlotPastProcessed { .. })), "{error}");
        assert_eq!(world.standing().await, before);
        world.until("the reason", "select state = 'stopped' and reason like '%past the processed boundary%' from tidegate.worker_heartbeat").await;
    }
);

pg_test!(
    Slots,
    async fn a8_progress_beyond_the_server_is_refused(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        insert(&world, 1).await;
        // As after a restore of the server alone: the boundary alone, and the acknowledgement with it, which PostgreSQL would clamp.
        for columns in
            ["processed_end_lsn = {far}", "processed_end_lsn = {far}, acknowledged_end_lsn = {far}"]
        {
            let far = "pg_current_wal_lsn() + 1000000000";
            world.sql(&format!("update tidegate.progress set {}", columns.replace("{far}", far))).await;
            let before = world.standing().await;
            let error = world.start().ended().await;
            assert!(matches!(error, CaptureError::Refused(Refusal::ProgressPastServer { .. })), "{error}");
            assert_eq!(world.standing().await, before, "no start, no advance, no acknowledgement");
            world.until("the reason", "select state = 'stopped' and reason like '%beyond the server''s WAL%' from tidegate.worker_heartbeat").await;
        }
    }
);

pg_test!(
    Private,
    async fn a8_an_advance_lost_in_a_crash_is_made_again(world: Armed) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.without_idle());
        world.until_streaming().await;
        for n in 0..20 {
            insert(&world, n).await;
        }
        world.settle().await;
        let before = world.until_acknowledged().await;
        worker.kill().await;
        world.server.restart(Stop::Immediate).expect("restart");
        world.until("the server", "select true").await;
        let fallen = world.standing().await;
        assert!(fallen.slot < before.slot, "an advance is not durable when it returns");
        assert_eq!((fallen.acknowledged, fallen.processed), (before.acknowledged, before.processed));
        assert_eq!(reconciled(&world).await, before);
        // A worker that lives through it notices, reconnects, reconciles and goes on.
        let worker = world.start_with(world.without_idle());
        world.until_streams(&worker).await;
        insert(&world, 20).await;
        world.settle().await;
        world.until_acknowledged().await;
        world.server.restart(Stop::Immediate).expect("restart");
        world.until("the server", &format!("select {SLOT} is not null")).await;
        insert(&world, 21).await;
        world.settle().await;
        assert_eq!(
            world.scalar::<i64>("select count(*) from tidegate.effect").await,
            22,
            "A6: no second effect"
        );
        world.assert_consistent().await;
        worker.stop().await;
    }
);
