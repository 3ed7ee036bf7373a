//! From SQL to effects, transaction by transaction.

use crate::world::{ITEMS, World, within};
use std::sync::Arc;
use tidegate_capture::Hooks;
use tidegate_embedded::pg_test;
use tokio::sync::oneshot;
use tracing::instrument::WithSubscriber;

pg_test!(
    Slots,
    async fn r6_rows_written_with_sql_become_effects(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world
            .sql("insert into items values ('a', 'L1', 1, 'x'), ('b', 'L1', 2, null), ('c', null, 3, '')")
            .await;
        world.sql("update items set n = 10 where id = 'a'").await;
        world.sql("update items set list_id = 'L2' where id = 'b'").await;
        world.sql("delete from items where id = 'a'").await;
        world.settle().await;
        assert_eq!(
            world.effects().await,
            [
                "list:L1 upsert a",
                "list:L1 upsert b",
                "list:L1 upsert a",
                "list:L1 delete b",
                "list:L2 upsert b",
                "list:L1 delete a",
            ]
        );
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx09_r6_a_transaction_means_its_net_change(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world
            .sql("insert into items values ('1', 'L1', 0, ''), ('2', 'L1', 0, ''), ('5', 'L1', 0, '')")
            .await;
        world.settle().await;
        world.sql("truncate tidegate.effect").await;
        world
            .sql("begin; insert into items values ('6', 'L1'); delete from items where id = '6'; commit")
            .await;
        world.sql("begin; update items set list_id = 'L2' where id = '5'; update items set list_id = 'L1' where id = '5';
               update items set list_id = 'L2' where id = '5'; commit").await;
        world.sql("begin; delete from items where id = '1'; insert into items values ('1', 'L3', 7, 'new'); commit").await;
        world.sql("begin; update items set list_id = 'L9' where id = '2'; update items set list_id = 'L1' where id = '2'; commit").await;
        world.sql("begin; savepoint s; update items set n = 99; rollback to s; update items set n = 1 where id = '2'; commit").await;
        world.settle().await;
        let mut effects = world.effects().await;
        // Within one event and one scope the order is ruled; between scopes it is not.
        effects[..2].sort();
        effects[2..4].sort();
        assert_eq!(
            effects,
            [
                "list:L1 delete 5",
                "list:L2 upsert 5",
                "list:L1 delete 1",
                "list:L3 upsert 1",
                "list:L1 upsert 2",
                "list:L1 upsert 2"
            ]
        );
        world.sql("insert into items values ('7', 'L4')").await;
        world.settle().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn r8_dt01_unchanged_out_of_line_values_stay(world: World) {
        world.sql(ITEMS).await;
        world.sql("alter table items alter column body set storage external").await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('t', 'L1', 1, repeat('x', 100000))").await;
        world.sql("update items set n = 2 where id = 't'").await;
        world.settle().await;
        world.assert_consistent().await;
        world.sql("begin; update items set body = repeat('y', 90000) where id = 't'; update items set n = 3 where id = 't';
               update items set list_id = 'L2' where id = 't'; commit").await;
        world.sql("update items set n = 4 where id = 't'").await;
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v7_grants_follow_their_rows(world: World) {
        world.sql(ITEMS).await;
        world.sql("create table public.members (id bigint primary key, team_id text, user_id text, active boolean not null default true);
        select tidegate.register_grant('{\"scope\": \"list:{members.team_id}\", \"from\": \"public.members\",
            \"where\": \"members.user_id = {subject.id} and members.active\"}');
        insert into members values (1, 'A', 'ann'), (2, 'A', 'bob')").await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into members values (3, 'A', 'ann'), (4, 'B', 'ann')").await;
        world.sql("delete from members where id = 1").await;
        world.sql("update members set active = false where id = 3").await;
        world
            .sql(
                "begin; delete from members where id = 2; insert into members values (2, 'A', 'bob'); commit",
            )
            .await;
        world.settle().await;
        let found = world.text("select string_agg(format('%s %s %s', op, subject, scope), ', ' order by commit_lsn, ordinal) from tidegate.grant_effect").await;
        assert_eq!(found, "1 ann list:B, 2 ann list:A");
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        let held = world.text(&format!(
        "select string_agg(format('%s %s %s', subject, scope, row_count), ', ' order by subject, scope) from tidegate_projection.s{state}_subject_grant"
    )).await;
        assert_eq!(held, "ann list:B 1, bob list:A 1");
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn g3_a_registration_takes_effect_at_its_place_in_the_stream(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world
            .sql(
                "begin; insert into items values ('before', 'L1');
        create table public.notes (id int primary key, list_id text);
        select tidegate.register_table('public.notes', '{\"scopes\": [{\"name\": \"list:{list_id}\"}]}');
        insert into notes values (1, 'L1'); insert into items values ('after', 'L1'); commit",
            )
            .await;
        world.sql("insert into notes values (2, 'L2')").await;
        world.settle().await;
        world.assert_consistent().await;
        assert_eq!(world.effects().await.len(), 4);
        let activation = world.text("select format('%s at %s', registry_generation, first_event_ordinal) from tidegate.registry_activation where commit_lsn is not null").await;
        assert_eq!(activation, "2 at 1");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn f8_each_accepted_fence_is_reconciled_once(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql(PUSH).await;
        world.settle().await;
        let pending: i64 = world
            .scalar("select count(*) from tidegate.write_fence where materialized_commit_lsn is null")
            .await;
        let done: i64 = world
            .scalar(
                "select count(*) from tidegate.write_fence f join tidegate.source_transaction t
        on t.generation = f.generation and t.commit_lsn = f.materialized_commit_lsn",
            )
            .await;
        assert_eq!((pending, done), (0, 2));
        worker.stop().await;
    }
);

/// Two rows written as one client mutation.
pub const PUSH: &str = "begin;
    with m as (insert into tidegate.client_mutation (subject, client_id, number, fingerprint, status)
               values ('ann', '00000000-0000-0000-0000-000000000001', (select count(*) + 1 from tidegate.client_mutation),
                   sha256('x'), 'accepted') returning mutation_id)
    select set_config('tidegate.mutation', mutation_id::text, true) from m;
    insert into items select 'p' || g || '-' || currval('tidegate.client_mutation_mutation_id_seq'), 'L1' from generate_series(1, 2) g;
    commit";

pg_test!(
    Slots,
    async fn v1_the_hook_and_the_wake_come_after_the_commit(world: World) {
        world.sql(ITEMS).await;
        let mut listener = sqlx::postgres::PgListener::connect(&world.db.url()).await.expect("listener");
        listener.listen(tidegate_model::Wake::CHANNEL).await.expect("listen");
        let mut worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        let seen = within("the hook", worker.commits.wait_for(Option::is_some))
            .await
            .expect("open")
            .expect("a commit");
        let durable: i64 = world
            .scalar(&format!(
                "select count(*) from tidegate.effect where commit_lsn = '{}'",
                seen.wake.commit_lsn
            ))
            .await;
        assert_eq!((durable, seen.effects), (1, 1));
        let wake = within("the wake", listener.recv()).await.expect("a notification");
        assert_eq!(tidegate_model::Wake::parse(wake.payload()), Some(seen.wake));
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn h3_a_first_start_says_once_what_it_waits_for_and_warns_of_nothing(world: World) {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let writer = Arc::new(log.reopen().expect("a file"));
        let subscriber = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async { stopped.await.unwrap_or_default() };
        let worker = tidegate_capture::run(world.config(), shutdown, Hooks::default());
        let worker = tokio::spawn(worker.with_subscriber(subscriber));
        world.until("a few tries", "select epoch > 5 from tidegate.worker").await;
        world
            .until(
                "the reason to show",
                "select reason like 'nothing is registered yet%' from tidegate.worker_heartbeat",
            )
            .await;
        world.sql(ITEMS).await;
        world.until_streaming().await;
        stop.send(()).expect("a worker");
        within("the worker to stop", worker).await.expect("no panic").expect("a clean end");
        let log = std::fs::read_to_string(log.path()).expect("text");
        assert_eq!(log.matches("nothing is registered yet").count(), 1, "{log}");
        assert!(!log.contains("WARN"), "{log}");
    }
);
