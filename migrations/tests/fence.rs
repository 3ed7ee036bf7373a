//! F1–F5: what a fence does for ordinary writes.

use crate::scenario::HINT;
use crate::stream::Stream;
use crate::wal::Event;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::RowOperation;

/// Tables with every kind of reference, all registered, watched and empty.
pub const SETUP: &str = concat!(
    include_str!("witness.sql"),
    r#"
    create table public.list (id text primary key, name text);
    create table public.item (id bigint primary key, list_id text references public.list on delete cascade, title text, rev int not null default 1);
    create table public.person (id int primary key);
    create table public.task (id int primary key, created_by int references public.person on delete set null,
        updated_by int references public.person on delete set null);
    create table public.node (id uuid primary key, parent uuid references public.node on delete cascade);
    create table public.member (id int primary key, user_id text, team_id int);
    select public.watch('public.' || t) from unnest(array['list', 'item', 'person', 'task', 'node']) t;
    select tidegate.register_grant('{"scope": "team:{team_id}", "from": "public.member", "where": "user_id = {subject.id}"}');
    select public.bear_witness('public.member');
"#
);

/// A stream over [`SETUP`].
pub struct Tables(pub Stream);

impl Tables {
    pub async fn on(server: &TestServer) -> Tables {
        Tables(Stream::over(LoadedDatabase::prepared(server, SETUP).await, "").await)
    }
}

impl TestContext for Tables {
    async fn prepare(server: TestServer) -> Self {
        Tables::on(&server).await
    }
}

pg_test!(
    BriefSlots,
    async fn f2_each_row_operation_has_exactly_one_fence(t: Tables) {
        t.0.ok("insert into list values ('a', 'x'); update list set name = 'y'; update list set name = name; delete from list").await;
        assert_eq!(t.0.check().await, ["list I a", "list U a", "list U a", "list D a"]);
        t.0.ok("insert into item select g, null, 't' from generate_series(1, 300) g; update item set rev = rev + 1; delete from item where id > 3").await;
        assert_eq!(t.0.check().await.len(), 300 + 300 + 297);
        t.0.ok("insert into item values (1, null, 'again') on conflict do nothing; update item set rev = 2 where id = 900").await;
        assert_eq!(t.0.check().await, Vec::<String>::new(), "nothing happened, so nothing is fenced");
    }
);

pg_test!(
    BriefSlots,
    async fn f2_on_conflict_do_update_has_only_the_update_fence(t: Tables) {
        t.0.ok("insert into item values (1, null, 'a')").await;
        t.0.ok("insert into item values (1, null, 'b'), (2, null, 'b') on conflict (id) do update set title = excluded.title").await;
        t.0.ok("insert into item values (1, null, 'c'), (3, null, 'c') on conflict do nothing").await;
        assert_eq!(t.0.check().await, ["item I 1", "item U 1", "item I 2", "item I 3"]);
    }
);

