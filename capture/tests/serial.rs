//! R5, P8: one transaction after the other, in the order in which they committed, and by nothing else.

use crate::world::observer::Observer;
use crate::world::{ITEMS, LISTS_AND_ITEMS, World};
use tidegate_embedded::pg_test;
use tidegate_model::Lsn;

pg_test!(
    Slots,
    async fn r5_transactions_become_durable_one_after_the_other_in_commit_order(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        world.until_acknowledged().await;
        world.stop_and_release(worker).await;
        let observer = Observer::start(&world).await;
        world.keep_history().await;
        // Many writers at once, and one transaction per commit, so that there is something to put out of order.
        let writers: Vec<_> = (0..6)
            .map(|writer| {
                let pool = world.pool().clone();
                tokio::spawn(async move {
                    for n in 0..12 {
                        let sql = format!("begin; insert into items values ('{writer}-{n}', 'L1'); update items set n = {n} where id = '{writer}-{n}'; commit");
                        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("a write");
                    }
                })
            })
            .collect();
        let mut config = world.without_idle();
        config.limits.group_transactions_max = 1;
        let worker = world.start_with(config);
        for writer in writers {
            writer.await.expect("a writer");
        }
        world.settle().await;
        let decoded = observer.assert_recorded(&world).await;
        let commits: Vec<String> = sqlx::query_scalar("select materialized::text from public.progress_history where xid is not null and materialized is not null
                and acknowledged is not distinct from (select h.acknowledged from public.progress_history h where h.id = progress_history.id - 1) order by id")
            .fetch_all(world.pool())
            .await
            .expect("the history");
        let commits: Vec<Lsn> = commits.iter().map(|text| text.parse().expect("a position")).collect();
        assert_eq!(commits, decoded.iter().map(|t| t.commit_lsn).collect::<Vec<_>>());
        // One database transaction each, whose ids grow: none began before the one ahead of it had ended.
        let disorder = "select count(*) from (select xid, lag(xid) over (order by id) as before from public.progress_history where xid is not null) h where xid <= before";
        assert_eq!(world.scalar::<i64>(disorder).await, 0);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn r5_q2_nothing_overtakes_a_transaction_that_waits(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('L1', 'one')").await;
        world.settle().await;
        let lock = world.lock_projection(2).await;
        world.sql("insert into item (id, list_id) values (1, 'L1')").await;
        world.until_locked_out().await;
        // Of another table, so that no lock is in its way.
        for n in 0..5 {
            world.sql(&format!("insert into list values ('later{n}', 'x')")).await;
        }
        world.until_beats().await;
        assert_eq!(world.effects().await, ["list:L1 upsert L1"]);
        lock.rollback().await.expect("rollback");
        world.settle().await;
        let effects = world.effects().await;
        assert_eq!(effects[1..3], ["list:L1 upsert 1", "list:later0 upsert later0"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p8_only_the_commit_order_counts_when_sequence_clock_id_and_version_say_otherwise(world: World) {
        world.sql("create sequence public.tickets; create table public.items (id text primary key, list_id text, ticket bigint default nextval('public.tickets'),
                at timestamptz default clock_timestamp());
            select tidegate.register_table('public.items', '{\"scopes\": [{\"name\": \"list:{list_id}\"}]}')").await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        let observer = Observer::start(&world).await;
        // Six transactions take their numbers, times and ids in one order, and commit in the opposite one.
        let mut open = Vec::new();
        for n in 0..6 {
            let mut transaction = world.pool().begin().await.expect("begin");
            let sql = format!("insert into items (id, list_id) values ('{n}', 'L1')");
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *transaction).await.expect("insert");
            // What another process says, and in which order, is a hint to readers and nothing to us.
            sqlx::raw_sql("notify tidegate_wake, 'nonsense'")
                .execute(&mut *transaction)
                .await
                .expect("notify");
            open.push(transaction);
        }
        while let Some(transaction) = open.pop() {
            transaction.commit().await.expect("commit");
        }
        world.settle().await;
        let effects = world.effects().await;
        assert_eq!(effects, (0..6).rev().map(|n| format!("list:L1 upsert {n}")).collect::<Vec<_>>());
        let decoded = observer.assert_recorded(&world).await;
        let ids: Vec<u32> = decoded.iter().take(6).map(|t| t.xid).collect();
        assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "transaction ids fall: {ids:?}");
        for ordered_by in ["ticket", "at"] {
            let order =
                world.text(&format!("select string_agg(id, '' order by {ordered_by}) from items")).await;
            assert_eq!(order, "012345", "{ordered_by} grows where the effects' order falls");
        }
        // Versions are random: of enough rows some fall and some grow.
        world
            .sql("begin; insert into items select 'v' || g, 'L2' from generate_series(1, 40) g; commit")
            .await;
        world.settle().await;
        let versions = "select count(*) filter (where version > before), count(*) filter (where version < before) from
            (select version, lag(version) over (order by event_ordinal) as before from tidegate.effect where commit_lsn =
                (select max(commit_lsn) from tidegate.effect)) v";
        let (grows, falls): (i64, i64) =
            sqlx::query_as(versions).fetch_one(world.pool()).await.expect("versions");
        assert!(grows > 0 && falls > 0, "{grows} grow, {falls} fall");
        world.assert_consistent().await;
        worker.stop().await;
    }
);
