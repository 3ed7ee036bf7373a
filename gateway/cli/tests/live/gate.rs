//! V2, interleaving by interleaving: nothing that pretends to be current goes to a client whose own write has not come round.

use super::client::{Client, Write};
use super::hold::{GatewayHold, WorkerHold};
use super::judge::{Judge, fence};
use super::model_client::Seen;
use super::world::{MEMBERS, Serving, Worker, World};
use std::time::Duration;
use tidegate_capture::failpoints as capture;
use tidegate_embedded::pg_test;
use tidegate_gateway::failpoints as gateway;
use tidegate_model::Point;
use tidegate_protocol::{Limits, ServerFrame};

/// Whether any of these moves a copy, or says that it is current.
pub fn moves(seen: &[Seen]) -> bool {
    seen.iter().any(|seen| {
        matches!(seen, Seen::Page { .. } | Seen::Rebuild { .. } | Seen::Joined { .. } | Seen::Cut)
    })
}

fn rebuild_frames(client: &Client) -> Vec<Vec<u8>> {
    let is_rebuild = |bytes: &[u8]| {
        matches!(ServerFrame::decode(bytes, &Limits::FROM_SERVER), Ok(ServerFrame::Rebuild(_)))
    };
    client.frames.iter().filter(|bytes| is_rebuild(bytes)).map(|bytes| bytes.to_vec()).collect()
}

/// It is told to wait for `number`, and nothing else comes.
async fn is_held(client: &mut Client, number: u64) {
    let pending = |seen: &Seen| matches!(seen, Seen::CapturePending(_));
    assert_eq!(client.until_seen("capture_pending", pending).await, Seen::CapturePending(vec![number]));
    client.ping().await;
    assert!(!moves(&client.seen), "V2: {:?}", client.seen);
}

/// A worker that may be held, and a gateway whose rebuild pages stay in the cache.
async fn start(world: &World) -> (Worker, Serving) {
    let mut config = world.config();
    config.limits.rebuild_run_age_max = Duration::from_secs(3600);
    (world.worker_apart().await, world.gateway_with(config).await)
}

/// Anna's two sockets rebuild from the pages that Ben has filled the cache with, and end at or after her write.
async fn rebuilds_from_the_cache(world: &World, sockets: [&mut Client; 2], cached: &[Vec<u8>], number: u64) {
    let judge = Judge::of(world).await;
    for client in sockets {
        client.joined("list:L1").await;
        assert_eq!(rebuild_frames(client), cached, "the cached page, byte for byte");
        assert_eq!(client.list("L1"), world.list("L1").await);
        let commit_lsn = fence(world, client, number).await;
        assert!(judge.stands(client, "list:L1") >= Point::TransactionEnd { commit_lsn }, "V2");
    }
}

