//! G1, G2, G4: which table an event is of, and under which registry it is judged.

use crate::world::points::{Armed, is_killed, kill_at};
use crate::world::tap::{Held, Tap};
use crate::world::{ITEMS, World};
use tidegate_capture::failpoints as at;
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn g1_a_table_of_the_same_name_elsewhere_is_another_table(world: World) {
        world.sql(ITEMS).await;
        world.sql("create schema elsewhere; create table elsewhere.items (id text primary key, list_id text, n int, body text);
            alter publication tidegate add table elsewhere.items").await;
        let worker = world.start();
        world.until_streaming().await;
        // The session's search path and the roles' default make no difference.
        world
            .sql(&format!(
                "alter database \"{}\" set search_path = elsewhere, public",
                world.db.database.name()
            ))
            .await;
        world
            .sql("set search_path = elsewhere; insert into items values ('theirs', 'L1'); reset search_path")
            .await;
        world.sql("insert into public.items values ('ours', 'L1')").await;
        worker.kill().await;
        let worker = world.start();
        world.sql("insert into elsewhere.items values ('theirs too', 'L1')").await;
        world.sql("insert into public.items values ('ours too', 'L1')").await;
        world.settle().await;
        assert_eq!(world.effects().await, ["list:L1 upsert ours", "list:L1 upsert ours too"]);
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn g2_x5_nothing_but_the_wal_activates_a_registry_generation(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        // A generation without its message: stored, notified of, polled, and met by another worker.
        world.sql("insert into tidegate.registry_generation (id, snapshot)
            select id + 1, snapshot || jsonb_build_object('generation', id + 1, 'relations', '[]'::jsonb) from tidegate.registry_generation order by id desc limit 1").await;
        world.sql("notify tidegate_wake; notify tidegate_registry, '2'; select pg_logical_emit_message(false, 'tidegate.registry', '1:2')").await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world.stop_and_release(worker).await;
        let worker = world.start();
        world.sql("insert into items values ('b', 'L1')").await;
        world.settle().await;
        assert_eq!(world.effects().await, ["list:L1 upsert a", "list:L1 upsert b"]);
        let in_force = "select string_agg(registry_generation::text, ',') from tidegate.registry_activation";
        assert_eq!(world.text(in_force).await, "1");
        assert_eq!(world.text("select registry_generation::text from tidegate.progress").await, "1");
        // Its message is carried by the WAL: from there on it holds, and is recorded where it took effect.
        world.sql("select pg_logical_emit_message(true, 'tidegate.registry', '1:2')").await;
        world.settle().await;
        assert_eq!(world.text("select registry_generation::text from tidegate.progress").await, "2");
        let at = "select count(*) = 1 from tidegate.registry_activation a join tidegate.source_transaction t
            on t.generation = a.stream_generation and t.commit_lsn = a.commit_lsn where a.registry_generation = 2";
        assert!(world.scalar::<bool>(at).await);
        worker.stop().await;
    }
);

/// Creates a table and registers it.
fn register(name: &str) -> String {
    format!(
        "create table public.{name} (id text primary key, list_id text);
         select tidegate.register_table('public.{name}', '{{\"scopes\": [{{\"name\": \"list:{{list_id}}\"}}]}}');"
    )
}

pg_test!(
    Slots,
    async fn g4_a_transaction_is_retried_under_the_generations_that_were_its_own(world: Armed) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        world.until_acknowledged().await;
        world.stop_and_release(worker).await;
        // One generation in the middle of a transaction; then others, before it is ever durable.
        world
            .sql(&format!(
                "begin; insert into items values ('before', 'L1'); {} insert into notes values ('n', 'L1');
            insert into items values ('after', 'L1'); commit",
                register("notes")
            ))
            .await;
        for (name, round) in
            [(at::TRANSACTION_PAIRED, 0), (at::MATERIALIZE_READ, 1), (at::MATERIALIZE_WRITTEN, 2)]
        {
            kill_at(name);
            is_killed(world.start(), name).await;
            world.sql(&register(&format!("later{round}"))).await;
        }
        let worker = world.start();
        world.sql("insert into items values ('last', 'L1')").await;
        world.settle().await;
        let schemas = world.text("select string_agg(schema_version::text, ' ' order by commit_lsn, event_ordinal) from tidegate.effect").await;
        assert_eq!(schemas, "1 2 2 5", "before, note and after, last");
        let places = "select string_agg(format('%s:%s', registry_generation, first_event_ordinal), ' ' order by registry_generation) from tidegate.registry_activation where commit_lsn is not null";
        assert_eq!(world.text(places).await, "2:1 3:0 4:0 5:0");
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn g4_r3_a_replay_begins_under_the_registry_that_was_in_force_at_its_place(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.without_idle());
        world.until_streaming().await;
        world.settle().await;
        world.until_acknowledged().await;
        world.stop_and_release(worker).await;
        // Three registrations become durable, each with rows around it; the slot stays before all of them.
        let tap = Tap::before(&world).await;
        let mut config = world.without_idle();
        config.database_url = tap.url();
        let worker = world.start_with(config);
        world.until_streams(&worker).await;
        tap.hold(Held { stream: false, status: true });
        for round in 0..3 {
            world.sql(&format!("insert into items values ('{round}', 'L1')")).await;
            world.sql(&register(&format!("notes{round}"))).await;
            world.sql(&format!("insert into notes{round} values ('n', 'L1')")).await;
        }
        world.settle().await;
        worker.kill().await;
        let everything = world.everything().await;
        // Begun under the newest it would meet activations that go backwards, and rows of tables that it should not know yet.
        let worker = world.start_with(world.without_idle());
        world.until_streams(&worker).await;
        world.until_acknowledged().await;
        assert_eq!(world.everything().await, everything);
        world.sql("insert into notes2 values ('m', 'L1')").await;
        world.settle().await;
        world.assert_consistent().await;
        worker.stop().await;
    }
);
