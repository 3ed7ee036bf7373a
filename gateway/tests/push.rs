//! Pushes against a real PostgreSQL: every state of V3, the races of F6, versions and fences.

use crate::fixture::{Fixture, Write, codes, delete, insert, statuses, text, update, upsert};
use sqlx::{Connection, Executor};
use std::sync::Arc;
use tidegate_embedded::pg_test;
use tidegate_model::{RowKey, RowVersion};
use tidegate_protocol::{Base, ErrorCode, MutationNumber, MutationStatus, Value, Void};
use uuid::Uuid;

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
    async fn v3_one_update_without_a_base_that_is_sent_again_by_itself_runs_once(f: Fixture) {
        let mut client = f.client("ann", true);
        client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await;
        let alone = f.push(2, false, vec![update(1, "mine")]);
        let first = client.push(&alone).await;
        assert_eq!(statuses(&first), ["accepted"]);
        // Its answer is lost; it comes round, its fence is pruned, and others write before it comes again.
        f.sql("update public.item set title = 'theirs'; delete from tidegate.write_fence").await;
        for mut socket in [client, f.client("ann", false)] {
            let again = socket.push(&alone).await;
            assert_eq!(again.results, first.results);
            assert!(again.error.is_none());
        }
        assert_eq!(f.column("select title from public.item").await, ["theirs"]);
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
        let hello = f.hello("ann", false, &[], 0).await;
        assert_eq!(hello.map_err(|error| error.code), Err(ErrorCode::ClientExpired));

        let mut client = f.client("ann", true);
        let marks = f.hello("ann", true, &[], 0).await.expect("a new client");
        assert_eq!((marks.last, marks.settled), (MutationNumber(0), MutationNumber(0)));
        assert_eq!(statuses(&client.push(&push).await), ["accepted"]);
        for (awaited, acked) in [(vec![2], 0), (vec![], 2)] {
            let hello = f.hello("ann", false, &awaited, acked).await;
            assert_eq!(hello.map_err(|error| error.code), Err(ErrorCode::ClientExpired));
        }
        let mut ahead = f.push(2, false, vec![insert(2, "ann", "b")]);
        ahead.acked = MutationNumber(2);
        assert_eq!(client.push(&ahead).await.error.map(|error| error.code), Some(ErrorCode::ClientExpired));
        let marks = f.hello("ann", false, &[1], 1).await.expect("known");
        assert_eq!(marks.last, MutationNumber(1));

        // A client id belongs to its subject.
        let stranger = f.hello("bob", false, &[], 0).await;
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
        let marks = f.hello("ann", false, &[], 70).await.expect("known");
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
    async fn v3_void_refuses_unordered_numbers_before_it_settles_any(f: Fixture) {
        let mut client = f.client("ann", true);
        assert_eq!(
            statuses(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await),
            ["accepted"]
        );
        let void = |numbers: &[u64]| Void {
            reference: 5,
            numbers: numbers.iter().copied().map(MutationNumber).collect(),
        };
        for numbers in [&[2, 2][..], &[3, 2], &[2, 3, 3]] {
            let reply = client.void(&void(numbers)).await;
            assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::MalformedFrame), "{numbers:?}");
            assert!(reply.results.is_empty());
        }
        assert_eq!(f.count("select last_number from tidegate.client").await, 1, "nothing was discarded");
    }
);

pg_test!(
    NoSlots,
    async fn v3_void_tells_a_forgotten_outcome_and_a_stored_one_together(f: Fixture) {
        let mut client = f.client("ann", true);
        for number in 1..=2 {
            client.push(&f.push(number, false, vec![insert(number as i64, "ann", "a")])).await;
        }
        f.sql("delete from tidegate.client_mutation where number = 1").await;
        let void = Void { reference: 5, numbers: (1..=3).map(MutationNumber).collect() };
        let reply = client.void(&void).await;
        assert_eq!(codes(&reply), ["outcome_expired", "", "discarded"]);
        assert!(reply.results[1].version.is_some());
    }
);

