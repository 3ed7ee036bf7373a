//! Programs under test: started, measured, and killed by process id.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// How long a program may take until it says that it is ready. A cold PostgreSQL on a busy machine needs most of it.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a program may take to end by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The line that `tidegate … --json` prints when it is ready; fields that a command does not have are absent.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Ready {
    /// Base URL of the gateway.
    #[serde(default)]
    pub url: Option<String>,
}

/// A running `tidegate` process. Dropping it kills it.
pub struct Tidegate {
    child: Child,
    /// What it said when it was ready.
    pub ready: Ready,
}

/// Resources that a process has used.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Usage {
    /// User and system processor time, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory now, in bytes.
    pub resident_bytes: u64,
    /// The most resident memory so far, in bytes.
    pub resident_max_bytes: u64,
}

impl Tidegate {
    /// Starts `binary` with `arguments` and waits for its ready line. The environment carries what must not be on a command
    /// line: connection strings and secrets. Its log goes to `log`.
    ///
    /// # Errors
    /// When it cannot be started, ends early, or is not ready in time.
    pub async fn start(
        binary: &PathBuf,
        arguments: &[&str],
        environment: &[(&str, &str)],
        log: &PathBuf,
    ) -> anyhow::Result<Tidegate> {
        let log_file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        let mut child = Command::new(binary)
            .args(arguments)
            .arg("--json")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        let stdout = child.stdout.take().context("the program's standard output is not piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = tokio::time::timeout(READY_TIMEOUT, async {
            while let Some(line) = lines.next_line().await.context("read the program's standard output")? {
                let value: serde_json::Value =
                    serde_json::from_str(&line).context("the program printed something that is not JSON")?;
                if value.get("ready") == Some(&serde_json::Value::Bool(true)) {
                    return serde_json::from_value(value).context("read the program's ready line");
                }
                if let Some(error) = value.get("error") {
                    bail!("{} ended: {error}", arguments.join(" "));
                }
            }
            bail!("{} ended before it was ready; its log is {}", arguments.join(" "), log.display())
        })
        .await
        .with_context(|| {
            format!("{} was not ready in time; its log is {}", arguments.join(" "), log.display())
        })??;
        // Keep reading, so that the program never blocks on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Tidegate { child, ready })
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// `kill -9`, and waits until it is gone.
    ///
    /// # Errors
    /// When the process cannot be signalled or waited for.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("kill the program")
    }

    /// SIGTERM, and waits until it has ended by itself; `kill -9` if it does not.
    ///
    /// # Errors
    /// When the process cannot be signalled or waited for.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.signal(libc::SIGTERM)?;
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            self.kill().await?;
        }
        Ok(())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn signal(&self, signal: libc::c_int) -> anyhow::Result<()> {
        let pid = self.pid().context("the program has ended")?;
        let pid = libc::pid_t::try_from(pid).context("a process id")?;
        // SAFETY: takes two numbers. The process is our child and has not been waited for, so its id is still its own.
        if unsafe { libc::kill(pid, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("signal the program");
        }
        Ok(())
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        usage_of(self.pid().context("the program has ended")?)
    }
}

/// What a process of this machine has used so far, from `/proc`.
///
/// # Errors
/// When there is no such process.
pub fn usage_of(pid: u32) -> anyhow::Result<Usage> {
    let fields = stat_fields(pid)?;
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).context("read the program's memory")?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Ok(Usage {
        cpu_seconds: (fields[11] + fields[12]) as f64 / TICKS_PER_SECOND,
        resident_bytes: kib("VmRSS") * 1024,
        resident_max_bytes: kib("VmHWM") * 1024,
    })
}

/// Processor time of a process and of its children, those that have ended and been waited for included.
///
/// # Errors
/// When there is no such process.
pub fn family_cpu_seconds(parent: u32) -> anyhow::Result<f64> {
    let own = stat_fields(parent)?;
    // User and system time, then those of the children that are gone.
    let mut ticks: u64 = own[11..15].iter().sum();
    for entry in std::fs::read_dir("/proc").context("list processes")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // It may have ended meanwhile.
        let Ok(fields) = stat_fields(pid) else { continue };
        if fields[1] == u64::from(parent) {
            ticks += fields[11] + fields[12];
        }
    }
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// USER_HZ is 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// The numbers of `/proc/…/stat` after the name, which may hold anything: state (as 0), parent, and so on; the 12th to 15th are user
/// and system time, its own and its waited-for children's.
fn stat_fields(pid: u32) -> anyhow::Result<[u64; 15]> {
    let stat =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).context("read the program's processor time")?;
    let (_, rest) = stat.rsplit_once(')').context("read the program's processor time")?;
    let mut fields = [0; 15];
    for (field, text) in fields.iter_mut().zip(rest.split_whitespace()) {
        *field = text.parse().unwrap_or(0);
    }
    Ok(fields)
}
