//! `tidegate check`: as a person and as a script read it. What is judged, and how, the library's tests show.

use super::{FILE, Run, tidegate};
use serde_json::Value;
use tidegate_embedded::testing::{TestDatabase, TestServer};
use tidegate_embedded::{Stop, pg_test};
use tidegate_migrations::testing::pool;

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}", run.all()))
}

/// Names of the findings of this level.
fn at(json: &Value, level: &str) -> Vec<String> {
    let findings = json["findings"].as_array().expect("findings");
    let named = findings.iter().filter(|finding| finding["level"] == level);
    named.map(|finding| finding["name"].as_str().expect("a name").to_owned()).collect()
}

pg_test!(
    NoSlots,
    async fn q1_check_tells_a_missing_server_and_a_refused_login_and_names_no_secret(db: TestDatabase) {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let gone = format!("postgres://someone:sesame@127.0.0.1:{port}/somewhere");
        let refused = format!("postgres://someone:sesame@127.0.0.1:{}/somewhere", db.server().port());
        let missing = db.url().replace(db.name(), "somewhere");
        for (url, part) in [
            (&gone, "connection refused"),
            (&refused, "refuses the login (SQLSTATE 28"),
            (&missing, "has no database of the URL's name (SQLSTATE 3D000)"),
        ] {
            let run = tidegate("", &["check", url]).await;
            assert_eq!(run.code, Some(1), "{}", run.all());
            assert!(run.out.starts_with("FAIL server: ") && run.out.contains(part), "{}", run.all());
            assert!(run.out.ends_with("not usable: 1 failure\n"), "{}", run.out);
            let run = tidegate("", &["check", url, "--json"]).await;
            assert_eq!(run.code, Some(1));
            assert_eq!(json(&run)["usable"], false);
            assert_eq!(at(&json(&run), "failure"), ["server"]);
            for secret in ["someone", "sesame", "somewhere", db.server().password()] {
                assert!(!run.all().contains(secret), "{}", run.all());
            }
        }
        let run = tidegate("", &["check", "postgres://me:ses/ame@h:5432/db"]).await;
        assert_eq!(run.code, Some(1));
        assert!(run.error.contains("percent-encoded") && !run.error.contains("ame@"), "{}", run.error);
        let run = tidegate("", &["check"]).await;
        assert!(run.error.contains("no database: set DATABASE_URL"), "{}", run.error);
    }
);

