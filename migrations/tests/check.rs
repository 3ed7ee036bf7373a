//! Examinations of real servers: each thing that is wrong is broken alone, seen by its name, repaired by what the finding prints, and
//! seen to clear.

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Connection};
use std::process::Stdio;
use std::time::Duration;
use tidegate_embedded::testing::TestServer;
use tidegate_embedded::{Stop, pg_test};
use tidegate_migrations::check::{Examination, Finding, Level, Repair, RepairKind, examine};
use tidegate_migrations::testing::pool;
use tidegate_migrations::{connect_and_load, force_replay};

/// Longest wait for a signal that only the server itself gives; reached by a broken test alone.
const PATIENCE: Duration = Duration::from_secs(60);

async fn examined_with(url: &str, tables: &[&str]) -> Examination {
    let mut connection = PgConnection::connect(url).await.expect("connect");
    let tables: Vec<String> = tables.iter().map(|table| (*table).to_owned()).collect();
    let examination = examine(&mut connection, &tables).await.expect("examine");
    connection.close().await.expect("close");
    examination
}

async fn examined(url: &str) -> Examination {
    examined_with(url, &[]).await
}

/// What is not as it should be: name, table, level.
fn wrong(examination: &Examination) -> Vec<(&str, Level)> {
    let wrong = examination.findings.iter().filter(|finding| finding.level != Level::Ok);
    wrong.map(|finding| (finding.name, finding.level)).collect()
}

fn finding<'e>(examination: &'e Examination, name: &str) -> &'e Finding {
    examination.findings.iter().find(|finding| finding.name == name).unwrap_or_else(|| panic!("no {name}"))
}

async fn run(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.expect("connect");
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    connection.close().await.expect("close");
}

async fn text(url: &str, sql: &str) -> String {
    let mut connection = PgConnection::connect(url).await.expect("connect");
    let value = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await;
    connection.close().await.expect("close");
    value.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Does one step of a repair as an operator would, as a superuser.
async fn repair(server: &TestServer, url: &str, step: &Repair) {
    match step.kind {
        RepairKind::Sql => run(url, &step.text).await,
        RepairKind::Command => assert!(step.text.starts_with("tidegate migrate"), "{step:?}"),
        RepairKind::Act | RepairKind::Setting => {}
    }
    if step.text == "tidegate migrate --force" {
        let pool = pool(url);
        force_replay(&pool).await.expect("force");
        connect_and_load(&pool).await.expect("load");
        pool.close().await;
    }
    match step.then.as_deref() {
        Some("restart PostgreSQL") => server.restart(Stop::Fast).expect("restart"),
        Some("select pg_reload_conf()") => run(url, "select pg_reload_conf()").await,
        _ => {}
    }
}

/// Waits until the examination says so: a reload is told to the server, and nobody tells when each process has read it.
async fn until_wrong(url: &str, expected: &[(&str, Level)]) -> Examination {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let examination = examined(url).await;
        if wrong(&examination) == expected {
            return examination;
        }
        assert!(tokio::time::Instant::now() < deadline, "{expected:?}: {:#?}", wrong(&examination));
        tokio::task::yield_now().await;
    }
}

/// Breaks by `sql`, sees exactly `name`, repairs as printed, sees it clear.
async fn walk(server: &TestServer, admin: &str, url: &str, sql: &str, name: &str, level: Level) {
    run(admin, sql).await;
    if sql.starts_with("alter system") {
        run(admin, "select pg_reload_conf()").await;
    }
    let examination = until_wrong(url, &[(name, level)]).await;
    for step in &finding(&examination, name).repair {
        repair(server, admin, step).await;
    }
    until_wrong(url, &[]).await;
}

