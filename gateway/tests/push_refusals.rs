//! What pushes may not do, and as whom they run: policies, constraints, batches, roles, replaced tables.

use crate::fixture::{Fixture, Write, codes, delete, insert, statuses, text, update, upsert};
use tidegate_embedded::pg_test;
use tidegate_protocol::{Base, ErrorCode, Value};
use uuid::Uuid;

pg_test!(
    NoSlots,
    async fn rls_hides_rows_and_refuses_foreign_ones(f: Fixture) {
        f.sql("insert into public.item (id, owner, title) values (1, 'bob', 'secret'), (2, 'ann', 'mine')")
            .await;
        let bobs = f.version(1).await;
        let mut client = f.client("ann", true);
        let reply = client
            .push(&f.push(
                1,
                false,
                vec![
                    update(1, "stolen"),
                    Write { base: Base::Version(bobs), ..update(1, "stolen") },
                    delete(1),
                    insert(3, "bob", "planted"),
                    Write { cols: vec![("owner".into(), text("bob"))], ..update(2, "") },
                    upsert(1, "ann", "taken over"),
                ],
            ))
            .await;
        assert_eq!(
            codes(&reply),
            ["row_not_found", "row_refused", "row_not_found", "row_refused", "row_refused", "row_refused"]
        );
        let rows = f.column("select id || owner || title from public.item order by id").await;
        assert_eq!(rows, ["1bobsecret", "2annmine"]);
        assert_eq!(
            f.count("select count(*) from tidegate.write_fence").await,
            0,
            "a refusal leaves no fence"
        );
    }
);

pg_test!(
    NoSlots,
    async fn a_delete_needs_no_right_to_update(f: Fixture) {
        f.sql(&format!(
            "revoke update on public.item from {role}; drop policy own on public.item; \
             create policy s on public.item for select using (true); create policy d on public.item for delete using (true); \
             insert into public.item (id, owner) values (1, 'ann'), (2, 'ann')",
            role = f.role
        ))
        .await;
        let base = Base::Version(f.version(1).await);
        let mut client = f.client("ann", true);
        let reply = client.push(&f.push(1, false, vec![Write { base, ..delete(1) }, update(2, "x")])).await;
        assert_eq!(codes(&reply), ["", "permission_denied"]);
    }
);

pg_test!(
    NoSlots,
    async fn constraints_are_outcomes_with_codes_and_no_values(f: Fixture) {
        f.sql("insert into public.item (id, owner, tag) values (1, 'ann', 'taken'), (2, 'ann', 'x'), (3, 'ann', 'y')").await;
        let set =
            |id, name: &'static str, value| Write { cols: vec![(name.into(), value)], ..update(id, "") };
        let mut client = f.client("ann", true);
        let push = f.push(
            1,
            false,
            vec![
                set(2, "tag", text("taken")),
                set(2, "parent", Value::Int(707_070_707)),
                set(2, "title", text("forbidden")),
                set(2, "rev", Value::Nil),
                set(2, "slot", Value::Int(1)),
                set(3, "slot", Value::Int(1)),
                set(2, "title", text("raise SECRET-7f3a")),
                set(2, "title", text("assert SECRET-7f3a")),
                set(2, "meta", text("{SECRET-7f3a")),
                set(2, "short", text("longer than four")),
                set(2, "title", text("fine")),
            ],
        );
        let reply = client.push(&push).await;
        assert_eq!(
            codes(&reply),
            [
                "constraint_unique",
                "constraint_foreign_key",
                "constraint_check",
                "constraint_not_null",
                "",
                "constraint_exclusion",
                "database_refused",
                "database_refused",
                "invalid_value",
                "invalid_value",
                ""
            ]
        );
        assert_eq!(reply.results[2].message.as_deref(), Some("constraint \"item_title\" (SQLSTATE 23514)"));
        assert_eq!(reply.results[3].message.as_deref(), Some("column \"rev\" (SQLSTATE 23502)"));
        assert_eq!(reply.results[6].message.as_deref(), Some("SQLSTATE P0001"));
        // No marker may turn up by chance: fingerprints and versions are hexadecimal.
        let kept = f.column("select row_to_json(m)::text from tidegate.client_mutation m").await.concat();
        for marker in ["SECRET-7f3a", "707070707", "longer than four", "taken"] {
            assert!(!kept.contains(marker), "{marker} is kept in an outcome");
        }
    }
);

pg_test!(
    NoSlots,
    async fn an_atomic_batch_is_all_or_nothing(f: Fixture) {
        let mut client = f.client("ann", true);
        let refused = f.push(
            1,
            true,
            vec![insert(1, "ann", "a"), insert(2, "ann", "forbidden"), insert(3, "ann", "c")],
        );
        let reply = client.push(&refused).await;
        assert_eq!(codes(&reply), ["batch_rejected", "constraint_check", "batch_rejected"]);
        assert_eq!(f.count("select count(*) from public.item").await, 0);
        assert_eq!(f.count("select count(*) from tidegate.write_fence").await, 0);
        assert_eq!(client.push(&refused).await.results, reply.results);

        let accepted = f.push(4, true, vec![insert(1, "ann", "a"), insert(2, "ann", "b")]);
        assert_eq!(statuses(&client.push(&accepted).await), ["accepted", "accepted"]);
        assert_eq!(f.count("select count(distinct xid) from tidegate.write_fence").await, 1);
    }
);

