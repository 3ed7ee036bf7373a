//! One cluster in one process: made, started, stopped, killed, opened again.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use tidegate_embedded::{Auth, Binaries, Cluster, Error, Lifetime, Options, Stop, is_root};

use crate::on_each_version;
use crate::roles::open_folder;

on_each_version!(
    a_started_server_answers_and_a_stopped_one_does_not,
    committed_rows_survive_an_immediate_stop_a_kill_and_a_restart,
    a_folder_left_by_a_crash_is_opened_again,
    the_password_is_private_needed_and_never_among_the_arguments,
    root_lends_the_server_an_unprivileged_user,
    settings_of_the_caller_win_and_alter_system_wins_over_them,
    a_setting_that_stops_the_start_is_told_from_the_log,
    clusters_are_initialised_side_by_side_and_one_folder_by_one_process,
    a_port_taken_meanwhile_is_replaced_and_a_fixed_one_is_an_error,
    a_dropped_cluster_stops_and_a_throw_away_one_is_removed,
);

fn options(major: u32, folder: &Path) -> Options {
    Options::new(Binaries::find_version(major).unwrap(), folder.join("cluster"))
}

fn psql(cluster: &Cluster, sql: &str) -> Result<String, String> {
    let output = cluster
        .tool("psql", "postgres")
        .unwrap()
        .args(["--no-psqlrc", "--no-password", "--quiet", "--tuples-only", "--no-align"])
        .args(["--set=ON_ERROR_STOP=1", "--command", sql])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn a_started_server_answers_and_a_stopped_one_does_not(major: u32) {
    let folder = open_folder();
    let mut cluster = Cluster::init(options(major, folder.path())).unwrap();
    assert!(!cluster.is_running());
    cluster.start().unwrap();
    assert!(cluster.is_running());
    assert_eq!(cluster.version().major(), major);
    assert_eq!(psql(&cluster, "show wal_level").unwrap(), "logical");
    assert_eq!(psql(&cluster, "show server_encoding").unwrap(), "UTF8");
    assert_eq!(psql(&cluster, "select upper('é')").unwrap(), "É");
    assert_eq!(psql(&cluster, "show fsync").unwrap(), "on");
    assert_eq!(psql(&cluster, "show listen_addresses").unwrap(), "127.0.0.1");
    for how in [Stop::Fast, Stop::Smart, Stop::Immediate] {
        cluster.stop(how).unwrap();
        assert!(!cluster.is_running());
        assert_eq!(cluster.pid(), None);
        psql(&cluster, "select 1").unwrap_err();
        cluster.start().unwrap();
    }
}

fn committed_rows_survive_an_immediate_stop_a_kill_and_a_restart(major: u32) {
    let folder = open_folder();
    let mut cluster = Cluster::init(options(major, folder.path())).unwrap();
    cluster.start().unwrap();
    psql(&cluster, "create table t (id int)").unwrap();
    let (port, first) = (cluster.port(), cluster.pid());

    psql(&cluster, "insert into t values (1)").unwrap();
    cluster.restart(Stop::Immediate).unwrap();
    psql(&cluster, "insert into t values (2)").unwrap();
    cluster.kill().unwrap();
    assert!(!cluster.is_running());
    cluster.start().unwrap();
    psql(&cluster, "insert into t values (3)").unwrap();
    cluster.restart(Stop::Fast).unwrap();

    assert_eq!(psql(&cluster, "select string_agg(id::text, ',' order by id) from t").unwrap(), "1,2,3");
    assert_ne!(cluster.pid(), first);
    if cfg!(target_os = "linux") {
        assert_eq!(cluster.port(), port);
    }
}

fn a_folder_left_by_a_crash_is_opened_again(major: u32) {
    let folder = open_folder();
    let mut cluster = Cluster::init(options(major, folder.path())).unwrap();
    cluster.start().unwrap();
    psql(&cluster, "create table t (id int)").unwrap();
    cluster.kill().unwrap();
    drop(cluster);
    assert_eq!(Cluster::data_major(&folder.path().join("cluster")), Some(major));
    assert!(matches!(Cluster::init(options(major, folder.path())), Err(Error::AlreadyInitialised { .. })));

    let mut cluster = Cluster::open_or_init(options(major, folder.path())).unwrap();
    cluster.start().unwrap();
    assert_eq!(psql(&cluster, "select count(*) from t").unwrap(), "0");
}

fn the_password_is_private_needed_and_never_among_the_arguments(major: u32) {
    let folder = open_folder();
    let mut cluster = Cluster::init(options(major, folder.path())).unwrap();
    cluster.start().unwrap();
    let password = cluster.password().to_owned();
    assert!(password.len() >= 32);
    assert!(!format!("{cluster:?}").contains(&password));

    let file = cluster.dir().join("password");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!cluster.dir().join("password.initdb").exists());
    assert_eq!(
        psql(&cluster, "select count(*) from pg_authid where rolpassword like 'SCRAM-SHA-256$%'").unwrap(),
        "1"
    );
    let mut without = cluster.tool("psql", "postgres").unwrap();
    without.args(["--no-password", "--command", "select 1"]).env_remove("PGPASSWORD");
    assert!(!without.output().unwrap().status.success());
    let with = cluster.tool("psql", "postgres").unwrap();
    assert!(with.get_args().next().is_none());
    assert!(cluster.connection_url("app").ends_with(&format!("@127.0.0.1:{}/app", cluster.port().unwrap())));
    assert!(!cluster.log_tail().contains(&password));
}

