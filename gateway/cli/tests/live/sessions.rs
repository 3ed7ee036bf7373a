//! From subscribe to live pages, and back again.

use super::client::Client;
use super::model_client::Seen;
use super::world::World;
use tidegate_embedded::pg_test;

const MEMBER: &str = "insert into members values (1, 'anna', 'L1'), (2, 'anna', 'L2'), (3, 'ben', 'L1')";

pg_test!(
    Slots,
    async fn v4_v5_a_client_rebuilds_joins_and_follows_live(world: World) {
        world.sql(MEMBER).await;
        world.sql("insert into items select n, 'L1', n, 'old' from generate_series(1, 50) n").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        assert_eq!(
            anna.model.assigned.iter().map(String::as_str).collect::<Vec<_>>(),
            ["list:L1", "list:L2", "news"]
        );
        assert_eq!(anna.join("list:L1").await, "new");
        assert_eq!(anna.list("L1"), world.list("L1").await);
        world.sql("update items set n = n + 1 where id <= 10").await;
        anna.until_list(&world, "L1").await;
        // A row that moves between two scopes is never in neither or both.
        assert_eq!(anna.join("list:L2").await, "new");
        world
            .sql(
                "begin; update items set list_id = 'L2' where id = 1; delete from items where id = 2; commit",
            )
            .await;
        anna.until_list(&world, "L1").await;
        assert_eq!(anna.list("L2"), world.list("L2").await);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a_resume_at_the_tip_goes_on_without_a_row(world: World) {
        world.sql(MEMBER).await;
        world.sql("insert into items select n, 'L1', n, 'old' from generate_series(1, 50) n").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.disconnect();
        anna.connect(&serving).await;
        anna.seen.clear();
        assert_eq!(anna.join("list:L1").await, "resume");
        assert!(anna.seen.iter().all(|seen| !matches!(seen, Seen::Page { .. } | Seen::Rebuild { .. })));
        // And after changes it goes on from where it was, even at a gateway that has just been started.
        anna.disconnect();
        world.sql("update items set body = 'new' where id % 2 = 0").await;
        world.settle().await;
        serving.stop().await;
        let serving = world.gateway().await;
        anna.connect(&serving).await;
        assert_eq!(anna.join("list:L1").await, "resume");
        assert_eq!(anna.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p6_cl05_pages_of_one_effect_keep_transactions_whole(world: World) {
        world.sql(MEMBER).await;
        world.sql("insert into items select n, 'L1', 10, '' from generate_series(1, 10) n").await;
        let worker = world.worker().await;
        let mut config = world.config();
        config.limits.page_effects_max = 1;
        config.limits.rebuild_rows_max = 3;
        config.limits.read_effects_max = 4;
        config.limits.outbox_bytes_max = 500;
        config.limits.window_bytes_max = 2000;
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let writer = async {
            for round in 0..40 {
                // The sum stays whole in every transaction.
                world
                    .sql(&format!(
                        "update items set n = 10 + case when id % 2 = 0 then {round} else -{round} end"
                    ))
                    .await;
            }
        };
        let reader = async {
            anna.join("list:L1").await;
            for _ in 0..20 {
                anna.disconnect();
                anna.connect(&serving).await;
                anna.join("list:L1").await;
                let sum: i32 = anna.list("L1").iter().filter_map(|(_, n, _)| *n).sum();
                assert_eq!(sum, 100, "V5: never half of a source transaction");
            }
        };
        tokio::join!(writer, reader);
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn an_interrupted_rebuild_goes_on_at_another_gateway(world: World) {
        world.sql(MEMBER).await;
        world.sql("insert into items select n, 'L1', n, 'old' from generate_series(1, 100) n").await;
        let worker = world.worker().await;
        let mut config = world.config();
        config.limits.rebuild_rows_max = 10;
        config.limits.outbox_bytes_max = 1;
        let first = world.gateway_with(config.clone()).await;
        let second = world.gateway_with(config).await;
        let mut anna = Client::connected(&first, Some("anna")).await;
        anna.subscribe("list:L1").await;
        for _ in 0..4 {
            anna.until_seen("a rebuild page", |seen| matches!(seen, Seen::Rebuild { .. })).await;
        }
        anna.disconnect();
        world
            .sql("delete from items where id in (3, 97); update items set body = 'new' where id in (5, 95)")
            .await;
        world.settle().await;
        anna.connect(&second).await;
        assert_eq!(anna.join("list:L1").await, "continued");
        assert_eq!(anna.list("L1"), world.list("L1").await);
        worker.stop().await;
        first.stop().await;
        second.stop().await;
    }
);

pg_test!(
    Slots,
    async fn many_clients_of_one_scope_get_the_same_pages(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        let mut clients = Vec::new();
        for user in ["anna", "ben", "anna", "ben"] {
            let mut client = Client::connected(&serving, Some(user)).await;
            client.join("list:L1").await;
            clients.push(client);
        }
        world.sql("insert into items select n, 'L1', n, 'x' from generate_series(1, 5) n").await;
        world.sql("delete from items where id = 3").await;
        for client in &mut clients {
            client.until_list(&world, "L1").await;
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn an_anonymous_client_gets_what_is_for_everybody_and_no_more(world: World) {
        world.sql("insert into news values ('a', 'hello')").await;
        let (worker, serving) = world.start().await;
        let mut nobody = Client::connected(&serving, None).await;
        nobody.join("news").await;
        assert_eq!(nobody.rows("news").len(), 1);
        nobody.subscribe("list:L1").await;
        let seen = nobody.until_seen("an answer", |seen| matches!(seen, Seen::Error { .. })).await;
        assert!(matches!(seen, Seen::Error { code, .. } if code == "scope_forbidden"));
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a_transaction_larger_than_one_read_arrives_whole(world: World) {
        world.sql(MEMBER).await;
        let worker = world.worker().await;
        let mut config = world.config();
        config.limits.read_effects_max = 100;
        config.limits.page_effects_max = 30;
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.join("list:L2").await;
        anna.seen.clear();
        world.sql("insert into items select n, case when n % 2 = 0 then 'L1' else 'L2' end, n, 'x' from generate_series(1, 1000) n").await;
        anna.until_list(&world, "L1").await;
        assert_eq!(anna.list("L2"), world.list("L2").await);
        let cuts = anna.seen.iter().filter(|seen| **seen == Seen::Cut).count();
        assert_eq!(cuts, 1, "V5: one source transaction, one cut");
        worker.stop().await;
        serving.stop().await;
    }
);
