//! V7: a subscription that races the revocation, stopped at every step from the first word to the last byte.

use super::client::Client;
use super::hold::GatewayHold;
use super::model_client::Seen;
use super::world::{MEMBERS, World};
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_gateway::failpoints as gateway;

const SECRET: &str = "SECRET-91c2";

/// Takes the list from Anna, then writes into it what she must not see.
async fn revoke(world: &World) {
    world.sql("delete from members where user_id = 'anna' and list_id = 'L1'").await;
    world.sql(&format!("insert into items values (70, 'L1', 7, '{SECRET}')")).await;
    world.settle().await;
}

fn taken(seen: &Seen) -> bool {
    matches!(seen, Seen::Scopes { removed, .. } if removed == &["list:L1"])
}

/// Subscribes whatever `welcome` said, and ends without the list and without a byte of the secret.
async fn ends_without(anna: &mut Client) {
    anna.subscribe("list:L1").await;
    let refused = |seen: &Seen| matches!(seen, Seen::Error { code, .. } if code == "scope_forbidden");
    anna.until_seen("the end of it", |seen| taken(seen) || refused(seen)).await;
    anna.ping().await;
    assert!(!anna.model.assigned.contains("list:L1") && !anna.model.is_joined("list:L1"));
    assert!(!anna.heard(SECRET), "V7");
}

async fn greet(anna: &mut Client) {
    let seen = anna.next().await;
    assert!(matches!(seen, Some(Seen::Welcome { .. })), "{seen:?}");
    anna.new = false;
}

pg_test!(
    Slots,
    async fn v7_a_revocation_between_registering_and_evaluating_is_seen_by_the_evaluation(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        // Nobody of hers is there, so her grants are not known; and the read that will tell them has not begun.
        let mut tail = GatewayHold::at(gateway::TAIL_READ);
        let mut registered = GatewayHold::of(gateway::SESSION_REGISTERED, "anna");
        tail.reached().await;
        let mut anna = Client::new(Some("anna"));
        anna.open(&serving).await;
        anna.hello().await;
        registered.reached().await;
        revoke(&world).await;
        drop(tail);
        drop(registered);
        greet(&mut anna).await;
        ends_without(&mut anna).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_revocation_after_the_evaluation_was_read_and_before_it_is_told_follows_it(world: World) {
        world.sql(MEMBERS).await;
        let worker = world.worker().await;
        let mut config = world.config();
        // No read but those that somebody asks for.
        config.limits.rescan = Duration::from_secs(600);
        let serving = world.gateway_with(config).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        ben.join("list:L1").await;
        world.settle().await;
        ben.join("news").await;
        // The tail is at rest: the next read is the one that her session asks for.
        let mut publish = GatewayHold::at(gateway::TAIL_PUBLISH);
        let mut anna = Client::new(Some("anna"));
        anna.open(&serving).await;
        anna.hello().await;
        publish.reached().await;
        revoke(&world).await;
        drop(publish);
        greet(&mut anna).await;
        ends_without(&mut anna).await;
        ben.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_revocation_between_evaluating_and_welcome_is_told_or_refused(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut evaluated = GatewayHold::of(gateway::SESSION_EVALUATED, "anna");
        let mut anna = Client::new(Some("anna"));
        anna.open(&serving).await;
        anna.hello().await;
        evaluated.reached().await;
        revoke(&world).await;
        drop(evaluated);
        greet(&mut anna).await;
        ends_without(&mut anna).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_revocation_between_reading_a_rebuild_page_and_sending_it_keeps_the_page_back(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'was hers')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut read = GatewayHold::of(gateway::REBUILD_READ, "anna");
        anna.subscribe("list:L1").await;
        read.reached().await;
        revoke(&world).await;
        anna.until_seen("the removal", taken).await;
        drop(read);
        anna.ping().await;
        assert!(!anna.heard("was hers") && !anna.heard(SECRET), "V7: what was read is not sent any more");
        ends_without(&mut anna).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_revocation_between_reading_the_log_and_sending_it_keeps_the_pages_back(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'hers')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.disconnect();
        serving.stop().await;
        world.sql("insert into items values (2, 'L1', 2, 'while she was away')").await;
        world.settle().await;
        // A gateway that has no window of it: her resume reads the log.
        let serving = world.gateway().await;
        anna.connect(&serving).await;
        let mut read = GatewayHold::of(gateway::SCOPE_READ, "anna");
        anna.subscribe("list:L1").await;
        read.reached().await;
        revoke(&world).await;
        anna.until_seen("the removal", taken).await;
        drop(read);
        anna.ping().await;
        assert!(!anna.heard("while she was away") && !anna.heard(SECRET), "V7");
        ends_without(&mut anna).await;
        worker.stop().await;
        serving.stop().await;
    }
);