fn root_lends_the_server_an_unprivileged_user(major: u32) {
    let folder = open_folder();
    let mut cluster = Cluster::init(options(major, folder.path())).unwrap();
    cluster.start().unwrap();
    let pid = cluster.pid().unwrap();
    // SAFETY: takes nothing, cannot fail.
    let ours = unsafe { libc::geteuid() };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().map(|id| id.parse().unwrap()).collect()
    };
    if cfg!(target_os = "linux") {
        let uids = ids("Uid:");
        assert_eq!(uids.len(), 4);
        if is_root() {
            assert!(uids.iter().all(|uid| *uid != 0), "{uids:?}");
            assert!(ids("Gid:").iter().all(|gid| *gid != 0));
            assert!(ids("Groups:").is_empty(), "supplementary groups of root are dropped");
        } else {
            assert!(uids.iter().all(|uid| *uid == ours));
        }
    }
    cluster.stop(Stop::Fast).unwrap();

    // A folder that the server's user cannot reach is named.
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let outcome = Cluster::init(options(major, &closed));
    if is_root() {
        let text = outcome.unwrap_err().to_string();
        let closed = closed.canonicalize().unwrap();
        assert!(text.contains(&format!("may not enter {};", closed.display())), "{text}");
    } else {
        outcome.unwrap();
    }
}

