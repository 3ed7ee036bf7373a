//! Writers: PostgreSQL's own `pgbench`, with prepared statements. Being the server's own benchmark, it is nobody's choice of
//! client, and `select 1` through it shows how far it is from being what limits a figure.

use crate::server::Server;
use anyhow::{Context, bail};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

/// Longest time past the asked one until a run counts as stuck.
const OVERTIME_MAX: Duration = Duration::from_secs(60);

/// How a run ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// After this long; whole seconds.
    After(Duration),
    /// After each client has done this many transactions.
    Transactions(u64),
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Bench<'s> {
    /// A `pgbench` script: one transaction.
    pub script: &'s str,
    /// Connections.
    pub clients: u32,
    /// When it ends.
    pub end: End,
    /// Transactions per second that all clients together are paced at; as fast as possible without.
    pub rate: Option<f64>,
    /// Whether each commit waits for the disk.
    pub synchronous: bool,
}

/// What a run gave.
#[derive(Clone, Copy, Debug)]
pub struct Benched {
    /// Transactions per second, connecting left out.
    pub tps: f64,
    /// Transactions done.
    pub transactions: u64,
    /// Mean latency of one, in milliseconds.
    pub latency_ms: f64,
    /// Share of all processors that `pgbench` itself used.
    pub driver_share: f64,
}

/// A run under way. Dropping it ends its process.
pub struct Running {
    child: Child,
    stdout: ChildStdout,
    stderr: ChildStderr,
    limit: Duration,
    began: Instant,
    children_before: f64,
    /// Removed at the end.
    _script: tempfile::NamedTempFile,
}

/// Starts a run.
///
/// # Errors
/// When `pgbench` cannot be found or started.
pub fn start(server: &Server, database: &str, bench: &Bench<'_>) -> anyhow::Result<Running> {
    let mut file = tempfile::NamedTempFile::new().context("create the pgbench script")?;
    file.write_all(bench.script.as_bytes()).context("write the pgbench script")?;
    let mut command = Command::from(server.tool("pgbench", database)?);
    command.args(["--no-vacuum", "--protocol=prepared", "--jobs=2"]);
    command.arg(format!("--client={}", bench.clients)).arg("--file").arg(file.path());
    let limit = match bench.end {
        End::After(time) => {
            command.arg(format!("--time={}", time.as_secs().max(1)));
            time + OVERTIME_MAX
        }
        End::Transactions(each) => {
            command.arg(format!("--transactions={each}"));
            OVERTIME_MAX * 20
        }
    };
    if let Some(rate) = bench.rate {
        command.arg(format!("--rate={rate}"));
    }
    if !bench.synchronous {
        command.env("PGOPTIONS", "-c synchronous_commit=off");
    }
    let (began, children_before) = (Instant::now(), children_cpu_seconds()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start pgbench")?;
    let stdout = child.stdout.take().context("pgbench's output is not piped")?;
    let stderr = child.stderr.take().context("pgbench's output is not piped")?;
    Ok(Running { child, stdout, stderr, limit, began, children_before, _script: file })
}

/// A whole run.
///
/// # Errors
/// When `pgbench` fails, does not end in time, or any of its transactions fails.
pub async fn run(server: &Server, database: &str, bench: &Bench<'_>) -> anyhow::Result<Benched> {
    start(server, database, bench)?.finish().await
}

impl Running {
    /// Waits for its end.
    ///
    /// # Errors
    /// As [`run`].
    pub async fn finish(mut self) -> anyhow::Result<Benched> {
        let (mut text, mut errors) = (String::new(), String::new());
        let ended = tokio::time::timeout(self.limit, async {
            let (out, err) =
                tokio::join!(self.stdout.read_to_string(&mut text), self.stderr.read_to_string(&mut errors));
            out.and(err).context("read pgbench's output")?;
            self.child.wait().await.context("wait for pgbench")
        });
        let status = ended.await.context("pgbench in time")??;
        let cpu = children_cpu_seconds()? - self.children_before;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if !status.success() {
            bail!("pgbench failed: {}", errors.lines().last().unwrap_or_default());
        }
        let failed = value(&text, "number of failed transactions: ").unwrap_or(0.0);
        if failed > 0.0 {
            bail!("{failed} of pgbench's transactions failed");
        }
        let number = |name| value(&text, name).with_context(|| format!("read `{name}` from pgbench"));
        Ok(Benched {
            tps: number("tps = ")?,
            transactions: number("number of transactions actually processed: ")? as u64,
            latency_ms: number("latency average = ")?,
            driver_share: cpu / (self.began.elapsed().as_secs_f64() * processors as f64),
        })
    }
}

/// The number after `name`.
fn value(text: &str, name: &str) -> Option<f64> {
    let rest = &text[text.find(name)? + name.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Processor time of this process's children that have ended and been waited for.
fn children_cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("read the processor time of children")?;
    let (_, rest) = stat.rsplit_once(')').context("read the processor time of children")?;
    // After the name: the 14th and 15th are the children's user and system time, in ticks of 10 ms.
    let ticks: u64 =
        rest.split_whitespace().skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_both_versions_are_read() {
        let text = "number of transactions actually processed: 1200/1200\n\
                    number of failed transactions: 0 (0.000%)\n\
                    latency average = 1.500 ms\ninitial connection time = 3.1 ms\n\
                    tps = 13018.733203 (without initial connection time)\n";
        assert_eq!(value(text, "tps = "), Some(13_018.733_203));
        assert_eq!(value(text, "number of transactions actually processed: "), Some(1200.0));
        assert_eq!(value(text, "number of failed transactions: "), Some(0.0));
        assert_eq!(value(text, "latency average = "), Some(1.5));
    }
}