pg_test!(
    NoSlots,
    async fn deferred_constraints_fall_on_the_mutation_that_broke_them(f: Fixture) {
        f.sql("alter table public.item drop constraint item_parent_fkey; alter table public.item add constraint item_parent \
               foreign key (parent) references public.item deferrable initially deferred")
            .await;
        f.restart_pusher().await;
        let child = |id, parent| Write {
            cols: vec![("owner".into(), text("ann")), ("parent".into(), Value::Int(parent))],
            ..insert(id, "ann", "")
        };
        let mut client = f.client("ann", true);
        let reply =
            client.push(&f.push(1, false, vec![insert(1, "ann", "a"), child(2, 99), child(3, 1)])).await;
        assert_eq!(codes(&reply), ["", "constraint_foreign_key", ""]);
        // In one transaction the order does not matter.
        let reply = client.push(&f.push(4, true, vec![child(5, 6), insert(6, "ann", "b")])).await;
        assert_eq!(codes(&reply), ["", ""]);
        let reply = client.push(&f.push(6, true, vec![child(7, 98), insert(8, "ann", "b")])).await;
        assert_eq!(codes(&reply), ["constraint_foreign_key", "constraint_foreign_key"]);
    }
);

pg_test!(
    NoSlots,
    async fn policies_see_the_claims_of_their_own_push_and_no_other(f: Fixture) {
        f.sql("create table public.seen (who text); grant insert on public.seen to public; \
               create function public.note() returns trigger language plpgsql as $$ begin insert into public.seen values ( \
                 current_user || '|' || session_user || '|' || (current_setting('request.jwt.claims')::json ->> 'team') || '|' || \
                 current_setting('request.jwt.claim.sub')); return new; end $$; \
               create trigger note before insert on public.item for each row execute function public.note()")
            .await;
        // One connection: what one push left behind, the next would find.
        let pusher = f.small_pusher().await;
        for (subject, id) in [("ann", 1), ("bob", 2), ("ann", 3)] {
            let mut client = f.client_at(&pusher, Uuid::from_u128(id as u128), subject, true);
            let foreign = Write { cols: vec![("owner".into(), text("eve"))], ..insert(id + 100, "", "") };
            let reply = client.push(&f.push(1, false, vec![insert(id, subject, "a"), foreign])).await;
            assert_eq!(codes(&reply), ["", "row_refused"]);
        }
        let expected = ["ann", "bob", "ann"].map(|subject| format!("{}|{}|red|{subject}", f.role, f.login));
        assert_eq!(f.column("select who from public.seen").await, expected);
    }
);

pg_test!(
    NoSlots,
    async fn a_trigger_that_changes_the_role_for_good_harms_nobody_after_it(f: Fixture) {
        f.sql(&format!(
            "create function public.stay() returns trigger language plpgsql as $$ begin \
               perform set_config('role', '{}', false); return new; end $$; \
             create trigger stay before insert on public.item for each row when (new.title = 'stay') execute function public.stay()",
            f.role
        ))
        .await;
        let mut client = f.client("ann", true);
        for number in 1..=6 {
            let title = if number % 2 == 1 { "stay" } else { "go" };
            let reply = client.push(&f.push(number, false, vec![insert(number as i64, "ann", title)])).await;
            assert_eq!(statuses(&reply), ["accepted"], "{number}: {:?}", reply.error);
        }
    }
);

pg_test!(
    NoSlots,
    async fn a_table_without_row_level_security_is_written_only_if_unrestricted(f: Fixture) {
        let mut client = f.client("ann", true);
        let open = f.table("open").await;
        let free = Write { table: Some(open), cols: vec![], ..insert(1, "", "") };
        assert_eq!(codes(&client.push(&f.push(1, false, vec![free])).await), [""]);
        // Registration saw it on; somebody turned it off.
        f.sql("alter table public.item disable row level security").await;
        assert_eq!(
            codes(&client.push(&f.push(2, false, vec![insert(1, "ann", "a")])).await),
            ["not_writable"]
        );
        assert_eq!(f.count("select count(*) from public.item").await, 0);
    }
);

pg_test!(
    NoSlots,
    async fn f8_a_write_that_no_fence_sees_is_not_accepted(f: Fixture) {
        f.sql("alter table public.item disable trigger \"!tidegate_fence\"").await;
        let mut client = f.client("ann", true);
        let push = f.push(1, false, vec![insert(1, "ann", "a")]);
        let reply = client.push(&push).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::Unavailable));
        assert_eq!(f.count("select count(*) from public.item").await, 0);
        f.sql("alter table public.item enable always trigger \"!tidegate_fence\"").await;
        assert_eq!(statuses(&client.push(&push).await), ["accepted"]);
    }
);

pg_test!(
    NoSlots,
    async fn g1_a_replaced_table_is_never_written(f: Fixture) {
        let mut client = f.client("ann", true);
        f.sql("alter table public.item rename to item_old; create table public.item (like public.item_old including all); grant all on public.item to public").await;
        let reply = client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::Unavailable));
        assert_eq!(f.count("select count(*) from public.item").await, 0);
    }
);

pg_test!(
    NoSlots,
    async fn anonymous_subjects_write_only_where_a_role_is_configured(f: Fixture) {
        let reply = f.client("", true).push(&f.push(1, false, vec![insert(1, "", "a")])).await;
        assert_eq!(codes(&reply), ["permission_denied"]);
    }
);

pg_test!(
    NoSlots,
    async fn our_functions_are_closed_to_the_application_s_role(f: Fixture) {
        let calls = f
            .column(&format!(
                "select p.proname || has_function_privilege('{}', p.oid, 'execute') from pg_proc p \
                 where p.pronamespace = 'tidegate'::regnamespace and p.proname ~ '^(push|prune_write|grant_push)' order by 1",
                f.role
            ))
            .await;
        let open: Vec<_> = calls.iter().filter(|call| call.ends_with("true")).collect();
        assert_eq!(open, ["push_holds_1true", "push_holds_2true", "push_holds_3true", "push_holds_4true"]);
    }
);