pg_test!(
    Private { "autovacuum" = "off", "max_prepared_transactions" = "5" },
    async fn each_setting_and_default_that_hurts_is_named_alone_and_clears_by_its_repair(server: TestServer) {
        let database = server.create_database().expect("database");
        let url = &database.url();
        // A server as it should be, before installation; and looking leaves no trace.
        let next_xid = "select pg_snapshot_xmax(pg_current_snapshot())::text";
        let before = text(url, next_xid).await;
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), [], "{examination:#?}");
        assert!(examination.usable());
        assert!(finding(&examination, "schema").found.starts_with("not installed yet"), "{examination:#?}");
        assert_eq!(text(url, next_xid).await, before, "an examination changes nothing");

        use Level::{Failure, Warning};
        let name = database.name();
        for (sql, name, level) in [
            ("alter system set fsync = off", "fsync", Failure),
            ("alter system set full_page_writes = off", "full_page_writes", Warning),
            ("alter system set wal_sender_timeout = '2s'", "wal_sender_timeout", Warning),
            ("alter system set wal_sender_timeout = 0", "wal_sender_timeout", Warning),
            ("alter system set max_slot_wal_keep_size = '512MB'", "max_slot_wal_keep_size", Warning),
            ("alter system set logical_decoding_work_mem = '1MB'", "logical_decoding_work_mem", Warning),
            (&format!("alter database {name} set default_transaction_read_only = on"), "default_transaction_read_only", Failure),
            ("alter role postgres set session_replication_role = replica", "session_replication_role", Warning),
            (&format!("alter role postgres in database {name} set row_security = off"), "row_security", Warning),
        ] {
            // The repair of a default must not itself be stopped by it.
            walk(&server, &server.url("postgres"), url, sql, name, level).await;
        }
        if server.major() >= 18 {
            let sql = "alter system set idle_replication_slot_timeout = '1h'";
            walk(&server, url, url, sql, "idle_replication_slot_timeout", Warning).await;
        } else {
            assert_eq!(examination.of("idle_replication_slot_timeout").count(), 0);
        }
        // Only minor versions since August 2026 know the list; without it every plugin may be used.
        let listed = "select (current_setting('output_plugin_libraries', true) is not null)::text";
        if text(url, listed).await == "true" {
            let sql = "alter system set output_plugin_libraries = test_decoding";
            walk(&server, url, url, sql, "output_plugin", Failure).await;
            assert_eq!(text(url, "show output_plugin_libraries").await, "test_decoding, pgoutput");
        }
        // It does no harm, and is explained.
        run(url, "alter role postgres set synchronous_commit = off").await;
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), []);
        assert!(finding(&examination, "synchronous_commit").found.starts_with("off"), "{examination:#?}");

        // B1, of another database: the whole server waits for it.
        let sql = "begin; create table t (id int); prepare transaction 'order SECRET-7f3a'";
        run(&server.url("postgres"), sql).await;
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), [("prepared_transactions", Failure)]);
        assert!(!format!("{examination:?}").contains("SECRET-7f3a"), "{examination:#?}");
        let listing = &finding(&examination, "prepared_transactions").repair[0].text;
        let statement = text(url, &format!("select statement from ({listing}) l")).await;
        run(&server.url("postgres"), &statement).await;
        assert_eq!(wrong(&examined(url).await), []);

        let latin = "create database latin encoding 'LATIN1' locale_provider libc locale 'C' template template0";
        run(url, latin).await;
        assert_eq!(wrong(&examined(&server.url("latin")).await), [("encoding", Failure)]);
    }
);

pg_test!(
    Private { "wal_level" = "replica" },
    async fn a_server_without_logical_wal_is_named_and_repaired_by_a_restart(server: TestServer) {
        let url = &server.url("postgres");
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), [("wal_level", Level::Failure)]);
        let steps = &finding(&examination, "wal_level").repair;
        assert_eq!(steps[0].text, "alter system set wal_level = 'logical'");
        repair(&server, url, &steps[0]).await;
        assert_eq!(wrong(&examined(url).await), []);
    }
);

