//! Q: what cannot be materialized blocks, is recorded without values, and leaves by retry alone.

use crate::world::{ITEMS, World};
use tidegate_capture::poison::{self, RetryRequest};
use tidegate_embedded::pg_test;

/// A value that must appear nowhere but in the application's own table.
pub const SECRET: &str = "SECRET-7f3a";

pub async fn retry(world: &World) -> RetryRequest {
    let mut connection = world.pool().acquire().await.expect("connection");
    let id = poison::list(&mut connection, 10).await.expect("list")[0].id;
    poison::retry(&mut connection, id, "test").await.expect("retry")
}

pg_test!(
    Slots,
    async fn a7_q2_q3_op10_poison_blocks_everything_after_it_and_a_retry_clears_it(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('good', 'L1')").await;
        world.settle().await;
        // The projection refuses what the next transaction writes, as a damaged index would.
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        world.sql(&format!("alter table tidegate_projection.s{state}_p1 add constraint trap check (octet_length(row) < 500)")).await;
        world.sql("insert into items values ('fine', 'L1', 1, 'x')").await;
        world.sql(&format!("insert into items values ('bad', 'L1', 1, repeat('{SECRET}', 100))")).await;
        world.sql("insert into items values ('later', 'L2', 1, 'x')").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active')").await;
        // The good one before it went through, alone; nothing after it did.
        assert_eq!(world.effects().await, ["list:L1 upsert good", "list:L1 upsert fine"]);
        let bounds = "select confirmed_flush_lsn <= processed_end_lsn and processed_end_lsn <= (select commit_lsn from tidegate.poison)
        from tidegate.progress, pg_replication_slots where slot_name = (select slot_name from tidegate.stream_generation)";
        assert!(world.scalar::<bool>(bounds).await, "A7: nothing after the prior boundary is acknowledged");
        world
            .until(
                "the state to show",
                "select state = 'blocked' and reason <> '' from tidegate.worker_heartbeat",
            )
            .await;
        let record = world.text("select format('%s %s %s %s', failure_class, sqlstate, retryable, attempts) from tidegate.poison").await;
        assert_eq!(record, "database_refused 23514 t 1");
        for table in ["poison", "worker_heartbeat", "audit"] {
            let leaks: bool = world
                .scalar(&format!(
                    "select coalesce(bool_or(t::text like '%{SECRET}%'), false) from tidegate.{table} t"
                ))
                .await;
            assert!(!leaks, "OP-10: {table}");
        }
        // A retry before the repair fails again, counted on the same record.
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world
            .until("a second attempt", "select attempts = 2 and status = 'active' from tidegate.poison")
            .await;
        world.sql(&format!("alter table tidegate_projection.s{state}_p1 drop constraint trap")).await;
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world.settle().await;
        assert_eq!(world.text("select status from tidegate.poison").await, "resolved");
        assert_eq!(retry(&world).await, RetryRequest::NotActive);
        let audited: i64 =
            world.scalar("select count(*) from tidegate.audit where action = 'poison.retry'").await;
        assert_eq!(audited, 4, "three requests and one success");
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx03_f11_a_write_that_bypassed_the_triggers_blocks(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        // ENABLE ALWAYS: a replica role fires fences all the same.
        world.sql("set session_replication_role = replica; insert into items values ('r', 'L1'); reset session_replication_role").await;
        world.settle().await;
        world.sql("begin; alter table items disable trigger user; insert into items values ('x', 'L1'); alter table items enable trigger user; commit").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'fence_missing' and relation_id = 1)").await;
        assert_eq!(world.effects().await, ["list:L1 upsert r"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn k3_a_decoded_truncate_blocks_and_no_retry_clears_it(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.sql("begin; alter table items disable trigger \"!tidegate_truncate\"; truncate items; alter table items enable always trigger \"!tidegate_truncate\"; commit").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'truncate' and not retryable)").await;
        assert_eq!(retry(&world).await, RetryRequest::ResetOnly);
        assert_eq!(
            world.effects().await,
            ["list:L1 upsert a"],
            "what came before it in the same group is durable"
        );
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn q2_op10_poison_outlives_twenty_workers(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("select pg_logical_emit_message(true, 'tidegate.fence', 'forged')").await;
        world
            .until(
                "poison",
                "select exists (select from tidegate.poison where failure_class = 'fence_malformed')",
            )
            .await;
        world.sql("insert into items values ('a', 'L1')").await;
        let before = world.standing().await;
        let mut worker = worker;
        for _ in 0..20 {
            worker.kill().await;
            worker = world.start();
            let started = world.text("select epoch::text from tidegate.worker").await;
            world.until("blocked again", &format!("select h.state = 'blocked' and epoch > {started} from tidegate.worker_heartbeat h join tidegate.worker using (epoch)")).await;
        }
        assert_eq!(world.standing().await, before);
        let (attempts, effects): (i32, i64) = (
            world.scalar("select attempts from tidegate.poison").await,
            world.scalar("select count(*) from tidegate.effect").await,
        );
        assert_eq!((attempts, effects), (1, 0), "a restart is no attempt");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn op08_f8_a_gap_in_the_publication_blocks(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("alter publication tidegate drop table items").await;
        world.sql("insert into items values ('lost', 'L1')").await;
        world.sql("alter publication tidegate add table items").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'fence_without_row')").await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn g5_a_changed_column_blocks_and_a_new_one_does_not(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("alter table items add column later int default 7").await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world.sql("alter table items alter column n type bigint").await;
        world.sql("insert into items values ('b', 'L1')").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'column_type_changed' and not retryable)").await;
        assert_eq!(world.effects().await, ["list:L1 upsert a"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn q2_a_record_that_cannot_be_written_blocks_as_well(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.eager());
        world.until_streaming().await;
        world.sql("create function public.full() returns trigger language plpgsql as $f$ begin raise 'x' using errcode = '53100'; end $f$;
            create trigger full_disk before insert on tidegate.poison for each row execute function public.full()").await;
        world.sql("select pg_logical_emit_message(true, 'tidegate.fence', 'forged')").await;
        let blocked =
            "select state = 'blocked' and reason like '%fence_malformed%' from tidegate.worker_heartbeat";
        world.until("the state to show", blocked).await;
        let before = world.standing().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.write_noise().await;
        world.until_beats().await;
        assert_eq!(world.standing().await, before, "nothing is processed or acknowledged");
        // Another worker comes to the same end.
        worker.kill().await;
        let worker = world.start_with(world.eager());
        world
            .until(
                "the state to show",
                &format!("{blocked} join tidegate.worker using (epoch) where epoch > 1"),
            )
            .await;
        world.write_noise().await;
        world.until_beats().await;
        let now = world.standing().await;
        assert_eq!((now.processed, now.effects), (before.processed, 0));
        assert_eq!(world.scalar::<i64>("select count(*) from tidegate.poison").await, 0);
        // As soon as it can be written it is, and it blocks by itself.
        world.sql("drop trigger full_disk on tidegate.poison").await;
        world.until("the record", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'fence_malformed')").await;
        assert_eq!(world.standing().await.processed, before.processed);
        worker.stop().await;
    }
);
