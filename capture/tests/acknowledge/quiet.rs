//! A10, OP-01: an idle database stays idle, and a busy one that is not ours keeps no WAL for us.
//!
//! In a usual run an hour is compressed six hundred times: every interval of the worker and the server's own checkpoints, not the
//! number of bytes that anything writes. With `TIDEGATE_SCALE=full` the clock is the real one and each run takes ten minutes, which
//! is not an hour: that what is retained does not grow from one half to the other is what says the hour would end alike.

use crate::world::standing::SLOT;
use crate::world::{ITEMS, World, full_scale};
use std::time::Duration;
use tidegate_capture::{Config, Limits};
use tidegate_embedded::pg_test;

/// Most WAL that the slot may retain after an hour without a write: a few checkpoints' full-page images.
const IDLE_RETAINED_BYTES_MAX: i64 = 2 << 20;
/// Most that it may retain while others write a mebibyte per second, in units of `idle_ack_bytes`. PostgreSQL lets go of WAL only up to
/// a record of running transactions (every 15 s, or by a checkpoint: about one unit apart here) that was itself acknowledged, and
/// remembers one such record at a time: two units for the acknowledgement, three for the records, one for good measure.
const BUSY_RETAINED_ACKS_MAX: i64 = 6;

/// WAL that the slot keeps from being removed.
async fn retained(world: &World) -> i64 {
    world.scalar("select (pg_current_wal_lsn() - restart_lsn)::int8 from pg_replication_slots join tidegate.stream_generation using (slot_name)").await
}

async fn wait(world: &World, time: Duration) {
    // The server's own clock, which is what passes here.
    world.sql(&format!("select pg_sleep({})", time.as_secs_f64())).await;
}

/// The default limits, with every interval this much shorter.
fn compressed(world: &World, times: u32) -> Config {
    let limits = Limits::default();
    let mut config = world.config();
    config.limits = limits;
    config.limits.idle_ack_interval = limits.idle_ack_interval / times;
    config.limits.acknowledge_interval = limits.acknowledge_interval / times;
    config.limits.heartbeat_interval = limits.heartbeat_interval / times;
    config.limits.drift_check_interval = limits.drift_check_interval / times.min(100);
    config.limits.first_start_quiet = Duration::ZERO;
    config
}

pg_test!(
    Private,
    async fn a10_an_idle_hour_moves_nothing_for_its_own_sake(world: World) {
        let (times, minutes, config) = match full_scale() {
            true => (1, 10, compressed(&world, 1)),
            false => (600, 60, compressed(&world, 600)),
        };
        world.sql(ITEMS).await;
        let worker = world.start_with(config.clone());
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world.until_acknowledged().await;
        world.keep_history().await;
        let begun = world.lsn("select pg_current_wal_lsn()").await;
        let mut halves = [0; 2];
        for minute in 0..minutes {
            wait(&world, Duration::from_secs(60) / times).await;
            if minute % 5 == 0 {
                // As the server would at its default `checkpoint_timeout`; it also records running transactions.
                world.sql("checkpoint").await;
            }
            let half = &mut halves[usize::from(minute >= minutes / 2)];
            *half = retained(&world).await.max(*half);
        }
        let written = world.lsn("select pg_current_wal_lsn()").await.bytes_since(begun);
        let moves: i64 =
            world.scalar("select count(distinct processed) - 1 from public.progress_history").await;
        println!(
            "{minutes} minutes: {written} bytes written, {moves} idle acknowledgements, retained at most {halves:?}"
        );
        // What checkpoints and heartbeats write pays for each: an acknowledgement's own record never makes the next one due.
        let paid = (written / config.limits.idle_ack_bytes_min) as i64;
        assert!(moves <= paid + 1, "{moves} idle acknowledgements for {written} bytes");
        assert!(halves.iter().all(|half| *half <= IDLE_RETAINED_BYTES_MAX), "retained {halves:?}");
        assert_eq!(world.scalar::<i64>("select count(*) from tidegate.effect").await, 1);
        worker.stop().await;
    }
);