fn settings_of_the_caller_win_and_alter_system_wins_over_them(major: u32) {
    let folder = open_folder();
    let mut options = options(major, folder.path())
        .setting("wal_sender_timeout", "1234ms")
        .setting("max_replication_slots", "5")
        .setting("search_path", r#"it's, "a\b""#);
    options.max_connections = 17;
    let mut cluster = Cluster::init(options).unwrap();
    cluster.start().unwrap();
    assert_eq!(psql(&cluster, "show wal_sender_timeout").unwrap(), "1234ms");
    assert_eq!(psql(&cluster, "show max_replication_slots").unwrap(), "5");
    assert_eq!(psql(&cluster, "show max_connections").unwrap(), "17");
    assert_eq!(psql(&cluster, "show search_path").unwrap(), r#"it's, "a\b""#);
    psql(&cluster, "alter system set wal_sender_timeout = '4321ms'").unwrap();
    cluster.restart(Stop::Fast).unwrap();
    assert_eq!(psql(&cluster, "show wal_sender_timeout").unwrap(), "4321ms");
}

fn a_setting_that_stops_the_start_is_told_from_the_log(major: u32) {
    let folder = open_folder();
    let broken = options(major, folder.path()).setting("shared_buffers", "nonsense");
    let text = Cluster::init(broken).unwrap().start().unwrap_err().to_string();
    assert!(text.contains("start PostgreSQL in"), "{text}");
    assert!(text.contains("shared_buffers"), "{text}");

    for (name, value) in [("a b", "x"), ("", "x"), ("work_mem", "1\nport = 1")] {
        let bad = options(major, folder.path()).setting(name, value);
        let outcome = Cluster::open(bad).unwrap().start();
        assert!(matches!(outcome, Err(Error::BadSetting { .. })), "{name:?}");
    }
}

fn clusters_are_initialised_side_by_side_and_one_folder_by_one_process(major: u32) {
    let folder = open_folder();
    let apart: Vec<_> = (0..3).map(|n| folder.path().join(n.to_string())).collect();
    let ports: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = apart
            .iter()
            .map(|folder| {
                scope.spawn(move || {
                    let mut cluster = Cluster::init(options(major, folder)).unwrap();
                    cluster.start().unwrap();
                    cluster
                })
            })
            .collect();
        let clusters: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        clusters.iter().map(|cluster| cluster.port().unwrap()).collect()
    });
    assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2]);

    let same = folder.path().join("same");
    let (won, lost): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| Cluster::open_or_init(options(major, &same)))).collect();
        // Nobody lets go before everybody has tried.
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        outcomes.into_iter().partition(Result::is_ok)
    });
    assert_eq!((won.len(), lost.len()), (1, 2));
    assert!(lost.into_iter().all(|outcome| matches!(outcome, Err(Error::InUse { .. }))));
    drop(won);
    Cluster::open(options(major, &same)).unwrap();
}

fn a_port_taken_meanwhile_is_replaced_and_a_fixed_one_is_an_error(major: u32) {
    let folder = open_folder();
    let mut cluster = Cluster::init(options(major, folder.path())).unwrap();
    cluster.start().unwrap();
    let port = cluster.port().unwrap();
    cluster.stop(Stop::Fast).unwrap();
    // Whoever insists on exactly this port can still have it.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    cluster.start().unwrap();
    assert_ne!(cluster.port(), Some(port));
    assert_eq!(psql(&cluster, "select 1").unwrap(), "1");
    cluster.stop(Stop::Fast).unwrap();
    drop(cluster);

    let mut fixed = options(major, folder.path());
    fixed.port = Some(port);
    let mut cluster = Cluster::open(fixed).unwrap();
    let text = cluster.start().unwrap_err().to_string();
    assert!(text.contains(&format!("use port {port} of 127.0.0.1")), "{text}");
    drop(taken);
    cluster.start().unwrap();
    assert_eq!(cluster.port(), Some(port));
}

fn a_dropped_cluster_stops_and_a_throw_away_one_is_removed(major: u32) {
    let folder = open_folder();
    for (name, lifetime, stays) in [("keep", Lifetime::Keep, true), ("throw", Lifetime::ThrowAway, false)] {
        let dir = folder.path().join(name);
        let mut options = options(major, &dir);
        options.lifetime = lifetime;
        options.auth = Auth::Password;
        let mut cluster = Cluster::init(options).unwrap();
        cluster.start().unwrap();
        let pid = cluster.pid().unwrap();
        drop(cluster);
        assert!(!crate::roles::is_alive(pid));
        assert_eq!(dir.join("cluster").exists(), stays);
    }
}

/// Fifteen's programs do not open eighteen's data, and a user learns which are needed.
#[test]
fn data_of_another_version_is_refused_with_both_versions() {
    let folder = open_folder();
    drop(Cluster::init(options(18, folder.path())).unwrap());
    let text = Cluster::open(options(15, folder.path())).unwrap_err().to_string();
    assert!(text.contains("made by PostgreSQL 18, the programs found are 15"), "{text}");
    let found = Binaries::find_for_cluster(&folder.path().join("cluster"), None).unwrap();
    assert_eq!(found.version().major(), 18);
    let text = Cluster::open(options(15, &folder.path().join("none"))).unwrap_err().to_string();
    assert!(text.contains("it holds none"), "{text}");
}