pg_test!(
    NoSlots,
    async fn wr01_concurrent_duplicates_of_one_number_run_once(f: Fixture) {
        let push = Arc::new(f.push(1, false, vec![insert(1, "ann", "a")]));
        f.hello("ann", true, &[], 0).await.expect("a new client");
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
        let kinds: [fn() -> Write; 3] = [|| update(1, "pushed"), || upsert(1, "ann", "pushed"), || delete(1)];
        for (kind, commit, expected) in
            kinds.iter().flat_map(|kind| [(kind, true, "conflict"), (kind, false, "accepted")])
        {
            let base = f.version(1).await;
            let mut writer = sqlx::PgConnection::connect(&f.db.url()).await.expect("a connection");
            writer
                .execute("begin; update public.item set rev = rev + 1 where id = 1")
                .await
                .expect("an update");
            let mut client = f.client_of(Uuid::new_v4(), "ann", true);
            let push = f.push(1, false, vec![Write { base: Base::Version(base), ..kind() }]);
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
    async fn f6_an_insert_after_a_mutation_that_left_the_row_is_a_conflict_though_somebody_deleted_it(
        f: Fixture,
    ) {
        let after = |n| Base::After(MutationNumber(n));
        let mut client = f.client("ann", true);
        client.push(&f.push(1, false, vec![insert(1, "ann", "a"), insert(2, "ann", "a")])).await;
        f.sql("delete from public.item").await;
        // One by the short way, one with company.
        let reply =
            client.push(&f.push(3, false, vec![Write { base: after(1), ..insert(1, "ann", "b") }])).await;
        assert_eq!(codes(&reply), ["conflict"]);
        let together = vec![Write { base: after(2), ..insert(2, "ann", "b") }, insert(3, "ann", "c")];
        assert_eq!(codes(&client.push(&f.push(4, false, together)).await), ["conflict", ""]);
        assert_eq!(f.column("select title from public.item").await, ["c"]);
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
    async fn the_short_way_and_the_long_way_come_to_the_same(f: Fixture) {
        f.sql("insert into public.item (id, owner, title) values (1, 'ann', 'a'), (2, 'bob', 'b'), (101, 'ann', 'a'), (102, 'bob', 'b')")
            .await;
        let wrong = Base::Version(RowVersion(Uuid::from_u128(5)));
        let writes = |plus: i64| {
            let after = |n| Base::After(MutationNumber(n));
            vec![
                update(1 + plus, "x"),
                Write { base: after(1), ..update(1 + plus, "y") },
                Write { base: wrong, ..update(1 + plus, "z") },
                update(2 + plus, "hidden"),
                insert(3 + plus, "ann", "new"),
                insert(3 + plus, "ann", "again"),
                update(3 + plus, "forbidden"),
                Write { base: after(7), ..update(3 + plus, "x") },
                Write { base: after(5), ..upsert(3 + plus, "ann", "merged") },
                Write { base: after(9), ..delete(3 + plus) },
                Write { base: after(10), ..upsert(3 + plus, "ann", "reborn") },
                Write { key: text("no number"), ..update(1, "x") },
                Write { cols: vec![("id".into(), Value::Int(9))], ..update(1 + plus, "x") },
            ]
        };
        let (one, many) = (Uuid::from_u128(11), Uuid::from_u128(12));
        let mut client = f.client_of(one, "ann", true);
        let mut singly = Vec::new();
        for (number, write) in (1..).zip(writes(0)) {
            let reply = client.push(&f.push(number, false, vec![write])).await;
            singly.extend(codes(&reply).into_iter().map(str::to_owned));
        }
        let together = f.client_of(many, "ann", true).push(&f.push(1, false, writes(100))).await;
        assert_eq!(singly, codes(&together));
        let left = async |client: Uuid, plus: i64| {
            f.column(&format!(
                "select concat_ws('|', m.number, m.status, m.code, m.message, m.version is null, \
                   (select string_agg((w.key::bigint - {plus})::text, ',') from tidegate.write_fence w where w.mutation_id = m.mutation_id \
                    and (m.version is null or w.version = m.version))) \
                 from tidegate.client_mutation m where m.client_id = '{client}' order by m.number"
            ))
            .await
        };
        assert_eq!(left(one, 0).await, left(many, 100).await);
        let rows = async |from: i64, to: i64| {
            f.column(&format!("select concat_ws('|', id % 100, owner, title) from public.item where id between {from} and {to} order by id")).await
        };
        assert_eq!(rows(1, 99).await, rows(101, 199).await);
    }
);

pg_test!(
    NoSlots,
    async fn v6_write_fences_stay_until_through_acknowledged_and_old(f: Fixture) {
        let mut client = f.client("ann", true);
        let many = (1..=4).map(|id| insert(id, "ann", "a")).collect();
        assert_eq!(client.push(&f.push(1, false, many)).await.results.len(), 4);
        // As a worker and an acknowledgement leave them. 1 and 2 went through an hour and a second ago, 3 was covered by a baseline
        // an hour ago, 4 is pending; all but 2's outcomes are forgotten.
        f.sql(
            "insert into tidegate.source_transaction (generation, commit_lsn, end_lsn, xid, committed_at, event_count, effect_count, effect_bytes, manifest) \
             values (1, '0/1', '0/1', 1, clock_timestamp() - interval '1 hour', 0, 0, 0, ''), (1, '0/2', '0/2', 2, clock_timestamp(), 0, 0, 0, ''); \
             insert into tidegate.stream_reset (reset_id, kind, phase, slot_name, database_name, plugin, state_id, phase_at) \
             values (gen_random_uuid(), 'reset', 'activated', 's', 'd', 'pgoutput', 1, clock_timestamp() - interval '1 hour'); \
             update tidegate.write_fence set generation = 1, materialized_commit_lsn = ('0/' || number)::pg_lsn where number <= 2; \
             update tidegate.write_fence set covered_by = (select reset_id from tidegate.stream_reset) where number = 3; \
             delete from tidegate.client_mutation where number <> 2",
        )
        .await;
        let left = "select number::text from tidegate.write_fence order by number";
        assert_eq!(f.count("select tidegate.prune_write_fences('30 minutes', 100)").await, 2);
        assert_eq!(f.column(left).await, ["2", "4"]);
        assert_eq!(
            f.count("select tidegate.prune_write_fences('0', 100)").await,
            0,
            "an outcome that is kept keeps its fence"
        );
        f.sql("delete from tidegate.client_mutation").await;
        assert_eq!(f.count("select tidegate.prune_write_fences('0', 100)").await, 1);
        assert_eq!(f.column(left).await, ["4"]);
    }
);
