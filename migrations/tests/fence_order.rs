//! F9: the fences of one row fire in the order of its operations, or the application's transaction fails.

use crate::fence::Tables;
use tidegate_embedded::pg_test;

/// An AFTER ROW trigger of this name on `item` that changes the row which fired it.
fn nested(name: &str, events: &str, body: &str) -> String {
    format!(
        "create function public.nested() returns trigger language plpgsql as $$ begin {body} return null; end $$;
         create trigger \"{name}\" after {events} on public.item for each row execute function public.nested()"
    )
}

const HINT: &str = "A row-level trigger changed a row whose own change was not fenced yet. \
    Make it AFTER ... FOR EACH STATEMENT or a deferred constraint trigger.";

pg_test!(
    Slots,
    async fn f9_a_nested_update_in_a_trigger_after_ours_is_in_order(t: Tables) {
        t.0.ok(&nested("a_touch", "insert", "update public.item set rev = rev + 1 where id = new.id;")).await;
        t.0.ok("insert into item values (1, null, 'a')").await;
        assert_eq!(t.0.check().await, ["item I 1", "item U 1"]);
    }
);

pg_test!(
    Slots,
    async fn f9_a_nested_update_in_a_trigger_before_ours_is_refused(t: Tables) {
        t.0.ok(&nested(" before_ours", "insert", "update public.item set rev = rev + 1 where id = new.id;"))
            .await;
        let (message, hint) = t.0.fails("27000", "insert into item values (1, null, 'a')").await;
        assert_eq!(message, "INSERT of a row of public.item is fenced out of order");
        assert_eq!(hint, HINT);
        assert!(t.0.check().await.is_empty());
    }
);

pg_test!(
    Slots,
    async fn f9_a_nested_delete_or_reinsertion_before_ours_is_refused(t: Tables) {
        t.0.ok("insert into item values (1, null, 'a'), (2, null, 'b')").await;
        t.0.ok(&nested(" before_ours", "update", "delete from public.item where id = new.id;")).await;
        t.0.fails("27000", "update item set rev = 2").await;
        t.0.ok("drop trigger \" before_ours\" on item; drop function nested").await;
        // The row that the delete left behind is inserted again before the delete's own fence fires.
        t.0.ok(&nested(" before_ours", "delete", "insert into public.item values (old.id, null, 'again');"))
            .await;
        t.0.fails("27000", "delete from item where id = 1").await;
        assert_eq!(t.0.check().await, ["item I 1", "item I 2"]);
    }
);

