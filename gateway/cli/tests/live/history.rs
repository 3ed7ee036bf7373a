//! Cursors against history: forged, foreign, ahead, below the floor; and histories that end.

use super::model_client::Seen;
use super::world::{Client, World};
use std::time::Duration;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_embedded::{Stop, pg_test};
use tidegate_model::{Cursor, CursorKeys, Lsn, Point, RowDigest, ScopeName};

const MEMBER: &str = "insert into members values (1, 'anna', 'L1'), (2, 'anna', 'L2')";

async fn refused(client: &mut Client, name: &str, cursor: Vec<u8>) -> String {
    client.subscribe_with(name, Some(cursor), None).await;
    match client
        .until_seen("a refusal", |seen| matches!(seen, Seen::Error { .. } | Seen::Subscribed { .. }))
        .await
    {
        Seen::Error { code, .. } => code,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

pg_test!(
    Slots,
    async fn p9_cl06_a_cursor_that_is_not_ours_is_refused_by_name(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let cursor = anna.model.cursor("list:L1").expect("a cursor").to_vec();
        let mut flipped = cursor.clone();
        *flipped.last_mut().expect("bytes") ^= 1;
        assert_eq!(refused(&mut anna, "list:L1", flipped).await, "cursor_invalid");
        assert_eq!(refused(&mut anna, "list:L1", cursor[..20].to_vec()).await, "cursor_invalid");
        assert_eq!(refused(&mut anna, "list:L1", Vec::new()).await, "cursor_invalid");
        assert_eq!(refused(&mut anna, "list:L2", cursor.clone()).await, "cursor_wrong_scope");
        // The right one still holds.
        anna.subscribe_with("list:L1", Some(cursor), None).await;
        assert_eq!(anna.joined("list:L1").await, "resume");
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p3_p9_a_cursor_of_another_history_rebuilds_and_one_ahead_never_does(world: World) {
        world.sql(MEMBER).await;
        let worker = world.worker().await;
        let mut config = world.config();
        config.limits.ahead_max = Duration::from_millis(300);
        let serving = world.gateway_with(config).await;
        world.sql("insert into items values (1, 'L1', 1, 'one')").await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        // What only another history can have sealed, sealed with this database's key.
        let secret: Vec<u8> = world.scalar("select secret from tidegate.cursor_key").await;
        let keys = CursorKeys::new([(1, secret.try_into().expect("32 bytes"))]).expect("a key");
        let scope = ScopeName("list:L1".into());
        let ours = keys.open_cursor(&scope, anna.model.cursor("list:L1").expect("a cursor")).expect("ours");
        let other = |change: fn(&mut Cursor)| {
            let mut cursor = ours;
            change(&mut cursor);
            keys.seal_cursor(&scope, &cursor)
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
        let ahead = other(|c| c.point = Point::TransactionEnd { commit_lsn: Lsn(1 << 60) });
        assert_eq!(refused(&mut anna, "list:L1", ahead).await, "cursor_ahead");
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p9_a_cursor_below_the_floor_rebuilds(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        world.sql("insert into items values (1, 'L1', 1, 'one')").await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.disconnect();
        serving.stop().await;
        for n in 2..6 {
            world.sql(&format!("insert into items values ({n}, 'L1', {n}, 'x')")).await;
        }
        world.settle().await;
        // As retention does: the floor moves first, with the count and digest there.
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        world.sql(&format!("with gone as (select * from tidegate.effect e
                where e.scope_id = (select scope_id from tidegate_projection.s{state}_scope where name = 'list:L1')
                order by commit_lsn desc offset 1 limit 1)
            update tidegate_projection.s{state}_scope s set floor_commit_lsn = g.commit_lsn, floor_event_ordinal = g.event_ordinal,
                floor_effect_ordinal = g.effect_ordinal, floor_row_count = g.count_after, floor_digest = g.digest_after
            from gone g where s.scope_id = g.scope_id;
            delete from tidegate.effect e using tidegate_projection.s{state}_scope s
            where e.scope_id = s.scope_id and e.commit_lsn <= s.floor_commit_lsn")).await;
        let serving = world.gateway().await;
        anna.connect(&serving).await;
        assert_eq!(anna.join("list:L1").await, "below_floor");
        assert_eq!(anna.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p9_a_history_that_was_put_back_under_a_running_gateway_ends_its_sessions(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        world.sql("insert into items values (1, 'L1', 1, 'lost')").await;
        anna.until_list(&world, "L1").await;
        // What a restored data folder looks like once it has moved on: the server, its timeline and the generation are the
        // same, and the transaction where the tail stands is another one.
        worker.stop().await;
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        let earlier =
            "update tidegate.source_transaction set committed_at = committed_at - interval '1 hour'";
        world.sql(earlier).await;
        world.sql(&format!(
            "update tidegate.effect e set count_after = count_after + 1 from tidegate_projection.s{state}_scope s
             where s.scope_id = e.scope_id and s.name = 'list:L1' and e.commit_lsn = s.tail_commit_lsn;
             update tidegate_projection.s{state}_scope set row_count = row_count + 1 where name = 'list:L1'"
        )).await;
        assert_eq!(anna.close_code().await, 4000);
        // The cursor of the lost history is compared with the one that there is.
        anna.connect(&serving).await;
        anna.subscribe("list:L1").await;
        let seen = anna.until_seen("an answer", |seen| matches!(seen, Seen::Subscribed { .. })).await;
        assert!(
            matches!(&seen, Seen::Subscribed { reason: Some(reason), .. } if reason == "other_history"),
            "{seen:?}"
        );
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a_client_that_comes_before_the_stream_is_told_to_come_again(world: World) {
        let serving = world.gateway().await;
        let mut anna = Client::new(Some("anna"));
        anna.open(&serving).await;
        anna.hello().await;
        let seen = anna.next().await;
        assert!(matches!(&seen, Some(Seen::Error { code, .. }) if code == "unavailable"), "{seen:?}");
        assert!(matches!(anna.next().await, Some(Seen::Bye(_))));
        let worker = world.worker_not_waited_for();
        anna.connect(&serving).await;
        anna.join("news").await;
        worker.stop().await;
        serving.stop().await;
    }
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_outlive_a_crash_of_postgresql() {
    for major in tidegate_embedded::testing::majors() {
        let server = TestServer::private(major, &[("wal_level", "logical")]).expect("a server");
        let world = World::prepare(server).await;
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        world.server.restart(Stop::Immediate).expect("restarted");
        world.until("the database to answer", "select true").await;
        world.sql("insert into items values (1, 'L1', 1, 'after the crash')").await;
        // The same socket, or, where the history has ended with the crash, the next one.
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
}
