//! Where the server programs are: the folder that the user names, PATH, the usual install folders, the cache; else
//! they are fetched.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster::Cluster;
use crate::error::{Error, NotFound};
use crate::fetch;
use crate::run_as::{self, RunAs};

/// Names a folder of server programs; `--pg-bin` comes first.
pub const BIN_VARIABLE: &str = "TIDEGATE_PG_BIN";
/// Names the folder in which fetched server programs are kept.
pub const CACHE_VARIABLE: &str = "TIDEGATE_CACHE";
/// The oldest supported major version.
pub const MAJOR_MIN: u32 = 15;
/// The newest supported major version, and the one that is fetched.
pub const MAJOR_MAX: u32 = 18;

/// A server's version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    major: u32,
    text: String,
}

impl Version {
    /// The major version, such as 15.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Reads what `postgres --version` prints: `postgres (PostgreSQL) 15.18 (Debian 15.18-1)`.
    fn parse(output: &str) -> Option<Self> {
        let text = output.split("(PostgreSQL) ").nth(1)?.split_whitespace().next()?;
        let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(Self { major: digits.parse().ok()?, text: text.to_owned() })
    }

    fn is_supported(&self) -> bool {
        (MAJOR_MIN..=MAJOR_MAX).contains(&self.major)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A folder with `postgres` and `initdb` of one supported version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    dir: PathBuf,
    version: Version,
}

impl Binaries {
    /// Finds any supported server (15 to 18): `explicit` or `TIDEGATE_PG_BIN`, PATH, the usual install folders with
    /// the newest first, the cache; else fetches version 18.
    pub fn find(explicit: Option<&Path>) -> Result<Self, Error> {
        Search::from_env(explicit)?.any()
    }

    /// Finds a server of exactly this major version; version 18 is fetched if need be.
    pub fn find_version(major: u32) -> Result<Self, Error> {
        Search::from_env(None)?.version(major)
    }

    /// Finds the programs for the cluster of a folder: those of the version that made it, any if there is none yet.
    pub fn find_for_cluster(dir: &Path, explicit: Option<&Path>) -> Result<Self, Error> {
        let search = Search::from_env(explicit)?;
        match Cluster::data_major(dir) {
            Some(major) if search.explicit.is_none() => search.version(major),
            _ => search.any(),
        }
    }

    /// The real folder of the programs, symbolic links resolved.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The server's version.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// The path of a program of this version, such as `psql`. Some packages have the server programs only.
    pub fn tool(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.dir.join(name);
        if is_executable(&path) {
            Ok(path)
        } else {
            Err(Error::ToolMissing { tool: name.to_owned(), dir: self.dir.clone() })
        }
    }

