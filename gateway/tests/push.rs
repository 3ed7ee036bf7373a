//! Pushes against a real PostgreSQL: every state of V3, the races of F6, the refusals, the values of DT-02, DT-05 and DT-08.

use crate::fixture::{Fixture, Write, codes, delete, insert, one, statuses, update, upsert};
use sqlx::{Connection, Executor};
use std::sync::Arc;
use tidegate_embedded::pg_test;
use tidegate_model::{RegistryGeneration, RowKey, RowVersion};
use tidegate_protocol::{
    Base, ErrorCode, Invalid, InvalidReason, MutationNumber, MutationOp, MutationStatus, Value, Void,
};
use uuid::Uuid;

fn text(value: &'static str) -> Value<'static> {
    Value::Str(value.into())
}

pg_test!(
    NoSlots,
    async fn v3_a_number_runs_once_and_answers_the_same_for_ever(f: Fixture) {
        let mut client = f.client("ann", true);
        let push = f.push(1, false, vec![insert(1, "ann", "a"), insert(1, "ann", "again"), update(9, "x")]);
        let first = client.push(&push).await;
        assert_eq!(statuses(&first), ["accepted", "conflict", "rejected"]);
        assert_eq!(codes(&first), ["", "row_exists", "row_not_found"]);
        assert!(first.results[0].version.is_some() && first.error.is_none());
        f.sql("delete from public.item").await;

        // Also from another socket, when what was refused would be accepted now.
        let second = f.client("ann", false).push(&push).await;
        assert_eq!(second.results, first.results);
        assert_eq!(f.count("select count(*) from public.item").await, 0);
    }
);

pg_test!(
    NoSlots,
    async fn v3_numbers_above_the_next_are_a_gap_and_nothing_runs(f: Fixture) {
        let mut client = f.client("ann", true);
        let reply = client.push(&f.push(2, false, vec![insert(1, "ann", "a")])).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::Gap));
        assert!(reply.results.is_empty());
        assert_eq!(f.count("select count(*) from public.item").await, 0);

        let mut holed = f.push(1, false, vec![insert(1, "ann", "a"), insert(2, "ann", "b")]);
        holed.mutations[1].number = MutationNumber(3);
        let reply = client.push(&holed).await;
        assert_eq!(statuses(&reply), ["accepted"], "what stands before the hole runs");
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::Gap));
    }
);

pg_test!(
    NoSlots,
    async fn v3_other_content_under_a_number_is_client_forked(f: Fixture) {
        let mut client = f.client("ann", true);
        let push = f.push(1, false, vec![insert(1, "ann", "a")]);
        assert_eq!(statuses(&client.push(&push).await), ["accepted"]);
        let mut other = push.clone();
        other.mutations[0].cols.0[1].1 = text("b");
        let mut rebatched = push.clone();
        rebatched.batch = Uuid::from_u128(77);
        let mut longer = f.push(1, false, vec![insert(1, "ann", "a"), insert(2, "ann", "b")]);
        longer.batch = push.batch;
        for (what, fork) in [("content", other), ("batch", rebatched), ("membership", longer)] {
            let reply = client.push(&fork).await;
            assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::ClientForked), "{what}");
            assert!(reply.results.is_empty(), "{what}");
        }
        assert_eq!(f.count("select count(*) from public.item").await, 1, "nothing of a fork runs");
    }
);

