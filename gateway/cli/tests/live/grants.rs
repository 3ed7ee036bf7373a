//! Scopes given and taken while clients look on.

use super::client::Client;
use super::model_client::Seen;
use super::world::World;
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn v7_cl11_what_is_taken_stops_and_what_is_given_can_be_had(world: World) {
        world.sql("insert into members values (1, 'anna', 'L1')").await;
        world.sql("insert into items values (1, 'L1', 1, 'one'), (2, 'L2', 2, 'two')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        // Given, taken, and rows of both, in one transaction: removals before its pages, additions after.
        world
            .sql("begin; update items set body = 'x'; update members set list_id = 'L2' where id = 1; commit")
            .await;
        anna.until_seen("scopes", |seen| matches!(seen, Seen::Scopes { added, .. } if added == &["list:L2"]))
            .await;
        assert!(!anna.model.held.contains_key("list:L1"), "V7: taken before anything else");
        let taken = anna
            .seen
            .iter()
            .position(|seen| matches!(seen, Seen::Scopes { removed, .. } if removed == &["list:L1"]));
        let taken = taken.expect("the removal is told");
        assert!(
            anna.seen[taken..]
                .iter()
                .all(|seen| !matches!(seen, Seen::Page { name, .. } if name == "list:L1"))
        );
        anna.join("list:L2").await;
        assert_eq!(anna.list("L2"), world.list("L2").await);
        anna.subscribe("list:L1").await;
        let seen = anna.until_seen("an answer", |seen| matches!(seen, Seen::Error { .. })).await;
        assert!(matches!(seen, Seen::Error { code, .. } if code == "scope_forbidden"));
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_cursor_from_before_the_grant_rebuilds(world: World) {
        world.sql("insert into members values (1, 'anna', 'L1')").await;
        world.sql("insert into items values (1, 'L1', 1, 'one')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let cursor = anna.model.cursor("list:L1").map(<[u8]>::to_vec);
        anna.disconnect();
        world.sql("delete from members").await;
        world.settle().await;
        world.sql("insert into members values (2, 'anna', 'L1')").await;
        world.settle().await;
        anna.connect(&serving).await;
        anna.subscribe_with("list:L1", cursor, None).await;
        assert_eq!(anna.joined("list:L1").await, "regranted");
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_whoever_is_granted_later_never_sees_what_was_deleted_before(world: World) {
        world.sql("insert into members values (1, 'anna', 'L1')").await;
        world.sql("insert into items values (1, 'L1', 1, 'gone'), (2, 'L1', 2, 'stays')").await;
        let (worker, serving) = world.start().await;
        // Her run stays in the cache for those who come soon after.
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        world.sql("delete from items where id = 1").await;
        world.sql("insert into items values (3, 'L1', 3, 'came and went')").await;
        world.sql("delete from items where id = 3").await;
        world.sql("insert into members values (2, 'ben', 'L1')").await;
        world.settle().await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        ben.join("list:L1").await;
        assert_eq!(ben.list("L1"), world.list("L1").await);
        let pages = ben.seen.iter().filter(|seen| matches!(seen, Seen::Page { .. })).count();
        assert_eq!(pages, 0, "V7: nothing from before the grant is replayed: {:?}", ben.seen);
        // The new run is the one that newcomers join: the elder one too.
        let mut again = Client::connected(&serving, Some("anna")).await;
        again.join("list:L1").await;
        assert_eq!(again.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_grant_that_is_given_by_two_rows_is_taken_with_the_last(world: World) {
        world.sql("insert into members values (1, 'anna', 'L1'), (2, 'anna', 'L1')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        world.sql("delete from members where id = 1").await;
        world.settle().await;
        world.sql("insert into items values (1, 'L1', 1, 'one')").await;
        anna.until_list(&world, "L1").await;
        world.sql("delete from members where id = 2").await;
        anna.until_seen(
            "scopes",
            |seen| matches!(seen, Seen::Scopes { removed, .. } if removed == &["list:L1"]),
        )
        .await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_rule_that_is_registered_later_is_told_to_those_who_are_there(world: World) {
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        world.sql("select tidegate.register_grant('{\"scope\": \"user:{subject.id}\"}')").await;
        world.settle().await;
        anna.until_seen(
            "scopes",
            |seen| matches!(seen, Seen::Scopes { added, .. } if added == &["user:anna"]),
        )
        .await;
        anna.join("user:anna").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_static_grant_that_was_away_rebuilds_as_regranted_whoever_looked_on(world: World) {
        world.sql("insert into news values ('a', 'hello')").await;
        let (worker, serving) = world.start().await;
        // One looks on, one is away, and one comes to a gateway that was not there meanwhile.
        let mut looks = Client::connected(&serving, None).await;
        let mut away = Client::connected(&serving, Some("anna")).await;
        let mut elsewhere = Client::connected(&serving, Some("ben")).await;
        for client in [&mut looks, &mut away, &mut elsewhere] {
            client.join("news").await;
        }
        away.disconnect();
        elsewhere.disconnect();
        // Nothing removes a grant yet; a registry generation without it does.
        world
            .sql(
                "begin; update tidegate.grant_rule set state = 'removed' where definition ->> 'scope' = 'news';
                 select tidegate.activate_registry('remove_grant', '{}'); insert into news values ('b', 'not for them'); commit",
            )
            .await;
        world.settle().await;
        looks
            .until_seen(
                "the removal",
                |seen| matches!(seen, Seen::Scopes { removed, .. } if removed == &["news"]),
            )
            .await;
        world.sql("delete from news where id = 'b'").await;
        world.sql("select tidegate.register_grant('{\"scope\": \"news\", \"anonymous\": true}')").await;
        world.settle().await;
        looks
            .until_seen("the grant", |seen| matches!(seen, Seen::Scopes { added, .. } if added == &["news"]))
            .await;
        looks.join("news").await;
        away.connect(&serving).await;
        assert_eq!(away.join("news").await, "regranted");
        let other = world.gateway().await;
        elsewhere.connect(&other).await;
        assert_eq!(elsewhere.join("news").await, "regranted");
        for client in [&looks, &away, &elsewhere] {
            assert_eq!(client.rows("news").len(), 1);
            assert!(!client.heard("not for them"));
        }
        // And once only.
        elsewhere.disconnect();
        elsewhere.connect(&other).await;
        assert_eq!(elsewhere.join("news").await, "resume");
        worker.stop().await;
        serving.stop().await;
        other.stop().await;
    }
);