pg_test!(
    Private { "max_replication_slots" = "2" },
    async fn used_up_slots_are_named_with_those_that_nobody_reads(server: TestServer) {
        let url = &server.url("postgres");
        assert_eq!(wrong(&examined(url).await), []);
        run(url, "select pg_create_physical_replication_slot('one')").await;
        assert_eq!(wrong(&examined(url).await), [("max_replication_slots", Level::Warning)]);
        run(url, "select pg_create_physical_replication_slot('two')").await;
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), [("max_replication_slots", Level::Failure)]);
        let steps: Vec<&str> = finding(&examination, "max_replication_slots").repair.iter().map(|step| step.text.as_str()).collect();
        assert_eq!(
            steps,
            [
                "select pg_drop_replication_slot('one')",
                "select pg_drop_replication_slot('two')",
                "alter system set max_replication_slots = '10'"
            ]
        );
        // Either is enough.
        run(url, steps[0]).await;
        run(url, steps[1]).await;
        assert_eq!(wrong(&examined(url).await), []);
        run(url, "select pg_create_physical_replication_slot('three'), pg_create_physical_replication_slot('four')").await;
        let examination = examined(url).await;
        let raise = finding(&examination, "max_replication_slots").repair.last().expect("a step").clone();
        repair(&server, url, &raise).await;
        assert_eq!(wrong(&examined(url).await), []);
    }
);

pg_test!(
    Private { "max_wal_senders" = "1" },
    async fn used_up_walsenders_are_named_and_repaired_by_a_restart(server: TestServer) {
        let url = &server.url("postgres");
        assert_eq!(wrong(&examined(url).await), [("max_wal_senders", Level::Warning)]);
        run(url, "select pg_create_logical_replication_slot('other', 'test_decoding')").await;
        let mut reader = server
            .tool("pg_recvlogical", "postgres")
            .expect("pg_recvlogical")
            .args(["--start", "--file=-", "--slot=other", "--dbname=postgres"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start pg_recvlogical");
        let examination = until_wrong(url, &[("max_wal_senders", Level::Failure)]).await;
        reader.kill().expect("kill");
        reader.wait().expect("wait");
        let steps = &finding(&examination, "max_wal_senders").repair;
        assert_eq!(steps.len(), 1, "{steps:?}");
        repair(&server, url, &steps[0]).await;
        assert_eq!(wrong(&examined(url).await), []);
    }
);

pg_test!(
    Private,
    async fn a_standby_is_named_and_clears_when_it_is_promoted(server: TestServer) {
        let url = &server.url("postgres");
        server.stop(Stop::Fast).expect("stop");
        let data = server.cluster().dir().join("data");
        std::fs::write(data.join("standby.signal"), "").expect("make it a standby");
        // PostgreSQL's user removes it at the promotion.
        server.start().expect("start");
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), [("primary", Level::Failure)]);
        assert!(
            finding(&examination, "primary").repair[0].text.contains("select pg_promote()"),
            "{examination:#?}"
        );
        run(url, "select pg_promote()").await;
        assert_eq!(wrong(&examined(url).await), []);
    }
);

/// The address of a role of that name and password.
fn as_role(server: &TestServer, role: &str, database: &str) -> String {
    format!("postgres://{role}:x@127.0.0.1:{}/{database}", server.port())
}

/// Runs every statement of every finding that is wrong, until nothing is.
async fn repair_all(server: &TestServer, admin: &str, examination: &Examination) {
    for finding in examination.findings.iter().filter(|finding| finding.level != Level::Ok) {
        for step in &finding.repair {
            repair(server, admin, step).await;
        }
    }
}

