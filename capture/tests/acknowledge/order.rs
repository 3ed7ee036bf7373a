//! A4, A5: in which order boundary, slot and acknowledgement move, and to what.

use crate::grouping::{Random, items_transaction};
use crate::poison::SECRET;
use crate::world::points::{Armed, Pause, is_killed, kill_at};
use crate::world::standing::{SLOT, Standing, Watch};
use crate::world::tap::{Held, Passed, Tap};
use crate::world::{ITEMS, Running, World};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_capture::failpoints as at;
use tidegate_embedded::pg_test;
use tidegate_model::Lsn;

pg_test!(
    Slots,
    async fn a4_the_slot_reaches_the_boundary_and_its_record_follows(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.without_idle());
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        let at = world.until_acknowledged().await;
        assert_eq!((at.acknowledged, at.slot), (at.processed, at.processed));
        assert_eq!(at.newest.map(|(_, end)| end), Some(at.processed));
        worker.stop().await;
    }
);

/// A worker that streams with everything acknowledged, and where that is.
async fn acknowledged(world: &World) -> (Running, Standing) {
    let worker = world.start_with(world.without_idle());
    world.until_streams(&worker).await;
    world.settle().await;
    (worker, world.until_acknowledged().await)
}

pg_test!(
    Slots,
    async fn a4_a_kill_between_any_two_steps_leaves_what_the_order_allows(world: Armed) {
        world.sql(ITEMS).await;
        let insert = "insert into items values (gen_random_uuid()::text, 'L1')";
        // Before the commit: nothing has moved.
        let (worker, before) = acknowledged(&world).await;
        kill_at(at::MATERIALIZE_WRITTEN);
        world.sql(insert).await;
        is_killed(worker, at::MATERIALIZE_WRITTEN).await;
        assert_eq!(world.standing().await, before);

        // Committed, and with it the boundary; nobody has been told.
        let (worker, before) = acknowledged(&world).await;
        assert_eq!(before.effects, 1, "the killed one came again, once");
        kill_at(at::MATERIALIZE_COMMITTED);
        world.sql(insert).await;
        is_killed(worker, at::MATERIALIZE_COMMITTED).await;
        let now = world.standing().await;
        assert_moved(&before, &now);
        assert_eq!((now.slot, now.acknowledged), (before.slot, before.acknowledged));

        // Told; whether the slot has moved is the server's secret, the acknowledgement has not.
        let (worker, before) = acknowledged(&world).await;
        kill_at(at::STATUS_REPORTED);
        world.sql(insert).await;
        is_killed(worker, at::STATUS_REPORTED).await;
        let now = world.standing().await;
        assert_moved(&before, &now);
        assert!(now.slot == before.slot || now.slot == now.processed, "{now:?}");
        assert_eq!(now.acknowledged, before.acknowledged);

        // The slot has moved and was read back; the acknowledgement is not recorded. The pause lets the server catch up: what was
        // read before is not the moved position, so nothing is recorded either once it is released.
        let (worker, before) = acknowledged(&world).await;
        worker.kill().await;
        let worker = world.start_apart_with(world.without_idle());
        world.until_streams(&worker).await;
        let mut pause = Pause::at(at::SLOT_READ_BACK);
        world.sql(insert).await;
        pause.reached().await;
        world
            .until("the slot to move", &format!("select {SLOT} = processed_end_lsn from tidegate.progress"))
            .await;
        assert_eq!(world.standing().await.acknowledged, before.acknowledged);
        pause.release_into_kill();
        is_killed(worker, at::SLOT_READ_BACK).await;
        let now = world.standing().await;
        assert_moved(&before, &now);
        assert_eq!((now.slot, now.acknowledged), (now.processed, before.acknowledged));

        // Recorded: all three agree. A record is seen a moment before its worker passes the point: one that dies there for the
        // acknowledgement before this one shows nothing.
        let mut inserted = 4;
        let mut shown = false;
        while !shown {
            assert!(inserted < 24, "it never dies for the newest acknowledgement");
            let (worker, before) = acknowledged(&world).await;
            kill_at(at::ACKNOWLEDGED);
            world.sql(insert).await;
            inserted += 1;
            is_killed(worker, at::ACKNOWLEDGED).await;
            let now = world.standing().await;
            shown = now.transactions > before.transactions;
            if shown {
                assert_moved(&before, &now);
                assert_eq!((now.slot, now.acknowledged), (now.processed, now.processed));
            }
        }

        let (worker, last) = acknowledged(&world).await;
        assert_eq!(last.effects, inserted);
        world.assert_consistent().await;
        worker.stop().await;
    }
);

/// One transaction more is durable, and the boundary is its end.
fn assert_moved(before: &Standing, now: &Standing) {
    assert_eq!((now.transactions, now.effects), (before.transactions + 1, before.effects + 1));
    assert!(now.processed > before.processed);
    assert_eq!(now.newest.map(|(_, end)| end), Some(now.processed));
}

