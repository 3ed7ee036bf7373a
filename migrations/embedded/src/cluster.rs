//! One cluster: a folder with its data, password, log and configuration, and the server that runs on it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::binaries::{Binaries, Version};
use crate::configuration;
use crate::error::{Context, Error};
use crate::initdb;
use crate::options::{Lifetime, Options, Stop};
use crate::port::PortReservation;
use crate::postmaster::{PostmasterFile, is_alive, is_postmaster, signal, wait_until};
use crate::run_as::RunAs;
use crate::watchdog::Watchdog;

/// The superuser of every cluster.
pub(crate) const SUPERUSER: &str = "postgres";
/// A server that must first replay its WAL after a crash needs longer than a fresh one, but not for ever.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// A fast shutdown writes a checkpoint; past this the server is stopped at once and recovers at the next start.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Tries with another port, or until the remains of a killed server have gone.
const START_TRIES_MAX: u32 = 10;
/// A log longer than this at a start is begun anew.
const LOG_BYTES_MAX: u64 = 8 << 20;
const LOG_TAIL_LINES: usize = 20;

/// A cluster that this process has opened, running or not. Dropping it stops the server.
pub struct Cluster {
    pub(crate) options: Options,
    pub(crate) run_as: Option<RunAs>,
    /// Canonical, so that it can be compared with a process's working folder.
    pub(crate) dir: PathBuf,
    pub(crate) data: PathBuf,
    password: String,
    port: Option<PortReservation>,
    server: Option<Child>,
    watchdog: Option<Watchdog>,
    /// Held for as long as this value lives: one process per cluster.
    lock: Option<File>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("dir", &self.dir).field("pid", &self.pid()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Makes a new cluster in the folder, which may exist but must not hold one. Does not start it.
    pub fn init(options: Options) -> Result<Self, Error> {
        if Self::data_major(&options.dir).is_some() {
            return Err(Error::AlreadyInitialised { dir: options.dir });
        }
        let mut cluster = Self::prepare(options)?;
        if Self::data_major(&cluster.dir).is_some() {
            return Err(Error::AlreadyInitialised { dir: cluster.dir.clone() });
        }
        cluster.password = initdb::run(&cluster)?;
        Ok(cluster)
    }

    /// Opens the cluster of the folder. Does not start it; a server left over from a parent that was killed is stopped.
    pub fn open(options: Options) -> Result<Self, Error> {
        let Some(data) = Self::data_major(&options.dir) else {
            return Err(Error::NotInitialised { dir: options.dir });
        };
        let binaries = options.binaries.version().major();
        if data != binaries {
            return Err(Error::VersionMismatch { dir: options.dir, data, binaries });
        }
        let mut cluster = Self::prepare(options)?;
        let file = cluster.password_file();
        cluster.password =
            fs::read_to_string(&file).context(|| format!("read {}", file.display()))?.trim().to_owned();
        cluster.stop_left_over()?;
        Ok(cluster)
    }

    /// Opens the cluster of the folder, or makes one if there is none.
    pub fn open_or_init(options: Options) -> Result<Self, Error> {
        match Self::data_major(&options.dir) {
            Some(_) => Self::open(options),
            None => Self::init(options),
        }
    }

    /// The major version that wrote the cluster of this folder, so that fitting programs can be found;
    /// `None` if there is no complete cluster.
    pub fn data_major(dir: &Path) -> Option<u32> {
        fs::read_to_string(dir.join("data/PG_VERSION")).ok()?.trim().parse().ok()
    }

    fn prepare(options: Options) -> Result<Self, Error> {
        let run_as = RunAs::choose()?;
        let dir = &options.dir;
        if !dir.exists() {
            fs::create_dir_all(dir).context(|| format!("create {}", dir.display()))?;
            let mode = if run_as.is_some() { 0o755 } else { 0o700 };
            fs::set_permissions(dir, Permissions::from_mode(mode))
                .context(|| format!("set the mode of {}", dir.display()))?;
        }
        if let Some(user) = &run_as {
            user.check_reaches(dir)?;
            user.check_reaches(options.binaries.dir())?;
        }
        let dir = dir.canonicalize().context(|| format!("resolve {}", dir.display()))?;
        let lock =
            File::create(dir.join("lock")).context(|| format!("create a lock in {}", dir.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(Error::InUse { dir }),
            Err(fs::TryLockError::Error(source)) => {
                return Err(Error::Io { what: format!("lock {}", dir.display()), source });
            }
        }
        Ok(Self {
            data: dir.join("data"),
            dir,
            options,
            run_as,
            password: String::new(),
            port: None,
            server: None,
            watchdog: None,
            lock: Some(lock),
        })
    }

    /// Starts the server and returns once it accepts connections. Does nothing if it runs already.
    pub fn start(&mut self) -> Result<(), Error> {
        if self.is_running() {
            return Ok(());
        }
        self.forget_server();
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match self.start_once() {
                Err(failure @ Error::Start { .. }) if tries < START_TRIES_MAX => failure,
                other => return other,
            };
            let Error::Start { log, .. } = &failure else { return Err(failure) };
            if log.contains("could not create any TCP/IP sockets") && self.options.port.is_none() {
                // The port was taken between choice and use.
                self.port = None;
            } else if log.contains("pre-existing shared memory block") {
                // A killed server's backends notice its death at their next look, not at once.
                std::thread::sleep(Duration::from_millis(100 * u64::from(tries)));
            } else {
                return Err(failure);
            }
        }
    }

    fn start_once(&mut self) -> Result<(), Error> {
        let port = match &self.port {
            Some(reserved) => reserved.port(),
            None => {
                let wanted = self.options.port;
                let reserved = PortReservation::take(wanted).context(|| match wanted {
                    Some(port) => format!("use port {port} of 127.0.0.1"),
                    None => "choose a free port of 127.0.0.1".to_owned(),
                })?;
                self.port.insert(reserved).port()
            }
        };
        let config = self.write_configuration(port)?;
        let log_path = self.dir.join("server.log");
        let mut log = OpenOptions::new();
        log.append(true).create(true).mode(0o600);
        let log = log.open(&log_path).context(|| format!("open {}", log_path.display()))?;
        if log.metadata().is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
            log.set_len(0).context(|| format!("truncate {}", log_path.display()))?;
        }
        let log_start = log.metadata().context(|| format!("look at {}", log_path.display()))?.len();
        let log_copy = log.try_clone().context(|| "share the log".to_owned())?;

        let (signal_name, remove) = match self.options.lifetime {
            Lifetime::Keep => ("INT", None),
            Lifetime::ThrowAway => ("QUIT", Some(self.dir.as_path())),
            Lifetime::Detached => ("", None),
        };
        let mut watchdog = match self.options.lifetime {
            Lifetime::Detached => None,
            _ => Some(
                Watchdog::spawn(&self.data, signal_name, remove)
                    .context(|| "start the watchdog".to_owned())?,
            ),
        };
        let mut command = self.server_command("postgres")?;
        command.arg("-D").arg(&self.data).arg(format!("--config-file={}", config.display()));
        command.stdin(Stdio::null()).stdout(log).stderr(log_copy);
        // Ctrl-C ends us, and then we end the server: it must not get the signal as well.
        command.process_group(0);
        let mut server = match command.spawn() {
            Ok(server) => server,
            Err(source) => {
                if let Some(watchdog) = watchdog {
                    watchdog.dismiss();
                }
                return Err(Error::Io { what: "run postgres".to_owned(), source });
            }
        };
        if let Some(watchdog) = &mut watchdog {
            watchdog.watch(server.id()).context(|| "tell the watchdog".to_owned())?;
        }

        let deadline = Instant::now() + READY_LIMIT;
        let why = loop {
            match server.try_wait() {
                Ok(Some(status)) => break format!("it ended ({status})"),
                Ok(None) => {}
                Err(err) => break format!("it cannot be waited for ({err})"),
            }
            if PostmasterFile::read(&self.data).is_some_and(|file| file.pid == server.id() && file.ready) {
                self.server = Some(server);
                self.watchdog = watchdog;
                return Ok(());
            }
            if Instant::now() >= deadline {
                break format!("it was not ready within {} s", READY_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let _ = signal(server.id(), libc::SIGQUIT);
        if !wait_until(STOP_LIMIT, || !matches!(server.try_wait(), Ok(None))) {
            let _ = server.kill();
            let _ = server.wait();
        }
        if let Some(watchdog) = watchdog {
            watchdog.dismiss();
        }
        Err(Error::Start { dir: self.dir.clone(), why, log: read_log_tail(&log_path, log_start) })
    }

    fn write_configuration(&self, port: u16) -> Result<PathBuf, Error> {
        let text = configuration::text(port, &self.options)?;
        let path = self.dir.join("server.conf");
        let write = || {
            fs::write(&path, &text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o644))
        };
        write().context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Stops the server and returns once it is gone. Does nothing if it does not run.
    pub fn stop(&mut self, how: Stop) -> Result<(), Error> {
        let Some(server) = &mut self.server else { return Ok(()) };
        let steps: &[(libc::c_int, &str)] = match how {
            Stop::Smart => &[(libc::SIGTERM, "smart"), (libc::SIGINT, "fast"), (libc::SIGQUIT, "immediate")],
            Stop::Fast => &[(libc::SIGINT, "fast"), (libc::SIGQUIT, "immediate")],
            Stop::Immediate => &[(libc::SIGQUIT, "immediate")],
        };
        let pid = server.id();
        for (step, (number, name)) in steps.iter().enumerate() {
            if step > 0 {
                tracing::warn!(pid, "PostgreSQL is still there after {STOP_LIMIT:?}: {name} shutdown");
            }
            signal(pid, *number).context(|| format!("signal process {pid}"))?;
            if wait_until(STOP_LIMIT, || !matches!(server.try_wait(), Ok(None))) {
                self.forget_server();
                return Ok(());
            }
        }
        Err(Error::Stop { dir: self.dir.clone(), pid })
    }

    /// Stops the server as told and starts it again, at the same port on Linux (elsewhere if it is still free).
    pub fn restart(&mut self, how: Stop) -> Result<(), Error> {
        self.stop(how)?;
        self.start()
    }

    /// Kills the server's main process (SIGKILL). Its other processes notice by themselves and end.
    pub fn kill(&mut self) -> Result<(), Error> {
        if let Some(server) = &mut self.server {
            let pid = server.id();
            server.kill().context(|| format!("kill process {pid}"))?;
            server.wait().context(|| format!("wait for process {pid}"))?;
        }
        self.forget_server();
        Ok(())
    }

    /// Whether the server's main process runs.
    pub fn is_running(&mut self) -> bool {
        self.server.as_mut().is_some_and(|server| matches!(server.try_wait(), Ok(None)))
    }

    /// The process id of the server's main process, if it has been started.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// The loopback port; `None` before the first start.
    pub fn port(&self) -> Option<u16> {
        self.port.as_ref().map(PortReservation::port)
    }

    /// The cluster's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The server's version.
    pub fn version(&self) -> &Version {
        self.options.binaries.version()
    }

    /// The superuser's password. Never print it.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// A connection string for the superuser. It carries the password: never print it.
    pub fn connection_url(&self, database: &str) -> String {
        let port = self.port().unwrap_or_default();
        format!("postgres://{SUPERUSER}:{}@127.0.0.1:{port}/{database}", self.password)
    }

    /// A client program of this version (`psql`, `pg_dump`, `pgbench`, …) with its connection in the environment, so
    /// that the password never shows among the processes.
    pub fn tool(&self, name: &str, database: &str) -> Result<Command, Error> {
        let port = self.port().unwrap_or_default();
        client_command(&self.options.binaries, name, port, &self.password, database)
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        read_log_tail(&self.dir.join("server.log"), 0)
    }

    /// A program of the server, run as the right user, from a folder that this user can read.
    pub(crate) fn server_command(&self, name: &str) -> Result<Command, Error> {
        let mut command = Command::new(self.options.binaries.tool(name)?);
        command.current_dir("/").env("LC_ALL", "C");
        for name in ["PGDATA", "PGPORT", "PGHOST", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGOPTIONS"] {
            command.env_remove(name);
        }
        if let Some(user) = &self.run_as {
            user.apply(&mut command);
        }
        Ok(command)
    }

    pub(crate) fn password_file(&self) -> PathBuf {
        self.dir.join("password")
    }

    /// We hold the folder's lock, so a server that runs here has lost its parent.
    fn stop_left_over(&self) -> Result<(), Error> {
        for (number, limit) in [(libc::SIGINT, STOP_LIMIT), (libc::SIGQUIT, STOP_LIMIT)] {
            let Some(file) = PostmasterFile::read(&self.data) else { return Ok(()) };
            if !is_postmaster(file.pid, &self.data) {
                return Ok(());
            }
            signal(file.pid, number).context(|| format!("signal process {}", file.pid))?;
            if wait_until(limit, || !is_alive(file.pid)) {
                return Ok(());
            }
        }
        match PostmasterFile::read(&self.data) {
            Some(file) => Err(Error::Stop { dir: self.dir.clone(), pid: file.pid }),
            None => Ok(()),
        }
    }

    fn forget_server(&mut self) {
        self.server = None;
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.dismiss();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let how = match self.options.lifetime {
            Lifetime::Keep => Stop::Fast,
            Lifetime::ThrowAway => Stop::Immediate,
            Lifetime::Detached => return,
        };
        if let Err(err) = self.stop(how) {
            tracing::warn!("{err}");
        }
        if self.options.lifetime == Lifetime::ThrowAway
            && let Err(err) = remove_folder(&self.dir)
        {
            tracing::warn!("remove {}: {err}", self.dir.display());
        }
        drop(self.lock.take());
    }
}

/// A client program with its connection in the environment.
pub(crate) fn client_command(
    binaries: &Binaries,
    name: &str,
    port: u16,
    password: &str,
    database: &str,
) -> Result<Command, Error> {
    let mut command = Command::new(binaries.tool(name)?);
    command
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", port.to_string())
        .env("PGUSER", SUPERUSER)
        .env("PGPASSWORD", password)
        .env("PGDATABASE", database);
    Ok(command)
}

pub(crate) fn remove_folder(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn read_log_tail(path: &Path, from: u64) -> String {
    let read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    last_lines(&String::from_utf8_lossy(&read().unwrap_or_default()))
}

pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}
