//! One worker owns the stream.

use crate::world::{ITEMS, World};
use tidegate_capture::{CaptureError, failpoints};
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn a_second_worker_takes_over_and_the_first_ends(world: World) {
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
    Slots,
    async fn a_paused_worker_that_wakes_up_after_a_takeover_writes_nothing(world: World) {
        world.sql(ITEMS).await;
        let first = world.start_apart();
        world.until_streaming().await;
        // Stopped inside of its transaction, everything written, holding the worker row.
        let point = fail::FailGuard::new(failpoints::MATERIALIZE_WRITTEN, "1*pause").expect("fail point");
        world.sql("insert into items values ('a', 'L1')").await;
        world.until("the first to be stopped", "select exists (select from pg_stat_activity where application_name like 'tidegate capture % materialize' and state = 'idle in transaction')").await;
        let second = world.start();
        world.settle().await;
        let transactions: i64 = world.scalar("select count(*) from tidegate.source_transaction").await;
        drop(point);
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
