//! Q4: what the server cannot decode or send is poison as well, and what is tried again says since when.

use crate::poison::retry;
use crate::world::{ITEMS, World};
use tidegate_capture::poison::RetryRequest;
use tidegate_embedded::pg_test;

const ACTIVE: &str = "select exists (select from tidegate.poison where status = 'active'";
const BLOCKED: &str = "select state = 'blocked' from tidegate.worker_heartbeat";
const STREAMING: &str = "select state = 'streaming' from tidegate.worker_heartbeat";

pg_test!(
    Slots,
    async fn op08_q4_a_write_while_the_publication_was_missing_is_poison(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('before', 'L1')").await;
        world.settle().await;
        world.sql("drop publication tidegate").await;
        world.sql("insert into items values ('lost', 'L1')").await;
        world.sql("create publication tidegate for table items").await;
        // Newer servers skip a publication that is missing, and only the fence tells of the row; older ones refuse to go on.
        let classes = "failure_class in ('stream_unreadable', 'fence_without_row')";
        world.until("poison", &format!("{ACTIVE} and {classes})")).await;
        world.until("the state to show", BLOCKED).await;
        world.sql("insert into items values ('later', 'L1')").await;
        assert_eq!(world.effects().await, ["list:L1 upsert before"]);
        let unreadable: bool = world.scalar("select sqlstate = '42704' and commit_lsn = processed_end_lsn from tidegate.poison, tidegate.progress where failure_class = 'stream_unreadable' union all select failure_class = 'fence_without_row' from tidegate.poison limit 1").await;
        assert!(unreadable, "the record stands at the boundary and says why");
        // The history cannot be repaired: the retry is made, and fails as before.
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world.until("a second attempt", &format!("{ACTIVE} and attempts = 2 and {classes})")).await;
        assert_eq!(world.effects().await, ["list:L1 upsert before"], "Q2");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn q4_a_message_beyond_the_limit_is_poison_until_the_limit_is_raised(world: World) {
        world.sql(ITEMS).await;
        let mut config = world.config();
        config.limits.message_bytes_max = 64 << 10;
        let worker = world.start_with(config);
        world.until_streaming().await;
        for n in 0..20 {
            world.sql(&format!("insert into items values ('{n}', 'L1')")).await;
        }
        world.sql("insert into items values ('large', 'L1', 1, repeat('x', 200000))").await;
        world.sql("insert into items values ('later', 'L1')").await;
        world.until("poison", &format!("{ACTIVE} and failure_class = 'message_too_large' and explanation like '%message_bytes_max: 2_____ bytes%')")).await;
        world.until("the state to show", BLOCKED).await;
        let effects: i64 = world.scalar("select count(*) from tidegate.effect").await;
        assert_eq!(effects, 20, "what came before it is durable, and nothing else");
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world
            .until("a second attempt", "select attempts = 2 and status = 'active' from tidegate.poison")
            .await;
        world.stop_and_release(worker).await;
        let worker = world.start();
        world
            .until("blocked again", &format!("{BLOCKED} where epoch = (select epoch from tidegate.worker)"))
            .await;
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world.settle().await;
        assert_eq!(world.text("select status from tidegate.poison").await, "resolved");
        world.until("the state to show", STREAMING).await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn q3_a_retry_with_nothing_left_to_read_clears_a_record_at_the_boundary(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        world.stop_and_release(worker).await;
        world.sql("insert into tidegate.poison (generation, commit_lsn, failure_class, explanation) select generation, processed_end_lsn, 'stream_unreadable', 'a test' from tidegate.progress").await;
        let worker = world.start();
        world.until("blocked", BLOCKED).await;
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world.until("the record to be cleared", "select status = 'resolved' from tidegate.poison").await;
        world.until("the state to show", STREAMING).await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn q4_the_heartbeat_retries_since_the_first_failure_until_a_commit(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('before', 'L1')").await;
        world.settle().await;
        // The disk is full, as far as the projection can tell; each try counts.
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        world.sql("create sequence public.tries").await;
        world.sql("create function public.full() returns trigger language plpgsql as $f$ begin perform nextval('public.tries'); raise 'x' using errcode = '53100'; end $f$").await;
        let projection = format!("tidegate_projection.s{state}_p1");
        world.sql(&format!("create trigger full_disk before insert on {projection} for each row execute function public.full()")).await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.until("retrying", "select state = 'retrying' from tidegate.worker_heartbeat").await;
        let since = world.text("select since::text from tidegate.worker_heartbeat").await;
        world.until("more tries", "select last_value > 5 from public.tries").await;
        let same = format!("select state = 'retrying' and since = '{since}' from tidegate.worker_heartbeat");
        assert!(world.scalar::<bool>(&same).await, "a session that opened the stream is no progress");
        world.sql(&format!("drop trigger full_disk on {projection}")).await;
        world.settle().await;
        world.until("the state to show", STREAMING).await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn q4_a_stream_that_was_cut_while_idle_flows_again_without_a_write(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        let before: i32 = world.scalar("select walsender_pid from tidegate.worker").await;
        world.sql(&format!("select pg_terminate_backend({before})")).await;
        world
            .until("another walsender", &format!("select walsender_pid <> {before} from tidegate.worker"))
            .await;
        world.until("the state to show", STREAMING).await;
        worker.stop().await;
    }
);
