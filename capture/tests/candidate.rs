//! B1, B9: what happens to tables and to the staged state while a baseline stands still.

use crate::world::ITEMS;
use crate::world::points::{Armed, Pause};
use tidegate_capture::failpoints as at;
use tidegate_embedded::pg_test;

const ROWS: &str = "insert into items select g::text, 'L' || g % 3, g, 'x' from generate_series(1, 30) g";

pg_test!(
    Slots,
    async fn b1_a_table_that_is_rewritten_before_the_snapshot_is_imported_discards_the_candidate(
        world: Armed,
    ) {
        world.sql(ITEMS).await;
        world.sql(ROWS).await;
        let mut pause = Pause::at(at::BASELINE_SLOT_CREATED);
        let worker = world.start_apart();
        pause.reached().await;
        // Not captured, so no drift; each row is in a new file, where the snapshot of before sees none.
        world.sql("alter table items add column token uuid default gen_random_uuid()").await;
        pause.release();
        world.until_streams(&worker).await;
        let discarded = world.text("select error from tidegate.stream_reset where phase = 'discarded'").await;
        assert!(discarded.contains("public.items was changed while the slot was created"), "{discarded}");
        world.sql("update items set n = 0 where id = '1'").await;
        world.settle().await;
        world.assert_consistent().await;
        assert_eq!(world.projected_rows("items").await.len(), 30);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn b9_b10_what_came_while_the_rows_were_staged_is_from_before_the_stream(world: Armed) {
        world.sql(ITEMS).await;
        world.sql(ROWS).await;
        let mut staged = Pause::at(at::BASELINE_STAGED);
        let mut activated = Pause::at(at::BASELINE_ACTIVATED);
        let worker = world.start_apart();
        staged.reached().await;
        world.sql("insert into items values ('new', 'L1')").await;
        world.sql("update items set n = 0 where id = '1'").await;
        world.sql("delete from items where id = '2'").await;
        staged.release();
        activated.reached().await;
        // B9: both boundaries at the barrier's end, which lies behind what was caught up with.
        let at_barrier = "select p.processed_end_lsn = g.barrier_end_lsn and p.acknowledged_end_lsn = g.barrier_end_lsn
            and g.barrier_end_lsn > g.consistent_lsn from tidegate.progress p join tidegate.stream_generation g on g.id = p.generation";
        assert!(world.holds(at_barrier).await);
        activated.release();
        world.until_streams(&worker).await;
        world.settle().await;
        assert!(world.effects().await.is_empty(), "none of it is new");
        world.assert_consistent().await;
        worker.stop().await;
    }
);

/// Puts a column of a type of its owner's in the key's place. To compare its values with the keys of our versions would convert them,
/// as the worker: that fails, for another reason than the one that is waited for.
const DRIFT: &str = "create type own as enum ('1');
    create function convert(own) returns text language plpgsql as $$ begin raise exception 'converted'; end $$;
    create cast (own as text) with function convert(own) as implicit;
    alter table items rename id to id0; alter table items add column id own default '1'";
const UNDO: &str = "alter table items drop column id; alter table items rename id0 to id";

pg_test!(
    Slots,
    async fn b1_g5_a_table_that_drifts_once_there_is_a_slot_is_not_read(world: Armed) {
        world.sql(ITEMS).await;
        world.sql(ROWS).await;
        let mut pause = Pause::at(at::BASELINE_SLOT_CREATED);
        let worker = world.start_apart();
        pause.reached().await;
        // Nothing is rewritten by it, and the slot's snapshot is from before it.
        world.sql(DRIFT).await;
        pause.release();
        let refused = "select exists (select from tidegate.stream_reset
            where phase = 'discarded' and error like '%public.items: the primary key was changed%')";
        world.until("the refusal", refused).await;
        world.sql(UNDO).await;
        world.until_streams(&worker).await;
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn b1_g5_a_table_that_has_drifted_before_the_stream_begins_is_not_read(world: Armed) {
        world.sql(ITEMS).await;
        world.sql(ROWS).await;
        world.sql(DRIFT).await;
        let worker = world.start_apart();
        let refused = "select coalesce(reason like '%public.items: the primary key was changed%', false) from tidegate.worker_heartbeat";
        world.until("the refusal", refused).await;
        // No slot was created for it.
        assert!(!world.holds("select exists (select from tidegate.stream_reset)").await);
        world.sql(UNDO).await;
        world.until_streams(&worker).await;
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

/// One thing wrong with a staged state, whose number stands for `N`.
const DAMAGE: &[&str] = &[
    "update tidegate_projection.sN_p1 set row = set_byte(row, 3, get_byte(row, 3) # 1) where ctid = (select min(ctid) from tidegate_projection.sN_p1)",
    "update tidegate_projection.sN_p1 set digest = substring(sha256('x') for 16) where ctid = (select min(ctid) from tidegate_projection.sN_p1)",
    "update tidegate_projection.sN_p1 set version = gen_random_uuid() where ctid = (select min(ctid) from tidegate_projection.sN_p1)",
    "update tidegate_projection.sN_p1 set scope_ids = '{}' where ctid = (select min(ctid) from tidegate_projection.sN_p1)",
    "delete from tidegate_projection.sN_p1 where ctid = (select min(ctid) from tidegate_projection.sN_p1)",
    "delete from tidegate_projection.sN_scope_row where ctid = (select min(ctid) from tidegate_projection.sN_scope_row)",
    "insert into tidegate_projection.sN_scope_row select scope_id, 1, '\\x00' from tidegate_projection.sN_scope limit 1",
    "update tidegate_projection.sN_scope set digest = substring(sha256('x') for 16) where name = 'list:L1'",
    "update tidegate_projection.sN_scope set row_count = row_count + 1 where name = 'list:L1'",
    "update tidegate_projection.sN_scope set name = 'list:other' where name = 'list:L1'",
    "insert into tidegate_projection.sN_subject_grant (subject_hash, scope_hash, subject, scope, row_count) values (sha256('ann'), sha256('all'), 'ann', 'all', 1)",
];

pg_test!(
    Slots,
    async fn b9_a_staged_state_that_was_altered_is_never_activated(world: Armed) {
        for damage in DAMAGE {
            let world = world.another().await;
            world.sql(ITEMS).await;
            world.sql(ROWS).await;
            let mut pause = Pause::at(at::BASELINE_CAUGHT_UP);
            let worker = world.start_apart();
            pause.reached().await;
            let state: i32 = world.scalar("select state_id from tidegate.stream_reset").await;
            world.sql(&damage.replace("sN_", &format!("s{state}_"))).await;
            pause.release();
            // Another candidate takes its place, and another state.
            world.until_streams(&worker).await;
            let discarded =
                world.text("select error from tidegate.stream_reset where phase = 'discarded'").await;
            assert!(discarded.contains("verify the staged state"), "{damage}: {discarded}");
            assert_ne!(world.scalar::<i32>("select state_id from tidegate.stream_generation").await, state);
            world.assert_consistent().await;
            worker.stop().await;
        }
    }
);