pg_test!(
    NoSlots,
    async fn v3_an_unknown_client_or_one_ahead_of_the_server_is_client_expired(f: Fixture) {
        let push = f.push(1, false, vec![insert(1, "ann", "a")]);
        let reply = f.client("ann", false).push(&push).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::ClientExpired));
        let hello = f.client("ann", false).hello(&[], MutationNumber(0)).await;
        assert_eq!(hello.map_err(|error| error.code), Err(ErrorCode::ClientExpired));

        let mut client = f.client("ann", true);
        let marks = client.hello(&[], MutationNumber(0)).await.expect("a new client");
        assert_eq!((marks.last, marks.settled), (MutationNumber(0), MutationNumber(0)));
        assert_eq!(statuses(&client.push(&push).await), ["accepted"]);
        for (awaited, acked) in [(vec![MutationNumber(2)], 0), (vec![], 2)] {
            let hello = client.hello(&awaited, MutationNumber(acked)).await;
            assert_eq!(hello.map_err(|error| error.code), Err(ErrorCode::ClientExpired));
        }
        let mut ahead = f.push(2, false, vec![insert(2, "ann", "b")]);
        ahead.acked = MutationNumber(2);
        assert_eq!(client.push(&ahead).await.error.map(|error| error.code), Some(ErrorCode::ClientExpired));
        let marks = client.hello(&[MutationNumber(1)], MutationNumber(1)).await.expect("known");
        assert_eq!(marks.last, MutationNumber(1));

        // A client id belongs to its subject.
        let stranger = f.client_of(f.client_id, "bob", false).hello(&[], MutationNumber(0)).await;
        assert_eq!(stranger.map_err(|error| error.code), Err(ErrorCode::ClientExpired));
    }
);

pg_test!(
    NoSlots,
    async fn v3_acknowledged_outcomes_are_forgotten_only_once_their_fences_are_through(f: Fixture) {
        let mut client = f.client("ann", true);
        for number in 1..=70 {
            let reply = client.push(&f.push(number, false, vec![insert(number as i64, "ann", "a")])).await;
            assert_eq!(statuses(&reply), ["accepted"]);
        }
        // As materialization leaves them; 2 is still pending.
        f.sql("update tidegate.write_fence set generation = 1, materialized_commit_lsn = '0/1' where number <> 2").await;
        let mut acknowledging = f.push(71, false, vec![insert(71, "ann", "a")]);
        acknowledging.acked = MutationNumber(68);
        assert_eq!(statuses(&client.push(&acknowledging).await), ["accepted"]);
        let left = f.column("select number::text from tidegate.client_mutation order by number").await;
        assert_eq!(left, ["2", "69", "70", "71"]);

        let expired = client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await;
        assert_eq!(codes(&expired), ["outcome_expired"]);
        assert_eq!(f.count("select count(*) from public.item").await, 71, "it never runs again");
        let stored = client.push(&f.push(2, false, vec![insert(2, "ann", "a")])).await;
        assert_eq!(statuses(&stored), ["accepted"], "kept while its fence is pending");
        let marks = client.hello(&[], MutationNumber(70)).await.expect("known");
        assert_eq!(marks.settled, MutationNumber(68));

        // A base may name a forgotten mutation: its write fence still knows the version.
        let based = Write { base: Base::After(MutationNumber(1)), ..update(1, "b") };
        assert_eq!(statuses(&client.push(&f.push(72, false, vec![based])).await), ["accepted"]);
    }
);

pg_test!(
    NoSlots,
    async fn v3_void_settles_an_unknown_number_and_tells_a_known_one(f: Fixture) {
        let mut client = f.client("ann", true);
        let push = f.push(1, false, vec![insert(1, "ann", "a")]);
        let accepted = client.push(&push).await;
        let void =
            Void { reference: 5, numbers: vec![MutationNumber(1), MutationNumber(2), MutationNumber(4)] };
        let reply = client.void(&void).await;
        assert_eq!(statuses(&reply), ["accepted", "discarded"]);
        assert_eq!(reply.results[0].version, accepted.results[0].version);
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::Gap));
        // What was discarded never runs, whatever comes.
        let late = client.push(&f.push(2, false, vec![insert(2, "ann", "b"), insert(3, "ann", "c")])).await;
        assert_eq!(statuses(&late), ["discarded", "accepted"]);
        assert_eq!(f.count("select count(*) from public.item").await, 2);
    }
);

