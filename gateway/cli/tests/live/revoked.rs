//! V7: one source transaction takes a scope and puts a secret into it. No byte of the secret reaches whoever lost the scope, wherever
//! the news of it stands; and the other way round, what came with the grant is there from the first moment.

use super::client::Client;
use super::hold::GatewayHold;
use super::judge::Judge;
use super::model_client::Seen;
use super::world::{MEMBERS, World};
use tidegate_embedded::pg_test;
use tidegate_gateway::failpoints as gateway;
use tidegate_model::{Lsn, Point};

const SECRET: &str = "SECRET-7f3a";

/// Anna loses the first list in the transaction that writes the secret into it, before or after.
fn revoke_with_a_secret(first: bool) -> String {
    let revoke = "delete from members where user_id = 'anna' and list_id = 'L1';";
    let secret = format!(
        "insert into items values (70, 'L1', 7, '{SECRET}'); update items set body = '{SECRET}' where id = 1;"
    );
    if first {
        format!("begin; {revoke} {secret} commit")
    } else {
        format!("begin; {secret} {revoke} commit")
    }
}

async fn until_taken(anna: &mut Client) {
    let taken = |seen: &Seen| matches!(seen, Seen::Scopes { removed, .. } if removed == &["list:L1"]);
    if !anna.seen.iter().any(taken) {
        anna.until_seen("the removal", taken).await;
    }
    // What was under way has come, too.
    anna.ping().await;
    assert!(!anna.model.held.contains_key("list:L1"));
    assert!(!anna.heard(SECRET), "V7: the secret was told");
}

