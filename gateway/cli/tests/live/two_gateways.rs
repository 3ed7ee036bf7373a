//! Two gateways on one database: what is pushed at one is gated, told and paged at the other as if there were only one (V1, V2, V6).

use super::client::{Client, Write};
use super::gate::moves;
use super::hold::WorkerHold;
use super::judge::{Judge, ran};
use super::link::{Link, Weather};
use super::model_client::Seen;
use super::world::{MEMBERS, World};
use std::time::Duration;
use tidegate_capture::failpoints as capture;
use tidegate_embedded::pg_test;

async fn is_held(client: &mut Client, number: u64) {
    client.until_seen("capture_pending", |seen| *seen == Seen::CapturePending(vec![number])).await;
    client.ping().await;
    assert!(!moves(&client.seen), "V2: {:?}", client.seen);
}

pg_test!(
    Slots,
    async fn v1_v2_v6_pushed_at_one_gateway_it_is_gated_at_both_and_told_once_on_each_socket(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'old')").await;
        let (worker, here) = world.start_apart().await;
        let there = world.gateway().await;
        let judge = Judge::of(&world).await;
        // The client's sockets, at both, live and not subscribed yet; and somebody else at the other.
        let mut anna = Client::connected(&here, Some("anna")).await;
        anna.join("list:L1").await;
        let mut live = anna.twin();
        live.connect(&there).await;
        live.join("list:L1").await;
        let mut later = anna.twin();
        later.connect(&there).await;
        let mut ben = Client::connected(&there, Some("ben")).await;
        ben.join("list:L1").await;
        for client in [&mut anna, &mut live, &mut later, &mut ben] {
            client.seen.clear();
        }
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        world.sql("update items set body = 'the application''s' where id = 1").await;
        hold.reached().await;
        let number = anna.write(&world, &[Write::insert(2, "hers")]).await;
        anna.outcome(number).await;
        // V1: neither the push nor what is only written moves anybody anywhere.
        for client in [&mut anna, &mut live, &mut ben] {
            client.ping().await;
            assert!(!moves(&client.seen), "V1: {:?}", client.seen);
        }
        // The other gateway's sockets of this client report it as awaited, as its store knows.
        later.disconnect();
        later.awaited = [number].into();
        later.connect(&there).await;
        later.seen.clear();
        later.subscribe("list:L1").await;
        is_held(&mut later, number).await;
        hold.let_one_go();
        hold.reached().await;
        // The application's transaction is durable: Ben has it, and no socket of hers.
        ben.until("the application's row", |_, seen| matches!(seen, Seen::Page { .. } | Seen::Cut)).await;
        assert_eq!(ben.list("L1"), [(1, Some(1), Some("the application's".into()))]);
        for client in [&mut anna, &mut live] {
            is_held(client, number).await;
        }
        drop(hold);
        for client in [&mut anna, &mut later] {
            client.until_round(number).await;
            client.until_list(&world, "L1").await;
            judge.came_round_once(&world, client, number).await;
        }
        // A socket that neither pushed nor asked is told nothing, and has the row.
        live.until_list(&world, "L1").await;
        ben.until_list(&world, "L1").await;
        live.ping().await;
        assert!(!live.seen.iter().any(|seen| matches!(seen, Seen::Materialized(_))), "V6: {:?}", live.seen);
        assert_eq!(ran(&world, &anna, number).await, 1);
        worker.stop().await;
        here.stop().await;
        there.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v2_v6_a_push_that_the_other_gateway_hears_of_late_still_gates_there(world: World) {
        world.sql(MEMBERS).await;
        let (worker, here) = world.start().await;
        let link = Link::to(world.server.port()).await;
        let mut config = world.config_at(link.port);
        (config.push, config.limits.rescan) = (None, Duration::from_millis(50));
        let there = world.gateway_with(config).await;
        let judge = Judge::of(&world).await;
        let mut anna = Client::connected(&here, Some("anna")).await;
        let mut late = anna.twin();
        late.connect(&there).await;
        late.join("list:L1").await;
        late.seen.clear();
        link.set(Weather::Silent);
        let number = anna.write(&world, &[Write::insert(1, "hers")]).await;
        anna.outcome(number).await;
        anna.until_round(number).await;
        // Everybody at the first gateway has it; the other one knows nothing and says nothing.
        anna.join("list:L1").await;
        late.ping().await;
        assert!(!moves(&late.seen), "{:?}", late.seen);
        link.set(Weather::Fair);
        late.until_list(&world, "L1").await;
        late.disconnect();
        late.awaited = [number].into();
        late.connect(&there).await;
        late.subscribe("list:L1").await;
        late.until_round(number).await;
        late.ping().await;
        judge.came_round_once(&world, &late, number).await;
        worker.stop().await;
        here.stop().await;
        there.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v4_v6_many_clients_write_at_both_gateways_and_all_copies_agree(world: World) {
        world.sql(MEMBERS).await;
        let (worker, here) = world.start().await;
        let there = world.gateway().await;
        let judge = Judge::of(&world).await;
        let mut clients = Vec::new();
        for (index, user) in ["anna", "ben", "anna", "ben"].into_iter().enumerate() {
            let mut client = Client::connected(if index % 2 == 0 { &here } else { &there }, Some(user)).await;
            client.join("list:L1").await;
            clients.push(client);
        }
        let mut told = Vec::new();
        for round in 0..6 {
            for (index, client) in clients.iter_mut().enumerate() {
                let writes = [
                    Write::upsert(index as i64, &format!("{round}")),
                    Write::upsert(100, &format!("everybody's {index} {round}")),
                ];
                told.push((index, client.write(&world, &writes).await));
            }
        }
        for (index, first) in told {
            for number in [first, first + 1] {
                clients[index].until_round(number).await;
                assert_eq!(ran(&world, &clients[index], number).await, 1);
            }
            let client = &clients[index];
            judge.came_round_once(&world, client, first).await;
        }
        for client in &mut clients {
            client.until_list(&world, "L1").await;
        }
        worker.stop().await;
        here.stop().await;
        there.stop().await;
    }
);