pg_test!(
    NoSlots,
    async fn wr01_concurrent_duplicates_of_one_number_run_once(f: Fixture) {
        let push = Arc::new(f.push(1, false, vec![insert(1, "ann", "a")]));
        f.client("ann", true).hello(&[], MutationNumber(0)).await.expect("a new client");
        let mut runs = Vec::new();
        for _ in 0..20 {
            let (mut client, push) = (f.client("ann", false), push.clone());
            runs.push(tokio::spawn(async move { client.push(&push).await }));
        }
        let mut versions = Vec::new();
        for run in runs {
            let reply = run.await.expect("no panic");
            assert_eq!(statuses(&reply), ["accepted"], "{:?}", reply.error);
            versions.push(reply.results[0].version);
        }
        versions.dedup();
        assert_eq!(versions.len(), 1);
        assert_eq!(f.count("select count(*) from tidegate.write_fence").await, 1);
    }
);

pg_test!(
    NoSlots,
    async fn f6_of_many_pushes_and_direct_writers_on_one_version_one_wins(f: Fixture) {
        f.sql("insert into public.item (id, owner, title) values (1, 'ann', 'start')").await;
        for round in 0..3 {
            let base = f.version(1).await;
            let mut pushes = Vec::new();
            for i in 0..50_u128 {
                let mut client = f.client_of(Uuid::from_u128(round * 100 + i + 1000), "ann", true);
                let push = f.push(1, false, vec![Write { base: Base::Version(base), ..update(1, "pushed") }]);
                pushes.push(tokio::spawn(async move { client.push(&push).await }));
            }
            let mut direct = Vec::new();
            for _ in 0..8 {
                let url = f.db.url();
                direct.push(tokio::spawn(async move { direct_write(&url, base).await }));
            }
            let mut accepted = 0;
            for push in pushes {
                let reply = push.await.expect("no panic");
                match reply.results.first().map(|result| result.status) {
                    Some(MutationStatus::Accepted) => accepted += 1,
                    Some(MutationStatus::Conflict) => {
                        assert_eq!(reply.conflicts.len(), 1);
                        assert_eq!(reply.conflicts[0].key, RowKey::Int(1));
                        assert_ne!(reply.conflicts[0].current, base);
                    }
                    other => panic!("{other:?} {:?}", reply.error),
                }
            }
            for write in direct {
                accepted += i32::from(write.await.expect("no panic"));
            }
            assert_eq!(accepted, 1, "round {round}: exactly one writer advanced the version");
        }
    }
);

/// An application's compare-and-swap on its own: it locks the row, then compares. Whether it won.
async fn direct_write(url: &str, base: RowVersion) -> bool {
    let mut writer = sqlx::PgConnection::connect(url).await.expect("a connection");
    writer.execute("begin; select from public.item where id = 1 for update").await.expect("a lock");
    let current: Uuid = sqlx::query_scalar("select version from tidegate.row_version_1 where key = 1")
        .fetch_one(&mut writer)
        .await
        .expect("a version");
    let wins = current == base.0;
    if wins {
        writer.execute("update public.item set title = 'direct' where id = 1").await.expect("an update");
    }
    writer.execute("commit").await.expect("a commit");
    wins
}

pg_test!(
    NoSlots,
    async fn f6_a_push_waits_for_a_direct_writer_and_then_sees_its_version(f: Fixture) {
        f.sql("insert into public.item (id, owner, title) values (1, 'ann', 'start')").await;
        for (commit, expected) in [(true, "conflict"), (false, "accepted")] {
            let base = f.version(1).await;
            let mut writer = sqlx::PgConnection::connect(&f.db.url()).await.expect("a connection");
            writer
                .execute("begin; update public.item set rev = rev + 1 where id = 1")
                .await
                .expect("an update");
            let mut client = f.client_of(Uuid::new_v4(), "ann", true);
            let push = f.push(1, false, vec![Write { base: Base::Version(base), ..update(1, "pushed") }]);
            let waiting = tokio::spawn(async move { client.push(&push).await });
            f.wait_until_a_push_waits_for_a_lock().await;
            writer.execute(if commit { "commit" } else { "rollback" }).await.expect("an end");
            let reply = waiting.await.expect("no panic");
            assert_eq!(statuses(&reply), [expected]);
        }
    }
);

