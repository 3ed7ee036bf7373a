//! L1: a replay that is killed, wherever, vouches for nothing; the next one replays whole. Meanwhile the application writes on.

use crate::application::{ok, text};
use crate::replay::POPULATED;
use crate::schemas::{assert_holds, newer, older, with_file_after, with_text_at_end_of};
use sqlx::postgres::PgPool;
use sqlx::{ConnectOptions, Connection, PgConnection};
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_embedded::{Stop, pg_test};
use tidegate_migrations::testing::{LoadedDatabase, pool};
use tidegate_migrations::{LoadOptions, Reason, Schema, load_schema};

/// Waits until the test lets it go, or ends it.
const STOP_HERE: &str = "select pg_advisory_xact_lock(hashtextextended('tidegate test stop', 0))";

const PATIENT: LoadOptions = LoadOptions {
    lock_timeout: Duration::from_secs(120),
    attempts: 1,
    load_lock_timeout: Duration::from_secs(120),
    gate: true,
};

/// Lets nobody pass [`STOP_HERE`] while it lives.
async fn hold(pool: &PgPool) -> PgConnection {
    let mut holder = pool.connect_options().connect().await.expect("connect");
    sqlx::raw_sql("select pg_advisory_lock(hashtextextended('tidegate test stop', 0))")
        .execute(&mut holder)
        .await
        .expect("hold");
    holder
}

/// The server process that waits at [`STOP_HERE`].
async fn stopped_loader(pool: &PgPool) -> i32 {
    let waiting = "select pid from pg_locks where locktype = 'advisory' and not granted
        and (classid::bigint << 32) | objid::bigint = hashtextextended('tidegate test stop', 0)
        and database = (select oid from pg_database where datname = current_database())";
    loop {
        if let Some(pid) = sqlx::query_scalar(waiting).fetch_optional(pool).await.expect("ask") {
            return pid;
        }
        tokio::task::yield_now().await;
    }
}

/// What the application does in the middle of an upgrade: every write works, whatever part of it is there.
async fn assert_half_loaded(pool: &PgPool) {
    let stamp =
        "select format('%s %s', content_hash is null, replaying is not null) from tidegate.schema_stamp";
    assert_eq!(text(pool, stamp).await, "t t", "nothing is vouched for");
    ok(pool, "insert into item values (1000, 'l', 't'); update item set title = 'half' where id < 5; delete from item where id = 1000; insert into member values ('half', 'u', 2); delete from member where id = 'half'").await;
}

pg_test!(
    NoSlots,
    async fn l1_a_replay_killed_within_any_file_or_behind_it_is_made_up_for_by_the_next(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, POPULATED).await;
        let holder = hold(pool).await;
        let schemas = [(newer(), "newer"), (older(), "older")];
        load_schema(pool, &schemas[1].0, PATIENT).await.expect("begin with the older one");
        let count = Schema::full().files.len();
        for (round, index) in (0..count).enumerate() {
            // One content follows the other, in one generation, so that each replay has something to do.
            let (mut schema, name) = schemas[round % 2].clone();
            schema.generation = newer().generation;
            let stops = [
                // All that the file did is there and not committed.
                with_text_at_end_of(&schema, index, STOP_HERE),
                // Some files are committed and the others have not begun.
                with_file_after(&schema, index + 1, STOP_HERE),
            ];
            for stop in stops {
                let loading = tokio::spawn({
                    let pool = pool.clone();
                    async move { load_schema(&pool, &stop, PATIENT).await }
                });
                let pid = stopped_loader(pool).await;
                ok(pool, &format!("select pg_terminate_backend({pid}, 60000)")).await;
                loading.await.expect("join").expect_err("it was killed");
                assert_half_loaded(pool).await;
            }
            let loaded = load_schema(pool, &schema, PATIENT).await.expect("load");
            assert_eq!(loaded.reason, Some(Reason::Cleared), "file {index}");
            assert_holds(pool, &schema, name).await;
        }
        holder.close().await.expect("close");
    }
);

/// Set for the process of the test below that is to be killed.
const URL: &str = "TIDEGATE_TEST_LOAD_AND_STOP";

/// Not a test by itself: what the killed process runs.
#[tokio::test]
async fn the_process_that_is_killed() {
    let Ok(url) = std::env::var(URL) else { return };
    let pool = pool(&url);
    let stop = with_text_at_end_of(&newer(), 6, STOP_HERE);
    let loaded = load_schema(&pool, &stop, PATIENT).await;
    panic!("it was to be killed: {loaded:?}");
}

pg_test!(
    NoSlots,
    async fn l1_l6_a_loader_process_killed_in_the_middle_is_made_up_for_by_the_next(server: TestServer) {
        for fresh in [true, false] {
            let db = if fresh {
                let database = server.create_database().expect("database");
                LoadedDatabase { pool: pool(&database.url()), database }
            } else {
                let db = LoadedDatabase::new(&server).await;
                ok(&db.pool, POPULATED).await;
                db
            };
            let holder = hold(&db.pool).await;
            let mut process = Command::new(std::env::current_exe().expect("this program"))
                .args(["killed::the_process_that_is_killed", "--exact"])
                .env(URL, db.url())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("a process");
            stopped_loader(&db.pool).await;
            process.kill().expect("kill");
            process.wait().expect("wait");
            // Its server process still waits, and holds the load lock: the next loader waits for it, and it ends as soon as it looks
            // at its connection.
            let next = tokio::spawn({
                let pool = db.pool.clone();
                async move { load_schema(&pool, &newer(), PATIENT).await }
            });
            holder.close().await.expect("let the server's process go on");
            let loaded = next.await.expect("join").expect("load");
            assert_eq!(loaded.reason, Some(Reason::Cleared));
            assert_holds(&db.pool, &newer(), "newer").await;
            db.pool.close().await;
        }
    }
);

struct OwnServer {
    server: TestServer,
    db: LoadedDatabase,
}

impl TestContext for OwnServer {
    async fn prepare(server: TestServer) -> Self {
        let db = LoadedDatabase::new(&server).await;
        ok(&db.pool, POPULATED).await;
        OwnServer { server, db }
    }
}

pg_test!(
    Private,
    async fn l1_a_server_that_dies_in_the_middle_of_a_replay_is_loaded_whole_when_it_is_back(t: OwnServer) {
        for (round, within) in [true, false, true].into_iter().enumerate() {
            // Connections from before the server died are gone.
            let pool = &pool(&t.db.url());
            let stop = if within {
                with_text_at_end_of(&newer(), 8, STOP_HERE)
            } else {
                with_file_after(&newer(), 8, STOP_HERE)
            };
            let _holder = hold(pool).await;
            let loading = tokio::spawn({
                let pool = pool.clone();
                async move { load_schema(&pool, &stop, PATIENT).await }
            });
            stopped_loader(pool).await;
            if round == 2 {
                t.server.kill().expect("kill -9 of the postmaster");
                t.server.start().expect("start");
            } else {
                t.server.restart(Stop::Immediate).expect("crash and start");
            }
            loading.await.expect("join").expect_err("its server died");
            let pool = &tidegate_migrations::testing::pool(&t.db.url());
            assert_half_loaded(pool).await;
            let loaded = load_schema(pool, &newer(), PATIENT).await.expect("load");
            assert_eq!(loaded.reason, Some(Reason::Cleared));
            assert_holds(pool, &newer(), "newer").await;
        }
    }
);
