//! One running server for all test processes of a kind: the first starts it, later ones join it, a janitor
//! stops it when nobody has used it for a while.
//!
//! Test runners give each test a process of its own, so sharing goes through a folder: `gate` is the lock under which a
//! server is started or joined, `holders/` has one file per process that uses it, `cluster/` is the cluster itself. The
//! folder outlives the run, so the next one needs neither initdb nor templates.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Kind, TestError};
use crate::binaries::Binaries;
use crate::cluster::{Auth, Cluster, Lifetime, Options};
use crate::postmaster::{PostmasterFile, is_alive, is_postmaster, script, wait_until};
use crate::run_as;

/// Names the folder of the test servers; else a folder of this user in the system's temporary folder.
pub const TEST_DIR_VARIABLE: &str = "TIDEGATE_TEST_DIR";
/// Seconds after its last use at which a shared server stops.
pub const TEST_IDLE_VARIABLE: &str = "TIDEGATE_TEST_IDLE";

const JANITOR: &str = include_str!("janitor.sh");
const IDLE_SECONDS: u32 = 30;
/// Part of the folder's name: raise it when the settings below change.
const SETTINGS_REVISION: u32 = 1;

/// Where a joined server is.
pub(super) struct Joined {
    pub(super) port: u16,
    pub(super) password: String,
    /// Locks of templates live here.
    pub(super) dir: PathBuf,
    /// This process has just started it.
    pub(super) fresh: bool,
}

/// The folder of all test servers, ours and closed to writing by others.
pub(super) fn test_dir() -> Result<PathBuf, TestError> {
    let uid = run_as::effective_uid();
    let dir = std::env::var_os(TEST_DIR_VARIABLE)
        .map(PathBuf::from)
        .unwrap_or_else(|| std::env::temp_dir().join(format!("tidegate-test-{uid}")));
    fs::create_dir_all(&dir)?;
    let meta = fs::metadata(&dir)?;
    if meta.uid() != uid {
        let text = format!("{} belongs to another user; set {TEST_DIR_VARIABLE}", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text).into());
    }
    let mode = if run_as::is_root() { 0o755 } else { 0o700 };
    fs::set_permissions(&dir, Permissions::from_mode(mode))?;
    Ok(dir)
}

/// Joins the server of this version and kind, starting it if need be.
pub(super) fn join(binaries: Binaries, kind: Kind) -> Result<Joined, TestError> {
    let name = match kind {
        Kind::Slots => "slots",
        _ => "noslots",
    };
    let dir = test_dir()?.join(format!("pg{}-{name}-{SETTINGS_REVISION}", binaries.version().major()));
    fs::create_dir_all(&dir)?;
    let gate = File::create(dir.join("gate"))?;
    gate.lock()?;
    let cluster_dir = dir.join("cluster");
    let data = cluster_dir.join("data");
    let holders = dir.join("holders");

    let running = || PostmasterFile::read(&data).filter(|file| is_postmaster(file.pid, &data));
    if let Some(server) = running() {
        // Once our file is there, the janitor can no longer decide to stop the server.
        let joined = register(&holders).is_ok();
        if joined
            && let Some(port) = server.port.filter(|_| server.ready)
            && let Ok(password) = fs::read_to_string(cluster_dir.join("password"))
        {
            ensure_janitor(&dir, server.pid, &data, &holders)?;
            return Ok(Joined { port, password: password.trim().to_owned(), dir, fresh: false });
        }
        if !joined && !wait_until(Duration::from_secs(60), || running().is_none()) {
            return Err(TestError::Protocol(format!("the server in {} does not end", dir.display())));
        }
        // A server that is not ready although we hold the gate was left by a process that died starting it:
        // opening the cluster stops it.
    }
    fs::create_dir_all(&holders)?;
    register(&holders)?;
    let (mut cluster, pid) = match start(&binaries, &cluster_dir) {
        Ok(started) => started,
        // Without fsync a power cut may have left anything; nothing of value lives here.
        Err(_) if data.exists() => {
            fs::remove_dir_all(&cluster_dir)?;
            start(&binaries, &cluster_dir)?
        }
        Err(err) => return Err(err),
    };
    let joined = Joined {
        port: cluster.port().unwrap_or_default(),
        password: cluster.password().to_owned(),
        dir: dir.clone(),
        fresh: true,
    };
    spawn_janitor(&dir, pid, &data, &holders)?;
    debug_assert!(cluster.is_running());
    Ok(joined)
}

fn start(binaries: &Binaries, dir: &Path) -> Result<(Cluster, u32), TestError> {
    let mut options = Options::new(binaries.clone(), dir)
        .setting("fsync", "off")
        .setting("full_page_writes", "off")
        .setting("max_wal_senders", "64")
        .setting("max_replication_slots", "64")
        .setting("log_error_verbosity", "default");
    options.auth = Auth::Password;
    options.lifetime = Lifetime::Detached;
    options.max_connections = 200;
    let mut cluster = Cluster::open_or_init(options)?;
    cluster.start()?;
    let pid = cluster.pid().unwrap_or_default();
    Ok((cluster, pid))
}

fn register(holders: &Path) -> io::Result<()> {
    File::create(holders.join(std::process::id().to_string())).map(drop)
}

fn ensure_janitor(dir: &Path, pid: u32, data: &Path, holders: &Path) -> io::Result<()> {
    let file = dir.join("janitor");
    let known = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    if known.is_some_and(is_alive) { Ok(()) } else { spawn_janitor(dir, pid, data, holders) }
}

fn spawn_janitor(dir: &Path, pid: u32, data: &Path, holders: &Path) -> io::Result<()> {
    let idle = std::env::var(TEST_IDLE_VARIABLE).ok().and_then(|text| text.parse().ok());
    // The script compares the data folder with the server's working folder.
    let data = data.canonicalize()?;
    let janitor = Command::new("/bin/sh")
        .args(["-c", &script(JANITOR), "tidegate-janitor", &pid.to_string()])
        .args([&data, holders])
        .arg(idle.unwrap_or(IDLE_SECONDS).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()?;
    fs::write(dir.join("janitor"), janitor.id().to_string())
}
