//! TX-01: acknowledged before durable.

use crate::killed::stream_points;
use crate::world::observer::Observer;
use crate::world::points::{Armed, kill_at};
use crate::world::standing::Watch;
use crate::world::tap::{Held, Passed, Tap};
use crate::world::{LISTS_AND_ITEMS, World};
use tidegate_capture::CaptureError;
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn tx01_a3_keepalives_that_ask_pass_while_a_transaction_is_only_in_memory(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        // The server asks after half of this without a word.
        world
            .sql(&format!("alter database \"{}\" set wal_sender_timeout = '1s'", world.db.database.name()))
            .await;
        let observer = Observer::start(&world).await;
        let tap = Tap::before(&world).await;
        let mut config = world.eager();
        config.database_url = tap.url();
        let worker = world.start_with(config);
        world.until_streams(&worker).await;
        let watch = Watch::start(world.pool());
        let lock = world.lock_projection(1).await;
        world.sql("insert into list values ('L1', 'one')").await;
        world.until_locked_out().await;
        let small = observer.transactions(&world).await.last().expect("a transaction").commit_lsn;
        world.write_noise().await;
        // The worker's unasked words are held back until the server asks; then they pass, and with them the answer.
        for round in 0..2 {
            let before = tap.passed().len();
            tap.hold(Held { stream: false, status: true });
            let asks = |passed: &[Passed]| {
                passed[before..].iter().position(|p| matches!(p, Passed::KeepAlive { asks: true, .. }))
            };
            tap.until("a keepalive that asks", |passed| asks(passed).is_some()).await;
            tap.resume();
            let answered = |passed: &[Passed]| {
                let at = asks(passed).map_or(usize::MAX, |at| before + at);
                passed.iter().skip(at).filter(|p| matches!(p, Passed::Status { .. })).count() > 1
            };
            tap.until("its answer", answered).await;
            println!("asked and answered {}", round + 1);
        }
        let during = world.standing().await;
        assert!(during.processed <= small && during.slot <= small, "{during:?}");
        assert!(tap.told().iter().all(|told| *told <= small), "an answer tells no more than what is durable");
        worker.kill().await;
        lock.rollback().await.expect("rollback");
        let worker = world.start_with(world.eager());
        world.settle().await;
        // The idle stretch: with nothing in flight the slot may follow the keepalives.
        world.write_noise().await;
        let end = world.lsn("select pg_current_wal_flush_lsn()").await;
        world
            .until("the slot to follow", &format!("select {} >= '{end}'", crate::world::standing::SLOT))
            .await;
        watch.stop().await;
        observer.assert_recorded(&world).await;
        assert_eq!(world.effects().await, ["list:L1 upsert L1"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx01_a5_killed_at_every_await_point_with_an_idle_stretch_after(world: Armed) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        worker.kill().await;
        world.until_released().await;
        let observer = Observer::start(&world).await;
        let watch = Watch::start(world.pool());
        world.sql("insert into list values ('L1', 'one')").await;
        let points: Vec<&str> = stream_points().collect();
        for (id, name) in (1..).zip(&points) {
            let lock = world.lock_projection(2).await;
            kill_at(name);
            let worker = world.start_with(world.eager());
            world.sql(&format!("insert into item (id, list_id) values ({id}, 'L1')")).await;
            world.write_noise().await;
            // It dies before the lock, or waits behind it and dies after; either way nothing was acknowledged that is not durable.
            world.until("its death, or its wait", "select not exists (select from pg_stat_activity where datname = current_database()
                and application_name like 'tidegate capture % stream') or exists (select from pg_stat_activity where datname = current_database()
                and application_name like 'tidegate capture % materialize' and wait_event_type = 'Lock')").await;
            lock.rollback().await.expect("rollback");
            let error = worker.ended().await;
            assert!(matches!(error, CaptureError::Killed(point) if point == *name), "{name}: {error}");
            fail::remove(*name);
            world.write_noise().await;
        }
        let worker = world.start_with(world.eager());
        world.settle().await;
        watch.stop().await;
        observer.assert_recorded(&world).await;
        world.assert_consistent().await;
        assert_eq!(world.projected_rows("item").await.len(), points.len());
        worker.stop().await;
    }
);