pg_test!(
    NoSlots,
    async fn f10_the_unfenced_version_holds_only_while_no_fence_has_touched_the_row(f: Fixture) {
        // A row from before the fences: their triggers did not fire.
        f.sql("set session_replication_role = replica; alter table public.item disable trigger user; \
               insert into public.item (id, owner) values (1, 'ann'), (2, 'ann'); alter table public.item enable always trigger \"!tidegate_fence\", \
               enable always trigger \"!tidegate_freeze\", enable always trigger \"!tidegate_truncate\", enable always trigger \"~tidegate_guard\"")
            .await;
        let mut client = f.client("ann", true);
        let unfenced = Base::Version(RowVersion::UNFENCED);
        let reply = client
            .push(&f.push(
                1,
                false,
                vec![
                    Write { base: unfenced, ..update(1, "first") },
                    Write { base: unfenced, ..update(1, "second") },
                    Write { base: unfenced, ..update(3, "no such row") },
                    Write { base: unfenced, ..delete(2) },
                ],
            ))
            .await;
        assert_eq!(statuses(&reply), ["accepted", "conflict", "conflict", "accepted"]);
    }
);

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
                set(2, "parent", Value::Int(777)),
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
        let kept = f.column("select row_to_json(m)::text from tidegate.client_mutation m").await.concat();
        for marker in ["SECRET-7f3a", "777", "longer than four", "taken"] {
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
    async fn a_chain_of_bases_runs_in_one_push_and_over_several(f: Fixture) {
        let after = |n| Base::After(MutationNumber(n));
        for atomic in [false, true] {
            f.sql("delete from public.item").await;
            let mut client = f.client_of(Uuid::new_v4(), "ann", true);
            let chain = f.push(
                1,
                atomic,
                vec![
                    insert(1, "ann", "a"),
                    Write { base: after(1), ..update(1, "b") },
                    Write { base: after(2), ..update(1, "c") },
                ],
            );
            let reply = client.push(&chain).await;
            assert_eq!(statuses(&reply), ["accepted", "accepted", "accepted"]);
            assert_eq!(reply.results[2].version, Some(f.version(1).await));
            let on = f.push(
                4,
                atomic,
                vec![
                    Write { base: after(3), ..update(1, "d") },
                    Write { base: after(4), ..delete(1) },
                    Write { base: after(5), ..insert(1, "ann", "e") },
                    Write { base: after(6), ..upsert(1, "ann", "f") },
                    Write { base: after(7), ..delete(1) },
                    Write { base: after(8), ..upsert(1, "ann", "g") },
                ],
            );
            let reply = client.push(&on).await;
            assert_eq!(statuses(&reply), ["accepted"; 6], "{:?}", codes(&reply));
            assert_eq!(reply.results[1].version, None, "a delete leaves no version");
            assert_eq!(f.column("select title from public.item").await, ["g"]);
        }
        // A refused link takes down what hangs on it, and a foreign write breaks the chain.
        let mut client = f.client_of(Uuid::new_v4(), "ann", true);
        let broken = f.push(
            1,
            false,
            vec![
                insert(9, "ann", "forbidden"),
                Write { base: after(1), ..update(9, "b") },
                Write { base: after(2), ..update(9, "c") },
                insert(10, "ann", "a"),
            ],
        );
        let reply = client.push(&broken).await;
        assert_eq!(codes(&reply), ["constraint_check", "dependency_rejected", "dependency_rejected", ""]);
        f.sql("update public.item set rev = 5 where id = 10").await;
        let reply = client.push(&f.push(5, false, vec![Write { base: after(4), ..update(10, "b") }])).await;
        assert_eq!(codes(&reply), ["conflict"]);
    }
);

