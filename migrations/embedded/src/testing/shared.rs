//! One running server for all test processes of a kind: the first makes it, later ones join it, a janitor
//! removes it when nobody has used it for a while.
//!
//! Test runners give each test a process of its own, so sharing goes through a folder: `gate` is the lock under which a
//! server is started or joined, `holders/` has one file per process that uses it, `cluster/` is the cluster itself.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Kind, TestError};
use crate::binaries::Binaries;
use crate::cluster::{Cluster, remove_folder};
use crate::options::{Auth, Lifetime, Options};
use crate::postmaster::{PostmasterFile, is_alive, is_postmaster, script, wait_until};
use crate::run_as;

/// Names the folder of the test servers; else a folder of this user in memory if there is room (`/dev/shm`), or in the
/// system's temporary folder.
pub const TEST_DIR_VARIABLE: &str = "TIDEGATE_TEST_DIR";
/// Seconds after its last use at which a shared server stops and its folder is removed.
pub const TEST_IDLE_VARIABLE: &str = "TIDEGATE_TEST_IDLE";

const JANITOR: &str = include_str!("janitor.sh");
/// Long enough for a compilation between two runs, short enough to leave memory to others.
const IDLE_SECONDS: u32 = 60;
/// Part of the folder's name: raise it when the settings below change.
const SETTINGS_REVISION: u32 = 2;
/// Files in memory: a new database is 300 of them, which took 220 ms on a disk and 11 ms here.
const MEMORY_FOLDER: &str = "/dev/shm";
/// Six shared servers and some private ones with their WAL; containers often give 64 MiB only.
const MEMORY_BYTES_MIN: u64 = 2 << 30;

const PRIVATE_AGE_MIN: Duration = Duration::from_secs(600);

/// Where a joined server is.
pub(super) struct Joined {
    pub(super) port: u16,
    pub(super) password: String,
    /// Locks of templates live here, and go with them.
    pub(super) dir: PathBuf,
}

/// The folder of all test servers, ours and closed to writing by others.
pub(super) fn test_dir() -> Result<PathBuf, TestError> {
    let uid = run_as::effective_uid();
    let dir = match std::env::var_os(TEST_DIR_VARIABLE) {
        Some(dir) => PathBuf::from(dir),
        None => {
            let name = format!("tidegate-test-{uid}");
            let in_memory = Path::new(MEMORY_FOLDER).join(&name);
            let room = in_memory.exists() || free_bytes(MEMORY_FOLDER) >= MEMORY_BYTES_MIN;
            if room { in_memory } else { std::env::temp_dir().join(name) }
        }
    };
    fs::create_dir_all(&dir)?;
    let meta = fs::symlink_metadata(&dir)?;
    if meta.uid() != uid || !meta.is_dir() {
        let text = format!("{} is not a folder of this user; set {TEST_DIR_VARIABLE}", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text).into());
    }
    let mode = if run_as::is_root() { 0o755 } else { 0o700 };
    fs::set_permissions(&dir, Permissions::from_mode(mode))?;
    Ok(dir)
}

#[cfg(target_os = "linux")]
fn free_bytes(dir: &str) -> u64 {
    let Ok(dir) = std::ffi::CString::new(dir) else { return 0 };
    // SAFETY: an all-zero statvfs is a valid value (numbers only) that the call fills in.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call.
    match unsafe { libc::statvfs(dir.as_ptr(), &mut stat) } {
        0 => stat.f_bavail * stat.f_frsize,
        _ => 0,
    }
}

#[cfg(not(target_os = "linux"))]
fn free_bytes(_: &str) -> u64 {
    0
}

/// Removes what private servers left whose test and watchdog were killed together, as at the end of a CI job.
pub(super) fn sweep_private() {
    let Ok(entries) = test_dir().and_then(|dir| Ok(fs::read_dir(dir)?)) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("private-"))
    {
        let dir = entry.path();
        // A young one may be about to take its own lock.
        let age = |file: &File| file.metadata().ok()?.modified().ok()?.elapsed().ok();
        let unused = File::open(dir.join("lock")).is_ok_and(|lock| {
            age(&lock).is_some_and(|age| age >= PRIVATE_AGE_MIN) && lock.try_lock().is_ok()
        });
        if unused && running(&dir).is_none() {
            // Somebody else may be removing it too.
            let _ = remove_folder(&dir);
        }
    }
}