pg_test!(
    Slots,
    async fn v2_a_page_cached_before_the_own_write_goes_out_only_after_it_and_not_as_the_end(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'old'), (2, 'L1', 2, 'stays')").await;
        let (worker, serving) = start(&world).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut twin = anna.twin();
        twin.connect(&serving).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        ben.join("list:L1").await;
        let cached = rebuild_frames(&ben);
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        let number = anna.write(&world, &[Write::update(1, "new")]).await;
        anna.outcome(number).await;
        hold.reached().await;
        for client in [&mut anna, &mut twin] {
            client.subscribe("list:L1").await;
            is_held(client, number).await;
        }
        // Somebody else's client does not wait for it.
        ben.join("news").await;
        drop(hold);
        rebuilds_from_the_cache(&world, [&mut anna, &mut twin], &cached, number).await;
        Judge::of(&world).await.came_round_once(&world, &anna, number).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v2_a_page_cached_after_the_own_write_and_without_it_goes_out_only_after_it(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'old'), (2, 'L1', 2, 'stays')").await;
        let (worker, serving) = start(&world).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut twin = anna.twin();
        twin.connect(&serving).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        let number = anna.write(&world, &[Write::update(1, "new")]).await;
        anna.outcome(number).await;
        hold.reached().await;
        // Just filled, and it lacks what she knows to be committed.
        ben.join("list:L1").await;
        let cached = rebuild_frames(&ben);
        assert_eq!(ben.list("L1")[0].2.as_deref(), Some("old"));
        for client in [&mut anna, &mut twin] {
            client.subscribe("list:L1").await;
            is_held(client, number).await;
        }
        drop(hold);
        rebuilds_from_the_cache(&world, [&mut anna, &mut twin], &cached, number).await;
        Judge::of(&world).await.came_round_once(&world, &anna, number).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v2_a_rebuild_under_way_while_the_own_write_is_accepted_ends_only_after_it(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'old')").await;
        let (worker, serving) = start(&world).await;
        let judge = Judge::of(&world).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut read = GatewayHold::of(gateway::REBUILD_READ, "anna");
        anna.subscribe("list:L1").await;
        read.reached().await;
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        let number = anna.write(&world, &[Write::update(1, "new")]).await;
        anna.outcome(number).await;
        hold.reached().await;
        drop(read);
        // The page belongs to the operation that began before; the end of the rebuild to the next.
        anna.until_seen("the page", |seen| matches!(seen, Seen::Rebuild { .. })).await;
        anna.seen.clear();
        is_held(&mut anna, number).await;
        drop(hold);
        anna.joined("list:L1").await;
        assert_eq!(anna.list("L1"), world.list("L1").await);
        let commit_lsn = fence(&world, &anna, number).await;
        assert!(judge.stands(&anna, "list:L1") >= Point::TransactionEnd { commit_lsn });
        judge.came_round_once(&world, &anna, number).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v2_live_pages_of_others_wait_for_the_clients_own_write(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = start(&world).await;
        let judge = Judge::of(&world).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        anna.join("list:L1").await;
        ben.join("list:L1").await;
        anna.seen.clear();
        // The application's transaction is written and not committed; hers comes after it and is held in its turn.
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        world.sql("insert into items values (5, 'L1', 5, 'the application''s')").await;
        hold.reached().await;
        let number = anna.write(&world, &[Write::insert(6, "anna's")]).await;
        anna.outcome(number).await;
        hold.let_one_go();
        hold.reached().await;
        // The first is durable now, and everybody else has it.
        ben.until("the application's row", |model, _| model.held["list:L1"].rows.len() == 1).await;
        is_held(&mut anna, number).await;
        drop(hold);
        anna.until_list(&world, "L1").await;
        judge.came_round_once(&world, &anna, number).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v2_nothing_moves_until_the_clients_own_write_has_come_round(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        anna.join("list:L1").await;
        ben.join("list:L1").await;
        // Capture stands still: Anna's write is committed, and its coming round is not.
        worker.kill().await;
        let numbers = anna.push(&world, &[(1, "anna's")]).await;
        anna.until_seen("the outcome", |seen| matches!(seen, Seen::Outcome { .. })).await;
        anna.seen.clear();
        // Neither a new subscription nor a resume pretends otherwise, on this or another socket of the client.
        anna.subscribe("news").await;
        is_held(&mut anna, numbers[0]).await;
        anna.disconnect();
        anna.connect(&serving).await;
        anna.seen.clear();
        anna.subscribe("list:L1").await;
        is_held(&mut anna, numbers[0]).await;
        // Somebody else's client does not wait for it.
        ben.join("news").await;
        let worker = world.worker().await;
        anna.until_round(numbers[0]).await;
        anna.until_list(&world, "L1").await;
        ben.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v2_too_many_writes_that_have_not_come_round_are_capture_behind_and_nothing_is_lost(
        world: World,
    ) {
        world.sql(MEMBERS).await;
        let worker = world.worker_apart().await;
        let mut config = world.config();
        let push = config.push.as_mut().expect("pushes");
        (push.batch_mutations_max, push.unmaterialized_max) = (2, 3);
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        let first = anna.write(&world, &[Write::insert(1, "a"), Write::insert(2, "b")]).await;
        assert_eq!(anna.outcome(first).await.len(), 2);
        hold.reached().await;
        let second = [Write::insert(3, "c"), Write::insert(4, "d")];
        let number = anna.write(&world, &second).await;
        assert_eq!(anna.error().await, "capture_behind");
        // What was decided is still told meanwhile.
        anna.resend(&world, first, &[Write::insert(1, "a"), Write::insert(2, "b")]).await;
        assert_eq!(anna.outcome(first).await.len(), 2);
        drop(hold);
        anna.until_round(first + 1).await;
        anna.resend(&world, number, &second).await;
        assert_eq!(anna.outcome(number).await.len(), 2);
        anna.until_round(number + 1).await;
        anna.until_list(&world, "L1").await;
        assert_eq!(anna.list("L1").len(), 4);
        worker.stop().await;
        serving.stop().await;
    }
);
