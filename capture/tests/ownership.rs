//! One worker owns the stream.

use crate::world::points::{Armed, Pause};
use crate::world::{ITEMS, World};
use std::time::Duration;
use tidegate_capture::{CaptureError, Config, failpoints};
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn r5_a_second_worker_takes_over_and_the_first_ends(world: World) {
        world.sql(ITEMS).await;
        let first = world.start();
        world.until_streaming().await;
        let second = world.start();
        let error = first.ended().await;
        assert!(matches!(error, CaptureError::OwnershipLost), "{error}");
        world.until("the second to stream", "select h.epoch >= 2 and h.state = 'streaming' from tidegate.worker_heartbeat h join tidegate.worker using (epoch)").await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        assert!(second.is_running());
        world.assert_consistent().await;
        second.stop().await;
    }
);

pg_test!(
    Private,
    async fn r5_tx02_a_paused_worker_that_wakes_up_after_a_takeover_writes_nothing(world: Armed) {
        // Its own server: nobody else's slot shall wait for the stopped transaction.
        world.sql(ITEMS).await;
        let first = world.start_apart();
        world.until_streaming().await;
        // Stopped inside of its transaction, everything written, holding the worker row. Only the first that comes here stops.
        let mut pause = Pause::at(failpoints::MATERIALIZE_WRITTEN);
        world.sql("insert into items values ('a', 'L1')").await;
        pause.reached().await;
        let second = world.start();
        world.settle().await;
        let transactions: i64 = world.scalar("select count(*) from tidegate.source_transaction").await;
        pause.release();
        let error = first.ended().await;
        assert!(matches!(error, CaptureError::OwnershipLost), "{error}");
        assert_eq!(world.effects().await, ["list:L1 upsert a"]);
        assert_eq!(
            world.scalar::<i64>("select count(*) from tidegate.source_transaction").await,
            transactions
        );
        second.stop().await;
    }
);

pg_test!(
    Slots,
    async fn r5_a_worker_whose_connections_outlive_the_takeover_writes_nothing(world: World) {
        world.sql(ITEMS).await;
        let apart_from_its_heartbeat = |mut config: Config| {
            // Nothing but the write itself may tell it.
            config.limits.heartbeat_interval = Duration::from_secs(3600);
            config
        };
        // By a transaction, and by an idle observation.
        for (config, write) in [
            (world.without_idle(), "insert into items values (gen_random_uuid()::text, 'L1')"),
            (world.eager(), "select"),
        ] {
            let worker = world.start_with(apart_from_its_heartbeat(config));
            world.until_streams(&worker).await;
            world.settle().await;
            world.until_acknowledged().await;
            // A takeover that ends no connection, as where the server does not let it.
            world.sql("update tidegate.worker set epoch = epoch + 1").await;
            let before = world.standing().await;
            world.sql(write).await;
            world.write_noise().await;
            let error = worker.ended().await;
            assert!(matches!(error, CaptureError::OwnershipLost), "{error}");
            let after = world.standing().await;
            assert_eq!((after.newest, after.effects), (before.newest, before.effects));
            assert_eq!((after.processed, after.acknowledged), (before.processed, before.acknowledged));
        }
        let worker = world.start();
        world.settle().await;
        world.assert_consistent().await;
        assert_eq!(world.effects().await.len(), 1);
        worker.stop().await;
    }
);