pg_test!(
    NoSlots,
    async fn dt02_sixty_four_bit_keys_and_counters_are_exact(f: Fixture) {
        let keys = [9007199254740992, 9007199254740993, i64::MIN, i64::MAX];
        let mut client = f.client("ann", true);
        let reply =
            client.push(&f.push(1, false, keys.iter().map(|key| insert(*key, "ann", "x")).collect())).await;
        assert_eq!(statuses(&reply), ["accepted"; 4]);
        let counter = Write {
            cols: vec![("big".into(), Value::Int(9007199254740993))],
            ..update(9007199254740993, "")
        };
        let rounded = Write {
            cols: vec![("big".into(), Value::F64(9007199254740992.0))],
            ..update(9007199254740992, "")
        };
        let wide = Write { cols: vec![("rev".into(), Value::Int(1 << 31))], ..update(i64::MAX, "") };
        let json =
            Write { cols: vec![("meta".into(), text("{\"n\":9007199254740993}"))], ..update(i64::MAX, "") };
        let reply = client.push(&f.push(5, false, vec![counter, rounded, wide, json])).await;
        assert_eq!(codes(&reply), ["", "invalid_value", "invalid_value", ""]);
        let rows = f.column("select concat_ws('|', id, big, meta) from public.item order by id").await;
        assert_eq!(
            rows,
            [
                "-9223372036854775808",
                "9007199254740992",
                "9007199254740993|9007199254740993",
                "9223372036854775807|{\"n\":9007199254740993}"
            ]
        );
    }
);

pg_test!(
    NoSlots,
    async fn dt05_what_postgresql_cannot_hold_is_refused_alone_and_stored(f: Fixture) {
        let bad = |reason| Value::Invalid(Invalid { reason, raw: vec![0xa3, 0xed, 0xa0, 0xbd].into() });
        let set = |id, value| Write {
            cols: vec![("owner".into(), text("ann")), ("title".into(), value)],
            ..insert(id, "ann", "")
        };
        let long = "\u{1f600}".repeat(65 * 1024 / 4);
        let mut client = f.client("ann", true);
        let push = f.push(
            1,
            false,
            vec![
                set(1, bad(InvalidReason::NotUtf8)),
                set(2, bad(InvalidReason::Nul)),
                set(3, text("fine")),
                set(4, Value::Str(long.clone().into())),
                Write { key: bad(InvalidReason::NotUtf8), ..set(5, text("x")) },
                Write {
                    cols: vec![("owner".into(), text("ann")), ("meta".into(), text("{\"a\":\"x\\u0000y\"}"))],
                    ..insert(6, "ann", "")
                },
            ],
        );
        let reply = client.push(&push).await;
        assert_eq!(codes(&reply), ["invalid_value", "invalid_value", "", "", "invalid_value", ""]);
        assert_eq!(client.push(&push).await.results, reply.results, "the refusal is stored");
        let stored = f.column("select title from public.item where id = 4").await;
        assert_eq!(stored, [long]);

        // Two normal forms of one letter are two keys.
        let table = f.table("word").await;
        let word = |key: &'static str| Write {
            table: Some(table),
            key: text(key),
            cols: vec![],
            ..insert(0, "ann", "")
        };
        let reply = client
            .push(&f.push(7, false, vec![word("\u{e9}"), word("e\u{301}"), word(""), word("\u{e9}")]))
            .await;
        assert_eq!(codes(&reply), ["", "", "", "row_exists"]);
        assert_eq!(f.count("select count(*) from public.word").await, 3);
    }
);

pg_test!(
    NoSlots,
    async fn dt08_null_empty_and_omitted_are_three_things(f: Fixture) {
        f.sql("insert into public.item (id, owner, title, body) values (1, 'ann', 'old', 'kept')").await;
        let mut client = f.client("ann", true);
        let mut seen = Vec::new();
        for (number, value) in [(1, Value::Nil), (2, text("")), (3, text("NULL")), (4, text("a\"b\\{},"))] {
            let write = Write { cols: vec![("title".into(), value)], ..update(1, "") };
            assert_eq!(statuses(&client.push(&f.push(number, false, vec![write])).await), ["accepted"]);
            seen.extend(
                f.column("select coalesce('<' || title || '>', 'null') || body from public.item").await,
            );
        }
        assert_eq!(seen, ["nullkept", "<>kept", "<NULL>kept", "<a\"b\\{},>kept"]);
        let upserted = Write { cols: vec![("owner".into(), text("ann"))], ..upsert(1, "ann", "") };
        assert_eq!(statuses(&client.push(&f.push(5, false, vec![upserted])).await), ["accepted"]);
        assert_eq!(
            f.column("select title from public.item").await,
            ["a\"b\\{},"],
            "an upsert leaves omitted columns alone"
        );
    }
);