/// Settings of all test servers, shared or not.
pub(super) fn test_options(binaries: Binaries, dir: &Path) -> Options {
    let mut options = Options::new(binaries, dir)
        .setting("max_wal_senders", "64")
        .setting("max_replication_slots", "64")
        // Their files may be in memory.
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "256MB")
        // Nobody's data: a failing test may see it all.
        .setting("log_error_verbosity", "default");
    options.auth = Auth::Password;
    options.max_connections = 200;
    options
}

/// Joins the server of this version and kind, starting it if need be.
pub(super) fn join(binaries: Binaries, kind: Kind) -> Result<Joined, TestError> {
    let name = match kind {
        Kind::Slots => "slots",
        Kind::BriefSlots => "brief",
        _ => "noslots",
    };
    let dir = test_dir()?.join(format!("pg{}-{name}-{SETTINGS_REVISION}", binaries.version().major()));
    fs::create_dir_all(&dir)?;
    let gate = File::create(dir.join("gate"))?;
    gate.lock()?;
    let cluster = dir.join("cluster");
    let holders = dir.join("holders");

    // Once our file is there, the janitor can no longer decide to stop the server. Where the folder of the files is
    // gone, it has decided, or nobody was ever here.
    if register(&holders).is_ok() {
        if let Some((pid, port, password)) = running(&cluster) {
            if !janitor_of(&dir).is_some_and(is_janitor) {
                spawn_janitor(&dir, pid, &cluster, &holders)?;
            }
            return Ok(Joined { port, password, dir: cluster });
        }
    } else if !wait_until(Duration::from_secs(60), || !janitor_of(&dir).is_some_and(is_janitor)) {
        return Err(TestError::Protocol(format!("the server in {} does not end", dir.display())));
    }
    fs::create_dir_all(&holders)?;
    register(&holders)?;

    let mut options =
        test_options(binaries, &cluster).setting("fsync", "off").setting("full_page_writes", "off");
    options.lifetime = Lifetime::Detached;
    if cluster.exists() {
        // Of a run that was cut off. Opening stops a server that still runs; whatever else is wrong, all of it goes.
        drop(Cluster::open(options.clone()));
        remove_folder(&cluster)?;
    }
    let mut server = Cluster::init(options)?;
    server.start()?;
    spawn_janitor(&dir, server.pid().unwrap_or_default(), &cluster, &holders)?;
    let (port, password) = (server.port().unwrap_or_default(), server.password().to_owned());
    Ok(Joined { port, password, dir: cluster })
}

/// Process id, port and password of a server that accepts connections.
fn running(cluster: &Path) -> Option<(u32, u16, String)> {
    let data = cluster.join("data");
    let file = PostmasterFile::read(&data).filter(|file| file.ready && is_postmaster(file.pid, &data))?;
    let password = fs::read_to_string(cluster.join("password")).ok()?;
    Some((file.pid, file.port?, password.trim().to_owned()))
}

fn register(holders: &Path) -> io::Result<()> {
    File::create(holders.join(std::process::id().to_string())).map(drop)
}

fn janitor_of(dir: &Path) -> Option<u32> {
    fs::read_to_string(dir.join("janitor")).ok()?.trim().parse().ok()
}

/// Whether the process runs and, where that can be read, is a janitor and not another that got its number.
fn is_janitor(pid: u32) -> bool {
    let named = |arguments: Vec<u8>| String::from_utf8_lossy(&arguments).contains("tidegate-janitor");
    is_alive(pid) && fs::read(format!("/proc/{pid}/cmdline")).map_or(true, named)
}

fn spawn_janitor(dir: &Path, pid: u32, cluster: &Path, holders: &Path) -> io::Result<()> {
    let idle = std::env::var(TEST_IDLE_VARIABLE).ok().and_then(|text| text.parse().ok());
    // The script compares the data folder with the server's working folder.
    let cluster = cluster.canonicalize()?;
    let janitor = Command::new("/bin/sh")
        .args(["-c", &script(JANITOR), "tidegate-janitor", &pid.to_string()])
        .args([&cluster, holders])
        .arg(idle.unwrap_or(IDLE_SECONDS).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()?;
    fs::write(dir.join("janitor"), janitor.id().to_string())
}
