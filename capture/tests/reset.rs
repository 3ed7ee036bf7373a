//! Q3, B: an operator starts the stream anew.

use crate::flow::PUSH;
use crate::world::points::Armed;
use crate::world::{ITEMS, Running, World};
use tidegate_capture::reset::{self, ResetRequest};
use tidegate_capture::{CaptureError, failpoints as at};
use tidegate_embedded::pg_test;

pub async fn request(world: &World) -> ResetRequest {
    let mut connection = world.pool().acquire().await.expect("connection");
    reset::request(&mut connection, "test", "a test").await.expect("a request")
}

pub const SECOND: &str =
    "select p.generation = 2 and h.state = 'streaming' from tidegate.progress p, tidegate.worker_heartbeat h
    join tidegate.worker using (epoch)";
const SLOTS: &str = "select count(*) from pg_replication_slots where database = current_database()";

pub async fn poisoned(world: &World) -> Running {
    world.sql(ITEMS).await;
    world.sql("insert into items values ('old', 'L1'), ('gone', 'L1')").await;
    let worker = world.start();
    world.until_streaming().await;
    world.sql("insert into items values ('seen', 'L1')").await;
    world.settle().await;
    world
        .sql(
            "begin; alter table items disable trigger \"!tidegate_truncate\"; truncate items;
               alter table items enable always trigger \"!tidegate_truncate\"; commit",
        )
        .await;
    world.sql(PUSH).await;
    world
        .until(
            "poison",
            "select exists (select from tidegate.poison where status = 'active' and not retryable)",
        )
        .await;
    worker
}

pg_test!(
    Slots,
    async fn q3_k3_a_reset_leads_out_of_what_no_retry_can_clear(world: World) {
        let worker = poisoned(&world).await;
        let before = world.text("select token::text from tidegate.stream_generation").await;
        assert!(matches!(request(&world).await, ResetRequest::Accepted(_)));
        world.until("the new generation", SECOND).await;
        world.sql("insert into items values ('new', 'L1')").await;
        world.sql(PUSH).await;
        world.settle().await;
        world.assert_consistent().await;
        assert_ne!(
            world.text("select token::text from tidegate.stream_generation where id = 2").await,
            before
        );
        assert_eq!(world.text("select status from tidegate.poison").await, "resolved");
        let fences = world.text("select string_agg(format('%s %s', covered_by is not null, generation), ', ' order by number, fence_id) from tidegate.write_fence").await;
        assert_eq!(fences, "t , t , f 2, f 2", "B5: what the old stream could not bring round is covered");
        // B11: the old slot and state are gone, the old effects are not reachable and wait for retention.
        world
            .until("the clean-up", "select phase = 'cleaned' from tidegate.stream_reset where kind = 'reset'")
            .await;
        assert_eq!(world.scalar::<i64>(SLOTS).await, 1);
        let states = "select count(distinct substring(relname from '^s[0-9]+')) from pg_class where relnamespace = 'tidegate_projection'::regnamespace and relkind = 'r'";
        assert_eq!(world.scalar::<i64>(states).await, 1);
        let exposed: i64 = world.scalar("select count(*) from tidegate.effect where generation = 2").await;
        assert_eq!(exposed, 3, "B7, B10: coverage and catch-up expose nothing");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn b11_b12_a_killed_reset_leaves_the_old_stream_as_it_was_and_goes_on(world: Armed) {
        let worker = poisoned(&world).await;
        worker.kill().await;
        let old = "select format('%s %s %s', generation, processed_end_lsn, (select string_agg(status, '') from tidegate.poison)) from tidegate.progress";
        let before = world.text(old).await;
        assert!(matches!(request(&world).await, ResetRequest::Accepted(_)));
        assert!(matches!(request(&world).await, ResetRequest::UnderWay(_)));
        for name in [
            at::BASELINE_SLOT_CREATED,
            at::BASELINE_SLOT_RECORDED,
            at::BASELINE_COPIED,
            at::BASELINE_STAGED,
            at::BASELINE_MARKED,
            at::BASELINE_CAUGHT_UP,
            at::BASELINE_VERIFIED,
            at::BASELINE_ACTIVATING,
        ] {
            fail::cfg(name, "return").expect("fail point");
            let error = world.start().ended().await;
            assert!(matches!(error, CaptureError::Killed(point) if point == name), "{name}: {error}");
            fail::remove(name);
            assert_eq!(world.text(old).await, before, "{name}");
            world.sql(&format!("insert into items values ('{name}', 'L1')")).await;
        }
        fail::cfg(at::BASELINE_ACTIVATED, "return").expect("fail point");
        world.start().ended().await;
        fail::remove(at::BASELINE_ACTIVATED);
        let worker = world.start();
        world.until("the new generation", SECOND).await;
        world.settle().await;
        world.assert_consistent().await;
        assert_eq!(world.scalar::<i64>(SLOTS).await, 1);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn q5_a_running_stream_can_be_reset_and_none_cannot(world: World) {
        world.sql(ITEMS).await;
        assert_eq!(request(&world).await, ResetRequest::NoStream);
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        assert!(matches!(request(&world).await, ResetRequest::Accepted(_)));
        world.until("the new generation", SECOND).await;
        world.sql("update items set n = 1").await;
        world.settle().await;
        world.assert_consistent().await;
        let audited = world.text("select string_agg(actor || ' ' || outcome, ', ' order by id) from tidegate.audit where action = 'stream.reset'").await;
        assert_eq!(audited, "test refused: there is no stream, test accepted, worker activated");
        worker.stop().await;
    }
);
