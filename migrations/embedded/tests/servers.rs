//! The test servers: shared between processes, a database per test, templates, and the macro.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use tidegate_embedded::testing::{Kind, TestDatabase, TestError, TestServer};
use tidegate_embedded::{Stop, pg_test};

use crate::on_each_version;
use crate::roles::{Other, folder_of_role, is_alive, open_folder, say, wait_for};

on_each_version!(
    eight_processes_build_a_template_once,
    an_unused_server_is_removed_and_the_next_user_makes_another,
    what_a_killed_process_left_is_swept_up_by_the_next,
);

pg_test!(
    NoSlots,
    async fn a_test_gets_an_empty_database_of_its_own(db: TestDatabase) {
        db.sql("create table t (id int)").unwrap();
        let other = db.server().create_database().unwrap();
        assert_ne!(other.name(), db.name());
        assert!(other.sql("select from t").is_err());
        let rows = db.sql("select 1, null, 'x'; select '', 2, 3").unwrap();
        assert_eq!(rows[0], [Some("1".to_owned()), None, Some("x".to_owned())]);
        assert_eq!(rows[1][0].as_deref(), Some(""));
    }
);

pg_test!(
    Slots,
    async fn a_database_is_dropped_with_its_slots_and_sessions(db: TestDatabase) {
        let server = db.server().clone();
        let name = db.name().to_owned();
        db.sql(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).unwrap();
        // A session that stays open, and a walsender that holds the slot.
        let mut busy = server.tool("psql", &name).unwrap();
        let mut busy = busy.args(["-c", "select pg_sleep(600)"]).spawn().unwrap();
        let mut walsender = server
            .tool("pg_recvlogical", &name)
            .unwrap()
            .args([
                "--start",
                "--file=-",
                "--no-loop",
                "--option=proto_version=1",
                "--option=publication_names=none",
            ])
            .arg(format!("--slot={name}"))
            .arg(format!("--dbname={name}"))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let count = |sql: String| server.sql("postgres", &sql).unwrap()[0][0].clone().unwrap();
        let active =
            format!("select count(*) from pg_replication_slots where slot_name = '{name}' and active");
        wait_for("the walsender", || count(active.clone()) == "1");
        let sessions =
            format!("select count(*) from pg_stat_activity where datname = '{name}' and state = 'active'");
        wait_for("the session", || count(sessions.clone()) != "0");

        drop(db);
        assert_eq!(count(format!("select count(*) from pg_database where datname = '{name}'")), "0");
        assert_eq!(
            count(format!("select count(*) from pg_replication_slots where slot_name = '{name}'")),
            "0"
        );
        assert!(!busy.wait().unwrap().success());
        assert!(walsender.wait().unwrap().signal().is_none());
    }
);

pg_test!(
    Private { "wal_sender_timeout" = "1234ms" },
    async fn a_private_server_is_killed_and_comes_back_at_its_port(
        server: TestServer,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let db = server.create_database()?;
        db.sql("create table t as select 1 as id")?;
        assert_eq!(server.sql("postgres", "show wal_sender_timeout")?[0][0].as_deref(), Some("1234ms"));
        server.kill()?;
        assert!(db.sql("select 1").is_err());
        server.start()?;
        server.restart(Stop::Immediate)?;
        assert_eq!(db.sql("select id from t")?.len(), 1);
        assert_eq!(server.sql("postgres", "show fsync")?[0][0].as_deref(), Some("on"));
        Ok(())
    }
);

pg_test!(
    NoSlots,
    async fn tasks_of_one_process_build_a_template_once(server: TestServer) {
        let key = format!("tasks {}", unique());
        let built = std::sync::atomic::AtomicU32::new(0);
        let build = async |url: String| {
            built.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert!(url.ends_with("_building"));
            tokio::task::yield_now().await;
            let database = url.rsplit('/').next().unwrap();
            server.sql(database, "create table t as select 7 as id").map(drop)
        };
        // Were waiting to block the executor, the builder among them could not go on.
        let (a, b, c) = tokio::join!(
            server.template_async(&key, build),
            server.template_async(&key, build),
            server.template_async(&key, build),
        );
        for template in [a.unwrap(), b.unwrap(), c.unwrap()] {
            let db = server.create_database_from(&template).unwrap();
            assert_eq!(db.sql("select id from t").unwrap()[0][0].as_deref(), Some("7"));
        }
        assert_eq!(built.into_inner(), 1);
    }
);

pg_test!(
    NoSlots,
    async fn a_failed_build_is_reported_and_built_anew(server: TestServer) {
        let key = format!("failed {}", unique());
        let failed = server.template(&key, |_| Err("no such file"));
        assert!(matches!(&failed, Err(TestError::Template(_))), "{failed:?}");
        assert_eq!(failed.unwrap_err().to_string(), "build a template: no such file");
        server.template(&key, |_| Ok::<_, TestError>(())).unwrap();
    }
);

#[test]
#[should_panic(expected = "use Kind::Private")]
fn a_shared_server_cannot_be_stopped() {
    let _ = TestServer::get(15, Kind::NoSlots).unwrap().stop(Stop::Fast);
}

#[test]
fn a_version_that_cannot_be_had_is_an_error_with_its_reason() {
    let text = TestServer::get(14, Kind::NoSlots).unwrap_err().to_string();
    assert!(text.contains("find PostgreSQL 14: there is no usable server on this machine"), "{text}");
}

