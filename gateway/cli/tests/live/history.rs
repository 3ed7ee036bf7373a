//! Streams that have not begun, whose past was removed, and whose server crashed.

use super::client::Client;
use super::model_client::Seen;
use super::world::World;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_embedded::{Stop, pg_test};

const MEMBER: &str = "insert into members values (1, 'anna', 'L1'), (2, 'anna', 'L2')";

pg_test!(
    Slots,
    async fn a_cursor_below_the_floor_rebuilds(world: World) {
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
        // As retention will: the floor moves first, with the count and digest there. Until it exists the floor moves only by hand,
        // so this proves nothing of P9 or B; it keeps the answer in place.
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
