//! Streams that have not begun, whose past was removed, and whose server crashed.

use super::client::Client;
use super::hold::GatewayHold;
use super::model_client::Seen;
use super::world::World;
use std::time::Duration;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_embedded::{Stop, pg_test};
use tidegate_gateway::failpoints as gateway;

const MEMBER: &str = "insert into members values (1, 'anna', 'L1'), (2, 'anna', 'L2')";

/// A worker that looks often, and keeps nothing that is acknowledged.
fn keeping_nothing(world: &World) -> tidegate_capture::Config {
    let mut config = world.capture_config();
    config.limits.acknowledge_interval = Duration::from_millis(50);
    (config.limits.idle_ack_interval, config.limits.idle_ack_bytes_min) = (Duration::ZERO, 1);
    config.limits.retention_interval = Duration::from_millis(20);
    (config.limits.retention_min, config.limits.retention_age) = (Duration::ZERO, Duration::ZERO);
    config
}

pg_test!(
    Slots,
    async fn p9_retention_a_cursor_below_a_floor_rebuilds_and_one_above_goes_on(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start().await;
        world.sql("insert into items values (1, 'L1', 1, 'one'), (2, 'L2', 2, 'two')").await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.join("list:L2").await;
        anna.disconnect();
        // A gateway that was there remembers what has gone for a while.
        serving.stop().await;
        for n in 3..6 {
            world.sql(&format!("insert into items values ({n}, 'L1', {n}, 'x')")).await;
        }
        world.settle().await;
        worker.stop().await;
        let worker = world.worker_with(keeping_nothing(&world)).await;
        world.until("every effect to go", "select not exists (select from tidegate.effect)").await;
        let serving = world.gateway().await;
        anna.connect(&serving).await;
        assert_eq!(anna.join("list:L1").await, "below_floor");
        // Nothing of this scope has gone that she has not seen.
        assert_eq!(anna.join("list:L2").await, "resume");
        for list in ["L1", "L2"] {
            assert_eq!(anna.list(list), world.list(list).await);
        }
        // What comes now reaches her, whether it is kept or not.
        world.sql("update items set n = 7").await;
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p9_retention_a_gateway_that_has_not_read_for_too_long_begins_anew(world: World) {
        world.sql(MEMBER).await;
        let (worker, serving) = world.start_apart().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        // It has read this one and stands still; what follows is gone before it goes on.
        let mut hold = GatewayHold::at(gateway::TAIL_PUBLISH);
        world.sql("insert into items values (1, 'L1', 1, 'seen')").await;
        hold.reached().await;
        world.sql("insert into items values (2, 'L1', 2, 'missed')").await;
        world.sql("delete from items where id = 1").await;
        world.settle().await;
        worker.stop().await;
        let worker = world.worker_with(keeping_nothing(&world)).await;
        world.until("every effect to go", "select not exists (select from tidegate.effect)").await;
        drop(hold);
        assert_eq!(anna.close_code().await, 4000, "what it has missed cannot be told any more");
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