    /// Examines one folder; the error says in a few words why its server cannot be used.
    pub(crate) fn examine(dir: &Path, run_as: Option<&RunAs>) -> Result<Self, String> {
        let server = dir.join("postgres");
        if !is_executable(&server) {
            return Err("no `postgres` in it".to_owned());
        }
        let real = server.canonicalize().map_err(|err| format!("`postgres` cannot be resolved: {err}"))?;
        let real_dir = real.parent().map_or_else(|| dir.to_owned(), Path::to_owned);
        if !is_executable(&real_dir.join("initdb")) {
            return Err(format!("no `initdb` in {}", real_dir.display()));
        }
        let output = Command::new(&real)
            .arg("--version")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|err| format!("`postgres --version` cannot be run: {err}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = Version::parse(&text)
            .filter(|_| output.status.success())
            .ok_or_else(|| "`postgres --version` failed".to_owned())?;
        if !version.is_supported() {
            return Err(format!("version {version}; {MAJOR_MIN} to {MAJOR_MAX} are supported"));
        }
        if let Some(user) = run_as {
            user.check_reaches(&real_dir).map_err(|err| err.to_string())?;
        }
        Ok(Self { dir: real_dir, version })
    }
}

/// Everything that a search depends on, so that a test can search another world.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    pub(crate) explicit: Option<PathBuf>,
    pub(crate) path: OsString,
    pub(crate) usual: Vec<PathBuf>,
    pub(crate) cache: PathBuf,
    pub(crate) run_as: Option<RunAs>,
}

impl Search {
    pub(crate) fn from_env(explicit: Option<&Path>) -> Result<Self, Error> {
        let named = std::env::var_os(BIN_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        Ok(Self {
            explicit: explicit.map(Path::to_owned).or(named),
            path: std::env::var_os("PATH").unwrap_or_default(),
            usual: usual_folders(),
            cache: cache_folder(),
            run_as: RunAs::choose()?,
        })
    }

    pub(crate) fn any(&self) -> Result<Binaries, Error> {
        if let Some(dir) = &self.explicit {
            return Binaries::examine(dir, self.run_as.as_ref())
                .map_err(|why| Error::UnusableBinaries { dir: dir.clone(), why });
        }
        self.search(None)
    }

    pub(crate) fn version(&self, major: u32) -> Result<Binaries, Error> {
        self.search(Some(major))
    }

    fn search(&self, major: Option<u32>) -> Result<Binaries, Error> {
        let mut failure = NotFound { major, ..NotFound::default() };
        let mut found: Option<Binaries> = None;
        let mut seen = Vec::new();
        let mut consider = |label: String, dir: &Path, looked: &mut Vec<String>| {
            let real = dir.join("postgres").canonicalize().ok();
            if real.is_some() && seen.contains(&real) {
                // A link from PATH, most often.
                return false;
            }
            seen.push(real);
            match Binaries::examine(dir, self.run_as.as_ref()) {
                Ok(candidate) if major.is_none_or(|major| major == candidate.version.major) => {
                    found = Some(candidate);
                    return true;
                }
                Ok(candidate) => looked.push(format!("{label}: version {}", candidate.version)),
                Err(why) => looked.push(format!("{label}: {why}")),
            }
            false
        };

        let looked = &mut failure.looked;
        let in_path = programs_in(&self.path, "postgres");
        if in_path.is_empty() {
            looked.push("PATH: no `postgres` in it".to_owned());
        }
        let places = self
            .explicit
            .iter()
            .map(|dir| (format!("{BIN_VARIABLE} ({})", dir.display()), dir.clone()))
            .chain(in_path.iter().map(|dir| (format!("PATH ({})", dir.display()), dir.clone())));
        let hit = places.into_iter().any(|(label, dir)| consider(label, &dir, looked))
            || {
                let folders = newest_first(&self.usual, looked);
                folders.iter().any(|dir| consider(dir.display().to_string(), dir, looked))
            }
            || {
                let cached = fetch::cached(&self.cache);
                if cached.is_none() {
                    looked.push(format!("the cache ({}): nothing fetched yet", self.cache.display()));
                }
                cached.is_some_and(|dir| consider(format!("the cache ({})", dir.display()), &dir, looked))
            };
        if hit && let Some(binaries) = found {
            return Ok(binaries);
        }
        if major.is_none_or(|major| major == MAJOR_MAX) {
            match fetch::fetch(&self.cache, &self.path, self.run_as.as_ref()) {
                Ok(binaries) => return Ok(binaries),
                Err(attempts) => failure.fetched = attempts,
            }
        }
        Err(Error::NotFound(failure))
    }
}

/// Patterns whose `*` stands for a version: Debian, PGDG's RPMs, Homebrew, Postgres.app, built from source.
fn usual_folders() -> Vec<PathBuf> {
    [
        "/usr/lib/postgresql/*/bin",
        "/usr/pgsql-*/bin",
        "/opt/homebrew/opt/postgresql@*/bin",
        "/usr/local/opt/postgresql@*/bin",
        "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
        "/Applications/Postgres.app/Contents/Versions/*/bin",
        "/usr/local/pgsql/bin",
    ]
    .map(PathBuf::from)
    .to_vec()
}

/// The folders that match, newest version first whatever their pattern; a pattern without a match is noted.
fn newest_first(patterns: &[PathBuf], looked: &mut Vec<String>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for pattern in patterns {
        let matching = expand(pattern);
        if matching.is_empty() {
            looked.push(format!("{}: not there", pattern.display()));
        }
        folders.extend(matching);
    }
    folders.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    folders.into_iter().map(|(_, dir)| dir).collect()
}

fn expand(pattern: &Path) -> Vec<(u32, PathBuf)> {
    let text = pattern.to_string_lossy();
    let Some((before, after)) = text.split_once('*') else {
        return if pattern.is_dir() { vec![(0, pattern.to_owned())] } else { Vec::new() };
    };
    let (parent, prefix) = before.rsplit_once('/').unwrap_or(("", before));
    let Ok(entries) = fs::read_dir(format!("{parent}/")) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix(prefix)?.split('.').next()?.parse().ok()?;
            let dir = entry.path().join(after.trim_start_matches('/'));
            dir.is_dir().then_some((version, dir))
        })
        .collect()
}

fn cache_folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set(CACHE_VARIABLE) {
        return dir;
    }
    if run_as::is_root() {
        // Root's home is closed to the unprivileged user that has to run the programs.
        return PathBuf::from("/var/cache/tidegate");
    }
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("tidegate")
}

/// The folders of a PATH that hold the program, in order.
fn programs_in(path: &OsStr, program: &str) -> Vec<PathBuf> {
    std::env::split_paths(path)
        .filter(|dir| !dir.as_os_str().is_empty() && is_executable(&dir.join(program)))
        .collect()
}

/// The first program of this name in a PATH.
pub(crate) fn program(path: &OsStr, name: &str) -> Option<PathBuf> {
    programs_in(path, name).first().map(|dir| dir.join(name))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[path = "binaries_tests.rs"]
mod tests;
