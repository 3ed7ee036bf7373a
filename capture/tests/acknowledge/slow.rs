//! OP-06: feedback does not wait for the apply.

use crate::world::{ITEMS, World, within};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;

pg_test!(
    Private,
    async fn op06_a_slow_apply_outlives_wal_sender_timeout(server: TestServer) {
        let world = <World as tidegate_embedded::testing::TestContext>::prepare(server).await;
        world.sql("alter system set wal_sender_timeout = '2s'").await;
        world.sql("select pg_reload_conf()").await;
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        let walsender: i32 = world.scalar("select walsender_pid from tidegate.worker").await;
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        let mut lock = world.pool().begin().await.expect("begin");
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "lock table tidegate_projection.s{state}_p1 in access exclusive mode"
        )))
        .execute(&mut *lock)
        .await
        .expect("lock");
        // More than the queue holds, so that back-pressure reaches the socket.
        world.sql("insert into items select g::text, 'L1', g, repeat('x', 1000) from generate_series(1, 30000) g").await;
        // Three timeouts of the server's own clock.
        world.sql("select pg_sleep(6)").await;
        lock.rollback().await.expect("rollback");
        world.settle().await;
        assert_eq!(
            world.scalar::<i32>("select walsender_pid from tidegate.worker").await,
            walsender,
            "never cut"
        );
        world.assert_consistent().await;
        within("the worker to stop", worker.stop()).await;
    }
);