pg_test!(
    Private,
    async fn a10_op01_unrelated_writes_retain_no_wal(world: World) {
        // Compressed, an idle acknowledgement is due after 1 MiB, and forty of those are written; at full size 16 MiB, and 600 MiB.
        let full = full_scale();
        let mut config = compressed(&world, if full { 1 } else { 600 });
        if !full {
            config.limits.idle_ack_bytes = 1 << 20;
        }
        let bound = BUSY_RETAINED_ACKS_MAX * config.limits.idle_ack_bytes as i64;
        world.sql(ITEMS).await;
        let worker = world.start_with(config);
        world.until_streaming().await;
        world.sql("create table public.noise (g int, filler text)").await;
        world.server.sql("postgres", "create database other").expect("another database");
        let before = world.standing().await;
        let steps = if full { 600 } else { 40 };
        let mut halves = [0; 2];
        for step in 0..steps {
            // A mebibyte of another table, of which every eighth is another database's.
            let noise = "insert into noise select g, repeat('x', 1000) from generate_series(1, 900) g";
            match step % 8 {
                0 => drop(world.server.sql("other", "create table noise as select g, repeat('x', 1000) as filler from generate_series(1, 900) g; drop table noise").expect("another database")),
                _ => world.sql(noise).await,
            }
            if full {
                wait(&world, Duration::from_secs(1)).await;
            } else {
                world.sql("checkpoint").await;
                let within_bound = format!(
                    "select pg_current_wal_lsn() - restart_lsn <= {bound} from pg_replication_slots join tidegate.stream_generation using (slot_name)"
                );
                world.until("the slot to let go of WAL", &within_bound).await;
            }
            let half = &mut halves[usize::from(step >= steps / 2)];
            *half = retained(&world).await.max(*half);
        }
        println!("{steps} MiB written: retained at most {halves:?} of {bound}");
        assert!(halves.iter().all(|half| *half <= bound), "retained {halves:?}");
        let after = world.standing().await;
        assert!(
            after.slot.bytes_since(before.slot) as i64 > (steps as i64 - BUSY_RETAINED_ACKS_MAX * 4) << 19
        );
        assert_eq!(after.transactions, before.transactions, "only keepalives moved it");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a10_op01_unrelated_writes_move_the_slot_and_its_record(world: World) {
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
    Private,
    async fn a10_heartbeats_and_own_records_feed_no_idle_acknowledgement(world: World) {
        // Nobody else writes here.
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
        // Materializing the row has written too, behind the boundary; what counts is what heartbeats write from here on.
        let begun = world.lsn("select pg_current_wal_insert_lsn()").await;
        // Kept here: a table made for it would write full-page images of the catalogs, which are nobody's heartbeat.
        let at = world.text("select clock_timestamp()::text").await;
        let beaten = format!(
            "select beat_at > '{at}'::timestamptz + interval '1 second' from tidegate.worker_heartbeat"
        );
        world.until("ten heartbeats", &beaten).await;
        let written = world.lsn("select pg_current_wal_insert_lsn()").await.bytes_since(begun);
        assert!(written < least, "ten heartbeats wrote {written} bytes");
        assert_eq!(world.text("select processed_end_lsn::text from tidegate.progress").await, before);
        worker.stop().await;
    }
);

pg_test!(
    Private,
    async fn a10_an_idle_acknowledgement_does_not_make_the_next_one_due(world: World) {
        world.sql(ITEMS).await;
        // Every byte of others would do, at once; and nobody else writes here, not even the heartbeat.
        let mut config = world.eager();
        config.limits.heartbeat_interval = Duration::from_secs(3600);
        let worker = world.start_with(config);
        world.until_streaming().await;
        world.sql("checkpoint").await;
        world.settle().await;
        world.until_acknowledged().await;
        world.keep_history().await;
        world.write_noise().await;
        let end = world.lsn("select pg_current_wal_flush_lsn()").await;
        let acknowledged = format!("select acknowledged_end_lsn >= '{end}' from tidegate.progress");
        world.until("the noise to be acknowledged", &acknowledged).await;
        wait(&world, Duration::from_secs(3)).await;
        let moves: i64 =
            world.scalar("select count(distinct processed) - 1 from public.progress_history").await;
        // The noise came in a few pieces; the records of their acknowledgements would have kept it going ten times over.
        assert!((1..=5).contains(&moves), "{moves} idle acknowledgements");
        worker.stop().await;
    }
);
