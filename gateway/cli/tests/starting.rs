//! L5: whatever starts, while the application writes everything that there is.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;
use tidegate_migrations::testing::LoadedDatabase;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Longest wait for a process; reached only by a broken one, as by one that waits for a lock.
const PATIENCE: Duration = Duration::from_secs(60);

const FILE: &str = r#"
    [[table]]
    name = "public.list"
    [[table.scope]]
    name = "list:{id}"
    [[table]]
    name = "public.item"
    [[grant]]
    scope = "team:{team_id}"
    from = "public.member"
    where = "user_id = {subject.id}"
    [[grant]]
    scope = "catalog"
    anonymous = true
"#;

/// ROW EXCLUSIVE, as any writer holds it, on every table and view of the database.
const HOLD_EVERYTHING: &str = "begin; do $$ declare t text; begin
    for t in select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'v', 'p') and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
    loop execute format('lock table %s in row exclusive mode', t); end loop; end $$";

struct Place {
    folder: tempfile::TempDir,
    url: String,
}

impl Place {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        for variable in ["TIDEGATE_DATA", "TIDEGATE_LOG", "TIDEGATE_LISTEN", "TIDEGATE_JWT_SECRET"] {
            command.env_remove(variable);
        }
        command.env("DATABASE_URL", &self.url).current_dir(self.folder.path()).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        command
    }

    /// Runs to its end; gives what it printed.
    async fn run(&self, arguments: &[&str]) -> String {
        let output = tokio::time::timeout(PATIENCE, self.command(arguments).output());
        let output = output.await.expect("it waits").expect("run tidegate");
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What `status` says once it says this.
    async fn until_status(&self, part: &str) -> String {
        let asked = async {
            loop {
                let output = self.command(&["status"]).output().await.expect("run tidegate");
                let status = String::from_utf8(output.stdout).expect("text");
                if status.contains(part) {
                    return status;
                }
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.expect("it never says so")
    }

    /// Starts; gives it back when it says that it is ready.
    async fn start(&self, arguments: &[&str]) -> Child {
        let mut process = self.command(arguments).spawn().expect("start tidegate");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await.expect("a line") {
                if line.contains("\"ready\":true") {
                    return;
                }
            }
            panic!("{arguments:?} ended");
        };
        tokio::time::timeout(PATIENCE, ready).await.expect("it waits");
        process
    }
}

async fn end(mut process: Child) {
    process.kill().await.expect("kill");
}

async fn prepared(server: &TestServer) -> (LoadedDatabase, Place) {
    let db = LoadedDatabase::new(server).await;
    sqlx::raw_sql(
        "create table public.list (id text primary key, name text);
         create table public.item (id bigint primary key, list_id text references public.list, title text);
         create table public.member (id int primary key, user_id text, team_id int);
         create view public.shown as select * from public.item",
    )
    .execute(&db.pool)
    .await
    .expect("tables");
    let place = Place { folder: tempfile::tempdir().expect("a folder"), url: db.url() };
    std::fs::write(place.folder.path().join(Path::new("tidegate.toml")), FILE).expect("write the file");
    (db, place)
}

pg_test!(
    Slots,
    async fn l5_every_process_starts_while_everything_is_being_written(server: TestServer) {
        let (db, place) = prepared(&server).await;
        place.run(&["apply", "tidegate.toml"]).await;
        // A stream, with rows in it.
        let first = place.start(&["--json", "capture"]).await;
        sqlx::raw_sql("insert into list values ('a'); insert into item values (1, 'a', 't')")
            .execute(&db.pool)
            .await
            .expect("rows");
        end(first).await;

        let mut holder = PgConnection::connect(&db.url()).await.expect("connect");
        sqlx::raw_sql(HOLD_EVERYTHING).execute(&mut holder).await.expect("hold");
        let limited = format!("alter database {} set lock_timeout = '2s'", db.database.name());
        sqlx::raw_sql(AssertSqlSafe(limited)).execute(&db.pool).await.expect("set the timeout");

        let migrated = place.run(&["--json", "migrate"]).await;
        assert!(migrated.contains("\"replayed\":false"), "{migrated}");
        let applied = place.run(&["--json", "apply", "tidegate.toml"]).await;
        assert_eq!(applied.matches("\"unchanged\"").count(), 4, "{applied}");
        let gateway = place.start(&["--json", "gateway", "--listen", "127.0.0.1:0"]).await;
        let capture = place.start(&["--json", "capture"]).await;

        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_locks where not granted and locktype = 'relation'
                 and database = (select oid from pg_database where datname = current_database())",
        )
        .fetch_one(&db.pool)
        .await
        .expect("ask");
        assert_eq!(waiting, 0, "nobody waits for a table");
        sqlx::raw_sql("commit").execute(&mut holder).await.expect("it has held them until now");
        holder.close().await.expect("close");
        end(gateway).await;
        end(capture).await;
    }
);

