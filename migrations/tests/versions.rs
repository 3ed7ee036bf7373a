//! L6: programs of different versions that start on one database.

use crate::application::ok;
use crate::replay::POPULATED;
use crate::schemas::{assert_holds, newer, older, program};
use sqlx::postgres::PgPool;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tidegate_embedded::pg_test;
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_migrations::{
    File, GENERATION, LoadError, LoadOptions, Loaded, Reason, Schema, connect_and_load, force_replay,
    load_schema,
};
use tokio::task::JoinHandle;

type Outcome = Result<Loaded, LoadError>;

fn start(pool: &PgPool, schema: &Schema) -> JoinHandle<Outcome> {
    let (pool, schema) = (pool.clone(), schema.clone());
    tokio::spawn(async move { load_schema(&pool, &schema, LoadOptions::default()).await })
}

/// Holds the load lock, as another program that is loading.
async fn loading(pool: &PgPool) -> PgConnection {
    let mut other = pool.connect_options().connect().await.expect("connect");
    sqlx::raw_sql("select pg_advisory_lock(hashtextextended('tidegate load', 0))")
        .execute(&mut other)
        .await
        .expect("lock");
    other
}

/// Until so many programs wait for the load lock.
async fn until_waiting(pool: &PgPool, count: i64) {
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted
        and database = (select oid from pg_database where datname = current_database())";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(pool).await.expect("ask") < count {
        tokio::task::yield_now().await;
    }
}

pg_test!(
    NoSlots,
    async fn l6_an_older_program_that_comes_first_is_serialised_before_the_newer_one(db: LoadedDatabase) {
        ok(&db.pool, POPULATED).await;
        let gate = loading(&db.pool).await;
        let first = start(&db.pool, &older());
        until_waiting(&db.pool, 1).await;
        let second = start(&db.pool, &newer());
        until_waiting(&db.pool, 2).await;
        gate.close().await.expect("let them go");
        let first = first.await.expect("join").expect("load");
        assert_eq!(first, Loaded { replayed: true, reason: Some(Reason::OtherContent) });
        let second = second.await.expect("join").expect("load");
        assert_eq!(second, Loaded { replayed: true, reason: Some(Reason::OtherGeneration) });
        assert_holds(&db.pool, &newer(), "newer").await;
    }
);

pg_test!(
    NoSlots,
    async fn l6_an_older_program_that_comes_second_is_refused_by_the_downgrade_guard(db: LoadedDatabase) {
        ok(&db.pool, POPULATED).await;
        let gate = loading(&db.pool).await;
        let first = start(&db.pool, &newer());
        until_waiting(&db.pool, 1).await;
        let second = start(&db.pool, &older());
        until_waiting(&db.pool, 2).await;
        gate.close().await.expect("let them go");
        assert!(first.await.expect("join").expect("load").replayed);
        let error = second.await.expect("join").expect_err("a downgrade");
        assert_eq!(
            error.to_string(),
            format!(
                "load schema generation {GENERATION}: a newer program has loaded generation {} into this database, run that one",
                GENERATION + 1
            )
        );
        assert_holds(&db.pool, &newer(), "newer").await;
    }
);

pg_test!(
    NoSlots,
    async fn l6_two_versions_that_start_at_once_have_one_outcome_and_lose_no_stamp(db: LoadedDatabase) {
        ok(&db.pool, POPULATED).await;
        load_schema(&db.pool, &older(), LoadOptions::default()).await.expect("the older one's database");
        for round in 0..6 {
            // Each round one generation on, so that both have something to do.
            let before = program(GENERATION + round, if round == 0 { "older" } else { "newer" });
            let after = program(GENERATION + round + 1, "newer");
            force_replay(&db.pool).await.expect("force");
            let (one, other) = (start(&db.pool, &before), start(&db.pool, &after));
            let (one, other) = (one.await.expect("join"), other.await.expect("join"));
            assert!(other.expect("the newer one always loads").replayed, "round {round}");
            match one {
                Ok(loaded) => assert_eq!(loaded.reason, Some(Reason::Cleared), "round {round}: before it"),
                Err(LoadError::Downgrade { stamped, ours }) => {
                    assert_eq!(
                        (stamped, ours),
                        (after.generation, before.generation),
                        "round {round}: behind it"
                    );
                }
                Err(error) => panic!("round {round}: {error}"),
            }
            assert_holds(&db.pool, &after, "newer").await;
        }
    }
);

pg_test!(
    NoSlots,
    async fn l6_two_builds_of_one_generation_take_turns_and_the_stamp_names_the_last(db: LoadedDatabase) {
        ok(&db.pool, POPULATED).await;
        let builds = [program(GENERATION, "red"), program(GENERATION, "green"), program(GENERATION, "blue")];
        let starting: Vec<_> = builds.iter().cycle().take(9).map(|build| start(&db.pool, build)).collect();
        for started in starting {
            started.await.expect("join").expect("load");
        }
        let name = crate::application::text(&db.pool, "select tidegate.loaded_by()").await;
        let last = program(GENERATION, &name);
        assert_holds(&db.pool, &last, &name).await;
        // It alone has nothing to do now.
        for build in &builds {
            let same = build.content_hash() == last.content_hash();
            let loaded = load_schema(&db.pool, build, LoadOptions::default()).await.expect("load");
            assert_eq!(loaded.replayed, !same);
            load_schema(&db.pool, &last, LoadOptions::default()).await.expect("load");
        }
    }
);

pg_test!(
    NoSlots,
    async fn l6_an_upgrade_that_was_cut_short_keeps_older_programs_out(db: LoadedDatabase) {
        ok(&db.pool, POPULATED).await;
        let mut broken = newer();
        broken.files.push(File { name: "9999_broken.sql", text: "select 1 / 0" });
        load_schema(&db.pool, &broken, LoadOptions::default()).await.expect_err("broken");
        // Nothing newer is stamped, but a part of it is there.
        let error = connect_and_load(&db.pool).await.expect_err("a downgrade");
        assert!(
            matches!(error, LoadError::Downgrade { stamped, ours: GENERATION } if stamped == GENERATION + 1),
            "{error}"
        );
        let loaded = load_schema(&db.pool, &newer(), LoadOptions::default()).await.expect("load");
        assert_eq!(loaded.reason, Some(Reason::Cleared));
        assert_holds(&db.pool, &newer(), "newer").await;
    }
);

pg_test!(
    NoSlots,
    async fn l6_a_first_load_that_was_cut_short_keeps_older_programs_out(
        database: tidegate_embedded::testing::TestDatabase,
    ) {
        let pool = tidegate_migrations::testing::pool(&database.url());
        let mut broken = newer();
        broken.files.insert(1, File { name: "0001_broken.sql", text: "select 1 / 0" });
        load_schema(&pool, &broken, LoadOptions::default()).await.expect_err("broken");
        let error = connect_and_load(&pool).await.expect_err("a downgrade");
        assert!(matches!(error, LoadError::Downgrade { .. }), "{error}");
        load_schema(&pool, &newer(), LoadOptions::default()).await.expect("load");
        assert_holds(&pool, &newer(), "newer").await;
        pool.close().await;
    }
);

pg_test!(
    NoSlots,
    async fn l6_a_stamp_without_the_newest_column_is_read_and_brought_up_to_date(db: LoadedDatabase) {
        ok(&db.pool, "alter table tidegate.schema_stamp drop column replaying").await;
        assert!(!connect_and_load(&db.pool).await.expect("load").replayed);
        load_schema(&db.pool, &newer(), LoadOptions::default()).await.expect("load");
        assert_holds(&db.pool, &newer(), "newer").await;
    }
);
