//! Killed at every arrow, and again: what is durable stays, everything else comes again, nothing comes twice.

use crate::world::points::{Armed, is_killed};
use crate::world::{ITEMS, World, within};
use tidegate_capture::failpoints as at;
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn q2_a_kill_before_the_poison_record_leaves_the_stream_blocked(world: Armed) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        fail::cfg(at::POISON_BEFORE_RECORD, "return").expect("fail point");
        world.sql("select pg_logical_emit_message(true, 'tidegate.marker', 'malformed')").await;
        world.sql("insert into items values ('a', 'L1')").await;
        is_killed(worker, at::POISON_BEFORE_RECORD).await;
        fail::remove(at::POISON_BEFORE_RECORD);
        let worker = world.start();
        world.until("poison", "select exists (select from tidegate.poison where status = 'active')").await;
        assert_eq!(world.scalar::<i64>("select count(*) from tidegate.effect").await, 0);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn b12_a_baseline_killed_in_any_phase_resumes_or_starts_over(world: Armed) {
        world.sql(ITEMS).await;
        world
            .sql("insert into items select g::text, 'L' || g % 7, g, 'x' from generate_series(1, 500) g")
            .await;
        let points = [
            at::BASELINE_RECORDED,
            at::BASELINE_SLOT_CREATED,
            at::BASELINE_SLOT_RECORDED,
            at::BASELINE_COPIED,
            at::BASELINE_STAGED,
            at::BASELINE_MARKED,
            at::BASELINE_CAUGHT_UP,
            at::BASELINE_VERIFIED,
            at::BASELINE_ACTIVATING,
        ];
        for (round, name) in points.into_iter().enumerate() {
            fail::cfg(name, "return").expect("fail point");
            let worker = world.start();
            is_killed(worker, name).await;
            fail::remove(name);
            world
                .sql(&format!(
                    "update items set n = n + 1 where id = '{}'; insert into items values ('r{round}', 'L0')",
                    round + 1
                ))
                .await;
            assert_eq!(world.scalar::<i64>("select count(*) from tidegate.progress").await, 0, "{name}");
        }
        fail::cfg(at::BASELINE_ACTIVATED, "return").expect("fail point");
        is_killed(world.start(), at::BASELINE_ACTIVATED).await;
        fail::remove(at::BASELINE_ACTIVATED);
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('last', 'L0')").await;
        world.settle().await;
        world.assert_consistent().await;
        let slots = "select count(*) from pg_replication_slots where database = current_database()";
        assert_eq!(world.scalar::<i64>(slots).await, 1, "no slot without a use is left");
        world
            .until(
                "the clean-up",
                "select bool_and(phase in ('cleaned', 'discarded')) from tidegate.stream_reset",
            )
            .await;
        let states = "select count(distinct substring(relname from '^s[0-9]+')) from pg_class where relnamespace = 'tidegate_projection'::regnamespace and relkind = 'r'";
        assert_eq!(world.scalar::<i64>(states).await, 1, "no stage is left");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn b11_a_stage_that_cannot_catch_up_is_discarded_and_a_newer_snapshot_covers_it(world: Armed) {
        world.sql(ITEMS).await;
        fail::cfg(at::BASELINE_STAGED, "return").expect("fail point");
        is_killed(world.start(), at::BASELINE_STAGED).await;
        fail::remove(at::BASELINE_STAGED);
        world.sql("begin; alter table items disable trigger user; insert into items values ('x', 'L1'); do $f$ declare t name; begin for t in select tgname from pg_trigger where tgrelid = 'items'::regclass loop execute format('alter table items enable always trigger %I', t); end loop; end $f$; commit").await;
        let worker = world.start();
        world.until_streaming().await;
        let discarded = world.text("select error from tidegate.stream_reset where phase = 'discarded'").await;
        assert!(discarded.contains("fence_missing"), "{discarded}");
        world.sql("insert into items values ('y', 'L1')").await;
        world.settle().await;
        world.assert_consistent().await;
        assert_eq!(
            world
                .scalar::<i64>(
                    "select count(*) from pg_replication_slots where database = current_database()"
                )
                .await,
            1
        );
        worker.stop().await;
    }
);

pg_test!(
    Private,
    async fn a6_kills_of_worker_and_server_under_load_lose_nothing_and_repeat_nothing(world: World) {
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        world.sql(ITEMS).await;
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let (pool, stop) = (world.pool().clone(), stop.clone());
                tokio::spawn(async move {
                    let mut random = crate::grouping::Random(seed * 31 + writer + 1);
                    let mut written = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let sql = crate::grouping::items_transaction(&mut random);
                        // The server goes down now and then, and writers may deadlock: only what commits counts.
                        let Ok(mut transaction) = pool.begin().await else { continue };
                        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *transaction).await;
                        if done.is_ok() && transaction.commit().await.is_ok() {
                            written += 1;
                        }
                    }
                    written
                })
            })
            .collect();
        let mut random = crate::grouping::Random(seed + 7);
        for round in 0..8 {
            let mut worker = world.start();
            // Some commits of this life, then its end in the middle of whatever it does.
            let commits = 1 + random.below(20);
            for _ in 0..commits {
                if within("a commit", worker.commits.changed()).await.is_err() {
                    break;
                }
            }
            if round % 3 == 2 {
                world.server.restart(tidegate_embedded::Stop::Immediate).expect("restart");
            }
            worker.kill().await;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for writer in writers {
            assert!(writer.await.expect("a writer") > 0);
        }
        let worker = world.start();
        world.settle().await;
        world.assert_consistent().await;
        let bad: i64 = world.scalar("select count(*) from tidegate.source_transaction t where effect_count <> (select count(*) from tidegate.effect e where e.generation = t.generation and e.commit_lsn = t.commit_lsn)").await;
        assert_eq!((bad, world.scalar::<i64>("select count(*) from tidegate.poison").await), (0, 0));
        worker.stop().await;
    }
);