pg_test!(
    BriefSlots,
    async fn f2_merge_fences_what_it_did(t: Tables) {
        t.0.ok("insert into item values (1, null, 'a'), (2, null, 'b')").await;
        t.0.check().await;
        t.0.ok("merge into item i using (values (1), (2), (3)) s (id) on i.id = s.id
        when matched and s.id = 1 then update set title = 'z' when matched then delete
        when not matched then insert (id) values (s.id)")
            .await;
        let mut changes = t.0.check().await;
        changes.sort();
        assert_eq!(changes, ["item D 2", "item I 3", "item U 1"]);
    }
);

pg_test!(
    BriefSlots,
    async fn f3_a_rolled_back_savepoint_takes_its_fences_along(t: Tables) {
        t.0.ok("begin; insert into item values (1, null, 'a'); savepoint s; update item set title = 'b'; delete from item; rollback to s;
        update item set title = 'c'; savepoint s2; delete from item; release s2; insert into item values (1, null, 'd'); commit").await;
        assert_eq!(t.0.check().await, ["item I 1", "item U 1", "item D 1", "item I 1"]);
        t.0.ok("begin; update item set title = 'e'; rollback").await;
        assert!(t.0.check().await.is_empty());
    }
);

pg_test!(
    BriefSlots,
    async fn f3_an_exception_block_takes_its_fences_along(t: Tables) {
        t.0.ok("do $$ begin
        insert into item values (1, null, 'a');
        for n in 1..5 loop
            begin
                update item set title = n::text; delete from item; insert into item values (1, null, 'x');
                if n % 2 = 0 then raise exception 'undo'; end if;
            exception when raise_exception then null;
            end;
        end loop;
    end $$")
            .await;
        assert_eq!(t.0.check().await.len(), 1 + 3 * 3);
    }
);

pg_test!(
    BriefSlots,
    async fn f2_no_session_command_resets_the_ordinal(t: Tables) {
        t.0.ok("begin; insert into item values (1, null, 'a'); reset all; update item set rev = 2; set session authorization default;
        select set_config('tidegate.ordinal', '', true); update item set rev = 3; commit").await;
        assert_eq!(t.0.check().await.len(), 3);
    }
);

pg_test!(
    BriefSlots,
    async fn f1_key_changes_are_refused_by_the_guard(t: Tables) {
        t.0.ok("insert into item values (1, null, 'a'); insert into list values ('a')").await;
        // Sees every change that happens, before our fence does.
        for table in ["item", "list"] {
            let body = "if new.id is distinct from old.id then raise exception 'a key that never was'; end if; return null;";
            t.0.ok(&format!(
                "select app_trigger(' sees {table}', 'after update', '{table}', 'for each row', $t${body}$t$)"
            ))
            .await;
        }
        for sql in [
            "update item set id = 2",
            "update item set id = -id",
            "update list set id = 'b'",
            "insert into item values (1, null, 'b') on conflict (id) do update set id = 7",
            "merge into item i using (values (1)) s (id) on i.id = s.id when matched then update set id = 9",
        ] {
            let (message, hint) = t.0.fails("27000", sql).await;
            assert!(message.starts_with("the key of public."), "{message}");
            assert_eq!(hint, "Delete the row and insert another one.", "the guard's words, not the fence's");
        }
        t.0.ok("update item set id = id, title = 'b'; update list set id = 'a' where id = 'a'").await;
        assert_eq!(t.0.check().await, ["item I 1", "list I a", "item U 1", "list U a"]);
    }
);

pg_test!(
    BriefSlots,
    async fn f1_the_fence_refuses_a_key_change_that_a_later_before_trigger_made(t: Tables) {
        t.0.ok("create function public.move() returns trigger language plpgsql as $$ begin new.id := new.id + 100; return new; end $$;
        create trigger \"~~after_the_guard\" before update on item for each row execute function public.move();
        insert into item values (1, null, 'a')").await;
        let (message, hint) = t.0.fails("27000", "update item set title = 'b'").await;
        assert_eq!(message, "the key of public.item cannot change: tidegate streams this table");
        assert_eq!(hint, "Delete the row and insert another one. A trigger must not change the key either.");
        assert_eq!(t.0.check().await, ["item I 1"]);
    }
);

pg_test!(
    BriefSlots,
    async fn f4_a_dependency_fence_has_no_table_id(t: Tables) {
        t.0.ok("insert into member values (7, 'u', 1)").await;
        let transactions = t.0.decode().await;
        let Some(Event::Fence(fence)) = transactions[0].iter().find(|event| matches!(event, Event::Fence(_)))
        else {
            panic!("no fence: {transactions:?}");
        };
        assert_eq!((fence.table, fence.operation, fence.key.as_str()), (None, RowOperation::Insert, "7"));
        assert_eq!(fence.name, "public.member");
    }
);

const MUTATION: &str = "insert into tidegate.client (subject, client_id) values ('u', '00000000-0000-0000-0000-000000000001') on conflict do nothing;
    insert into tidegate.client_mutation (subject, client_id, number, fingerprint, status)
    values ('u', '00000000-0000-0000-0000-000000000001', 1, sha256('x'), 'accepted');
    select set_config('tidegate.mutation', max(mutation_id)::text, true) from tidegate.client_mutation;";

pg_test!(
    BriefSlots,
    async fn f5_a_push_leaves_a_write_fence_in_the_transaction_of_its_row(t: Tables) {
        t.0.ok(&format!(
            "begin; {MUTATION} insert into item values (1, null, 'a'); update item set rev = 2; commit"
        ))
        .await;
        let fences: Vec<(String, String, i64, String)> = sqlx::query_as(
            "select fence_id::text, version::text, mutation_id, key from tidegate.write_fence",
        )
        .fetch_all(t.0.pool())
        .await
        .expect("write fences");
        assert_eq!(fences.len(), 2);
        for event in t.0.decode().await.remove(0) {
            if let Event::Fence(fence) = event {
                let stored = fences.iter().find(|stored| stored.0 == fence.fence).expect("its write fence");
                assert_eq!((&stored.1, stored.3.as_str()), (&fence.version, "1"));
                assert_eq!(fence.mutation, Some(u64::try_from(stored.2).expect("id")));
            }
        }
        t.0.ok(&format!("begin; {MUTATION_OTHER} insert into item values (2, null, 'a'); rollback")).await;
        let count: i64 = sqlx::query_scalar("select count(*) from tidegate.write_fence")
            .fetch_one(t.0.pool())
            .await
            .expect("count");
        assert_eq!(count, 2, "F3: it rolls back with its row");
    }
);

const MUTATION_OTHER: &str =
    "insert into tidegate.client_mutation (subject, client_id, number, fingerprint, status)
    values ('u', '00000000-0000-0000-0000-000000000001', 2, sha256('y'), 'accepted');
    select set_config('tidegate.mutation', max(mutation_id)::text, true) from tidegate.client_mutation;";

pg_test!(
    BriefSlots,
    async fn f5_a_setting_alone_forges_no_mutation(t: Tables) {
        t.0.ok(&format!("begin; {MUTATION} commit")).await;
        for forged in ["1", "999999999999999999999999", "-1", "x", "", " 1", "1; select 1"] {
            t.0.ok(&format!(
                "select set_config('tidegate.mutation', '{forged}', false);
            insert into item values (1, null, 'a') on conflict (id) do update set rev = item.rev + 1"
            ))
            .await;
        }
        let count: i64 = sqlx::query_scalar("select count(*) from tidegate.write_fence")
            .fetch_one(t.0.pool())
            .await
            .expect("count");
        assert_eq!(count, 0);
        assert_eq!(t.0.check().await.len(), 7);
    }
);

pg_test!(
    BriefSlots,
    async fn f9_the_refusal_names_operation_and_table_and_says_what_to_do(t: Tables) {
        for (events, body, sql, operation) in [
            (
                "insert",
                "update item set rev = 2 where id = new.id;",
                "insert into item (id) values (1)",
                "INSERT",
            ),
            ("update", "delete from item where id = new.id;", "update item set rev = 3", "UPDATE"),
            ("delete", "insert into item (id) values (old.id);", "delete from item", "DELETE"),
        ] {
            t.0.ok("insert into item (id) values (9) on conflict do nothing").await;
            let body = format!("{body} return null;");
            t.0.ok(&format!(
                "select app_trigger(' early', 'after {events}', 'item', 'for each row', '{body}')"
            ))
            .await;
            let (message, hint) = t.0.fails("27000", sql).await;
            assert_eq!(message, format!("{operation} of a row of public.item is fenced out of order"));
            assert_eq!(hint, HINT);
            t.0.ok("drop function \" early_f\" cascade").await;
        }
        assert_eq!(t.0.check().await, ["item I 9"]);
    }
);

pg_test!(
    BriefSlots,
    async fn f10_versions_are_random_tokens_that_only_fences_give(t: Tables) {
        t.0.ok("insert into item (id) select generate_series(1, 40)").await;
        let mut versions = Vec::new();
        for event in t.0.decode().await.remove(0) {
            if let Event::Fence(fence) = event {
                assert_eq!(
                    (&fence.version[14..15], fence.version != fence.fence),
                    ("4", true),
                    "random, and not the fence's id"
                );
                versions.push(fence.version);
            }
        }
        let mut sorted = versions.clone();
        sorted.sort();
        assert_ne!(versions, sorted, "they say nothing of order");
        // Nobody but a fence writes them: a row of before the registration has none, whatever is registered anew.
        t.0.ok("create table public.old (id int primary key); insert into old values (1), (2)").await;
        t.0.ok("select tidegate.register_table('public.old', '{}'); select tidegate.register_table('public.old', '{\"scopes\": [{\"name\": \"all\"}]}'); update old set id = 1 where id = 1").await;
        let known: Vec<i32> = sqlx::query_scalar("select v.key from tidegate.row_version_7 v")
            .fetch_all(t.0.pool())
            .await
            .expect("versions");
        assert_eq!(known, [1]);
    }
);

pg_test!(
    BriefSlots,
    async fn f1_f2_a_guard_has_no_side_effect_and_a_statement_that_changes_no_row_leaves_nothing(t: Tables) {
        t.0.ok("insert into item (id) values (1)").await;
        t.0.check().await;
        let state = "select string_agg(format('%s %s', ctid, r), ' ') from tidegate.row_version_2 r";
        let before = crate::application::text(t.0.pool(), state).await;
        t.0.ok("select app_trigger('skip', 'before update', 'item', 'for each row', 'return null;')").await;
        // Guards fire, the change does not happen.
        t.0.ok("update item set rev = 2; update item set title = 'x' where id = 1").await;
        t.0.fails("27000", "drop function skip_f cascade; update item set id = 2").await;
        assert_eq!(crate::application::text(t.0.pool(), state).await, before);
        assert!(t.0.check().await.is_empty());
    }
);

pg_test!(
    BriefSlots,
    async fn f7_the_images_of_a_statement_come_first_and_their_fences_after_them(t: Tables) {
        t.0.ok("insert into item (id) values (1), (2), (3)").await;
        let kinds: String =
            t.0.decode()
                .await
                .remove(0)
                .iter()
                .map(|event| match event {
                    Event::Row(row) => format!("row {} ", row.key),
                    Event::Fence(fence) => format!("fence {} ", fence.key),
                    _ => String::new(),
                })
                .collect();
        // Nothing is paired by standing next to it.
        assert_eq!(kinds.trim(), "row 1 row 2 row 3 fence 1 fence 2 fence 3");
    }
);

pg_test!(
    BriefSlots,
    async fn f8_a_message_outside_transactions_survives_a_rollback_and_belongs_to_none(t: Tables) {
        t.0.ok("begin; insert into item (id) values (1); select pg_logical_emit_message(false, 'tidegate.fence', 'forged'); rollback").await;
        assert!(t.0.decode().await.is_empty());
        // Nor does it become a part of the one that it was sent in.
        t.0.ok("begin; insert into item (id) values (1); select pg_logical_emit_message(false, 'tidegate.fence', 'forged'); commit").await;
        assert_eq!(t.0.check().await, ["item I 1"]);
    }
);
