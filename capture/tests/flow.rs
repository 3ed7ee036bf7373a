//! From SQL to effects.

use crate::world::{ITEMS, World};
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn rows_written_with_sql_become_effects(world: World) {
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
