//! B: the first baseline.

use crate::flow::PUSH;
use crate::world::{ITEMS, World};
use std::time::Duration;
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn b2_b3_existing_rows_and_concurrent_writers_end_in_one_state(world: World) {
        world.sql(ITEMS).await;
        world.sql("insert into items select g::text, 'L' || g % 50, g, repeat('x', g % 300) from generate_series(1, 20000) g").await;
        let writers: Vec<_> = (0..3)
        .map(|writer| {
            let pool = world.pool().clone();
            tokio::spawn(async move {
                for n in 0..150 {
                    let sql = format!(
                        "begin; update items set n = n + 1, list_id = 'L{}' where id = '{}'; insert into items values ('w{writer}-{n}', 'L1');
                         delete from items where id = '{}'; commit",
                        n % 60, 1 + writer * 1000 + n, 10000 + writer * 1000 + n
                    );
                    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("a write");
                }
            })
        })
        .collect();
        let worker = world.start();
        for writer in writers {
            writer.await.expect("a writer");
        }
        world.until_streaming().await;
        world.settle().await;
        world.assert_consistent().await;
        // B10: only what came after activation is exposed.
        let early: i64 = world.scalar("select count(*) from tidegate.effect e join tidegate.stream_generation g on g.id = e.generation where e.commit_lsn < g.barrier_end_lsn").await;
        assert_eq!(early, 0);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn b5_b6_pending_fences_are_covered_and_later_ones_are_materialized(world: World) {
        world.sql(ITEMS).await;
        world.sql(PUSH).await;
        world.sql("insert into items values ('untouched', 'L1')").await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql(PUSH).await;
        world.settle().await;
        let fences = world.text(
        "select string_agg(format('%s %s', covered_by is not null, materialized_commit_lsn is not null), ', ' order by number, fence_id) from tidegate.write_fence",
    ).await;
        assert_eq!(fences, "t f, t f, f t, f t");
        let coverage: i64 = world.scalar("select count(*) from tidegate.reset_coverage c join tidegate.stream_generation g
        on g.id = c.generation and g.reset_id = c.reset_id and g.slot_name = c.slot_name and g.consistent_lsn = c.consistent_lsn").await;
        assert_eq!(coverage, 2);
        // B8: a fenced row has its fence's version.
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        let same: bool = world.scalar(&format!(
        "select bool_and(exists (select from tidegate_projection.s{state}_p1 p where p.version = v.version)) from tidegate.row_version_1 v where v.alive"
    )).await;
        assert!(same);
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn f10_rows_from_before_the_fences_have_version_zero(world: World) {
        world.sql("create table public.items (id text primary key, list_id text, n int, body text);
        insert into items values ('old', 'L1', 1, E'tab\\t, line\\n, backslash \\\\, \\\\N'), ('nulls', null, null, null), ('', 'L1', 0, '')").await;
        world.sql(&ITEMS[ITEMS.find("select").expect("a registration")..]).await;
        let worker = world.start();
        world.until_streaming().await;
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        let zero: bool = world.scalar(&format!("select bool_and(version = '00000000-0000-0000-0000-000000000000') and count(*) = 3 from tidegate_projection.s{state}_p1")).await;
        assert!(zero);
        world.assert_consistent().await;
        world.sql("update items set n = 5 where id = ''").await;
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt03_the_same_value_has_the_same_bytes_in_snapshot_and_stream(world: World) {
        world.sql("create type public.mood as enum ('calm', 'it''s');
        create table public.wide (id bigint primary key, b boolean, i2 smallint, f4 real, f8 double precision, t text, v varchar(9), c char(4),
            u uuid, m public.mood, num numeric, d date, ti time, ttz timetz, ts timestamp, tstz timestamptz, iv interval, j json, jb jsonb,
            by bytea, ia int[], ta text[], ia2 int[]);
        select tidegate.register_table('public.wide', '{}')").await;
        let values = "true, -3, 0.1, 1e-300, E'a\\tb\\\\', 'v', 'c', '7d444840-9dc0-11d1-b245-5ffdce74fad2', 'it''s', 123456789.000100, '0044-03-15 BC',
        '23:59:59.999999', '12:00:00+05:30', 'infinity', '2024-02-29 12:34:56.789+02', '1 year -2 days 03:04:05.6', '{\"a\" : 1}', '{\"b\": [1, null]}',
        '\\x00ff5c', '{1,NULL,3}', '{\"a,b\",NULL,\"\\\"q\\\\\"}', '[0:1]={5,6}'";
        world.sql(&format!("insert into wide values (1, {values}); insert into wide values (2)")).await;
        // What the database would choose for its sessions must not matter.
        world.sql(&format!("alter database \"{0}\" set timezone = 'Asia/Tokyo'; alter database \"{0}\" set datestyle = 'German';
        alter database \"{0}\" set intervalstyle = 'postgres_verbose'; alter database \"{0}\" set bytea_output = 'escape';
        alter database \"{0}\" set extra_float_digits = 0", world.text("select current_database()::text").await)).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql(&format!("insert into wide values (3, {values}); insert into wide values (4)")).await;
        world.settle().await;
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        // Rows differ in their first value alone: a small positive integer, one byte after the array's header.
        let images: Vec<Vec<u8>> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select row from tidegate_projection.s{state}_p1 order by key_index"
        )))
        .fetch_all(world.pool())
        .await
        .expect("rows");
        assert_eq!(images.len(), 4);
        let after_key = |image: &[u8]| image[4..].to_vec();
        assert_eq!(after_key(&images[0]), after_key(&images[2]));
        assert_eq!(after_key(&images[1]), after_key(&images[3]));
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn f8_long_text_keys_keep_their_versions(world: World) {
        world.sql(ITEMS).await;
        world.sql("insert into items values (repeat('k', 1500), 'L1'), (repeat('é', 700), 'L1'), ('short', 'L1')").await;
        let worker = world.start();
        world.until_streaming().await;
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        let fenced: i64 = world.scalar(&format!("select count(*) from tidegate_projection.s{state}_p1 p join tidegate.row_version_1 v using (version)")).await;
        assert_eq!(fenced, 3);
        world.sql("update items set n = 1").await;
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Private,
    async fn b1_an_open_writer_is_shown_and_bounds_the_creation(
        server: tidegate_embedded::testing::TestServer,
    ) {
        let world = <World as tidegate_embedded::testing::TestContext>::prepare(server).await;
        world.sql(ITEMS).await;
        let mut open = world.pool().begin().await.expect("begin");
        sqlx::raw_sql("insert into items values ('open', 'L1')").execute(&mut *open).await.expect("insert");
        let mut config = world.config();
        config.limits.slot_creation_timeout = Duration::from_millis(2500);
        let worker = world.start_with(config);
        world
            .until(
                "the writer to be shown",
                "select reason like '%open writers: process%' from tidegate.worker_heartbeat",
            )
            .await;
        world.until("a candidate to be given up", "select exists (select from tidegate.stream_reset where phase = 'discarded' and error like '%open writers%')").await;
        open.commit().await.expect("commit");
        world.until_streaming().await;
        world.settle().await;
        world.assert_consistent().await;
        assert_eq!(world.scalar::<i64>("select count(*) from pg_replication_slots").await, 1);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn b1_nothing_registered_is_waited_out(world: World) {
        let worker = world.start();
        world.until("the reason", "select state = 'retrying' and reason like 'nothing is registered%' from tidegate.worker_heartbeat").await;
        world.sql(ITEMS).await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.until_streaming().await;
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_prepared_transactions_refuse_the_creation_of_a_slot() {
    for major in tidegate_embedded::testing::majors() {
        let server =
            tidegate_embedded::testing::TestServer::private(major, &[("max_prepared_transactions", "2")])
                .unwrap_or_else(|error| panic!("{error}"));
        let world = <World as tidegate_embedded::testing::TestContext>::prepare(server).await;
        world.sql(ITEMS).await;
        world.sql("begin; insert into items values ('p', 'L1'); prepare transaction 'p'").await;
        let worker = world.start();
        world
            .until(
                "the reason",
                "select state = 'retrying' and reason like '1 prepared transactions exist%' from tidegate.worker_heartbeat",
            )
            .await;
        assert_eq!(world.scalar::<i64>("select count(*) from pg_replication_slots").await, 0);
        world.sql("commit prepared 'p'").await;
        world.until_streaming().await;
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
}
