//! A: what the slot is told, and when.

use crate::world::{ITEMS, World, within};
use std::time::Duration;
use tidegate_capture::{CaptureError, Refusal};
use tidegate_embedded::Stop;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;

const SLOT: &str = "(select s.confirmed_flush_lsn from pg_replication_slots s join tidegate.stream_generation g using (slot_name))";

pg_test!(
    Slots,
    async fn a4_the_slot_reaches_the_boundary_and_its_record_follows(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world.until("the acknowledgement", &format!("select acknowledged_end_lsn = processed_end_lsn and {SLOT} = processed_end_lsn from tidegate.progress")).await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx01_a_keepalive_acknowledges_nothing_that_is_not_durable(world: World) {
        world.sql(ITEMS).await;
        let mut config = world.config();
        (config.limits.idle_ack_interval, config.limits.idle_ack_bytes_min) = (Duration::ZERO, 1);
        let worker = world.start_with(config);
        world.until_streaming().await;
        world.settle().await;
        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        // Materialization waits behind this lock.
        let mut lock = world.pool().begin().await.expect("begin");
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "lock table tidegate_projection.s{state}_p1 in access exclusive mode"
        )))
        .execute(&mut *lock)
        .await
        .expect("lock");
        world.sql("insert into items values ('a', 'L1')").await;
        world.until("the worker to wait", "select exists (select from pg_stat_activity where application_name like 'tidegate capture % materialize' and wait_event_type = 'Lock')").await;
        let before = world.lsn("select processed_end_lsn from tidegate.progress").await;
        for round in 0..3 {
            world.sql(&format!("create table public.noise{round} as select generate_series(1, 20000)")).await;
        }
        // The walsender has sent keepalives for all of this and has been answered: it is still there, and nothing has moved
        // past what was durable.
        world.until("the walsender to have sent everything", "select bool_and(sent_lsn >= (select max(commit_lsn) from (select pg_current_wal_flush_lsn() - 16384 as commit_lsn) l)) from pg_stat_replication where application_name like 'tidegate capture %'").await;
        assert_eq!(world.lsn("select processed_end_lsn from tidegate.progress").await, before);
        assert!(world.lsn(SLOT).await <= before);
        worker.kill().await;
        lock.rollback().await.expect("rollback");
        let worker = world.start();
        world.settle().await;
        assert_eq!(world.effects().await, ["list:L1 upsert a"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a10_op01_unrelated_writes_move_the_slot_and_an_idle_database_stays_idle(world: World) {
        world.sql(ITEMS).await;
        let mut config = world.config();
        (config.limits.idle_ack_interval, config.limits.idle_ack_bytes_min) =
            (Duration::from_millis(50), 64 << 10);
        let worker = world.start_with(config);
        world.until_streaming().await;
        let before = world.lsn(SLOT).await;
        world
            .sql("create table public.noise as select g, repeat('x', 500) from generate_series(1, 2000) g")
            .await;
        world.until("the slot to follow", &format!("select {SLOT} > '{before}'::pg_lsn + 500000")).await;
        let transactions: i64 = world.scalar("select count(*) from tidegate.source_transaction").await;
        assert_eq!(transactions, 0, "only keepalives moved it");
        world
            .until("its record", &format!("select acknowledged_end_lsn = {SLOT} from tidegate.progress"))
            .await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a7_idle_ack_stops_at_active_poison(world: World) {
        world.sql(ITEMS).await;
        let mut config = world.config();
        (config.limits.idle_ack_interval, config.limits.idle_ack_bytes_min) = (Duration::ZERO, 1);
        let worker = world.start_with(config.clone());
        world.until_streaming().await;
        world.sql("select pg_logical_emit_message(true, 'tidegate.marker', 'malformed')").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active')").await;
        let before =
            world.text(&format!("select {SLOT}::text || processed_end_lsn from tidegate.progress")).await;
        world
            .sql("create table public.noise as select g, repeat('x', 500) from generate_series(1, 2000) g")
            .await;
        worker.kill().await;
        let worker = world.start_with(config);
        world.until("blocked", "select h.state = 'blocked' from tidegate.worker_heartbeat h join tidegate.worker using (epoch) where epoch > 1").await;
        assert_eq!(
            world.text(&format!("select {SLOT}::text || processed_end_lsn from tidegate.progress")).await,
            before
        );
        worker.stop().await;
    }
);

pg_test!(
    Private,
    async fn a8_an_advance_lost_in_a_crash_is_made_again(server: TestServer) {
        let world = <World as tidegate_embedded::testing::TestContext>::prepare(server).await;
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        for n in 0..20 {
            world.sql(&format!("insert into items values ('{n}', 'L1')")).await;
        }
        world.settle().await;
        world.until("the acknowledgement", &format!("select acknowledged_end_lsn = processed_end_lsn and {SLOT} = processed_end_lsn from tidegate.progress")).await;
        world.server.restart(Stop::Immediate).expect("restart");
        world
            .until(
                "the slot to have fallen back",
                &format!("select {SLOT} is not null from tidegate.progress"),
            )
            .await;
        // The same worker notices, reconnects, reconciles and goes on.
        world.sql("insert into items values ('after', 'L1')").await;
        world.settle().await;
        let effects: i64 = world.scalar("select count(*) from tidegate.effect").await;
        assert_eq!(effects, 21, "A6: no second effect");
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a8_a_slot_past_the_processed_boundary_is_refused(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        world.sql("insert into items values ('lost', 'L1')").await;
        world.sql("select pg_replication_slot_advance((select slot_name from tidegate.stream_generation), pg_current_wal_lsn())").await;
        let error = world.start().ended().await;
        assert!(matches!(error, CaptureError::Refused(Refusal::SlotPastProcessed { .. })), "{error}");
        world.until("the reason", "select state = 'stopped' and reason like '%past the processed boundary%' from tidegate.worker_heartbeat").await;
    }
);

pg_test!(
    Slots,
    async fn a8_progress_beyond_the_server_is_refused(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        world.sql("update tidegate.progress set processed_end_lsn = pg_current_wal_lsn() + 1000000000").await;
        let error = world.start().ended().await;
        assert!(matches!(error, CaptureError::Refused(Refusal::ProgressPastServer { .. })), "{error}");
    }
);

pg_test!(
    Slots,
    async fn a9_op03_another_server_or_slot_is_refused(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        for (damage, repair, expected) in [
            ("system_identifier = '1'", None, "system identifier"),
            ("timeline = 77", None, "timeline"),
            ("database_oid = 1", None, "another database"),
            ("slot_name = 'tidegate_missing'", None, "does not exist"),
            (
                "slot_name = 'foreign_slot'",
                Some("select pg_create_logical_replication_slot('foreign_slot', 'test_decoding')"),
                "foreign_slot",
            ),
        ] {
            if let Some(sql) = repair {
                // The plugin is not in every package.
                if sqlx::raw_sql(sql).execute(world.pool()).await.is_err() {
                    continue;
                }
            }
            world
                .sql("create table if not exists public.saved as select * from tidegate.stream_generation")
                .await;
            world.sql(&format!("update tidegate.stream_generation set {damage}")).await;
            let error = world.start().ended().await;
            assert!(
                matches!(error, CaptureError::Refused(_)) && error.to_string().contains(expected),
                "{damage}: {error}"
            );
            world.sql("update tidegate.stream_generation g set system_identifier = s.system_identifier, timeline = s.timeline,
            database_oid = s.database_oid, slot_name = s.slot_name from public.saved s").await;
        }
        let worker = world.start();
        world.until_streaming().await;
        worker.stop().await;
    }
);

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

pg_test!(
    Private,
    async fn a10_heartbeats_and_own_records_feed_no_idle_acknowledgement(server: TestServer) {
        // Nobody else writes here.
        let world = <World as tidegate_embedded::testing::TestContext>::prepare(server).await;
        world.sql(ITEMS).await;
        let mut config = world.config();
        // The least that a default would let pass, as often as it likes.
        config.limits.idle_ack_interval = Duration::ZERO;
        config.limits.heartbeat_interval = Duration::from_millis(100);
        let least = config.limits.idle_ack_bytes_min;
        let worker = world.start_with(config);
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world
            .until(
                "the acknowledgement",
                "select acknowledged_end_lsn = processed_end_lsn from tidegate.progress",
            )
            .await;
        let before = world.text("select processed_end_lsn::text from tidegate.progress").await;
        world.sql("create table public.start as select clock_timestamp() as at, pg_current_wal_insert_lsn() as lsn").await;
        world
            .until(
                "ten heartbeats",
                "select beat_at > at + interval '1 second' from tidegate.worker_heartbeat, public.start",
            )
            .await;
        let written = world
            .lsn("select pg_current_wal_insert_lsn()")
            .await
            .bytes_since(before.parse().expect("a position"));
        assert!(written < least, "ten heartbeats wrote {written} bytes");
        assert_eq!(world.text("select processed_end_lsn::text from tidegate.progress").await, before);
        worker.stop().await;
    }
);
