//! V1, V4, V5: what becomes visible, when, and that it is exactly what plain SQL says.

use super::client::{Client, Write};
use super::gate::moves;
use super::hold::WorkerHold;
use super::judge::list_by_sql;
use super::model_client::{Rows, Seen};
use super::world::{MEMBERS, World};
use std::collections::BTreeSet;
use tidegate_capture::failpoints as capture;
use tidegate_embedded::pg_test;
use tidegate_protocol::{Limits, MutationStatus, ScopeDigest, ServerFrame, row_digest};

/// Count and digest of rows, computed from SQL alone.
fn summed(rows: &Rows) -> (u64, ScopeDigest) {
    let digests = rows.iter().map(|((table, key), (version, row))| {
        row_digest(tidegate_protocol::TableId(*table), key, *version, row)
    });
    (rows.len() as u64, digests.fold(ScopeDigest::EMPTY, |sum, digest| sum.plus(digest)))
}

/// What the last frame that had a digest of the scope said.
fn told(client: &Client) -> (u64, ScopeDigest) {
    let last = client.frames.iter().rev().find_map(|bytes| {
        match ServerFrame::decode(bytes, &Limits::FROM_SERVER).expect("a frame") {
            ServerFrame::Page(page) => Some((page.count, page.digest)),
            ServerFrame::Joined(joined) => Some((joined.count, joined.digest)),
            _ => None,
        }
    });
    last.expect("a page or joined")
}