pg_test!(
    Slots,
    async fn a4_a_kill_between_the_steps_of_an_idle_move_leaves_what_the_order_allows(world: Armed) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        for name in [at::IDLE_RECORDED, at::STATUS_REPORTED, at::ACKNOWLEDGED] {
            let (worker, before) = acknowledged(&world).await;
            world.stop_and_release(worker).await;
            let mut tap = Tap::before(&world).await;
            let mut config = world.eager();
            config.database_url = tap.url();
            let worker = world.start_with(config);
            world.until_streams(&worker).await;
            kill_at(name);
            world.write_noise().await;
            is_killed(worker, name).await;
            let now = world.standing().await;
            assert!(now.processed > before.processed, "{name}: recorded");
            assert_eq!((now.newest, now.effects), (before.newest, before.effects));
            let seen =
                |passed: &Passed| matches!(passed, Passed::KeepAlive { end, .. } if *end == now.processed);
            assert!(tap.passed().iter().any(seen), "{name}: the end of a keepalive");
            assert!(now.acknowledged <= now.slot && now.slot <= now.processed, "{name}: {now:?}");
            if name == at::IDLE_RECORDED {
                assert!(now.slot < now.processed, "the server has not been told");
                assert!(tap.told().iter().all(|told| *told < now.processed));
            }
            if name == at::ACKNOWLEDGED {
                assert!(now.acknowledged > before.acknowledged);
            }
            tap.cut();
            let (worker, _) = acknowledged(&world).await;
            world.assert_consistent().await;
            world.stop_and_release(worker).await;
        }
    }
);

pg_test!(
    Slots,
    async fn a4_an_acknowledgement_is_recorded_only_up_to_a_slot_position_read_back(world: World) {
        world.sql(ITEMS).await;
        let (worker, before) = acknowledged(&world).await;
        world.stop_and_release(worker).await;
        let tap = Tap::before(&world).await;
        let mut config = world.without_idle();
        config.database_url = tap.url();
        config.limits.acknowledge_interval = Duration::from_millis(10);
        let worker = world.start_with(config);
        world.until_streams(&worker).await;
        // Status updates are sent and do not arrive: an update is not an advance.
        tap.hold(Held { stream: false, status: true });
        for n in 0..5 {
            world.sql(&format!("insert into items values ('{n}', 'L1')")).await;
        }
        world.settle().await;
        world.until_beats().await;
        let held = world.standing().await;
        assert!(held.processed > before.processed && held.effects == 5);
        assert_eq!((held.slot, held.acknowledged), (before.processed, before.processed));
        tap.resume();
        world.until_acknowledged().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a4_acknowledgement_slot_and_boundary_are_in_order_at_every_moment(world: World) {
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        let mut random = Random(seed + 1);
        world.sql(ITEMS).await;
        let worker = world.start_with(world.eager());
        world.until_streaming().await;
        worker.kill().await;
        let watch = Watch::start(world.pool());
        for _ in 0..6 {
            let worker = world.start_with(world.eager());
            world.until_streams(&worker).await;
            for _ in 0..random.below(12) {
                world.sql(&format!("begin; {} commit", items_transaction(&mut random))).await;
            }
            if random.below(2) == 0 {
                world.write_noise().await;
            }
            worker.kill().await;
        }
        let worker = world.start_with(world.eager());
        world.settle().await;
        world.until("an acknowledgement", "select acknowledged_end_lsn > (select barrier_end_lsn from tidegate.stream_generation) from tidegate.progress").await;
        let seen = watch.stop().await;
        println!("{} states seen", seen.len());
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a5_a7_the_server_is_told_recorded_boundaries_and_nothing_else(world: World) {
        world.sql(ITEMS).await;
        let (worker, _) = acknowledged(&world).await;
        world.stop_and_release(worker).await;
        world.keep_history().await;
        let tap = Tap::before(&world).await;
        let mut config = world.eager();
        config.database_url = tap.url();
        (config.limits.group_events_max, config.limits.group_transactions_max) = (50, 3);
        let watch = Watch::start(world.pool());
        // Groups, one transaction in pieces, unrelated writes.
        for round in 0..8 {
            world
                .sql(&format!("insert into items select '{round}-' || g, 'L1' from generate_series(1, 5) g"))
                .await;
            world.sql(&format!("insert into items values ('{round}', 'L1')")).await;
        }
        let worker = world.start_with(config);
        world.sql("insert into items select 'piece' || g, 'L2' from generate_series(1, 400) g").await;
        world.settle().await;
        world.write_noise().await;
        // A gap: one transaction fails, and what follows it is received and not told.
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        world.sql(&format!("alter table tidegate_projection.s{state}_p1 add constraint trap check (octet_length(row) < 500)")).await;
        world.sql("insert into items values ('before', 'L1')").await;
        world.sql(&format!("insert into items values ('gap', 'L1', 1, repeat('{SECRET}', 100))")).await;
        world.sql("insert into items values ('after', 'L1')").await;
        world.write_noise().await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active')").await;
        world.until_beats().await;
        let at = world.standing().await;
        let gap = world.lsn("select commit_lsn from tidegate.poison").await;
        assert!(at.processed <= gap, "not past the gap");
        worker.stop().await;
        let history: Vec<(String, String)> = sqlx::query_as(
            "select processed::text, acknowledged::text from public.progress_history h order by h.id",
        )
        .fetch_all(world.pool())
        .await
        .expect("the history");
        let lsn = |text: &str| text.parse::<Lsn>().expect("a position");
        let mut boundaries: BTreeSet<Lsn> = history.iter().map(|(processed, _)| lsn(processed)).collect();
        // Where the history begins.
        boundaries.extend(history.first().map(|(_, acknowledged)| lsn(acknowledged)));
        assert!(boundaries.len() > 5);
        for told in tap.told() {
            assert!(boundaries.contains(&told), "told {told}, which was never a recorded boundary");
        }
        for (_, acknowledged) in &history {
            assert!(boundaries.contains(&lsn(acknowledged)));
        }
        for [_, slot, _] in watch.stop().await {
            assert!(
                boundaries.contains(&slot),
                "the slot stood at {slot}, which was never a recorded boundary"
            );
        }
    }
);
