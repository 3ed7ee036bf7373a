//! TX-05: fences do not sit next to their rows.

use crate::world::standing::SLOT;
use crate::world::{LISTS_AND_ITEMS, Running, World};
use tidegate_embedded::pg_test;

async fn streaming(world: &World) -> Running {
    world.sql(LISTS_AND_ITEMS).await;
    let worker = world.start_with(world.without_idle());
    world.until_streaming().await;
    world.sql("insert into list values ('L1', 'one')").await;
    world.settle().await;
    worker
}

/// Effects since the list came.
async fn effects(world: &World) -> Vec<String> {
    world.settle().await;
    world.assert_consistent().await;
    world.effects().await.split_off(1)
}

pg_test!(
    Slots,
    async fn tx05_f7_all_rows_of_a_statement_come_before_all_their_fences(world: World) {
        let worker = streaming(&world).await;
        world
            .sql("insert into item (id, list_id, title) select g, 'L1', 'm' from generate_series(80, 82) g")
            .await;
        assert_eq!(effects(&world).await, ["list:L1 upsert 80", "list:L1 upsert 81", "list:L1 upsert 82"]);
        worker.stop().await;
    }
);

/// A row-level trigger of the application that writes back.
const WRITE_BACK: &str = "create function public.write_back() returns trigger language plpgsql as $f$
    begin update item set rev = rev + 1 where id = {which}; return null; end $f$;
    create trigger a_write_back after insert on item for each row execute function public.write_back()";

pg_test!(
    Slots,
    async fn tx05_f9_a_trigger_that_writes_back_to_its_row_works_whatever_its_name(world: World) {
        let worker = streaming(&world).await;
        // The fence sorts before it, so the insert is fenced first.
        world.sql(&WRITE_BACK.replace("{which}", "new.id")).await;
        world.sql("insert into item (id, list_id) select g, 'L1' from generate_series(80, 82) g").await;
        assert_eq!(effects(&world).await, ["list:L1 upsert 80", "list:L1 upsert 81", "list:L1 upsert 82"]);
        let rows = world.effect_rows("item").await;
        assert!(rows.iter().all(|row| row[5].as_deref() == Some("2")), "the final row, once: {rows:?}");
        assert_eq!(world.scalar::<i64>("select event_count from tidegate.source_transaction order by commit_lsn desc offset 1 limit 1").await, 6);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx05_f9_a_trigger_that_changes_a_row_whose_fence_is_due_fails_and_the_advised_forms_work(
        world: World,
    ) {
        let worker = streaming(&world).await;
        world.sql(&WRITE_BACK.replace("{which}", "new.id + 1")).await;
        let three = "insert into item (id, list_id) select g, 'L1' from generate_series(80, 82) g";
        assert_eq!(world.refused(three).await, "27000");
        world.sql("drop trigger a_write_back on item").await;
        // As the hint says: after the statement, or deferred.
        world.sql("create function public.after_all() returns trigger language plpgsql as $f$
            begin update item set rev = rev + 1 where id in (select id + 1 from news); return null; end $f$;
            create trigger a_after_all after insert on item referencing new table as news for each statement execute function public.after_all()").await;
        world.sql(three).await;
        world.sql("drop trigger a_after_all on item; create constraint trigger a_deferred after insert on item deferrable initially deferred
            for each row execute function public.write_back()").await;
        world.sql("insert into item (id, list_id) select g, 'L1' from generate_series(90, 92) g").await;
        let expected: Vec<String> = [80, 81, 82, 90, 91, 92].map(|id| format!("list:L1 upsert {id}")).into();
        let mut found = effects(&world).await;
        found.sort();
        assert_eq!(found, expected);
        let revs: Vec<_> =
            world.projected_rows("item").await.iter().map(|row| row[5].clone().expect("a number")).collect();
        assert_eq!(revs, ["1", "2", "2", "1", "2", "2"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx05_a_before_trigger_that_rewrites_the_row_is_seen_in_the_final_row(world: World) {
        let worker = streaming(&world).await;
        world.sql("create function public.rewrite() returns trigger language plpgsql as $f$ begin new.title := upper(new.title); return new; end $f$;
            create trigger rewrite before insert or update on item for each row execute function public.rewrite()").await;
        world.sql("insert into item (id, list_id, title) values (80, 'L1', 'inserted')").await;
        world.sql("update item set title = 'updated' where id = 80").await;
        assert_eq!(effects(&world).await, ["list:L1 upsert 80", "list:L1 upsert 80"]);
        let titles: Vec<_> =
            world.effect_rows("item").await.into_iter().map(|row| row[2].clone().expect("text")).collect();
        assert_eq!(titles, ["INSERTED", "UPDATED"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx05_a_deferred_trigger_on_another_table_is_of_the_same_transaction(world: World) {
        let worker = streaming(&world).await;
        world.sql("create function public.touch() returns trigger language plpgsql as $f$
            begin update list set name = 'touched by ' || new.id where id = new.list_id; return null; end $f$;
            create constraint trigger touch after insert on item deferrable initially deferred for each row execute function public.touch()").await;
        world.sql("insert into item (id, list_id) values (80, 'L1'), (81, 'L1')").await;
        let found = effects(&world).await;
        // One effect for the list, however often it was touched.
        assert_eq!(found.len(), 3);
        assert!(found.contains(&"list:L1 upsert L1".to_owned()));
        assert_eq!(world.scalar::<i64>("select count(distinct commit_lsn) from tidegate.effect").await, 2);
        assert_eq!(world.projected_rows("list").await[0][1].as_deref(), Some("touched by 81"));
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx05_op01_an_empty_transaction_moves_the_durable_prefix(world: World) {
        let worker = streaming(&world).await;
        world.sql("insert into item (id, list_id) values (80, 'L1')").await;
        world.settle().await;
        world.stop_and_release(worker).await;
        let worker = world.start_with(world.eager());
        world.until_streams(&worker).await;
        let before = world.standing().await;
        // Nothing happens to any row, so there is no fence; the transaction id is of its own accord.
        world.sql("begin; insert into item (id, list_id) values (80, 'L1') on conflict do nothing; select pg_current_xact_id(); commit").await;
        let end = world.lsn("select pg_current_wal_flush_lsn()").await;
        world.until("the prefix to move", &format!("select processed_end_lsn >= '{end}' and {SLOT} >= '{end}' and acknowledged_end_lsn >= '{end}' from tidegate.progress")).await;
        let after = world.standing().await;
        assert_eq!(
            (after.newest, after.effects),
            (before.newest, before.effects),
            "it was not even delivered"
        );
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx05_f2_an_update_that_changes_nothing_is_one_event_with_one_fence(world: World) {
        let worker = streaming(&world).await;
        world.sql("insert into item (id, list_id, title) values (80, 'L1', 'same')").await;
        world.sql("update item set title = title where id = 80").await;
        world.sql("insert into item (id, list_id, title) values (80, 'L1', 'same') on conflict (id) do update set title = excluded.title").await;
        assert_eq!(effects(&world).await, ["list:L1 upsert 80"; 3]);
        let versions = "select count(distinct version) from tidegate.effect where table_id = 2";
        assert_eq!(world.scalar::<i64>(versions).await, 3, "a new version each, for the row was written");
        worker.stop().await;
    }
);