pg_test!(
    Slots,
    async fn f9_a_multi_row_statement_that_touches_a_later_row_early_is_refused(t: Tables) {
        t.0.ok("insert into item select g, null, 'a' from generate_series(1, 3) g").await;
        // Fires after our fence of row 1, while rows 2 and 3 of the same statement are not fenced yet.
        t.0.ok(&nested(
            "z_others",
            "update",
            "if new.id = 1 and new.rev = 2 then update public.item set rev = 10 where id > 1; end if;",
        ))
        .await;
        t.0.fails("27000", "update item set rev = 2").await;
        // The hint's way works: after the statement, all its fences have fired.
        t.0.ok("drop trigger z_others on item;
        create function public.later() returns trigger language plpgsql as $$ begin
            if exists (select from public.item where rev = 2) then update public.item set rev = 10 where rev = 2; end if; return null; end $$;
        create trigger statement_level after update on item for each statement execute function public.later()").await;
        t.0.ok("update item set rev = 2").await;
        assert_eq!(t.0.check().await.len(), 3 + 3 + 3);
    }
);

pg_test!(
    Slots,
    async fn f9_a_deferred_constraint_trigger_is_in_order(t: Tables) {
        t.0.ok("create function public.deferred() returns trigger language plpgsql as $$ begin
            update public.item set rev = rev + 1 where id = new.id and rev < 3;
            insert into public.list values ('at commit ' || new.id || ' ' || new.rev) on conflict do nothing; return null; end $$;
        create constraint trigger \"!a_deferred\" after insert or update on item deferrable initially deferred
            for each row execute function public.deferred()").await;
        t.0.ok("begin; insert into item values (1, null, 'a'), (2, null, 'b'); update item set title = 'z'; commit").await;
        assert!(t.0.check().await.len() >= 2 + 2 + 4);
    }
);

pg_test!(
    Slots,
    async fn f9_a_cte_may_delete_and_insert_one_key(t: Tables) {
        t.0.ok("insert into item values (1, null, 'a'), (2, null, 'b')").await;
        t.0.ok("with gone as (delete from item returning *) insert into item select id, list_id, title || '!', rev from gone").await;
        let mut changes = t.0.check().await;
        assert_eq!(changes.len(), 6);
        changes.sort();
        assert_eq!(changes, ["item D 1", "item D 2", "item I 1", "item I 1", "item I 2", "item I 2"]);
    }
);

pg_test!(
    Slots,
    async fn f9_two_referential_actions_may_touch_one_row(t: Tables) {
        t.0.ok("insert into person values (1), (2); insert into task values (1, 1, 1), (2, 1, 2), (3, 2, 1)")
            .await;
        t.0.check().await;
        t.0.ok("delete from person where id = 1").await;
        let mut changes = t.0.check().await;
        changes.sort();
        // Each action is a statement of its own: task 1 changes twice.
        assert_eq!(changes, ["person D 1", "task U 1", "task U 1", "task U 2", "task U 3"]);
        t.0.ok("insert into person values (1); update task set created_by = 1, updated_by = 2; begin; delete from person; delete from task; insert into task values (1); commit").await;
        t.0.check().await;
    }
);

pg_test!(
    Slots,
    async fn f9_cascades_through_tables_and_through_one_table_are_in_order(t: Tables) {
        t.0.ok("insert into list values ('a'), ('b'); insert into item select g, case when g < 5 then 'a' else 'b' end from generate_series(1, 9) g").await;
        t.0.ok("delete from list where id = 'a'").await;
        assert_eq!(t.0.check().await.len(), 2 + 9 + 1 + 4);
        let id = |n: u32| format!("'00000000-0000-0000-0000-{n:012}'");
        let nodes: Vec<String> = (0..20u32)
            .map(|n| format!("({}, {})", id(n), if n == 0 { "null".to_owned() } else { id((n - 1) / 2) }))
            .collect();
        t.0.ok(&format!("insert into node values {}", nodes.join(","))).await;
        t.0.check().await;
        // The statement deletes parents and children itself, and cascades reach the same rows.
        t.0.ok(&format!("delete from node where id in ({}, {}, {})", id(1), id(3), id(15))).await;
        t.0.check().await;
        t.0.ok("delete from node").await;
        t.0.check().await;
    }
);

pg_test!(
    Slots,
    async fn f9_a_set_null_cascade_within_one_table_and_statement_is_in_order(t: Tables) {
        t.0.ok("create table public.tree (id int primary key, parent int references public.tree on delete set null, twin int references public.tree on delete set null);
        select tidegate.register_table('public.tree', '{}')").await;
        t.0.ok("insert into tree values (1, null, null), (2, 1, 1), (3, 2, 1), (4, 2, 3); delete from tree where id in (1, 2); update tree set parent = id, twin = id; delete from tree").await;
        t.0.check().await;
    }
);

pg_test!(
    Slots,
    async fn f9_a_trigger_that_swallows_the_refusal_undoes_what_it_did(t: Tables) {
        t.0.ok("insert into item values (1, null, 'a')").await;
        t.0.ok("create function public.careful() returns trigger language plpgsql as $$ begin
            begin
                update public.item set rev = 7 where id = new.id;
                raise exception 'changed my mind';
            exception when others then null; end;
            return null; end $$;
        create trigger \" before_ours\" after update on item for each row execute function public.careful()")
            .await;
        t.0.ok("update item set title = 'b'").await;
        assert_eq!(
            t.0.check().await,
            ["item I 1", "item U 1"],
            "the nested change was rolled back, fence and all"
        );
    }
);

pg_test!(
    Slots,
    async fn f9_replica_role_does_not_silence_the_fence(t: Tables) {
        t.0.ok("set session_replication_role = replica; insert into item values (1, null, 'a'); update item set rev = 2; delete from item").await;
        assert_eq!(t.0.check().await, ["item I 1", "item U 1", "item D 1"]);
        t.0.fails("27000", "set session_replication_role = replica; insert into item values (1, null, 'a'); update item set id = 2").await;
        t.0.check().await;
    }
);

pg_test!(
    Slots,
    async fn f9_state_left_by_a_truncate_with_disabled_guards_never_fails_a_write(t: Tables) {
        t.0.ok("insert into item select g, null, 'a' from generate_series(1, 5) g").await;
        t.0.check().await;
        t.0.ok("alter table item disable trigger \"!tidegate_truncate\"; truncate item; alter table item enable always trigger \"!tidegate_truncate\"").await;
        t.0.decode().await;
        t.0.ok("insert into item select g, null, 'b' from generate_series(5, 1, -1) g; update item set rev = 2; delete from item where id = 3").await;
        t.0.check().await;
        // Within one transaction: the file is another one.
        t.0.ok("begin; update item set rev = 3; alter table item disable trigger \"!tidegate_truncate\"; truncate item;
        alter table item enable always trigger \"!tidegate_truncate\"; insert into item select g, null, 'b' from generate_series(1, 5) g; update item set rev = 2; commit").await;
    }
);

pg_test!(
    Slots,
    async fn f9_state_left_by_bypassed_triggers_never_fails_a_write(t: Tables) {
        t.0.ok("insert into item values (1, null, 'a'), (2, null, 'b'), (3, null, 'c')").await;
        t.0.check().await;
        t.0.ok("alter table item disable trigger user; update item set rev = 5; delete from item where id = 2; insert into item values (4, null, 'd');
        delete from item where id = 3; insert into item values (3, null, 'x');
        alter table item enable always trigger \"!tidegate_fence\"; alter table item enable always trigger \"!tidegate_freeze\";
        alter table item enable always trigger \"!tidegate_truncate\"; alter table item enable always trigger \"~tidegate_guard\"").await;
        t.0.decode().await;
        t.0.ok("update item set rev = 6; insert into item values (2, null, 'again'); delete from item where id = 4; delete from item where id = 3").await;
        t.0.check().await;
    }
);

pg_test!(
    Slots,
    async fn f9_state_left_by_a_restore_never_fails_a_write(t: Tables) {
        t.0.ok("insert into item values (1, null, 'a'), (2, null, 'b')").await;
        t.0.check().await;
        // A restored server counts transactions anew: a row says what this very transaction could have said.
        t.0.ok("begin; update tidegate.row_version_2 set xid = pg_current_xact_id(), filenode = pg_relation_filenode('public.item'), tid = '(77,7)', tid0 = '(77,6)', alive = key = 1;
        update item set rev = 2; delete from item where id = 2; insert into item values (2, null, 'c'); commit").await;
        assert_eq!(t.0.check().await, ["item U 1", "item U 2", "item D 2", "item I 2"]);
    }
);

pg_test!(
    Slots,
    async fn f9_a_rewrite_within_the_transaction_starts_the_chain_anew(t: Tables) {
        t.0.ok("insert into item select g, null, 'a' from generate_series(1, 9) g").await;
        t.0.check().await;
        t.0.ok("begin; update item set rev = 2; delete from item where id in (1, 9); cluster item using item_pkey; update item set rev = 3;
        delete from item where id = 5; insert into item values (5, null, 'b'), (1, null, 'b'), (9, null, 'b'); update item set rev = 4;
        alter table item alter column rev type bigint; update item set rev = 5; delete from item; commit").await;
        t.0.check().await;
    }
);

pg_test!(
    Slots,
    async fn f9_a_chain_whose_first_place_is_taken_again_after_a_rewrite_is_in_order(t: Tables) {
        // Row 8 starts its chain at line 8 of the old file. The new file has 7 rows; line 8 is the next that an insert takes.
        t.0.ok("insert into item select g, null, 'a' from generate_series(1, 8) g").await;
        t.0.check().await;
        t.0.ok("begin; delete from item where id = 8; cluster item using item_pkey;
        insert into item values (8, null, 'b'); update item set rev = 2 where id = 8; delete from item where id = 8; insert into item values (8, null, 'c'); commit").await;
        assert_eq!(t.0.check().await, ["item D 8", "item I 8", "item U 8", "item D 8", "item I 8"]);
        // And one whose chain went on between rewrite and reinsertion.
        t.0.ok("begin; update item set rev = 3 where id = 8; cluster item using item_pkey; update item set rev = 4 where id = 8; delete from item where id = 8;
        insert into item select g, null, 'n' from generate_series(8, 40) g; commit").await;
        t.0.check().await;
    }
);
