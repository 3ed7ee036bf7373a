//! One worker owns the stream.

use crate::world::points::{Armed, Pause};
use crate::world::{ITEMS, World};
use tidegate_capture::{CaptureError, failpoints};
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