pg_test!(
    Private,
    async fn each_right_that_a_role_lacks_is_named_with_its_statement(server: TestServer) {
        use Level::{Failure, Warning};
        let database = server.create_database().expect("database");
        let admin = &database.url();
        run(admin, "create role \"App\" login password 'x'").await;
        let url = &as_role(&server, "App", database.name());
        let lacking = [("replication_right", Failure), ("create_right", Failure), ("emit_right", Warning)];
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), lacking);
        assert!(!examination.usable());
        let statement = |name| finding(&examination, name).repair[0].text.clone();
        assert_eq!(statement("replication_right"), "alter role \"App\" replication");
        assert_eq!(
            statement("create_right"),
            format!("grant create on database {} to \"App\"", database.name())
        );
        repair_all(&server, admin, &examination).await;
        assert_eq!(wrong(&examined(url).await), []);

        // Tables that are to be registered: of another owner, with policies, missing, no table.
        run(admin, "create role other nologin; create table public.theirs (id int primary key); alter table public.theirs owner to other;
            create table public.\"Hidden\" (id int primary key); alter table public.\"Hidden\" owner to \"App\";
            alter table public.\"Hidden\" enable row level security; alter table public.\"Hidden\" force row level security;
            create view public.shown as select 1 as id").await;
        let named = ["public.theirs", "public.Hidden", "public.gone", "public.shown"];
        let examination = examined_with(url, &named).await;
        let subjects: Vec<_> = examination
            .of("table_rights")
            .map(|finding| (finding.subject.as_deref(), finding.level))
            .collect();
        assert_eq!(
            subjects,
            [
                (Some("public.theirs"), Failure),
                (Some("public.\"Hidden\""), Failure),
                (Some("public.gone"), Failure),
                (Some("public.shown"), Failure)
            ]
        );
        repair_all(&server, admin, &examination).await;
        let examination = examined_with(url, &named[..2]).await;
        assert_eq!(wrong(&examination), [], "{examination:#?}");

        // What it was judged able to do, it can.
        let pool = pool(url);
        connect_and_load(&pool).await.expect("load");
        for table in ["public.theirs", "public.\"Hidden\""] {
            let done =
                sqlx::query("select tidegate.register_table($1, '{}')").bind(table).execute(&pool).await;
            done.unwrap_or_else(|error| panic!("{table}: {error}"));
        }
        run(admin, "insert into public.theirs values (1); update public.theirs set id = id").await;
        let examination = examined_with(url, &named[..2]).await;
        assert_eq!(wrong(&examination), [], "{examination:#?}");

        // Another role may not even look; then it may look, and still not install.
        run(admin, "create role guest login password 'x' replication; ").await;
        run(admin, &format!("grant create on database {} to guest", database.name())).await;
        let guest = &as_role(&server, "guest", database.name());
        let examination = examined(guest).await;
        assert_eq!(wrong(&examination), [("schema_owner", Failure), ("schema", Failure)]);
        run(admin, &finding(&examination, "schema").repair[0].text).await;
        let examination = examined(guest).await;
        assert_eq!(wrong(&examination), [("schema_owner", Failure)], "{examination:#?}");
        run(admin, &finding(&examination, "schema_owner").repair[0].text).await;
        assert_eq!(wrong(&examined(guest).await), []);
        pool.close().await;
    }
);

pg_test!(
    Private,
    async fn f8_the_right_of_everybody_to_emit_messages_is_reported_where_it_is_not_revoked(
        server: TestServer,
    ) {
        let database = server.create_database().expect("database");
        let url = &database.url();
        // As PostgreSQL comes, a superuser's installation revokes it.
        let before = examined(url).await;
        assert!(
            finding(&before, "emit_right").found.contains("`tidegate migrate` revokes it"),
            "{before:#?}"
        );
        let pool: PgPool = pool(url);
        connect_and_load(&pool).await.expect("load");
        pool.close().await;
        assert_eq!(wrong(&examined(url).await), []);

        let (grant, revoke) =
            ("grant execute on function %s to public", "revoke execute on function %s from %I");
        run(url, &each_function(&format!("format('{grant}', f)"))).await;
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), [("emit_right", Level::Warning)]);
        repair_all(&server, url, &examination).await;
        assert_eq!(wrong(&examined(url).await), []);

        // An owner who may not: every write would fail.
        run(
            url,
            "create role installer login password 'x' replication; alter schema tidegate owner to installer",
        )
        .await;
        run(url, &each_function(&format!("format('{revoke}', f, 'installer')"))).await;
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), [("emit_right", Level::Failure)]);
        repair_all(&server, url, &examination).await;
        assert_eq!(wrong(&examined(url).await), []);
    }
);

