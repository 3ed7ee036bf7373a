//! R1, R3, R4, R7: what a durable transaction is known by, and where its rows come from.

use crate::poison::retry;
use crate::world::observer::Observer;
use crate::world::tap::{Held, Tap};
use crate::world::{ITEMS, LISTS_AND_ITEMS, World};
use tidegate_capture::poison::RetryRequest;
use tidegate_embedded::pg_test;
use tidegate_model::{RelationId, RowOperation};
use tidegate_stream::{Manifest, Run};

async fn manifests(world: &World) -> Vec<Manifest> {
    let stored: Vec<Vec<u8>> =
        sqlx::query_scalar("select manifest from tidegate.source_transaction order by commit_lsn")
            .fetch_all(world.pool())
            .await
            .expect("manifests");
    stored.iter().map(|bytes| Manifest::decode(bytes).expect("a manifest")).collect()
}

pg_test!(
    Slots,
    async fn r1_every_applicable_event_has_a_durable_identity(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        world.sql("create table public.foreign_rows (id int primary key); alter publication tidegate add table foreign_rows").await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        world.sql("delete from tidegate.source_transaction").await;
        let observer = Observer::start(&world).await;
        world.sql(
            "begin; insert into list values ('L1', 'one'), ('L2', 'two'); insert into foreign_rows values (1), (2);
             insert into item (id, list_id) values (1, 'L1'); update item set rev = 2; delete from list where id = 'L1'; commit",
        )
        .await;
        world.settle().await;
        observer.assert_recorded(&world).await;
        let run = |first, count, relation, operation| Run {
            first,
            count,
            relation: RelationId(relation),
            operation,
        };
        // The deletion of a list deletes its item first in the WAL or after it; both are events, of both tables.
        let runs = manifests(&world).await[0].runs.clone();
        assert_eq!(
            runs[..3],
            [
                run(0, 2, 1, RowOperation::Insert),
                run(4, 1, 2, RowOperation::Insert),
                run(5, 1, 2, RowOperation::Update),
            ]
        );
        let mut last = runs[3..].to_vec();
        last.sort_by_key(|run| run.relation);
        assert_eq!(
            last.iter().map(|run| (run.count, run.relation.0, run.operation)).collect::<Vec<_>>(),
            [(1, 1, RowOperation::Delete), (1, 2, RowOperation::Delete)]
        );
        worker.stop().await;
    }
);

/// A stream whose slot stays behind what is durable: three transactions will come again.
async fn behind(world: &World) -> Observer {
    world.sql(ITEMS).await;
    let worker = world.start_with(world.without_idle());
    world.until_streaming().await;
    world.settle().await;
    world.until_acknowledged().await;
    world.stop_and_release(worker).await;
    let observer = Observer::start(world).await;
    let tap = Tap::before(world).await;
    let mut config = world.without_idle();
    config.database_url = tap.url();
    let worker = world.start_with(config);
    world.until_streams(&worker).await;
    tap.hold(Held { stream: false, status: true });
    world.sql("insert into items values ('a', 'L1'), ('b', 'L1')").await;
    world.sql("update items set n = 1").await;
    world.settle().await;
    worker.kill().await;
    observer.assert_recorded(world).await;
    observer
}

