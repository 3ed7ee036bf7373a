//! `tidegate uninstall`: everything of ours goes, nothing of the application's, whatever was running, waiting or cut short.

use super::{Run, command, tidegate};
use serde_json::Value;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestDatabase, TestServer};
use tidegate_migrations::connect_and_load;
use tidegate_migrations::testing::pool;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

/// Longest wait for a signal; reached by a broken test alone.
const PATIENCE: Duration = Duration::from_secs(60);

const TABLES: &str = "create table public.card (id bigint primary key, board_id bigint, title text);
    create table public.member (id bigint primary key, user_id text, board_id bigint);
    insert into public.card select g, 1, 'before' from generate_series(1, 100) g";
const REGISTER: &str = r#"select tidegate.register_table('public.card', '{"scopes": [{"name": "board:{board_id}"}]}');
    select tidegate.register_grant('{"scope": "board:{member.board_id}", "from": "public.member", "where": "user_id = {subject.id}"}')"#;

/// Every object of the database that is not the server's own, roles and slots included, and who may emit messages.
const OBJECTS: &str = "
    select concat('relation ', oid::regclass) from pg_class where oid >= 16384
    union all select concat('function ', oid::regprocedure) from pg_proc where oid >= 16384
    union all select concat('type ', oid::regtype) from pg_type where oid >= 16384
    union all select concat('trigger ', tgname, ' on ', tgrelid::regclass, ' ', tgenabled) from pg_trigger
    union all select concat('schema ', nspname) from pg_namespace where nspname !~ '^pg_(toast_)?temp_'
    union all select concat('publication ', pubname) from pg_publication
    union all select concat('event trigger ', evtname) from pg_event_trigger
    union all select concat('default acl ', defaclnamespace, defaclobjtype, defaclacl) from pg_default_acl
    union all select concat('slot ', slot_name) from pg_replication_slots where database = current_database()
    union all select concat('origin ', roname) from pg_replication_origin
    union all select concat('role ', rolname) from pg_roles
    union all select concat('setting ', setdatabase, ' ', setrole, setconfig) from pg_db_role_setting
    union all select concat('rights ', oid::regclass, relacl) from pg_class where relacl is not null and oid >= 16384
    union all select concat('emit ', oid::regprocedure, has_function_privilege('public', oid, 'execute'))
        from pg_proc where proname = 'pg_logical_emit_message'
    order by 1";

async fn objects(pool: &PgPool) -> Vec<String> {
    sqlx::query_scalar(OBJECTS).fetch_all(pool).await.expect("list the objects")
}

async fn sql(pool: &PgPool, sql: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn text(pool: &PgPool, sql: &str) -> String {
    let found = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await;
    found.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}", run.all()))
}