pg_test!(
    NoSlots,
    async fn every_wire_type_round_trips(f: Fixture) {
        let table = f.table("typed").await;
        let cols = || {
            vec![
                ("b".into(), Value::Bool(true)),
                ("i2".into(), Value::Int(-32768)),
                ("f4".into(), Value::F32(0.1)),
                ("f8".into(), Value::F64(f64::NEG_INFINITY)),
                ("n".into(), text("1e-400")),
                ("u".into(), text("6BA7B810-9DAD-11D1-80B4-00C04FD430C8")),
                ("d".into(), text("0044-03-15 BC")),
                ("ts".into(), text("2026-11-30T18:55:34.123456")),
                ("tz".into(), text("294276-12-31T23:59:59.999999Z")),
                ("iv".into(), text("P-1DT2H3M")),
                ("by".into(), Value::Bin(vec![0, 255, 92].into())),
                ("e".into(), text("it's")),
                ("j".into(), text("{\"b\": 1, \"a\": [null]}")),
                ("c".into(), text("ab")),
                (
                    "a".into(),
                    Value::Array(
                        tidegate_protocol::Elements::new(&[text("x,\"y\\"), Value::Nil, text("")])
                            .expect("plain"),
                    ),
                ),
                ("m".into(), text("{{1,2},{3,4}}")),
                ("dom".into(), Value::Int(5)),
            ]
        };
        let mut client = f.client("ann", true);
        let write = Write {
            table: Some(table),
            key: text("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
            cols: cols(),
            ..insert(0, "", "")
        };
        assert_eq!(codes(&client.push(&f.push(1, false, vec![write])).await), [""]);
        let mut session = sqlx::PgConnection::connect(&f.db.url()).await.expect("a connection");
        session.execute("set timezone = 'UTC'; set intervalstyle = 'iso_8601'").await.expect("settings");
        let row: String = sqlx::query_scalar(
            "select concat_ws('|', b, i2, f4, f8, n = '1e-400', u, d, ts, tz, iv, by, e, j, c, a, m, dom) from public.typed",
        )
        .fetch_one(&mut session)
        .await
        .expect("the row");
        assert_eq!(
            row,
            "t|-32768|0.1|-Infinity|t|6ba7b810-9dad-11d1-80b4-00c04fd430c8|0044-03-15 BC|2026-11-30 18:55:34.123456|\
             294276-12-31 23:59:59.999999+00|P-1DT2H3M|\\x00ff5c|it's|{\"b\": 1, \"a\": [null]}|ab  |{\"x,\\\"y\\\\\",NULL,\"\"}|{{1,2},{3,4}}|5"
        );
        // A domain's check is a constraint; a length is kept, never cut.
        let set = |name: &'static str, value| Write {
            table: Some(table),
            key: text("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
            cols: vec![(name.into(), value)],
            ..update(0, "")
        };
        let reply = client
            .push(&f.push(
                2,
                false,
                vec![set("dom", Value::Int(-1)), set("c", text("abcde")), set("d", text("tomorrow-ish"))],
            ))
            .await;
        assert_eq!(codes(&reply), ["constraint_check", "invalid_value", "invalid_value"]);
    }
);

pg_test!(
    NoSlots,
    async fn f5_fences_carry_the_mutation_and_a_setting_alone_cannot(f: Fixture) {
        let mut client = f.client("ann", true);
        assert_eq!(
            statuses(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await),
            ["accepted"]
        );
        let fences = f.column("select number || key || (version = (select version from tidegate.row_version_1 where key = 1)) from tidegate.write_fence").await;
        assert_eq!(fences, ["11true"]);
        // A known id, in another transaction.
        f.sql("begin; select set_config('tidegate.mutation', (select min(mutation_id)::text from tidegate.client_mutation), true); \
               update public.item set title = 'forged' where id = 1; commit")
            .await;
        assert_eq!(f.count("select count(*) from tidegate.write_fence").await, 1);
    }
);

pg_test!(
    NoSlots,
    async fn a_trigger_s_further_writes_belong_to_the_mutation_and_the_last_version_counts(f: Fixture) {
        f.sql("create function public.touch() returns trigger language plpgsql as $$ begin \
                 update public.item set rev = rev + 1 where id = new.id and pg_trigger_depth() < 2; return null; end $$; \
               create constraint trigger touch after update on public.item deferrable initially deferred for each row execute function public.touch(); \
               insert into public.item (id, owner) values (1, 'ann')")
            .await;
        f.restart_pusher().await;
        let mut client = f.client("ann", true);
        for (first, atomic) in [(1, false), (3, true)] {
            let chained = Write { base: Base::After(MutationNumber(first)), ..update(1, "b") };
            let reply = client.push(&f.push(first, atomic, vec![update(1, "a"), chained])).await;
            // In an atomic batch the deferred trigger fires at its end, so both numbers made the same last version.
            assert_eq!(codes(&reply), ["", ""]);
            assert_eq!(reply.results[1].version, Some(f.version(1).await));
        }
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
    async fn v3_a_statement_timeout_is_an_error_and_never_an_outcome(f: Fixture) {
        f.sql("create function public.slow() returns trigger language plpgsql as $$ begin \
                 if new.title = 'slow' and exists (select from public.word where id = 'slow') then perform pg_sleep(60); end if; return new; end $$; \
               create trigger slow before insert on public.item for each row execute function public.slow(); insert into public.word values ('slow'); \
               grant select on public.word to public; alter table public.word disable row level security")
            .await;
        let mut client = f.client("ann", true);
        let push = f.push(
            1,
            false,
            vec![insert(1, "ann", "quick"), insert(2, "ann", "slow"), insert(3, "ann", "after")],
        );
        let reply = client.push(&push).await;
        assert_eq!(statuses(&reply), ["accepted"], "what was quick is decided");
        let error = reply.error.expect("an error");
        assert_eq!((error.code, error.code.retryable()), (ErrorCode::Unavailable, true));
        f.sql("delete from public.word").await;
        assert_eq!(statuses(&client.push(&push).await), ["accepted"; 3]);
    }
);

pg_test!(
    NoSlots,
    async fn v2_too_many_unmaterialized_mutations_are_capture_behind(f: Fixture) {
        let mut client = f.client("ann", true);
        let many =
            |from: i64, count: i64| (from..from + count).map(|id| insert(id, "ann", "a")).collect::<Vec<_>>();
        for first in [1, 101, 201] {
            let reply = client.push(&f.push(first, false, many(first as i64, 100))).await;
            assert_eq!(reply.results.len(), 100, "{:?}", reply.error);
        }
        let push = f.push(301, false, many(301, 1));
        let reply = client.push(&push).await;
        let error = reply.error.expect("an error");
        assert_eq!((error.code, error.retry_after_ms.is_some()), (ErrorCode::CaptureBehind, true));
        assert!(reply.results.is_empty());
        let again = client.push(&f.push(201, false, many(201, 100))).await;
        assert_eq!(statuses(&again), ["accepted"; 100], "stored outcomes are still told");
        f.sql("update tidegate.write_fence set generation = 1, materialized_commit_lsn = '0/1' where number <= 50").await;
        assert_eq!(statuses(&client.push(&push).await), ["accepted"]);
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
    async fn pushes_follow_the_registry(f: Fixture) {
        let mut client = f.client("ann", true);
        assert_eq!(codes(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await), [""]);
        f.sql("create table public.late (id bigint primary key, owner text); grant all on public.late to public; \
               select tidegate.register_table('public.late', '{\"write\": \"enabled\", \"unrestricted\": true, \"scopes\": [{\"name\": \"late\"}]}')")
            .await;
        let late = f.table("late").await;
        let mut push = f.push(2, false, vec![Write { table: Some(late), cols: vec![], ..insert(1, "", "") }]);
        push.sv = RegistryGeneration(f.generation().await);
        assert_eq!(
            codes(&client.push(&push).await),
            [""],
            "a push under a newer schema version makes us look"
        );
        f.sql("select tidegate.register_table('public.item', '{\"write\": \"read_only\", \"scopes\": [{\"name\": \"user:{owner}\"}]}')").await;
        let reply = client.push(&f.push(3, false, vec![insert(2, "ann", "a")])).await;
        assert_eq!(codes(&reply), ["not_writable"], "and the statement is never run under an older registry");
        let mut push = f.push(4, false, vec![update(1, "a")]);
        push.sv = RegistryGeneration(999);
        assert_eq!(client.push(&push).await.error.map(|error| error.code), Some(ErrorCode::SchemaUnknown));
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
    async fn limits_are_named(f: Fixture) {
        let mut client = f.client("ann", true);
        let many = (1..=201).map(|id| insert(id, "ann", "a")).collect();
        let reply = client.push(&f.push(1, false, many)).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::BatchTooLarge));
        let reply = client.push(&f.push(1, false, vec![])).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::MalformedFrame));
        assert_eq!(f.count("select count(*) from tidegate.client").await, 0);
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

pg_test!(
    Private,
    async fn wr01_a_push_survives_a_killed_server(server: tidegate_embedded::testing::TestServer) {
        let f = Fixture::on(&server).await;
        let mut client = f.client("ann", true);
        assert_eq!(
            statuses(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await),
            ["accepted"]
        );
        server.kill().expect("kill");
        let push = f.push(2, false, vec![insert(2, "ann", "b")]);
        let reply = client.push(&push).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::Unavailable));
        server.start().expect("start");
        assert_eq!(
            statuses(&client.push(&push).await),
            ["accepted"],
            "dead connections are replaced by themselves"
        );
        assert_eq!(
            one(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await),
            MutationStatus::Accepted
        );
        f.close().await;
    }
);