pg_test!(
    Slots,
    async fn r3_a_replay_whose_events_differ_from_the_stored_ones_blocks(world: World) {
        let observer = behind(&world).await;
        world.sql("create table public.kept as select * from tidegate.source_transaction").await;
        // What was stored under the second identity is what the first one was.
        world.sql("update tidegate.source_transaction t set manifest = (select manifest from kept order by commit_lsn limit 1 offset 1)
            where commit_lsn = (select commit_lsn from kept order by commit_lsn limit 1 offset 2)").await;
        let before = world.everything().await;
        world.sql("insert into items values ('c', 'L1')").await;
        let worker = world.start_with(world.without_idle());
        let poison = "select exists (select from tidegate.poison where status = 'active' and failure_class = 'manifest_mismatch'
            and commit_lsn = (select commit_lsn from kept order by commit_lsn limit 1 offset 2))";
        world.until("poison", poison).await;
        let after: Vec<_> = world
            .everything()
            .await
            .into_iter()
            .filter(|line| !line.starts_with("tidegate.poison"))
            .collect();
        assert_eq!(after, before, "no second version, edge or effect, and nothing after it");
        // A record that is gone altogether is no better.
        world.sql("delete from tidegate.source_transaction where commit_lsn = (select commit_lsn from kept order by commit_lsn limit 1 offset 2)").await;
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world
            .until("a second attempt", "select attempts = 2 and status = 'active' from tidegate.poison")
            .await;
        // Repaired and retried, under the same identity.
        world.sql("insert into tidegate.source_transaction select * from kept on conflict do nothing").await;
        assert_eq!(retry(&world).await, RetryRequest::Accepted);
        world.settle().await;
        observer.assert_recorded(&world).await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn r4_every_delivered_transaction_is_recorded_and_no_other(world: World) {
        world.sql(ITEMS).await;
        world.sql("create table public.foreign_rows (id int primary key); create table public.unpublished (id int primary key); alter publication tidegate add table foreign_rows").await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        let observer = Observer::start(&world).await;
        world.sql("insert into items values ('ours', 'L1')").await;
        world.sql("insert into foreign_rows values (1)").await;
        world.sql("select pg_logical_emit_message(true, 'somebody', 'x')").await;
        world.sql("insert into unpublished values (1)").await;
        world.sql("select pg_logical_emit_message(false, 'somebody', 'x')").await;
        world.sql("begin; insert into items values ('never', 'L1'); rollback").await;
        world.sql("insert into items values ('no scope', null)").await;
        world.settle().await;
        observer.assert_recorded(&world).await;
        let counts = "select string_agg(format('%s/%s', event_count, effect_count), ' ' order by commit_lsn) from tidegate.source_transaction where commit_lsn >= $1";
        let counts: String =
            sqlx::query_scalar(sqlx::AssertSqlSafe(counts.replace("$1", &format!("'{}'", observer.from))))
                .fetch_one(world.pool())
                .await
                .expect("counts");
        // Ours, the foreign row, the message, the row without a scope, and the marker of this test.
        assert_eq!(counts, "1/1 1/0 0/0 1/0 0/0");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn r7_materialization_reads_no_table_of_the_application_and_no_live_version(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('L1', 'one'), ('L2', 'two'); insert into item (id, list_id, title) values (1, 'L1', 'first')").await;
        world.settle().await;
        // Three transactions wait; by the time that the first is materialized, tables and live versions are two further on.
        let lock = world.lock_projection(2).await;
        world.sql("update item set title = 'second' where id = 1").await;
        let second = world.text("select version::text from tidegate.row_version_2").await;
        world.sql("update item set title = 'third', list_id = 'L2' where id = 1").await;
        let third = world.text("select version::text from tidegate.row_version_2").await;
        world.sql("delete from item where id = 1").await;
        world.until_locked_out().await;
        // Whoever touches one of these now waits for ever.
        let mut all = world.pool().begin().await.expect("begin");
        sqlx::raw_sql(
            "lock table item, list, tidegate.row_version_1, tidegate.row_version_2 in access exclusive mode",
        )
        .execute(&mut *all)
        .await
        .expect("lock");
        lock.rollback().await.expect("rollback");
        world.settle().await;
        assert_eq!(world.effects().await[3..].len(), 4);
        let titles: Vec<_> =
            world.effect_rows("item").await.iter().map(|row| row[2].clone().expect("text")).collect();
        assert_eq!(titles, ["first", "second", "third"], "each row as its transaction left it");
        let versions: Vec<String> = sqlx::query_scalar(
            "select version::text from tidegate.effect where table_id = 2 and op = 1 order by commit_lsn offset 1",
        )
        .fetch_all(world.pool())
        .await
        .expect("versions");
        assert_eq!(versions, [second, third], "each with the version of its own fence");
        all.rollback().await.expect("rollback");
        world.assert_consistent().await;
        worker.stop().await;
    }
);