fn unique() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("{} {}", std::process::id(), now.as_nanos())
}

fn eight_processes_build_a_template_once(major: u32) {
    if let Some(folder) = folder_of_role() {
        let server = TestServer::get(major, Kind::NoSlots).unwrap();
        let key = folder.display().to_string();
        let template = server
            .template(&key, |url| {
                use std::io::Write;
                let mut log =
                    std::fs::OpenOptions::new().append(true).create(true).open(folder.join("built"))?;
                writeln!(log, "{}", std::process::id())?;
                let database = url.rsplit('/').next().unwrap_or_default();
                server.sql(database, "create table t as select 7 as id").map(drop)
            })
            .unwrap();
        let db = server.create_database_from(&template).unwrap();
        assert_eq!(db.sql("select id from t").unwrap()[0][0].as_deref(), Some("7"));
        say(format!("{} {}", db.name(), server.port()));
        return;
    }
    let folder = open_folder();
    let test = format!("servers::eight_processes_build_a_template_once::pg{major}");
    // A folder of their own: they also race for the server's start.
    let environment = environment(folder.path(), "1");
    let mut others: Vec<_> =
        (0..8).map(|_| Other::spawn(&test, folder.path(), &pairs(&environment))).collect();
    let said: Vec<_> = others.iter_mut().map(Other::hear).collect();
    others.into_iter().for_each(Other::succeed);
    let names: HashSet<_> = said.iter().map(|line| line.split(' ').next()).collect();
    let ports: HashSet<_> = said.iter().map(|line| line.split(' ').nth(1)).collect();
    assert_eq!((names.len(), ports.len()), (8, 1), "{said:?}");
    let built = std::fs::read_to_string(folder.path().join("built")).unwrap();
    assert_eq!(built.lines().count(), 1, "{built}");
    wait_for("the unused server's end", || server_pid(folder.path(), major).is_none_or(|pid| !is_alive(pid)));
}

fn an_unused_server_is_removed_and_the_next_user_makes_another(major: u32) {
    if let Some(folder) = folder_of_role() {
        TestServer::get(major, Kind::NoSlots).unwrap();
        say(server_pid(&folder, major).unwrap());
        return;
    }
    let folder = open_folder();
    let test = format!("servers::an_unused_server_is_removed_and_the_next_user_makes_another::pg{major}");
    let environment = environment(folder.path(), "0");
    let mut pids = HashSet::new();
    for _ in 0..2 {
        let mut other = Other::spawn(&test, folder.path(), &pairs(&environment));
        let pid: u32 = other.hear().parse().unwrap();
        other.succeed();
        // The second one may come while the first server is being removed: it waits and makes its own.
        wait_for("the unused server's end", || !is_alive(pid));
        pids.insert(pid);
    }
    assert_eq!(pids.len(), 2);
    wait_for("the folder's removal", || {
        let mut servers = std::fs::read_dir(folder.path().join("servers")).unwrap().flatten();
        servers.all(|server| !server.path().join("cluster").exists())
    });
}

fn what_a_killed_process_left_is_swept_up_by_the_next(major: u32) {
    if let Some(folder) = folder_of_role() {
        let server = TestServer::get(major, Kind::Slots).unwrap();
        if !folder.join("second").exists() {
            let db = server.create_database().unwrap();
            db.sql(&format!("select pg_create_logical_replication_slot('{}', 'pgoutput')", db.name()))
                .unwrap();
            say(db.name());
            loop {
                std::thread::park();
            }
        }
        let rows =
            server.sql("postgres", "select datname from pg_database where datname like 't\\_%'").unwrap();
        let slots = server.sql("postgres", "select slot_name from pg_replication_slots").unwrap();
        say(format!("{} {}", rows.len(), slots.len()));
        return;
    }
    let folder = open_folder();
    let test = format!("servers::what_a_killed_process_left_is_swept_up_by_the_next::pg{major}");
    let environment = environment(folder.path(), "5");
    let mut first = Other::spawn(&test, folder.path(), &pairs(&environment));
    first.hear();
    drop(first);
    std::fs::write(folder.path().join("second"), "").unwrap();
    let mut second = Other::spawn(&test, folder.path(), &pairs(&environment));
    assert_eq!(second.hear(), "0 0");
    second.succeed();
    wait_for("the unused server's end", || {
        server_pid_of(folder.path(), major, "slots").is_none_or(|pid| !is_alive(pid))
    });
}

/// A folder of test servers apart from everybody else's.
fn environment(folder: &Path, idle: &str) -> [(&'static str, String); 2] {
    [
        ("TIDEGATE_TEST_DIR", folder.join("servers").display().to_string()),
        ("TIDEGATE_TEST_IDLE", idle.to_owned()),
    ]
}

fn pairs<'a>(environment: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    environment.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

fn server_pid(folder: &Path, major: u32) -> Option<u32> {
    server_pid_of(folder, major, "noslots")
}

fn server_pid_of(folder: &Path, major: u32, kind: &str) -> Option<u32> {
    let servers = std::fs::read_dir(folder.join("servers")).ok()?;
    let server = servers
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(&format!("pg{major}-{kind}-")))?;
    let text = std::fs::read_to_string(server.path().join("cluster/data/postmaster.pid")).ok()?;
    text.lines().next()?.parse().ok()
}