pg_test!(
    NoSlots,
    async fn a_full_queue_is_unavailable_with_a_hint(f: Fixture) {
        f.sql("insert into public.item (id, owner) values (1, 'ann')").await;
        let pusher = f.small_pusher().await;
        let mut writer = sqlx::PgConnection::connect(&f.db.url()).await.expect("a connection");
        writer.execute("begin; update public.item set rev = 2 where id = 1").await.expect("an update");
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut client = f.client_at(&pusher, Uuid::new_v4(), "ann", true);
            let push = f.push(1, false, vec![update(1, "x")]);
            runs.push(tokio::spawn(async move { client.push(&push).await }));
        }
        f.wait_until_a_push_waits_for_a_lock().await;
        // One runs and one waits for its place, or is about to: a third finds the queue full once it does.
        let refused = loop {
            let mut client = f.client_at(&pusher, Uuid::new_v4(), "ann", true);
            let mut probe = tokio::spawn({
                let push = f.push(1, false, vec![update(2, "x")]);
                async move { client.push(&push).await }
            });
            tokio::select! {
                reply = &mut probe => break reply.expect("no panic"),
                () = f.wait_until_a_push_waits_for_a_lock() => probe.abort(),
            }
        };
        let error = refused.error.expect("an error");
        assert_eq!((error.code, error.retry_after_ms.is_some()), (ErrorCode::Unavailable, true));
        writer.execute("commit").await.expect("commit");
        for run in runs {
            assert_eq!(statuses(&run.await.expect("no panic")), ["accepted"]);
        }
    }
);

#[test]
fn op_names_are_what_the_sql_expects() {
    let names = [MutationOp::Insert, MutationOp::Update, MutationOp::Upsert, MutationOp::Delete]
        .map(MutationOp::as_str);
    assert_eq!(names, ["insert", "update", "upsert", "delete"]);
}
