//! A server process as seen from outside: its `postmaster.pid` file, and whether the process is still that one.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a starting or running server writes into `postmaster.pid` in its data folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PostmasterFile {
    /// Line 1.
    pub(crate) pid: u32,
    /// Line 4; absent while the server starts.
    pub(crate) port: Option<u16>,
    /// Line 8: the server accepts connections.
    pub(crate) ready: bool,
}

impl PostmasterFile {
    /// `None` if there is no such file, or none that is complete enough to name a process.
    pub(crate) fn read(data: &Path) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(data.join("postmaster.pid")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim);
        let pid = lines.next()?.parse().ok()?;
        Some(Self {
            pid,
            port: lines.nth(2).and_then(|line| line.parse().ok()),
            ready: lines.nth(3) == Some("ready"),
        })
    }
}

/// Whether the process is there and is the server of this data folder, not another that got its number.
///
/// A server's working folder is its data folder. Where that cannot be read (no /proc), being there is enough.
pub(crate) fn is_postmaster(pid: u32, data: &Path) -> bool {
    if !is_alive(pid) {
        return false;
    }
    if !Path::new("/proc/self/cwd").exists() {
        return true;
    }
    match std::fs::read_link(format!("/proc/{pid}/cwd")) {
        Ok(folder) => data.canonicalize().is_ok_and(|data| data == folder),
        Err(err) => err.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// Whether a process of this number runs. One that has ended and was not waited for yet does not (where /proc tells).
pub(crate) fn is_alive(pid: u32) -> bool {
    let zombie = || {
        // "pid (name) state …": the name may hold anything, so the state is what follows the last parenthesis.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(stat.rsplit_once(')')?.1.trim_start().starts_with('Z'))
    };
    signal(pid, 0).is_ok_and(|there| there) && zombie() != Some(true)
}

/// The text of a script without its comments: it shows among the processes.
pub(crate) fn script(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

/// Sends a signal; `false` if there is no such process. One that we may not signal counts as there.
pub(crate) fn signal(pid: u32, number: libc::c_int) -> io::Result<bool> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: a plain call without pointers; `pid` is positive, so it names one process and no group.
    if unsafe { libc::kill(pid, number) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        err if err.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        err if err.raw_os_error() == Some(libc::EPERM) && number == 0 => Ok(true),
        err => Err(err),
    }
}

/// Polls until the condition holds; `false` if it did not within the limit.
pub(crate) fn wait_until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_file_names_pid_port_and_readiness() {
        let text = "4711\n/data\n1700000000\n5499\n\n127.0.0.1\n  12345  6789\nready   \n";
        assert_eq!(
            PostmasterFile::parse(text),
            Some(PostmasterFile { pid: 4711, port: Some(5499), ready: true })
        );
    }

    #[test]
    fn a_file_of_a_starting_server_is_not_ready() {
        let text = "4711\n/data\n1700000000\n5499\n\n127.0.0.1\n  12345  6789\nstarting\n";
        assert!(!PostmasterFile::parse(text).unwrap().ready);
        let early = PostmasterFile::parse("4711\n/data\n").unwrap();
        assert_eq!((early.port, early.ready), (None, false));
    }

    #[test]
    fn an_empty_or_foreign_file_names_no_process() {
        assert_eq!(PostmasterFile::parse(""), None);
        assert_eq!(PostmasterFile::parse("hello\n"), None);
    }
}