pg_test!(
    Slots,
    async fn v7_cl11_a_secret_of_the_transaction_that_revokes_never_reaches_a_live_socket(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        ben.join("list:L1").await;
        for first in [true, false] {
            world.sql("delete from items; insert into items values (1, 'L1', 1, 'hers too')").await;
            world.settle().await;
            anna.join("list:L1").await;
            anna.join("list:L2").await;
            anna.seen.clear();
            world.sql(&revoke_with_a_secret(first)).await;
            until_taken(&mut anna).await;
            ben.until_list(&world, "L1").await;
            assert!(ben.heard(SECRET), "who kept the scope has it");
            assert_eq!(anna.answer("list:L1", Vec::new()).await, "scope_forbidden");
            // The secret is gone before she may see the list again.
            world.sql("delete from items").await;
            world.sql("insert into members values (1, 'anna', 'L1')").await;
            anna.until_seen(
                "the grant",
                |seen| matches!(seen, Seen::Scopes { added, .. } if added == &["list:L1"]),
            )
            .await;
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_cl11_a_secret_of_the_transaction_that_revokes_never_reaches_who_was_away(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items select n, 'L1', n, 'hers too' from generate_series(1, 20) n").await;
        let worker = world.worker().await;
        let mut config = world.config();
        (config.limits.rebuild_rows_max, config.limits.outbox_bytes_max) = (2, 1);
        let serving = world.gateway_with(config).await;
        // One has a cursor, one the token of an unfinished rebuild.
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let mut unfinished = Client::connected(&serving, Some("anna")).await;
        unfinished.subscribe("list:L1").await;
        unfinished.until_seen("a page", |seen| matches!(seen, Seen::Rebuild { .. })).await;
        let cursor = anna.model.cursor("list:L1").map(<[u8]>::to_vec);
        anna.disconnect();
        unfinished.disconnect();
        let token = unfinished.model.interrupted["list:L1"].1.clone();
        world.sql(&revoke_with_a_secret(false)).await;
        world.settle().await;
        for (client, cursor, token) in [(&mut anna, cursor, None), (&mut unfinished, None, Some(token))] {
            client.connect(&serving).await;
            assert!(!client.model.assigned.contains("list:L1"));
            client.subscribe_with("list:L1", cursor, token).await;
            assert_eq!(client.error().await, "scope_forbidden");
            client.ping().await;
            assert!(!client.heard(SECRET));
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_cl11_a_secret_of_the_transaction_that_revokes_never_reaches_who_reads_slowly(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'hers too')").await;
        let worker = world.worker().await;
        let mut config = world.config();
        (config.limits.outbox_bytes_max, config.limits.mailbox_batches_max) = (2000, 2);
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.join("list:L2").await;
        // More than her socket's buffers hold, and she reads nothing of it.
        for round in 0..30 {
            let rows = format!(
                "insert into items select {round} * 100 + n, 'L1', n, repeat('x', 10000) from generate_series(2, 40) n"
            );
            world.sql(&rows).await;
        }
        world.sql(&revoke_with_a_secret(false)).await;
        world.settle().await;
        until_taken(&mut anna).await;
        world.sql("insert into items values (90, 'L2', 9, 'hers still')").await;
        anna.until_list(&world, "L2").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_cl11_a_secret_of_a_large_transaction_that_revokes_never_comes_with_its_parts(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'hers too')").await;
        let worker = world.worker().await;
        let mut config = world.config();
        (config.limits.read_effects_max, config.limits.page_effects_max) = (20, 5);
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        for client in [&mut anna, &mut ben] {
            client.join("list:L1").await;
        }
        anna.join("list:L2").await;
        // Read in many parts: whose end, where its grants are, comes long after the first page.
        world
            .sql(&format!(
                "begin; insert into items select n, case n % 2 when 0 then 'L1' else 'L2' end, n, '{SECRET}' || n % 2 from generate_series(100, 400) n;
                 delete from members where user_id = 'anna' and list_id = 'L1'; commit"
            ))
            .await;
        ben.until_list(&world, "L1").await;
        anna.until_list(&world, "L2").await;
        anna.ping().await;
        assert!(anna.heard(&format!("{SECRET}1")), "the scope that she kept");
        assert!(!anna.heard(&format!("{SECRET}0")), "V7: the one that was taken");
        assert!(!anna.model.held.contains_key("list:L1"));
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_rebuild_page_that_shows_more_than_the_tail_has_read_waits_for_the_grants_there(
        world: World,
    ) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'hers too')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut asked = GatewayHold::of(gateway::REBUILD_ASKED, "anna");
        let mut read = GatewayHold::of(gateway::REBUILD_READ, "anna");
        anna.subscribe("list:L1").await;
        asked.reached().await;
        // The tail stands still; what happens now, only the page sees.
        let mut tail = GatewayHold::at(gateway::TAIL_READ);
        tail.reached().await;
        world.sql(&revoke_with_a_secret(true)).await;
        world.settle().await;
        drop(asked);
        read.reached().await;
        drop(read);
        anna.ping().await;
        assert!(!anna.heard(SECRET), "V7: the page is at a position whose grants nobody here knows");
        drop(tail);
        until_taken(&mut anna).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_a_row_that_came_with_the_grant_arrives_by_a_rebuild_at_or_after_it(world: World) {
        world.sql("insert into members values (1, 'anna', 'L2')").await;
        world.sql("insert into items values (1, 'L1', 1, 'from before')").await;
        let (worker, serving) = world.start().await;
        let judge = Judge::of(&world).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L2").await;
        for order in [true, false] {
            anna.seen.clear();
            let (grant, row) = (
                "insert into members values (2, 'anna', 'L1');",
                "insert into items values (2, 'L1', 2, 'with it');",
            );
            let both = if order { format!("{grant} {row}") } else { format!("{row} {grant}") };
            world.sql(&format!("begin; {both} commit")).await;
            anna.until_seen(
                "the grant",
                |seen| matches!(seen, Seen::Scopes { added, .. } if added == &["list:L1"]),
            )
            .await;
            anna.join("list:L1").await;
            assert_eq!(anna.list("L1"), world.list("L1").await);
            let paged = |seen: &Seen| matches!(seen, Seen::Page { name, .. } if name == "list:L1");
            assert!(
                !anna.seen.iter().any(paged),
                "nothing from before the grant is replayed: {:?}",
                anna.seen
            );
            let granted: String = world
                .scalar("select max(commit_lsn)::text from tidegate.grant_effect where op = 1 and scope = 'list:L1'")
                .await;
            let commit_lsn: Lsn = granted.parse().expect("a position");
            assert!(judge.stands(&anna, "list:L1") >= Point::TransactionEnd { commit_lsn }, "V7");
            world
                .sql("begin; delete from members where id = 2; delete from items where id = 2; commit")
                .await;
            anna.until_seen(
                "the removal",
                |seen| matches!(seen, Seen::Scopes { removed, .. } if !removed.is_empty()),
            )
            .await;
        }
        worker.stop().await;
        serving.stop().await;
    }
);
