//! Stops the server when this process dies, even by SIGKILL.
//!
//! A shell waits on a pipe whose only write end is ours. It is closed on exec, so no other child can hold it, and the
//! kernel closes it when we end, however we end. A shell rather than a fork: forking a process with threads
//! and going on without exec is unsound, and a program of our own would have to be installed somewhere.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::postmaster::script;

const SCRIPT: &str = include_str!("watchdog.sh");

/// A running watchdog. Dropping it without `dismiss` makes it act.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Starts before the server does, so that there is no moment without one.
    ///
    /// `signal` is a name for `kill`, without SIG. `remove` is deleted once the server is gone.
    pub(crate) fn spawn(data: &Path, signal: &str, remove: Option<&Path>) -> io::Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", &script(SCRIPT), "tidegate-watchdog"])
            .args([data.as_os_str(), OsStr::new(signal)])
            .args(remove)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // Ctrl-C goes to the terminal's foreground group; the watchdog must outlive it.
            .process_group(0)
            .spawn()?;
        Ok(Self { shell })
    }

    /// Tells which process to stop.
    pub(crate) fn watch(&mut self, pid: u32) -> io::Result<()> {
        self.tell(&pid.to_string())
    }

    /// The server has been stopped: end without doing anything.
    pub(crate) fn dismiss(mut self) {
        // A watchdog that somebody killed needs no message.
        let _ = self.tell("done");
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        match self.shell.stdin.as_mut() {
            Some(pipe) => pipe.write_all(format!("{line}\n").as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}
