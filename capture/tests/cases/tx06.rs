//! TX-06: what comes again is recognised by its identity, never by the position of a message.

use crate::world::observer::Observer;
use crate::world::points::{Armed, is_killed};
use crate::world::tap::{Held, Tap};
use crate::world::{LISTS_AND_ITEMS, World};
use tidegate_capture::failpoints as at;
use tidegate_embedded::pg_test;

/// Back to back: two of one row each, one that begins with a bare message, and one that ends with a fence.
async fn write(world: &World, round: usize) {
    let id = round * 10;
    world
        .sql(&format!(
            "begin; insert into item (id, list_id) values ({id}, 'L1'); commit;
             begin; update item set rev = rev + 1 where id = {id}; commit;
             begin; select pg_logical_emit_message(true, 'of somebody', 'x'); insert into item (id, list_id) values ({}, 'L1'); commit;
             begin; insert into item (id, list_id) values ({}, 'L1'); delete from item where id = {id}; commit",
            id + 1,
            id + 2
        ))
        .await;
}

pg_test!(
    Slots,
    async fn tx06_r3_killed_after_each_received_message_it_resumes_with_whole_transactions(world: Armed) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        let observer = Observer::start(&world).await;
        world.sql("insert into list values ('L1', 'one')").await;
        world.settle().await;
        world.stop_and_release(worker).await;
        for passed in 0.. {
            write(&world, passed).await;
            fail::cfg(at::EVENT_RECEIVED, &format!("{passed}*off->return")).expect("fail point");
            let mut worker = world.start_with(world.without_idle());
            let marker = world.emit_marker().await;
            let lives = worker.lives_until(&world, &marker).await;
            if lives {
                fail::remove(at::EVENT_RECEIVED);
                println!("{passed} messages in all");
                assert!(passed >= 19, "four transactions of four messages and more");
                worker.stop().await;
                break;
            }
            is_killed(worker, at::EVENT_RECEIVED).await;
            let worker = world.start_with(world.without_idle());
            world.settle().await;
            worker.kill().await;
        }
        let worker = world.start();
        world.settle().await;
        observer.assert_recorded(&world).await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx06_r3_resumed_with_the_slot_behind_ours_nothing_comes_twice(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        let observer = Observer::start(&world).await;
        world.stop_and_release(worker).await;
        // No status update arrives, so the slot stays where it is while transactions become durable.
        let tap = Tap::before(&world).await;
        let mut config = world.without_idle();
        config.database_url = tap.url();
        let worker = world.start_with(config);
        world.until_streams(&worker).await;
        tap.hold(Held { stream: false, status: true });
        world.sql("insert into list values ('L1', 'one')").await;
        for round in 0..4 {
            write(&world, round).await;
        }
        world.settle().await;
        worker.kill().await;
        let before = world.standing().await;
        let durable = observer.assert_recorded(&world).await;
        assert!(before.slot < durable[0].commit_lsn && before.acknowledged < durable[0].commit_lsn);
        let everything = world.everything().await;
        // It comes again, whole, and changes nothing; not even the row versions of a table are written anew.
        let worker = world.start_with(world.without_idle());
        world.until_streams(&worker).await;
        world.until_acknowledged().await;
        assert_eq!(world.everything().await, everything);
        world.sql("update item set rev = 0").await;
        world.settle().await;
        observer.assert_recorded(&world).await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);
