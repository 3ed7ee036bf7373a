//! TX-03: a row change without a fence, a fence without a row change.

use crate::world::{LISTS_AND_ITEMS, Running, World};
use std::time::Duration;
use tidegate_embedded::pg_test;

/// A worker with the fixture and one list; `watchful` compares the catalogs all the time, otherwise only the stream tells.
async fn streaming(world: &World, watchful: bool) -> Running {
    world.sql(LISTS_AND_ITEMS).await;
    let mut config = world.config();
    if watchful {
        config.limits.drift_check_interval = Duration::from_millis(50);
    }
    let worker = world.start_with(config);
    world.until_streaming().await;
    world.sql("insert into list values ('L1', 'one')").await;
    world.settle().await;
    worker
}

/// Blocked with this class, naming the table; nothing of what follows is processed.
async fn assert_breach(world: &World, class: &str, effects: usize) {
    let poison = format!(
        "select exists (select from tidegate.poison where status = 'active' and failure_class = '{class}' and relation_id = 2
            and explanation like '%public.item%')"
    );
    world.until("poison", &poison).await;
    let before = world.standing().await;
    world.sql("insert into list values ('later', 'x')").await;
    world.until("the state to show", "select state = 'blocked' and reason like '%poison%' or reason like '%public.item%' from tidegate.worker_heartbeat").await;
    world.until_beats().await;
    assert_eq!(world.standing().await, before, "never probably fine");
    assert_eq!(world.effects().await.len(), effects);
}

pg_test!(
    Slots,
    async fn tx03_f11_a_replica_role_fires_fences_all_the_same(world: World) {
        let worker = streaming(&world, true).await;
        world.sql("set session_replication_role = replica; insert into item values (70, 'L1', 'bulk'); update item set title = 'b'; reset session_replication_role").await;
        world.sql("set session_replication_role = replica; delete from item where id = 70; insert into item values (71, 'L1', 'bulk'); reset session_replication_role").await;
        world.settle().await;
        world.assert_consistent().await;
        assert_eq!(world.projected_rows("item").await.len(), 1);
        assert_eq!(world.scalar::<i64>("select count(*) from tidegate.poison").await, 0);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx03_f8_a_delete_behind_disabled_triggers_blocks_and_names_the_table(world: World) {
        let worker = streaming(&world, false).await;
        world.sql("set session_replication_role = replica; insert into item values (70, 'L1', 'bulk'); reset session_replication_role").await;
        world.sql("begin; alter table item disable trigger user; delete from item where id = 70; alter table item enable trigger user; commit").await;
        assert_breach(&world, "fence_missing", 2).await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx03_f11_triggers_that_were_enabled_again_by_half_are_found_without_a_write(world: World) {
        let worker = streaming(&world, true).await;
        // `enable trigger user` leaves them off for a replica role.
        world
            .sql("begin; alter table item disable trigger user; alter table item enable trigger user; commit")
            .await;
        world.until("the reason", "select state = 'blocked' and reason like 'public.item: trigger %is not enabled always%' from tidegate.worker_heartbeat").await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx03_an_unlogged_or_temporary_or_foreign_table_is_refused_at_registration(world: World) {
        let worker = streaming(&world, true).await;
        for create in [
            "create unlogged table public.ul (id int primary key, v text)",
            "create temporary table ul (id int primary key, v text)",
            "create table public.ul (id int primary key, v text) partition by range (id)",
            "create view public.ul as select id, title as v from item",
            "create foreign data wrapper nowhere; create server nowhere foreign data wrapper nowhere; create foreign table public.ul (id int, v text) server nowhere",
        ] {
            let schema = if create.contains("temporary") { "pg_temp" } else { "public" };
            let register = format!(
                "select tidegate.register_table('{schema}.ul', '{{\"scopes\": [{{\"name\": \"all\"}}]}}')"
            );
            let error = world.refused(&format!("begin; {create}; {register}; commit")).await;
            assert_eq!(error, "TG001", "{create}");
        }
        assert_eq!(world.scalar::<i64>("select count(*) from tidegate.relation").await, 2);
        world.sql("insert into item (id, list_id) values (1, 'L1')").await;
        world.settle().await;
        worker.stop().await;
    }
);

/// PostgreSQL itself refuses this while the table is published.
const SET_UNLOGGED: &str = "alter publication tidegate drop table item; alter table item set unlogged";

pg_test!(
    Slots,
    async fn tx03_f8_a_fence_of_a_table_that_was_set_unlogged_blocks(world: World) {
        let worker = streaming(&world, false).await;
        assert_eq!(world.refused("alter table item set unlogged").await, "55000");
        world.sql(SET_UNLOGGED).await;
        world.sql("insert into item (id, list_id) values (1, 'L1')").await;
        assert_breach(&world, "fence_without_row", 1).await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn tx03_g5_a_table_that_was_set_unlogged_is_found_without_a_write(world: World) {
        let worker = streaming(&world, true).await;
        world.sql(SET_UNLOGGED).await;
        assert_breach(&world, "relation_drifted", 1).await;
        worker.stop().await;
    }
);
