//! L9: data repairs and backfills run when the generation changes, never merely because a process connected.

use crate::application::{ok, text};
use crate::replay::POPULATED;
use crate::schemas::{edited, newer, with_file_after};
use sqlx::postgres::PgPool;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestDatabase;
use tidegate_migrations::testing::{LoadedDatabase, pool};
use tidegate_migrations::{GENERATION, LoadOptions, Schema, connect_and_load, force_replay, load_schema};

/// A program of the next generation whose newest file repairs data.
fn repairing() -> Schema {
    let repair = format!(
        "create table if not exists tidegate.repairs (at timestamptz);
         do $f$ begin if tidegate.upgrades_from_before({0}) then insert into tidegate.repairs values (now()); end if; end $f$",
        GENERATION + 1
    );
    let schema = newer();
    with_file_after(&schema, schema.files.len() - 1, &repair)
}

async fn load(pool: &PgPool, schema: &Schema) -> bool {
    load_schema(pool, schema, LoadOptions::default()).await.expect("load").replayed
}

async fn repairs(pool: &PgPool) -> String {
    text(pool, "select count(*)::text from tidegate.repairs").await
}

pg_test!(
    NoSlots,
    async fn l9_a_repair_runs_when_the_generation_changes_and_in_no_other_replay(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, POPULATED).await;
        let schema = repairing();
        assert!(load(pool, &schema).await);
        assert_eq!(repairs(pool).await, "1", "the generation has changed");
        for _ in 0..3 {
            assert!(!load(pool, &schema).await);
        }
        assert_eq!(repairs(pool).await, "1", "processes have connected");
        force_replay(pool).await.expect("force");
        assert!(load(pool, &schema).await);
        assert_eq!(repairs(pool).await, "1", "an operator has forced a replay");
        let mut other_text = schema.clone();
        other_text.files[0].text =
            Box::leak(format!("{}\n-- edited", other_text.files[0].text).into_boxed_str());
        assert!(load(pool, &other_text).await);
        assert_eq!(repairs(pool).await, "1", "a text has changed");
        let mut partial = schema.clone();
        (partial.loader, partial.files) = ("partial", schema.files[..1].to_vec());
        assert!(load(pool, &partial).await);
        assert!(load(pool, &schema).await);
        assert_eq!(repairs(pool).await, "1", "another loader has come and gone");
        let mut next = schema.clone();
        next.generation += 1;
        assert!(load(pool, &next).await);
        assert_eq!(repairs(pool).await, "1", "the next generation has repairs of its own");
    }
);

pg_test!(
    NoSlots,
    async fn l9_a_repair_of_an_upgrade_that_was_cut_short_runs_again(db: LoadedDatabase) {
        let schema = repairing();
        let broken = with_file_after(&schema, schema.files.len(), "select 1 / 0");
        for _ in 0..2 {
            load_schema(&db.pool, &broken, LoadOptions::default()).await.expect_err("broken");
        }
        assert!(load(&db.pool, &schema).await);
        assert_eq!(repairs(&db.pool).await, "3", "the generation had not changed before");
        force_replay(&db.pool).await.expect("force");
        assert!(load(&db.pool, &schema).await);
        assert_eq!(repairs(&db.pool).await, "3");
    }
);

pg_test!(
    NoSlots,
    async fn l9_a_repair_skips_no_generation_and_runs_over_an_empty_database(database: TestDatabase) {
        let pool = pool(&database.url());
        let mut first = Schema::full();
        (first.generation, first.files) = (1, first.files[..2].to_vec());
        assert!(load(&pool, &first).await);
        assert!(load(&pool, &repairing()).await, "from long before");
        assert_eq!(repairs(&pool).await, "1");
        pool.close().await;
        let fresh = database.server().create_database().expect("database");
        let pool = tidegate_migrations::testing::pool(&fresh.url());
        assert!(load(&pool, &repairing()).await);
        assert_eq!(repairs(&pool).await, "1");
        pool.close().await;
    }
);

/// A line for each table of ours and of the application's, the stamp apart: where each row is and which transaction wrote it.
const ROWS: &str = r#"create function public.rows_of_all() returns text language plpgsql as $f$
    declare t regclass; places text; shown text := ''; begin
        for t in select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where c.relkind = 'r' and n.nspname in ('tidegate', 'tidegate_projection', 'public') and c.relname <> 'schema_stamp' order by c.oid
        loop
            execute format('select string_agg(ctid::text || xmin, '' '' order by ctid) from %s', t) into places;
            shown := shown || format(E'%s %s\n', t, places);
        end loop;
        return shown;
    end $f$"#;

pg_test!(
    NoSlots,
    async fn l9_no_file_touches_a_row_while_the_generation_stays(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, POPULATED).await;
        ok(pool, "select tidegate.create_state(1), tidegate.create_projection(1, 1); insert into tidegate.client (subject, client_id) values ('u', gen_random_uuid())").await;
        ok(pool, ROWS).await;
        let rows = async || text(pool, "select rows_of_all()").await;
        let before = rows().await;
        assert!(before.contains("row_version_1 (0,") && before.lines().count() > 20, "{before}");
        for round in 0..2 {
            force_replay(pool).await.expect("force");
            assert!(connect_and_load(pool).await.expect("load").replayed);
            assert!(rows().await == before, "a forced replay has written rows, round {round}");
        }
        // A changed function is told to the table that proves it, and to nothing else.
        let schema = edited("v uuid := gen_random_uuid();", "v uuid := gen_random_uuid(); -- edited");
        assert!(load(pool, &schema).await);
        let proofs = |rows: String| -> String {
            rows.lines().filter(|line| !line.starts_with("tidegate.fence_object")).collect()
        };
        let after = rows().await;
        assert!(
            after != before && proofs(after) == proofs(before),
            "a replay of another text has written rows"
        );
    }
);

pg_test!(
    NoSlots,
    async fn l5_l9_a_connect_that_skips_could_not_write_at_all(db: LoadedDatabase) {
        ok(&db.pool, POPULATED).await;
        let read_only =
            format!("alter database {} set default_transaction_read_only = on", db.database.name());
        ok(&db.pool, &read_only).await;
        assert!(!connect_and_load(&db.pool).await.expect("it writes nothing").replayed);
        ok(&db.pool, "begin read write; update tidegate.schema_stamp set content_hash = null; commit").await;
        connect_and_load(&db.pool).await.expect_err("it would write");
    }
);