/// A started process, and what it says.
fn start(folder: &Path, url: &str, arguments: &[&str]) -> (Child, Lines<BufReader<ChildStderr>>) {
    let mut command = command(folder, url, arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run tidegate");
    let log = BufReader::new(child.stderr.take().expect("stderr")).lines();
    (child, log)
}

async fn until_said(log: &mut Lines<BufReader<ChildStderr>>, part: &str) -> String {
    let said = async {
        loop {
            let line =
                log.next_line().await.expect("read").unwrap_or_else(|| panic!("it ended without: {part}"));
            if line.contains(part) {
                return line;
            }
        }
    };
    tokio::time::timeout(PATIENCE, said).await.unwrap_or_else(|_| panic!("it never said: {part}"))
}

async fn until(pool: &PgPool, what: &str, sql: &str) {
    let seen = async {
        while text(pool, sql).await != "true" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("waited too long for {what}"));
}

/// Ends a worker as an operator does.
async fn stop(mut child: Child) {
    let pid = child.id().expect("it runs").to_string();
    let killed = std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill");
    assert!(killed.success());
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await.expect("it ends").expect("wait");
    assert!(ended.success(), "{ended}");
}

/// What the application does with its tables, and could not while they were registered.
async fn application_goes_on(pool: &PgPool, server: &TestServer, database: &str) {
    sql(pool, "insert into card values (1000, 2, 'after'); update card set id = id + 5000 where id < 10; delete from card where id > 6000").await;
    let mut psql = server.tool("psql", database).expect("psql");
    let copy =
        "begin; truncate card; copy card from stdin (freeze);\n1\t1\tfrozen\n2\t1\tfrozen\n\\.\ncommit;\n";
    let mut child = psql.args(["-v", "ON_ERROR_STOP=1", "-q"]).stdin(Stdio::piped()).spawn().expect("psql");
    std::io::Write::write_all(&mut child.stdin.take().expect("stdin"), copy.as_bytes()).expect("write");
    assert!(child.wait().expect("wait").success(), "TRUNCATE and COPY FREEZE work again");
    assert_eq!(text(pool, "select count(*)::text from card").await, "2");
    sql(pool, "truncate member; alter table card rename column title to name; drop table member").await;
}

pg_test!(
    Private,
    async fn f1_uninstall_after_a_running_stream_leaves_nothing_and_every_write_works(server: TestServer) {
        let database = server.create_database().expect("database");
        let (url, pool) = (database.url(), pool(&database.url()));
        sql(&pool, TABLES).await;
        let before = objects(&pool).await;
        let nothing = tidegate(&url, &["uninstall", "--yes"]).await;
        assert_eq!(
            (nothing.code, nothing.out.as_str()),
            (Some(0), "nothing of Tidegate's is installed in this database\n")
        );

        connect_and_load(&pool).await.expect("load");
        sql(&pool, REGISTER).await;
        let folder = tempfile::tempdir().expect("a folder");
        let (mut worker, _log) = start(folder.path(), &url, &["capture"]);
        let mut out = BufReader::new(worker.stdout.take().expect("stdout")).lines();
        let streaming =
            tokio::time::timeout(PATIENCE, out.next_line()).await.expect("in time").expect("read");
        assert_eq!(streaming.as_deref(), Some("streaming"));
        sql(&pool, "insert into card select g, 1, 'live' from generate_series(101, 200) g; update card set title = 'x' where id < 50").await;
        until(&pool, "the writes to be materialized", "select (count(*) >= 149)::text from tidegate.effect")
            .await;

        // While a worker lives it is refused by name, with how to stop it, and nothing has changed.
        let run = tidegate(&url, &["uninstall", "--yes"]).await;
        assert_eq!(run.code, Some(1), "{}", run.all());
        assert!(
            run.error.contains("nothing was removed: a worker is running (server processes "),
            "{}",
            run.error
        );
        assert!(
            run.error.contains("stop `tidegate capture`") && run.error.contains("pg_terminate_backend"),
            "{}",
            run.error
        );
        assert_eq!(text(&pool, "select count(*)::text from tidegate.trigger_problems()").await, "0");
        stop(worker).await;

        // Nobody is there to be asked; the plan says what would go.
        let run = tidegate(&url, &["uninstall"]).await;
        assert_eq!(run.code, Some(1));
        assert!(run.error.contains("pass --yes to uninstall, or --plan to look only"), "{}", run.error);
        for part in [
            "the registrations of 1 synced tables, 1 that grants read, and 1 grants",
            "4 triggers on public.card",
            "the publication tidegate",
            "the replication slot tidegate_",
            "the schema tidegate_projection",
            "With it go 149 effects",
        ] {
            assert!(run.error.contains(part), "{part}: {}", run.error);
        }
        let run = tidegate(&url, &["uninstall", "--plan", "--json"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        let plan = &json(&run)["plan"];
        assert_eq!(plan["lost"]["effects"], 149);
        assert_eq!(plan["slots"].as_array().map(Vec::len), Some(1));
        assert_eq!(text(&pool, "select count(*)::text from tidegate.trigger_problems()").await, "0");

        let run = tidegate(&url, &["uninstall", "--yes", "--json"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert_eq!(json(&run)["uninstalled"], true);
        assert_eq!(json(&run)["dropped_slots"].as_array().map(Vec::len), Some(1));
        assert_eq!(objects(&pool).await, before);
        let run = tidegate(&url, &["uninstall", "--yes", "--json"]).await;
        assert_eq!((run.code, &json(&run)["installed"]), (Some(0), &Value::from(false)));
        application_goes_on(&pool, &server, database.name()).await;
        pool.close().await;
    }
);

pg_test!(
    Private,
    async fn a_slot_that_somebody_reads_is_taken_from_them_and_dropped(server: TestServer) {
        let database = server.create_database().expect("database");
        let (url, pool) = (database.url(), pool(&database.url()));
        sql(&pool, TABLES).await;
        let before = objects(&pool).await;
        connect_and_load(&pool).await.expect("load");
        sql(&pool, REGISTER).await;
        // One of ours, one that another program has named otherwise, and one of another database.
        sql(&pool, "select pg_create_logical_replication_slot('tidegate_0a1b2c3d', 'pgoutput'), pg_create_logical_replication_slot('debezium', 'pgoutput')").await;
        server
            .sql("postgres", "select pg_create_logical_replication_slot('tidegate_ffffffff', 'pgoutput')")
            .expect("a slot");
        let mut reader = server
            .tool("pg_recvlogical", database.name())
            .expect("pg_recvlogical")
            .args(["--start", "--file=-", "--no-loop", "--slot=tidegate_0a1b2c3d"])
            .args(["--option=proto_version=1", "--option=publication_names=tidegate"])
            .arg(format!("--dbname={}", database.name()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start pg_recvlogical");
        until(
            &pool,
            "a reader",
            "select bool_or(active)::text from pg_replication_slots where slot_name = 'tidegate_0a1b2c3d'",
        )
        .await;
        let run = tidegate(&url, &["uninstall", "--plan"]).await;
        assert!(run.out.contains("the replication slot tidegate_0a1b2c3d, which process "), "{}", run.out);
        let run = tidegate(&url, &["uninstall", "--yes"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.ends_with("replication slot tidegate_0a1b2c3d dropped\n"), "{}", run.out);
        assert!(!reader.wait().expect("wait").success());
        sql(&pool, "select pg_drop_replication_slot('debezium')").await;
        assert_eq!(objects(&pool).await, before);
        server
            .sql("postgres", "select pg_drop_replication_slot('tidegate_ffffffff')")
            .expect("it was not touched");
        pool.close().await;
    }
);

pg_test!(
    Private,
    async fn l8_an_uninstall_lets_writes_pass_and_one_that_is_cut_short_is_run_again(server: TestServer) {
        let database = server.create_database().expect("database");
        let (url, pool) = (database.url(), pool(&database.url()));
        sql(&pool, TABLES).await;
        let before = objects(&pool).await;
        connect_and_load(&pool).await.expect("load");
        sql(&pool, REGISTER).await;
        sql(&pool, "select pg_create_logical_replication_slot('tidegate_0a1b2c3d', 'pgoutput')").await;
        let mut writer = pool.connect_options().connect().await.expect("connect");
        sqlx::raw_sql("begin; insert into public.member values (1, 'ada', 1)")
            .execute(&mut writer)
            .await
            .expect("write");
        let folder = tempfile::tempdir().expect("a folder");

        // Killed while it waits: nothing has changed, and everything works on.
        let (mut first, mut log) = start(folder.path(), &url, &["uninstall", "--yes"]);
        let told = until_said(&mut log, "tables are in use").await;
        assert!(told.contains("(server process ") && told.contains("try again"), "{told}");
        first.kill().await.expect("kill");
        // This one passes between two attempts; its fence is ours.
        sql(
            &pool,
            "update card set title = 'meanwhile' where id = 1; insert into card values (300, 1, 'meanwhile')",
        )
        .await;
        assert_eq!(text(&pool, "select count(*)::text from tidegate.trigger_problems()").await, "0");
        assert_eq!(text(&pool, "select (count(*) = 2)::text from tidegate.row_version_1").await, "true");

        // Run again, it waits for the same writer, and goes on when that has ended.
        let (second, mut log) = start(folder.path(), &url, &["uninstall", "--yes"]);
        until_said(&mut log, "tables are in use").await;
        sqlx::raw_sql("commit").execute(&mut writer).await.expect("the writer goes on");
        let output =
            tokio::time::timeout(PATIENCE, second.wait_with_output()).await.expect("in time").expect("wait");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(objects(&pool).await, before);

        // Cut short between its two halves: only the slot is left, and is known by its name.
        connect_and_load(&pool).await.expect("load");
        sql(&pool, REGISTER).await;
        sql(&pool, "select pg_create_logical_replication_slot('tidegate_0a1b2c3d', 'pgoutput')").await;
        sql(&pool, "select * from tidegate.uninstall()").await;
        let run = tidegate(&url, &["uninstall", "--yes"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.contains("replication slot tidegate_0a1b2c3d dropped"), "{}", run.out);
        assert_eq!(objects(&pool).await, before);
        // By somebody else's hands: what a dropped schema leaves.
        connect_and_load(&pool).await.expect("load");
        sql(&pool, REGISTER).await;
        sql(&pool, "drop schema tidegate cascade").await;
        let run = tidegate(&url, &["uninstall", "--yes"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        let emit = |objects: Vec<String>| {
            objects.into_iter().filter(|object| !object.starts_with("emit ")).collect::<Vec<_>>()
        };
        // What the schema knew of the right to emit messages has gone with it.
        assert_eq!(emit(objects(&pool).await), emit(before));
        application_goes_on(&pool, &server, database.name()).await;
        writer.close().await.expect("close");
        pool.close().await;
    }
);

pg_test!(
    NoSlots,
    async fn what_stands_in_the_way_of_an_uninstall_is_named_and_nothing_is_removed(db: TestDatabase) {
        let pool = pool(&db.url());
        connect_and_load(&pool).await.expect("load");
        let role = format!("{}_guest", db.name());
        sql(&pool, &format!("create role {role} login password 'x'")).await;
        let guest = format!("postgres://{role}:x@127.0.0.1:{}/{}", db.server().port(), db.name());
        let run = tidegate(&guest, &["uninstall", "--yes"]).await;
        assert_eq!(run.code, Some(1));
        assert!(run.error.contains("role postgres owns the schema tidegate"), "{}", run.all());
        // Of an installation that was cut short, the rest comes first.
        sql(&pool, "drop function tidegate.uninstall()").await;
        let run = tidegate(&db.url(), &["uninstall", "--yes", "--json"]).await;
        assert_eq!(run.code, Some(1));
        assert!(
            json(&run)["error"].as_str().is_some_and(|error| error.contains("run `tidegate migrate`")),
            "{}",
            run.all()
        );
        let run = tidegate(&db.url(), &["migrate", "--force"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        // One of another version knows itself what it installed; what it holds may not be countable.
        sql(&pool, "alter table tidegate.write_fence rename column covered_by to covered").await;
        let run = tidegate(&db.url(), &["uninstall", "--yes"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.contains("no replication slot was left"), "{}", run.out);
        sql(&pool, &format!("drop role {role}")).await;
        pool.close().await;
    }
);
