//! A client's own writes: held back until they have come round, and told once when they have.

use super::client::Client;
use super::model_client::Seen;
use super::world::World;
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_gateway::Config;

const MEMBER: &str = "insert into members values (1, 'anna', 'L1'), (2, 'ben', 'L1')";

pg_test!(
    Slots,
    async fn v6_an_accepted_write_comes_round_once_directly_before_its_cut(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        for round in 0..10 {
            let numbers = anna.push(&world, &[(1, &format!("a{round}")), (2, "b")]).await;
            anna.until("both to come round", |model, _| {
                numbers.iter().all(|n| model.materialized.contains(n))
            })
            .await;
        }
        anna.until_list(&world, "L1").await;
        assert!(anna.awaited.is_empty());
        // Sent again on the same socket: the first outcome again, and no second `materialized`.
        anna.push_numbers(&world, 1, &[(1, "a0"), (2, "b")]).await;
        anna.until_seen("the outcome", |seen| matches!(seen, Seen::Outcome { reference: 1, .. })).await;
        anna.ping().await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v6_writes_without_effect_here_and_without_scopes_get_their_cut_too(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let numbers = anna.push(&world, &[(1, "x")]).await;
        anna.until("it to come round", |model, _| model.materialized.contains(&numbers[0])).await;
        anna.until_seen("its cut", |seen| *seen == Seen::Cut).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v6_awaited_writes_are_told_after_a_reconnect(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        worker.kill().await;
        let numbers = anna.push(&world, &[(1, "a"), (2, "b")]).await;
        anna.until_seen("the outcome", |seen| matches!(seen, Seen::Outcome { .. })).await;
        anna.disconnect();
        // Comes round while nobody listens; told at the first cut after the reconnect.
        let worker = world.worker().await;
        world.settle().await;
        assert_eq!(anna.awaited.len(), 2);
        anna.connect(&serving).await;
        anna.subscribe("list:L1").await;
        anna.until("both to be told", |model, _| numbers.iter().all(|n| model.materialized.contains(n)))
            .await;
        anna.until_list(&world, "L1").await;
        // The answer to a push was lost; sent again, it has its first outcome and is told as visible, once.
        anna.disconnect();
        anna.connect(&serving).await;
        anna.push_numbers(&world, 1, &[(1, "a"), (2, "b")]).await;
        anna.until("both to be told again on this socket", |model, _| model.materialized.len() == 2).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v3_a_gateway_that_takes_no_pushes_knows_its_clients_all_the_same(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let numbers = anna.push(&world, &[(1, "a"), (2, "b")]).await;
        anna.until_seen("the outcome", |seen| matches!(seen, Seen::Outcome { .. })).await;
        anna.disconnect();
        world.settle().await;
        anna.awaited = numbers.iter().copied().collect();
        let reading = world.gateway_with(Config { push: None, ..world.config() }).await;
        anna.connect(&reading).await;
        anna.until("both to be told", |model, _| numbers.iter().all(|n| model.materialized.contains(n)))
            .await;
        anna.join("list:L1").await;
        anna.until_list(&world, "L1").await;

        // One ahead of this server, and one that it never knew.
        anna.disconnect();
        anna.awaited = [9].into();
        let mut unknown = Client::new(Some("ben"));
        unknown.new = false;
        for client in [&mut anna, &mut unknown] {
            client.open(&reading).await;
            client.hello().await;
            client
                .until_seen(
                    "the refusal",
                    |seen| matches!(seen, Seen::Error { code, .. } if code == "client_expired"),
                )
                .await;
        }
        worker.stop().await;
        serving.stop().await;
        reading.stop().await;
    }
);

pg_test!(
    Slots,
    async fn sessions_begin_while_every_push_waits_for_a_lock(world: World) {
        world.sql(MEMBER).await;
        world.sql("insert into items values (1, 'L1', 1, 'a')").await;
        let worker = world.worker().await;
        let mut config = world.config();
        let push = config.push.as_mut().expect("pushes");
        (push.timeout, push.lock_timeout, push.queue_wait) =
            (Duration::from_secs(60), Duration::from_secs(60), Duration::from_secs(60));
        let connections = push.connections_max;
        let serving = world.gateway_with(config).await;
        let mut waiting = Vec::new();
        for number in 0..=connections {
            waiting.push(Client::connected(&serving, Some(&format!("user{number}"))).await);
        }
        let mut owner = world.pool().begin().await.expect("a transaction");
        sqlx::query("select from items where id = 1 for update").execute(&mut *owner).await.expect("a lock");
        for client in &mut waiting {
            client.push(&world, &[(1, "waits")]).await;
        }
        world
            .until(
                "every push to wait",
                &format!(
                    "select count(*) = {connections} from pg_stat_activity \
                     where datname = current_database() and application_name = 'tidegate push' and wait_event_type = 'Lock'"
                ),
            )
            .await;
        let mut anna = Client::new(Some("anna"));
        anna.open(&serving).await;
        anna.hello().await;
        let first = anna.next().await;
        assert!(matches!(first, Some(Seen::Welcome { .. })), "{first:?}");
        anna.join("list:L1").await;
        owner.rollback().await.expect("the end");
        for client in &mut waiting {
            client.until_seen("the outcome", |seen| matches!(seen, Seen::Outcome { .. })).await;
        }
        anna.disconnect();
        worker.stop().await;
        serving.stop().await;
    }
);
