//! The binary as a newcomer meets it: no server, no schema, no stream, a taken port. Each command says what is wrong, at once.

mod advice;
mod apply;
mod check;
mod uninstall;

use std::path::Path;
use std::process::{Output, Stdio};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;
use tidegate_migrations::testing::LoadedDatabase;
use tokio::process::Command;

/// One run without a terminal, in a folder of its own.
struct Run {
    code: Option<i32>,
    out: String,
    error: String,
}

impl Run {
    fn all(&self) -> String {
        format!("{}{}", self.out, self.error)
    }
}

/// A run to be, in that folder.
fn command(folder: &Path, url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for variable in ["TIDEGATE_DATA", "TIDEGATE_LOG", "TIDEGATE_LISTEN", "TIDEGATE_JWT_SECRET"] {
        command.env_remove(variable);
    }
    command.env("DATABASE_URL", url).current_dir(folder).args(arguments);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn tidegate(url: &str, arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().expect("a folder");
    let output = command(folder.path(), url, arguments).output().await.expect("run tidegate");
    let Output { status, stdout, stderr } = output;
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Run { code: status.code(), out: text(stdout), error: text(stderr) }
}

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands.toml");

#[tokio::test]
async fn q1_without_a_server_every_command_says_so_at_once_and_names_no_secret() {
    // Bound and let go: nobody listens there.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let url = format!("postgres://someone:sesame@127.0.0.1:{port}/somewhere");
    let commands: [&[&str]; 9] = [
        &["migrate"],
        &["apply", FILE, "--plan"],
        &["uninstall", "--yes"],
        &["capture"],
        &["apply", FILE],
        &["poison", "list"],
        &["sql", "select 1"],
        &["reset", "--reason", "x", "--yes"],
        &["status"],
    ];
    for command in commands {
        let run = tidegate(&url, command).await;
        assert_eq!(run.code, Some(1), "{command:?}");
        let said = run.all();
        assert!(
            said.contains(&format!("connection refused at 127.0.0.1:{port}: is PostgreSQL running?")),
            "{said}"
        );
        for secret in ["someone", "sesame", "somewhere"] {
            assert!(!said.contains(secret), "{said}");
        }
    }
    let status = tidegate(&url, &["status"]).await.out;
    assert!(status.starts_with("FAIL database\n       not reachable: connection refused"), "{status}");
    assert!(status.contains("FAIL slot") && status.ends_with("not ready\n"), "{status}");
}

#[tokio::test]
async fn an_empty_url_is_none_and_a_taken_port_is_told_before_anything_starts() {
    let run = tidegate("", &["status"]).await;
    assert!(run.error.contains("no database: set DATABASE_URL"), "{}", run.error);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let data = tempfile::tempdir().expect("a folder");
    let folder = data.path().to_str().expect("a path");
    let run = tidegate("", &["dev", "--listen", &address, "--data", folder]).await;
    assert_eq!(run.code, Some(1));
    assert!(run.error.contains("is in use: pass --listen 127.0.0.1:0"), "{}", run.error);
    assert!(!data.path().join("postgres").exists());
}

pg_test!(
    NoSlots,
    async fn without_a_schema_commands_say_what_comes_first_and_install_nothing(server: TestServer) {
        let db = LoadedDatabase::new(&server).await;
        sqlx::raw_sql("select tidegate.uninstall()").execute(&db.pool).await.expect("uninstalled");
        let commands: [&[&str]; 4] =
            [&["gen", "types"], &["poison", "list"], &["reset", "--reason", "x"], &["status"]];
        for command in commands {
            let run = tidegate(&db.url(), command).await;
            assert_eq!(run.code, Some(1), "{command:?}");
            assert!(run.all().contains("run `tidegate migrate`"), "{command:?}: {}", run.all());
            assert_eq!(run.all().trim().lines().count(), 1, "{}", run.all());
        }
        let there =
            sqlx::query_scalar("select to_regnamespace('tidegate') is not null").fetch_one(&db.pool).await;
        assert!(!there.unwrap_or(true));
    }
);

pg_test!(
    Private { "wal_level" = "replica" },
    async fn migrate_warns_of_what_capture_will_need(server: TestServer) {
        let db = LoadedDatabase::new(&server).await;
        let run = tidegate(&db.url(), &["migrate"]).await;
        assert_eq!(run.code, Some(0));
        assert!(run.error.contains("wal_level is replica: set wal_level = logical and restart"), "{}", run.error);
        assert!(!run.error.contains("may not replicate"), "{}", run.error);
        let run = tidegate(&db.url(), &["status"]).await;
        assert!(run.out.starts_with("nothing has started yet: run `tidegate apply`, then `tidegate capture`"), "{}", run.out);
        assert!(run.out.contains("set wal_level = logical"), "{}", run.out);
        db.pool.close().await;
    }
);

pg_test!(
    Slots,
    async fn q3_a_reset_is_asked_for_and_audited(db: LoadedDatabase) {
        let create = "create table public.card (id bigint primary key, board_id bigint)";
        sqlx::raw_sql(create).execute(&db.pool).await.expect("a table");
        let run = tidegate(&db.url(), &["apply", FILE]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(
            run.out.contains("warning: grant \"bord:{subject.id}\" fits the scopes of no registered table"),
            "{}",
            run.out
        );
        let run = tidegate(&db.url(), &["reset", "--reason", "a restore", "--yes"]).await;
        assert!(run.error.contains("there is no stream to reset"), "{}", run.error);

        let slot = "select pg_create_logical_replication_slot('tidegate_' || substr(md5(current_database()), 1, 8), 'pgoutput')";
        for sql in [slot, include_str!("../../tests/readiness_started.sql")] {
            sqlx::raw_sql(sql).execute(&db.pool).await.expect("a stream");
        }
        let run = tidegate(&db.url(), &["reset", "--reason", "a restore"]).await;
        assert_eq!(run.code, Some(1));
        assert!(
            run.error.contains("all 1 registered tables") && run.error.contains("public.card"),
            "{}",
            run.error
        );
        assert!(run.error.contains("pass --yes"), "{}", run.error);
        let run = tidegate(&db.url(), &["reset", "--reason", "a restore", "--yes", "--json"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.contains("\"reset\":\"accepted\""), "{}", run.out);
        let audited: Vec<(String, Option<String>)> = sqlx::query_as(
            "select outcome, subject ->> 'reason' from tidegate.audit where action = 'stream.reset' order by id",
        )
        .fetch_all(&db.pool)
        .await
        .expect("the audit");
        let reason = Some("a restore".to_owned());
        assert_eq!(
            audited,
            [("refused: there is no stream".to_owned(), reason.clone()), ("accepted".to_owned(), reason)]
        );
        let again = tidegate(&db.url(), &["reset", "--reason", "again", "--yes"]).await;
        assert!(again.error.contains("under way already"), "{}", again.error);
        let drop_slot = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()";
        sqlx::raw_sql(drop_slot).execute(&db.pool).await.expect("the slot dropped");
    }
);