pg_test!(
    Private { "wal_level" = "replica" },
    async fn what_check_prints_is_what_makes_a_database_usable(server: TestServer) {
        let database = server.create_database().expect("database");
        let admin = pool(&database.url());
        let run_sql = async |sql: &str| {
            let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&admin).await;
            done.unwrap_or_else(|error| panic!("{sql}: {error}"));
        };
        run_sql("create role app login password 'sesame'; create table public.card (id bigint primary key, board_id bigint)").await;
        let url = format!("postgres://app:sesame@127.0.0.1:{}/{}", server.port(), database.name());

        let before = tidegate(&url, &["check", "--file", FILE, "--json"]).await;
        assert_eq!(before.code, Some(1), "{}", before.all());
        let found = json(&before);
        assert_eq!(found["usable"], false);
        assert_eq!(found["service"], "own");
        assert_eq!(at(&found, "failure"), ["wal_level", "replication_right", "create_right", "table_rights"]);
        assert_eq!(at(&found, "warning"), ["emit_right"]);
        let shown = tidegate(&url, &["check", "--table", "public.card"]).await;
        assert_eq!(shown.code, Some(1));
        for line in [
            "ok   version: PostgreSQL ",
            "FAIL wal_level: replica: no logical slot can be created",
            "       run SQL: alter system set wal_level = 'logical'",
            "         (as a superuser; then restart PostgreSQL)",
            "       run SQL: alter role app replication",
            "FAIL table_rights public.card: it belongs to role postgres",
            "not usable: 4 failures, 1 warning",
        ] {
            assert!(shown.out.contains(line), "{line}: {}", shown.out);
        }
        assert!(!shown.all().contains("sesame"), "{}", shown.all());

        // Each statement as it is printed, by a superuser, except what gives the application the superuser's own tables.
        for finding in found["findings"].as_array().expect("findings") {
            for step in finding["repair"].as_array().expect("repair") {
                if step["kind"] == "sql" && finding["name"] != "table_rights" {
                    run_sql(step["text"].as_str().expect("a statement")).await;
                }
            }
        }
        run_sql("alter table public.card owner to app").await;
        admin.close().await;
        server.restart(Stop::Fast).expect("restart");
        let run = tidegate(&url, &["check", "--file", FILE]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.ends_with("\nusable\n"), "{}", run.out);
        for command in [&["migrate"][..], &["apply", FILE], &["check"], &["check", "--json"]] {
            let run = tidegate(&url, command).await;
            assert_eq!(run.code, Some(0), "{command:?}: {}", run.all());
        }
        let run = tidegate(&url, &["check"]).await;
        assert!(run.out.contains("1 tables registered"), "{}", run.out);
        assert!(run.out.contains("ok   stream: nothing has started yet: run `tidegate capture`"), "{}", run.out);
        // As every command does: an option, and what `tidegate dev` has left.
        let run = tidegate("", &["--database-url", &url, "check"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        let data = tempfile::tempdir().expect("a folder");
        let state = serde_json::json!({ "database_url": url, "url": "http://127.0.0.1:1", "pid": 1 });
        std::fs::write(data.path().join("dev.json"), state.to_string()).expect("a state");
        let run = tidegate("", &["check", "--data", data.path().to_str().expect("a path")]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
    }
);

pg_test!(
    Private,
    async fn check_says_what_readiness_says_of_a_stream_that_has_started(server: TestServer) {
        let database = server.create_database().expect("database");
        let (url, pool) = (database.url(), pool(&database.url()));
        tidegate_migrations::connect_and_load(&pool).await.expect("load");
        let run_sql = async |sql: &'static str| {
            sqlx::raw_sql(sql).execute(&pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        };
        run_sql("create table public.card (id bigint primary key, board_id bigint); select tidegate.register_table('public.card', '{}')").await;
        run_sql("select pg_create_logical_replication_slot('tidegate_0a1b2c3d', 'pgoutput')").await;
        run_sql(include_str!("../../../tests/readiness_started.sql")).await;
        let run = tidegate(&url, &["check"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.contains("ok   stream: at work"), "{}", run.out);
        // A worker that has gone may come back by itself; a slot does not.
        run_sql("update tidegate.worker_heartbeat set state = 'stopped'").await;
        let run = tidegate(&url, &["check", "--json"]).await;
        assert_eq!(
            (run.code, at(&json(&run), "warning")),
            (Some(0), vec!["stream".to_owned()]),
            "{}",
            run.out
        );
        run_sql("select pg_drop_replication_slot('tidegate_0a1b2c3d')").await;
        let run = tidegate(&url, &["check"]).await;
        assert_eq!(run.code, Some(1), "{}", run.all());
        assert!(run.out.contains("FAIL stream slot: the replication slot does not exist"), "{}", run.out);
        // Drift is told once, by the table.
        run_sql("alter table public.card rename column board_id to board").await;
        let run = tidegate(&url, &["check", "--json"]).await;
        assert_eq!(at(&json(&run), "failure"), ["relations", "stream", "stream"], "{}", run.out);
        let run = tidegate(&url, &["check"]).await;
        assert!(
            run.out.contains("run SQL: alter table public.card rename column board to board_id"),
            "{}",
            run.out
        );
        assert!(!run.out.contains("stream registry"), "{}", run.out);
        pool.close().await;
    }
);

#[tokio::test]
async fn check_prints_what_managed_services_need_without_a_server() {
    let all = tidegate("", &["check", "--managed"]).await;
    assert_eq!(all.code, Some(0), "{}", all.all());
    for part in [
        "rds.logical_replication = 1",
        "grant rds_replication to <role>;",
        "cloudsql.logical_decoding = on",
        "Azure Database for PostgreSQL",
        "Supabase",
        "Settings, Logical Replication, Enable",
    ] {
        assert!(all.out.contains(part), "{part}: {}", all.out);
    }
    let one = tidegate("", &["check", "--managed=cloudsql", "--json"]).await;
    let managed = json(&one)["managed"].as_array().expect("a list").clone();
    assert_eq!((managed.len(), managed[0]["service"].as_str()), (1, Some("cloud_sql")), "{}", one.out);
}
