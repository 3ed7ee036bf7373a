//! R9, TX-07: transactions larger than memory.

use crate::world::{ITEMS, World};
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn r9_tx07_a_transaction_larger_than_memory_is_spooled_and_stays_whole(world: World) {
        world.sql(ITEMS).await;
        let mut config = world.config();
        config.limits.transaction_memory_bytes_max = 64 << 10;
        config.limits.group_events_max = 700;
        config.limits.group_bytes_max = 256 << 10;
        let spool = tempfile::tempdir().expect("a folder");
        config.spool_dir = spool.path().to_owned();
        let worker = world.start_with(config);
        world.until_streaming().await;
        world.sql("insert into items values ('small', 'L1')").await;
        world.sql("begin; insert into items select g::text, 'L' || g % 90, g, repeat('x', 60) from generate_series(1, 6000) g;
               update items set n = n + 1, list_id = 'M' || n % 40 where n % 3 = 0; delete from items where n % 10 = 0; commit").await;
        world.sql("insert into items values ('small2', 'L1')").await;
        world.settle().await;
        world.assert_consistent().await;
        let records: i64 =
            world.scalar("select count(*) from tidegate.source_transaction where event_count > 1").await;
        assert_eq!(records, 1);
        let exact: bool = world.scalar("select bool_and(effect_count = (select count(*) from tidegate.effect e where e.commit_lsn = t.commit_lsn)) from tidegate.source_transaction t").await;
        assert!(exact);
        assert_eq!(std::fs::read_dir(spool.path()).expect("the folder").count(), 0, "spools have no name");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx07_above_the_hard_limit_it_blocks_with_its_size(world: World) {
        world.sql(ITEMS).await;
        let mut config = world.config();
        config.limits.transaction_events_max = 1000;
        let worker = world.start_with(config);
        world.until_streaming().await;
        world.sql("insert into items select g::text, 'L1' from generate_series(1, 1000) g").await;
        world.settle().await;
        world.sql("update items set n = 1; insert into items values ('more', 'L1')").await;
        world.until("poison", "select exists (select from tidegate.poison where failure_class = 'transaction_too_large' and explanation like '%1000%')").await;
        worker.kill().await;
        // A raised limit and a retry clear it.
        world.sql("update tidegate.poison set status = 'retrying'").await;
        let worker = world.start();
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);