pg_test!(
    Slots,
    async fn v1_nothing_is_revealed_before_the_materialization_commit_has_returned(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start_apart().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        anna.join("list:L1").await;
        ben.join("list:L1").await;
        // At every step from the WAL to the commit, for a direct write and for a push.
        for point in [
            capture::TRANSACTION_ASSEMBLED,
            capture::TRANSACTION_PAIRED,
            capture::MATERIALIZE_BEGUN,
            capture::MATERIALIZE_READ,
            capture::MATERIALIZE_WRITTEN,
        ] {
            for pushed in [false, true] {
                let mut hold = WorkerHold::at(point);
                for client in [&mut anna, &mut ben] {
                    client.seen.clear();
                }
                let number = if pushed {
                    let number = anna.write(&world, &[Write::upsert(1, point)]).await;
                    anna.outcome(number).await;
                    Some(number)
                } else {
                    world.sql(&format!("insert into items values (2, 'L1', 2, '{point}') on conflict (id) do update set body = excluded.body")).await;
                    None
                };
                hold.reached().await;
                for client in [&mut anna, &mut ben] {
                    client.ping().await;
                    assert!(!moves(&client.seen), "V1: {point}: {:?}", client.seen);
                }
                let durable: i64 = world.scalar("select count(*) from tidegate.effect where commit_lsn > coalesce((select materialized_commit_lsn from tidegate.progress), '0/0')").await;
                assert_eq!(durable, 0);
                drop(hold);
                for client in [&mut anna, &mut ben] {
                    client.until_list(&world, "L1").await;
                }
                if let Some(number) = number {
                    anna.until_round(number).await;
                }
            }
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v1_a_conflict_tells_no_row_of_the_source_and_the_page_brings_it(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start_apart().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        world.sql("insert into items values (1, 'L1', 1, 'seen')").await;
        anna.until_list(&world, "L1").await;
        let base = anna.rows("list:L1").values().next().expect("the row").0;
        // The source has moved on, and nothing of that is materialized.
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        world.sql("update items set body = 'SOURCE-55aa' where id = 1").await;
        hold.reached().await;
        let writes = [
            Write::update(1, "on what she saw").on(tidegate_protocol::Base::Version(base)),
            Write::insert(1, "as if it were new"),
        ];
        let first = anna.write(&world, &writes).await;
        let results = anna.outcome(first).await;
        for result in &results {
            assert_eq!((result.status, result.row.is_none()), (MutationStatus::Conflict, true), "{result:?}");
        }
        anna.ping().await;
        assert!(!anna.heard("SOURCE-55aa"), "V1: no row read from the source");
        drop(hold);
        anna.until_list(&world, "L1").await;
        assert!(anna.heard("SOURCE-55aa"), "the page brings it");
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v4_at_each_cut_rows_and_digest_are_what_plain_sql_says(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items select n, 'L' || 1 + n % 2, n, 'from before' from generate_series(1, 30) n").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        assert_eq!(
            anna.rows("list:L1"),
            list_by_sql(&world, "L1").await,
            "after a rebuild of what no fence has touched"
        );
        assert_eq!(told(&anna), summed(&anna.rows("list:L1")));
        let statements = [
            "update items set n = n + 1 where id <= 10",
            "delete from items where id in (3, 5, 7)",
            "begin; insert into items values (3, 'L1', null, null); delete from items where id = 3; insert into items values (3, 'L1', -1, ''); commit",
            "update items set list_id = 'L1' where id % 3 = 0",
            "update items set list_id = 'L2' where id % 5 = 0",
            "update items set list_id = null where id = 9",
            "update items set list_id = 'L1', body = repeat('large ', 20000) where id = 9",
            "begin; savepoint a; update items set n = 99; rollback to a; update items set n = 98 where id = 1; commit",
            "update items set body = body where list_id = 'L1'",
            "with gone as (delete from items where id = 11 returning *) insert into items select id + 1000, list_id, n, body from gone",
            "insert into items values (1, 'L1', 7, 'upserted') on conflict (id) do update set body = excluded.body",
            "delete from items where list_id = 'L1'",
            "insert into items select n, 'L1', n, 'again' from generate_series(5001, 5005) n",
        ];
        for statement in statements {
            world.sql(statement).await;
            let expected = list_by_sql(&world, "L1").await;
            while anna.rows("list:L1") != expected || anna.model.staged() {
                assert!(anna.next().await.is_some(), "the socket closed: {statement}");
            }
            assert_eq!(told(&anna), summed(&expected), "V4: {statement}");
        }
        // A client that comes anew agrees with the one that followed.
        let mut ben = Client::connected(&serving, Some("ben")).await;
        ben.join("list:L1").await;
        assert_eq!((ben.rows("list:L1"), told(&ben)), (anna.rows("list:L1"), told(&anna)));
        worker.stop().await;
        serving.stop().await;
    }
);

/// As the client's copy stands, all rows are in exactly one of the two lists, and no transaction is half there: the sum is whole.
fn in_exactly_one(client: &Client, rows: i64) {
    let lists = ["L1", "L2"].map(|list| client.list(list));
    let keys: BTreeSet<i64> = lists.iter().flatten().map(|(id, ..)| *id).collect();
    assert_eq!((keys.len() as i64, lists.iter().flatten().count() as i64), (rows, rows), "V5: {lists:?}");
    let sum: i64 = lists.iter().flatten().filter_map(|(_, n, _)| n.map(i64::from)).sum();
    assert_eq!(sum, rows * 10, "V5: {lists:?}");
}

/// Reads to the end; gives how often the copy may have moved.
async fn never_in_neither_or_both(client: &mut Client, world: &World, rows: i64) -> usize {
    let mut cuts = 0;
    let done = world.list("L1").await;
    loop {
        in_exactly_one(client, rows);
        if client.list("L1") == done && !client.model.staged() {
            return cuts;
        }
        client
            .until_seen("a cut", |seen| matches!(seen, Seen::Cut | Seen::Page { .. } | Seen::Joined { .. }))
            .await;
        cuts += 1;
    }
}

pg_test!(
    Slots,
    async fn v5_scopes_move_in_lockstep_for_quick_and_slow_sockets_while_rows_move_between_them(
        world: World,
    ) {
        world.sql(MEMBERS).await;
        const ROWS: i64 = 24;
        world.sql(&format!("insert into items select n, 'L' || 1 + n % 2, 10, repeat('x', 3000) from generate_series(1, {ROWS}) n")).await;
        let worker = world.worker().await;
        let mut config = world.config();
        // A slow session falls behind soon, in all its scopes together; pages end between effects of one transaction.
        (config.limits.outbox_bytes_max, config.limits.mailbox_batches_max) = (3000, 2);
        (config.limits.page_effects_max, config.limits.window_bytes_max) = (3, 20_000);
        let serving = world.gateway_with(config).await;
        let mut quick = Client::connected(&serving, Some("anna")).await;
        let mut slow = Client::connected(&serving, Some("anna")).await;
        for client in [&mut quick, &mut slow] {
            client.join("list:L1").await;
            client.join("list:L2").await;
        }
        let writer = async {
            for round in 0..60 {
                world
                    .sql(&format!(
                        "begin; update items set list_id = case list_id when 'L1' then 'L2' else 'L1' end where id % 5 = {round} % 5;
                         update items set n = 10 + case when id % 2 = 0 then {round} else -{round} end; commit"
                    ))
                    .await;
            }
        };
        let reader = async {
            for _ in 0..40 {
                quick.next().await.expect("a frame");
                in_exactly_one(&quick, ROWS);
            }
        };
        tokio::join!(writer, reader);
        world.settle().await;
        let quick_cuts = never_in_neither_or_both(&mut quick, &world, ROWS).await;
        let slow_cuts = never_in_neither_or_both(&mut slow, &world, ROWS).await;
        assert!(slow_cuts > 0 && quick_cuts > 0);
        assert_eq!(slow.list("L2"), world.list("L2").await);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v5_a_scope_that_joins_while_others_are_live_joins_at_their_cut(world: World) {
        world.sql(MEMBERS).await;
        const ROWS: i64 = 20;
        world
            .sql(&format!(
                "insert into items select n, 'L' || 1 + n % 2, 10, 'x' from generate_series(1, {ROWS}) n"
            ))
            .await;
        let worker = world.worker().await;
        let mut config = world.config();
        (config.limits.rebuild_rows_max, config.limits.page_effects_max) = (3, 2);
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let writer = async {
            for round in 0..40 {
                world.sql(&format!("update items set list_id = case list_id when 'L1' then 'L2' else 'L1' end where id % 4 = {round} % 4")).await;
            }
        };
        let reader = async {
            for _ in 0..8 {
                anna.join("list:L2").await;
                let both: BTreeSet<i64> =
                    ["L1", "L2"].iter().flat_map(|list| anna.list(list)).map(|(id, ..)| id).collect();
                let count = anna.list("L1").len() + anna.list("L2").len();
                assert_eq!((both.len(), count), (ROWS as usize, ROWS as usize), "V5: at joined");
                anna.unsubscribe("list:L2").await;
                anna.ping().await;
            }
        };
        tokio::join!(writer, reader);
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);