/// Runs a statement for each signature of the function that emits messages.
fn each_function(statement: &str) -> String {
    format!(
        "do $$ declare f regprocedure; begin
             for f in select oid from pg_proc where proname = 'pg_logical_emit_message' loop execute {statement}; end loop;
         end $$"
    )
}

pg_test!(
    Private,
    async fn a_managed_service_is_known_and_answered_in_its_own_words(server: TestServer) {
        let url = &server.url("postgres");
        run(url, "create role rdsadmin nologin; create role rds_replication nologin; create role app login password 'x';
            grant create on database postgres to app").await;
        run(url, "alter system set max_slot_wal_keep_size = '100MB'").await;
        run(url, "select pg_reload_conf()").await;
        let app = &as_role(&server, "app", "postgres");
        let lacking = [
            ("max_slot_wal_keep_size", Level::Warning),
            ("replication_right", Level::Failure),
            ("emit_right", Level::Warning),
        ];
        let examination = until_wrong(app, &lacking).await;
        let step = |name| finding(&examination, name).repair[0].clone();
        assert_eq!(
            step("max_slot_wal_keep_size").text,
            "max_slot_wal_keep_size = 16GB   (DB parameter group)"
        );
        assert_eq!(step("replication_right").text, "grant rds_replication to app");
        assert_eq!(step("emit_right").kind, RepairKind::Act);
        run(url, &step("replication_right").text).await;
        until_wrong(app, &[lacking[0], lacking[2]]).await;
    }
);

pg_test!(
    Private,
    async fn what_differs_from_what_was_registered_is_named_with_its_repair(server: TestServer) {
        use Level::{Failure, Warning};
        let database = server.create_database().expect("database");
        let url = &database.url();
        let pool = pool(url);
        connect_and_load(&pool).await.expect("load");
        run(url, "create table public.item (id bigint primary key, title text, note text); create table public.other (id int primary key);
            select tidegate.register_table('public.item', '{}')").await;
        let examination = examined(url).await;
        assert_eq!(wrong(&examination), []);
        assert!(finding(&examination, "schema").found.ends_with("1 tables registered"), "{examination:#?}");
        for (sql, name) in [
            ("alter table item disable trigger \"!tidegate_fence\"", "triggers"),
            ("drop trigger \"~tidegate_guard\" on item", "triggers"),
            ("alter publication tidegate drop table item", "publication"),
            ("alter publication tidegate add table other", "publication"),
            ("alter publication tidegate set table item (id)", "publication"),
            ("alter publication tidegate set table item where (id > 5)", "publication"),
            ("alter publication tidegate set (publish = 'insert')", "publication"),
            ("alter publication tidegate set (publish_via_partition_root = true)", "publication"),
            ("alter table item replica identity full", "relations"),
            ("alter table item rename column title to name", "relations"),
        ] {
            walk(&server, url, url, sql, name, Failure).await;
        }
        // A load that was cut short, and one of a newer program.
        run(url, "update tidegate.schema_stamp set content_hash = null").await;
        assert_eq!(wrong(&examined(url).await), [("schema", Warning)]);
        connect_and_load(&pool).await.expect("load");
        assert_eq!(wrong(&examined(url).await), []);
        run(url, "update tidegate.schema_stamp set generation = generation + 1").await;
        assert_eq!(wrong(&examined(url).await), [("schema", Failure)]);
        pool.close().await;
    }
);
