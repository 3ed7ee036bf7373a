//! P9, CL-06: cursors and tokens that are not what they say, of another scope, another client, another key, another generation, or
//! of a place that this gateway has not reached. Each is answered by its name, and none by a wrong page.

use super::client::Client;
use super::judge::Judge;
use super::link::{Link, Weather};
use super::model_client::Seen;
use super::world::{MEMBERS, World, within};
use std::time::Duration;
use tidegate_capture::reset::{self, ResetRequest};
use tidegate_embedded::pg_test;
use tidegate_model::{Cursor, CursorKeys, Point, RowDigest, ScopeName};

pg_test!(
    Slots,
    async fn p9_cl06_a_cursor_that_is_forged_cut_short_or_of_another_scope_is_refused_by_name(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'one'), (2, 'L2', 2, 'two')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let cursor = anna.model.cursor("list:L1").expect("a cursor").to_vec();
        for at in 0..cursor.len() {
            let mut flipped = cursor.clone();
            flipped[at] ^= 0x40;
            assert_eq!(anna.answer("list:L1", flipped).await, "cursor_invalid", "byte {at}");
            // One connection may begin so often on one scope.
            if at % 40 == 39 {
                anna.disconnect();
                anna.connect(&serving).await;
            }
        }
        anna.disconnect();
        anna.connect(&serving).await;
        for length in [0, 1, 5, 20, cursor.len() - 1] {
            assert_eq!(
                anna.answer("list:L1", cursor[..length].to_vec()).await,
                "cursor_invalid",
                "{length} bytes"
            );
        }
        let mut longer = cursor.clone();
        longer.push(0);
        assert_eq!(anna.answer("list:L1", longer).await, "cursor_invalid");
        assert_eq!(anna.answer("list:L2", cursor.clone()).await, "cursor_wrong_scope");
        // No refusal moved anything, and the right one still holds.
        assert_eq!(anna.rows("list:L2").len(), 0);
        anna.subscribe_with("list:L1", Some(cursor), None).await;
        assert_eq!(anna.joined("list:L1").await, "resume");
        assert_eq!(anna.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p9_cl06_a_rebuild_token_that_is_forged_or_of_another_scope_is_refused_by_name(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items select n, 'L' || 1 + n % 2, n, 'x' from generate_series(1, 40) n").await;
        let worker = world.worker().await;
        let mut config = world.config();
        (config.limits.rebuild_rows_max, config.limits.outbox_bytes_max) = (3, 1);
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.subscribe("list:L1").await;
        anna.until_seen("a page", |seen| matches!(seen, Seen::Rebuild { .. })).await;
        anna.disconnect();
        let token = anna.model.interrupted["list:L1"].1.clone();
        let mut ben = Client::connected(&serving, Some("ben")).await;
        ben.join("list:L1").await;
        let cursor = ben.model.cursor("list:L1").expect("a cursor").to_vec();
        anna.connect(&serving).await;
        let mut flipped = token.clone();
        flipped[30] ^= 1;
        // A cursor is no token, nor a token a cursor.
        for (name, bad) in [
            ("list:L1", flipped),
            ("list:L1", token[..30].to_vec()),
            ("list:L1", cursor),
            ("list:L2", token.clone()),
        ] {
            anna.subscribe_with(name, None, Some(bad)).await;
            assert_eq!(anna.answered(name).await, "token_invalid");
        }
        assert_eq!(anna.answer("list:L1", token.clone()).await, "cursor_invalid");
        anna.subscribe_with("list:L1", None, Some(token)).await;
        assert_eq!(anna.joined("list:L1").await, "continued");
        assert_eq!(anna.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p9_cl06_a_cursor_of_another_client_or_user_grants_nothing(world: World) {
        world.sql("insert into members values (1, 'anna', 'L1'), (2, 'anna', 'L2'), (3, 'ben', 'L2')").await;
        world.sql("insert into items values (1, 'L1', 1, 'anna''s'), (2, 'L2', 2, 'both')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.join("list:L2").await;
        let cursors =
            ["list:L1", "list:L2"].map(|scope| anna.model.cursor(scope).expect("a cursor").to_vec());
        let mut ben = Client::connected(&serving, Some("ben")).await;
        let [hers, shared] = cursors;
        assert_eq!(ben.answer("list:L1", hers.clone()).await, "scope_forbidden");
        let mut nobody = Client::connected(&serving, None).await;
        assert_eq!(nobody.answer("list:L1", hers).await, "scope_forbidden");
        // Where he has a grant of his own the cursor says what it always says: what its holder holds.
        ben.model.held = anna.model.held.clone();
        ben.subscribe_with("list:L2", Some(shared), None).await;
        assert_eq!(ben.joined("list:L2").await, "resume");
        world.sql("update items set body = 'anew'").await;
        ben.until_list(&world, "L2").await;
        ben.ping().await;
        assert!(!ben.heard("anna's"));
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p9_cl06_keys_are_rotated_under_clients_and_gateways_and_a_strangers_key_opens_nothing(
        world: World,
    ) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'one')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let judge = Judge::of(&world).await;
        let scope = ScopeName("list:L1".into());
        let ours =
            judge.keys.open_cursor(&scope, anna.model.cursor("list:L1").expect("a cursor")).expect("ours");
        // The same content, under a key that this database has not, and under its own key's number with other bytes.
        for (id, secret) in [(77, [1; 32]), (1, [2; 32])] {
            let stranger = CursorKeys::new([(id, secret)]).expect("a key").seal_cursor(&scope, &ours);
            assert_eq!(anna.answer("list:L1", stranger).await, "cursor_invalid");
        }
        // A newer gateway seals with a newer key; an older one, that has not heard of it, learns it in time; and old cursors
        // stay good at both.
        let old = anna.model.cursor("list:L1").expect("a cursor").to_vec();
        world
            .sql("insert into tidegate.cursor_key (key_id, secret, created_at) overriding system value values (2, decode(repeat('07', 32), 'hex'), clock_timestamp() - interval '1 hour')")
            .await;
        let newer = world.gateway().await;
        let mut ben = Client::connected(&newer, Some("ben")).await;
        ben.join("list:L1").await;
        let new = ben.model.cursor("list:L1").expect("a cursor").to_vec();
        assert_eq!(new[1..5], [0, 0, 0, 2], "sealed by the second key");
        anna.disconnect();
        anna.connect(&newer).await;
        assert_eq!(anna.answer("list:L1", old).await, "resume");
        anna.joined("list:L1").await;
        anna.disconnect();
        within("the older gateway to learn the key", async {
            loop {
                anna.connect(&serving).await;
                match anna.answer("list:L1", new.clone()).await.as_str() {
                    "resume" => return,
                    "cursor_invalid" => anna.disconnect(),
                    other => panic!("{other}"),
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        })
        .await;
        worker.stop().await;
        serving.stop().await;
        newer.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p3_p9_what_only_another_history_can_have_sealed_rebuilds_once_and_never_resumes(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        world.sql("insert into items values (1, 'L1', 1, 'one')").await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let judge = Judge::of(&world).await;
        let scope = ScopeName("list:L1".into());
        let ours =
            judge.keys.open_cursor(&scope, anna.model.cursor("list:L1").expect("a cursor")).expect("ours");
        let other = |change: fn(&mut Cursor)| {
            let mut cursor = ours;
            change(&mut cursor);
            judge.keys.seal_cursor(&scope, &cursor)
        };
        let cases = [
            (other(|c| c.digest = c.digest.plus(RowDigest([1; 16]))), "other_history"),
            (other(|c| c.row_count += 1), "other_history"),
            (other(|c| c.server.timeline += 1), "other_history"),
            (other(|c| c.server.system += 1), "other_history"),
            (other(|c| c.generation.0 = uuid::Uuid::new_v4()), "other_generation"),
            (other(|_| {}), "resume"),
        ];
        for (cursor, expected) in cases {
            anna.subscribe_with("list:L1", Some(cursor), None).await;
            assert_eq!(anna.joined("list:L1").await, expected);
            assert_eq!(anna.list("L1"), world.list("L1").await);
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p3_cl06_after_a_reset_the_cursor_of_the_old_stream_rebuilds_however_far_the_new_one_is(
        world: World,
    ) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        world.sql("insert into items select n, 'L1', n, 'x' from generate_series(1, 50) n").await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.disconnect();
        let mut connection = world.pool().acquire().await.expect("a connection");
        let asked = reset::request(&mut connection, "test", "cl06").await.expect("asked");
        let ResetRequest::Accepted(id) = asked else { panic!("{asked:?}") };
        drop(connection);
        let done = format!(
            "select phase in ('activated', 'cleaned') from tidegate.stream_reset where reset_id = '{id}'"
        );
        world.until("the reset", &done).await;
        for n in 0..20 {
            world.sql(&format!("update items set n = {n} where id = {n} + 1")).await;
        }
        world.settle().await;
        anna.connect(&serving).await;
        assert_eq!(anna.join("list:L1").await, "other_generation");
        assert_eq!(anna.list("L1"), world.list("L1").await);
        anna.disconnect();
        anna.connect(&serving).await;
        assert_eq!(anna.join("list:L1").await, "resume", "one rebuild, and no more");
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn cl06_no_cursor_over_known_rows_rebuilds_and_keeps_none_of_them(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        world.sql("insert into items values (1, 'L1', 1, 'goes'), (2, 'L1', 2, 'stays')").await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.disconnect();
        world.sql("delete from items where id = 1").await;
        world.settle().await;
        anna.connect(&serving).await;
        anna.subscribe_with("list:L1", None, None).await;
        assert_eq!(anna.joined("list:L1").await, "new");
        assert_eq!(anna.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p9_cl06_a_gateway_that_is_behind_waits_bounded_and_never_makes_a_client_rebuild(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        // Another gateway whose network is silent for a while: it knows a state from before.
        let link = Link::to(world.server.port()).await;
        let mut config = world.config_at(link.port);
        config.push = None;
        config.limits.ahead_max = Duration::from_millis(400);
        config.limits.rescan = Duration::from_millis(50);
        let behind = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        // Her session there has begun before the silence.
        let mut there = anna.twin();
        there.connect(&behind).await;
        link.set(Weather::Silent);
        world.sql("insert into items values (1, 'L1', 1, 'one')").await;
        anna.until_list(&world, "L1").await;
        there.model.held = anna.model.held.clone();
        there.subscribe("list:L1").await;
        there.ping().await;
        assert!(!there.seen.iter().any(|seen| matches!(seen, Seen::Subscribed { .. } | Seen::Error { .. })));
        // Elsewhere she goes on meanwhile; and here, once it hears again.
        anna.disconnect();
        anna.connect(&serving).await;
        assert_eq!(anna.join("list:L1").await, "resume");
        link.set(Weather::Fair);
        assert_eq!(there.joined("list:L1").await, "resume");
        assert_eq!(there.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
        behind.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p9_cl06_a_cursor_of_what_is_written_and_not_materialized_is_cursor_ahead_and_no_row_is_lost(
        world: World,
    ) {
        world.sql(MEMBERS).await;
        let worker = world.worker().await;
        let mut config = world.config();
        config.limits.ahead_max = Duration::from_millis(300);
        let serving = world.gateway_with(config).await;
        world.sql("insert into items values (1, 'L1', 1, 'one')").await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        // Capture stands still, and the WAL goes on: a gateway elsewhere could have been ahead of this database only so far.
        worker.kill().await;
        world.sql("insert into items values (2, 'L1', 2, 'two')").await;
        let written: String = world.scalar("select (pg_current_wal_flush_lsn() - 8)::text").await;
        let judge = Judge::of(&world).await;
        let scope = ScopeName("list:L1".into());
        let mut cursor =
            judge.keys.open_cursor(&scope, anna.model.cursor("list:L1").expect("a cursor")).expect("ours");
        cursor.point = Point::TransactionEnd { commit_lsn: written.parse().expect("a position") };
        let ahead = judge.keys.seal_cursor(&scope, &cursor);
        for _ in 0..2 {
            assert_eq!(anna.answer("list:L1", ahead.clone()).await, "cursor_ahead");
            assert_eq!(anna.list("L1").len(), 1, "the rows stay");
        }
        // Once the worker has passed it, it is known to be none of this history.
        let worker = world.worker().await;
        world.settle().await;
        assert_eq!(anna.answer("list:L1", ahead).await, "other_history");
        anna.joined("list:L1").await;
        assert_eq!(anna.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
    }
);