pg_test!(
    NoSlots,
    async fn a_gateway_that_waits_for_the_stream_says_so_and_ends_at_a_signal(server: TestServer) {
        let (_db, place) = prepared(&server).await;
        for signal in ["-TERM", "-INT"] {
            let mut command = place.command(&["gateway", "--listen", "127.0.0.1:0"]);
            let mut gateway = command.stderr(Stdio::piped()).spawn().expect("start a gateway");
            let mut lines = BufReader::new(gateway.stderr.take().expect("piped")).lines();
            let waits = async {
                while let Some(line) = lines.next_line().await.expect("its log") {
                    if line.contains("waiting for the stream") {
                        return;
                    }
                }
                panic!("it ended");
            };
            tokio::time::timeout(PATIENCE, waits).await.expect("it says what it waits for");
            let pid = gateway.id().expect("it runs").to_string();
            let told = Command::new("kill").args([signal, &pid]).status().await.expect("run kill");
            assert!(told.success());
            let ended = tokio::time::timeout(PATIENCE, gateway.wait()).await.expect("it ends").expect("wait");
            assert!(ended.success(), "{signal}: {ended}");
        }
    }
);

pg_test!(
    Slots,
    async fn dd05_op03_a_database_restored_into_another_cluster_is_recognised_by_what_starts_on_it(
        server: TestServer,
    ) {
        let (db, place) = prepared(&server).await;
        place.run(&["apply", "tidegate.toml"]).await;
        let first = place.start(&["--json", "capture"]).await;
        sqlx::raw_sql("insert into list values ('a'); insert into item values (1, 'a', 't')")
            .execute(&db.pool)
            .await
            .expect("rows");
        end(first).await;

        let other = TestServer::private(server.major(), &[]).expect("another cluster");
        let restored = other.create_database().expect("an empty database");
        let dump = place.folder.path().join("dump");
        let tool = |server: &TestServer, name: &str, database: &str, arguments: &[&str]| {
            let mut tool = server.tool(name, database).expect(name);
            let output = tool.args(arguments).arg(&dump).output().expect(name);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        tool(&server, "pg_dump", db.database.name(), &["-Fc", "-f"]);
        tool(&other, "pg_restore", restored.name(), &["-e", "-d", restored.name()]);

        let there = Place { folder: tempfile::tempdir().expect("a folder"), url: restored.url() };
        std::fs::write(there.folder.path().join("tidegate.toml"), FILE).expect("write the file");
        let pool = tidegate_migrations::testing::pool(&restored.url());
        let write = "insert into item values (2, 'a', 'u'); update item set title = 'v'; delete from item where id = 1";
        sqlx::raw_sql(write).execute(&pool).await.expect("the application goes on");
        // Its stamp is right, its stream is another server's, and its tables are not those that were registered.
        let migrated = there.run(&["--json", "migrate"]).await;
        assert!(migrated.contains("\"replayed\":false"), "{migrated}");
        let capture = there.command(&["--json", "capture"]).stdout(Stdio::null()).spawn().expect("start");
        let status = there.until_status("blocks the stream").await;
        assert!(
            status.contains("FAIL database\n       the stream belongs to another database cluster"),
            "{status}"
        );
        assert!(status.contains("FAIL registry\n       public."), "{status}");
        assert!(status.contains("FAIL slot\n       the replication slot does not exist"), "{status}");
        sqlx::raw_sql("insert into item values (3, 'a', 'w')").execute(&pool).await.expect("still");
        end(capture).await;
        // What leads out: everything of ours goes, and comes again.
        there.run(&["uninstall", "--yes"]).await;
        there.run(&["migrate"]).await;
        there.run(&["apply", "tidegate.toml"]).await;
        let capture = there.start(&["--json", "capture"]).await;
        sqlx::raw_sql("update item set title = 'x'").execute(&pool).await.expect("fenced again");
        end(capture).await;
        pool.close().await;
    }
);
