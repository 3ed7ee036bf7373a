//! One worker owns the stream.

use crate::world::{ITEMS, World, within};
use std::sync::Mutex;
use tidegate_capture::{CaptureError, failpoints};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestContext, TestServer};

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
    Private,
    async fn a_paused_worker_that_wakes_up_after_a_takeover_writes_nothing(server: TestServer) {
        // Its own server: nobody else's slot shall wait for the stopped transaction.
        let world = <World as TestContext>::prepare(server).await;
        world.sql(ITEMS).await;
        let first = world.start_apart();
        world.until_streaming().await;
        // Stopped inside of its transaction, everything written, holding the worker row. Only the first that comes here stops.
        let (stopped, seen) = tokio::sync::oneshot::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let stop = Mutex::new(Some((stopped, released)));
        fail::cfg_callback(failpoints::MATERIALIZE_WRITTEN, move || {
            let first = stop.lock().expect("unpoisoned").take();
            if let Some((stopped, released)) = first {
                let _ = stopped.send(());
                let _ = released.recv();
            }
        })
        .expect("fail point");
        world.sql("insert into items values ('a', 'L1')").await;
        within("the first to be stopped", seen).await.expect("it comes there");
        let second = world.start();
        world.settle().await;
        let transactions: i64 = world.scalar("select count(*) from tidegate.source_transaction").await;
        drop(release);
        let error = first.ended().await;
        assert!(matches!(error, CaptureError::OwnershipLost), "{error}");
        assert_eq!(world.effects().await, ["list:L1 upsert a"]);
        assert_eq!(
            world.scalar::<i64>("select count(*) from tidegate.source_transaction").await,
            transactions
        );
        fail::remove(failpoints::MATERIALIZE_WRITTEN);
        second.stop().await;
    }
);
