//! `tidegate apply`: the plan in every state of the database, and how applying waits.

use super::{Run, command, tidegate};
use serde_json::Value;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use std::process::Stdio;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestDatabase;
use tidegate_migrations::testing::{LoadedDatabase, pool};
use tokio::io::{AsyncBufReadExt, BufReader};

const TABLES: &str = "create table public.card (id bigint primary key, board_id bigint, note text, hidden boolean);
    create table public.member (id bigint primary key, user_id text, board_id bigint); create table public.loose (id bigint)";
const FIRST: &str = r#"
    [[table]]
    name = "public.card"
    exclude = ["note"]
      [[table.scope]]
      name = "board:{board_id}"
    [[grant]]
    scope = "board:{member.board_id}"
    from = "public.member"
    where = "user_id = {subject.id}"
"#;

/// Runs with this text as the file.
async fn apply(url: &str, text: &str, arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tidegate.toml");
    std::fs::write(&file, text).expect("write the file");
    let mut all = vec!["apply", file.to_str().expect("a path")];
    all.extend(arguments);
    tidegate(url, &all).await
}

async fn sql(pool: &PgPool, sql: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn text(pool: &PgPool, sql: &str) -> String {
    let found = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await;
    found.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

pg_test!(
    NoSlots,
    async fn without_a_schema_a_plan_judges_everything_and_installs_nothing(db: TestDatabase) {
        let pool = pool(&db.url());
        sql(&pool, TABLES).await;
        let objects = "select concat((select count(*) from pg_class), ' ', (select count(*) from pg_proc), ' ',
            (select count(*) from pg_publication), ' ', (select count(*) from pg_namespace where nspname like 'tidegate%'))";
        let before = text(&pool, objects).await;
        let run = apply(&db.url(), FIRST, &["--plan"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert_eq!(
            run.out,
            "+ table public.card (new)\n    exclude: none -> note\n    + scope board:{board_id}\n\
             + grant board:{member.board_id} (new)\n\
             Tidegate's schema is not in this database yet: applying installs it first\n\
             plan only: 2 new; nothing was changed\n"
        );
        let refused = format!("{FIRST}\n[[table]]\nname = \"public.loose\"\n");
        let run = apply(&db.url(), &refused, &["--plan", "--json"]).await;
        assert_eq!(run.code, Some(1), "{}", run.all());
        let plan: Value = serde_json::from_str(&run.out).expect("JSON");
        assert_eq!((&plan["installed"], &plan["applied"]), (&Value::from(false), &Value::from(false)));
        let loose = plan["entries"]
            .as_array()
            .and_then(|entries| entries.iter().find(|e| e["name"] == "public.loose"));
        let loose = loose.expect("an entry");
        assert_eq!(loose["status"], "refused");
        assert!(loose["reason"].as_str().is_some_and(|reason| reason.contains("no primary key")), "{loose}");
        assert_eq!(text(&pool, objects).await, before, "nothing stays");

        // A role that could not install it is told so, by what is missing.
        let role = format!("{}_reader", db.name());
        sql(&pool, &format!("create role {role} login password 'x'")).await;
        let url = format!("postgres://{role}:x@127.0.0.1:{}/{}", db.server().port(), db.name());
        let run = apply(&url, FIRST, &["--plan"]).await;
        assert_eq!(run.code, Some(1));
        assert!(run.error.contains("`tidegate check` says what is missing"), "{}", run.all());
        sql(&pool, &format!("drop role {role}")).await;
        pool.close().await;
    }
);

pg_test!(
    NoSlots,
    async fn a_plan_tells_what_is_added_changed_refused_and_kept(db: LoadedDatabase) {
        let url = db.url();
        sql(&db.pool, TABLES).await;
        let run = apply(&url, FIRST, &[]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.ends_with("applied\n"), "{}", run.out);
        let run = apply(&url, FIRST, &["--plan"]).await;
        assert!(run.out.ends_with("plan only: 2 unchanged; nothing was changed\n"), "{}", run.out);
        let second = r#"
            [[table]]
            name = "public.card"
            write = "enabled"
            unrestricted = true
              [[table.scope]]
              name = "board:{board_id}"
              where = "not hidden"
            [[table]]
            name = "public.loose"
            [[grant]]
            scope = "board:1"
            anonymous = true
        "#;
        let state = "select md5(string_agg(t::text, ',')) from (select * from tidegate.relation union all select * from tidegate.relation where false) t";
        let before = text(&db.pool, state).await;
        let run = apply(&url, second, &["--plan"]).await;
        assert_eq!(run.code, Some(1));
        for line in [
            "~ table public.card (changed)",
            "    exclude: note -> none",
            "    write: read_only -> enabled",
            "    unrestricted: false -> true",
            "    - scope board:{board_id}",
            "    + scope board:{board_id} where not hidden",
            "! table public.loose (refused)",
            "    public.loose has no primary key",
            "    hint: ",
            "+ grant board:1 (new)",
            "plan only: 1 new, 1 changed, 1 refused; nothing was changed",
        ] {
            assert!(run.out.contains(line), "{line}: {}", run.out);
        }
        assert_eq!(text(&db.pool, state).await, before);
        let only = second.replace("[[table]]\n            name = \"public.loose\"\n", "");
        let run = apply(&url, &only, &["--plan", "--json"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        let plan: Value = serde_json::from_str(&run.out).expect("JSON");
        assert_eq!(
            plan["entries"][0]["changes"][1],
            serde_json::json!({ "what": "write", "from": "read_only", "to": "enabled" })
        );
        assert_eq!(plan["kept"][0]["kind"], "grant", "{plan}");
        // And of a schema that is another version's, what comes first.
        sql(&db.pool, "update tidegate.schema_stamp set content_hash = null").await;
        let run = apply(&url, FIRST, &["--plan"]).await;
        assert!(run.error.contains("of another version: run `tidegate migrate` first"), "{}", run.all());
    }
);

pg_test!(
    NoSlots,
    async fn l8_apply_waits_in_bounded_steps_says_so_and_goes_on_when_the_lock_is_free(db: LoadedDatabase) {
        sql(&db.pool, TABLES).await;
        let mut writer = db.pool.connect_options().connect().await.expect("connect");
        sqlx::raw_sql("begin; insert into public.card values (1, 1)")
            .execute(&mut writer)
            .await
            .expect("write");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("tidegate.toml"), FIRST).expect("write the file");
        let mut child = command(folder.path(), &db.url(), &["apply", "tidegate.toml"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run");
        let mut log = BufReader::new(child.stderr.take().expect("stderr")).lines();
        // Once it has waited its time it lets go, and says so.
        let told = loop {
            let line = log.next_line().await.expect("read").expect("it waits, and says so");
            if line.contains("a table was locked: try again") {
                break line;
            }
        };
        assert!(told.contains("attempt=1"), "{told}");
        // The application's writes pass between the attempts: this one would wait for ever behind a lock that is asked for once.
        sql(&db.pool, "insert into public.card values (2, 1)").await;
        sqlx::raw_sql("commit").execute(&mut writer).await.expect("commit");
        let output = child.wait_with_output().await.expect("wait");
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("applied\n"));
        assert_eq!(text(&db.pool, "select count(*)::text from tidegate.trigger_problems()").await, "0");
        writer.close().await.expect("close");
    }
);

pg_test!(
    NoSlots,
    async fn a_plan_judges_a_grant_by_the_tables_as_the_same_file_leaves_them(db: LoadedDatabase) {
        let url = db.url();
        sql(&db.pool, TABLES).await;
        let table = |columns: &str| {
            format!(
                "[[table]]\nname = \"public.member\"\ncolumns = [{columns}]\n  [[table.scope]]\n  name = \"all\"\n"
            )
        };
        let grant =
            "[[grant]]\nscope = \"all\"\nfrom = \"public.member\"\nwhere = \"user_id = {subject.id}\"\n";
        // A column that an earlier entry leaves out.
        let narrow = table("\"id\", \"board_id\"") + grant;
        for arguments in [&["--plan"][..], &[]] {
            let run = apply(&url, &narrow, arguments).await;
            assert_eq!(run.code, Some(1), "{arguments:?}: {}", run.all());
            assert!(run.out.contains("! grant all (refused)"), "{arguments:?}: {}", run.out);
            assert!(
                run.out.contains("reads columns of public.member that are not captured: user_id"),
                "{}",
                run.out
            );
        }
        // A column that an earlier entry adds to what is registered.
        let run = apply(&url, &table("\"id\", \"board_id\""), &[]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        let wide = table("\"id\", \"board_id\", \"user_id\"") + grant;
        let run = apply(&url, &wide, &["--plan"]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.ends_with("plan only: 1 new, 1 changed; nothing was changed\n"), "{}", run.out);
        let run = apply(&url, &wide, &[]).await;
        assert_eq!(run.code, Some(0), "{}", run.all());
        assert!(run.out.contains("~ table public.member (changed)\n+ grant all (new)"), "{}", run.out);
    }
);
