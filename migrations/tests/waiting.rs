//! L8: an upgrade waits for locks in bounded steps, so that it never queues the application's writes behind it for longer.

use crate::application::{ok, text};
use crate::replay::POPULATED;
use crate::said::Said;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{ConnectOptions, Connection};
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_migrations::definition::{
    ApplyError, ApplyOptions, Definitions, Status, TableDefinition, apply_with,
};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_migrations::{LoadError, LoadOptions, Schema, force_replay, load_schema};

/// A database whose upgrade needs the lock of `item`: one of its triggers is not as it should be.
async fn due(db: &LoadedDatabase) {
    ok(&db.pool, POPULATED).await;
    ok(&db.pool, "alter table item disable trigger \"~tidegate_guard\"").await;
    force_replay(&db.pool).await.expect("force");
}

async fn session(pool: &PgPool) -> PgConnection {
    pool.connect_options().connect().await.expect("connect")
}

async fn sql(session: &mut PgConnection, text: &'static str) {
    sqlx::raw_sql(text).execute(session).await.unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// Until so many sessions wait for a lock on `item`.
async fn until_waiting_for_item(pool: &PgPool, count: i64) {
    let waiting = "select count(*) from pg_locks where not granted and relation = 'item'::regclass";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(pool).await.expect("ask") < count {
        tokio::task::yield_now().await;
    }
}

fn steps_of(lock_timeout: Duration) -> LoadOptions {
    LoadOptions { lock_timeout, attempts: 1000, ..LoadOptions::default() }
}

pg_test!(
    NoSlots,
    async fn l8_an_upgrade_waits_in_bounded_steps_and_goes_on_when_the_lock_is_free(db: LoadedDatabase) {
        due(&db).await;
        let mut writer = session(&db.pool).await;
        sql(&mut writer, "begin; update item set title = 'w'").await;
        let said = Said::listen();
        let short = LoadOptions { attempts: 3, ..steps_of(Duration::from_millis(100)) };
        let error = load_schema(&db.pool, &Schema::full(), short).await.expect_err("locked");
        assert!(matches!(error, LoadError::LockTimeout { file: "0007_fence.sql", attempts: 3 }), "{error}");
        assert_eq!(error.to_string(), "load 0007_fence.sql: a lock was not free in 3 attempts");
        let retries = said.lines("a lock was not free: try again");
        assert_eq!(retries.len(), 2, "each retry is logged: {retries:?}");
        assert!(retries[1].contains("attempt=2") && retries[1].contains("0007_fence.sql"), "{retries:?}");
        drop(said);
        let loading = tokio::spawn({
            let pool = db.pool.clone();
            async move { load_schema(&pool, &Schema::full(), steps_of(Duration::from_millis(100))).await }
        });
        until_waiting_for_item(&db.pool, 1).await;
        sql(&mut writer, "update item set title = 'x'; commit").await;
        assert!(loading.await.expect("join").expect("load").replayed);
        assert_eq!(text(&db.pool, "select count(*)::text from tidegate.trigger_problems()").await, "0");
        writer.close().await.expect("close");
    }
);

pg_test!(
    NoSlots,
    async fn l8_a_writer_that_queues_behind_an_upgrade_goes_before_it(db: LoadedDatabase) {
        due(&db).await;
        // It holds the upgrade up, and never ends by itself.
        let mut holder = session(&db.pool).await;
        sql(&mut holder, "begin; update item set title = 'w' where id = 1").await;
        let loading = tokio::spawn({
            let pool = db.pool.clone();
            async move { load_schema(&pool, &Schema::full(), steps_of(Duration::from_secs(2))).await }
        });
        until_waiting_for_item(&db.pool, 1).await;
        // The holder would let this one pass; the waiting upgrade does not, until its step is over.
        let writing = tokio::spawn({
            let mut writer = session(&db.pool).await;
            async move {
                sql(&mut writer, "update item set title = 'behind' where id = 2").await;
                writer.close().await.expect("close");
            }
        });
        until_waiting_for_item(&db.pool, 2).await;
        writing.await.expect("it went on while the holder still holds and the upgrade still tries");
        assert!(!loading.is_finished());
        sql(&mut holder, "commit").await;
        assert!(loading.await.expect("join").expect("load").replayed);
        holder.close().await.expect("close");
    }
);

pg_test!(
    NoSlots,
    async fn l8_an_apply_waits_in_bounded_steps_and_changes_all_or_nothing(db: LoadedDatabase) {
        ok(
            &db.pool,
            "create table public.first (id int primary key); create table public.item (id int primary key)",
        )
        .await;
        let table = |name: &str| TableDefinition {
            name: name.to_owned(),
            columns: None,
            exclude: None,
            write: None,
            unrestricted: false,
            scopes: Vec::new(),
        };
        let definitions =
            Definitions { tables: vec![table("public.first"), table("public.item")], grants: Vec::new() };
        let mut holder = session(&db.pool).await;
        sql(&mut holder, "begin; insert into item values (1)").await;
        let said = Said::listen();
        let short = ApplyOptions { lock_timeout: Duration::from_millis(100), attempts: 3 };
        let error = apply_with(&db.pool, &definitions, short).await.expect_err("locked");
        assert!(matches!(error, ApplyError::LockTimeout { attempts: 3 }), "{error}");
        assert_eq!(said.lines("a table was locked: try again").len(), 2, "each retry is logged");
        drop(said);
        assert_eq!(
            text(&db.pool, "select count(*)::text from tidegate.relation").await,
            "0",
            "nothing is half applied"
        );
        let applying = tokio::spawn({
            let (pool, definitions) = (db.pool.clone(), definitions.clone());
            let patient = ApplyOptions { lock_timeout: Duration::from_secs(2), attempts: 1000 };
            async move { apply_with(&pool, &definitions, patient).await }
        });
        until_waiting_for_item(&db.pool, 1).await;
        let writing = tokio::spawn({
            let mut writer = session(&db.pool).await;
            async move {
                sql(&mut writer, "insert into item values (2)").await;
                writer.close().await.expect("close");
            }
        });
        until_waiting_for_item(&db.pool, 2).await;
        writing.await.expect("it went on while the holder still holds and the apply still tries");
        sql(&mut holder, "commit").await;
        let plan = applying.await.expect("join").expect("apply");
        assert!(plan.entries.iter().all(|entry| entry.status == Status::New), "{plan:?}");
        holder.close().await.expect("close");
    }
);
