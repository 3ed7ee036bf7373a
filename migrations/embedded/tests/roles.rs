//! Tests that need another process run themselves again in a role: the same test of the same binary, told by the
//! environment that it is not the one that asserts.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const ROLE: &str = "TIDEGATE_EMBEDDED_TEST_ROLE";
const FOLDER: &str = "TIDEGATE_EMBEDDED_TEST_FOLDER";
const MARK: &str = "role says: ";

/// The folder to work in, if this process was started in a role.
pub(crate) fn folder_of_role() -> Option<PathBuf> {
    std::env::var_os(ROLE)?;
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// What a role tells the test that started it.
pub(crate) fn say(what: impl std::fmt::Display) {
    println!("\n{MARK}{what}");
}

/// Another process in the role.
pub(crate) struct Other {
    pub(crate) process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Runs the test of this name once more, in a process group of its own.
    pub(crate) fn spawn(test: &str, folder: &Path, environment: &[(&str, &str)]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, "other")
            .env(FOLDER, folder)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// The next thing that it says; panics when it ends without.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the other process ended without a word").unwrap();
            if let Some(text) = line.strip_prefix(MARK) {
                return text.to_owned();
            }
        }
    }

    /// Waits for its end, which must be a success.
    pub(crate) fn succeed(mut self) {
        for _ in self.lines.by_ref() {}
        assert!(self.process.wait().unwrap().success(), "the other process failed");
    }

    /// Sends a signal to the whole process group, as a terminal does.
    pub(crate) fn signal_group(&self, number: i32) {
        let group = i32::try_from(self.process.id()).unwrap();
        // SAFETY: a plain call; the group is that of a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(-group, number) }, 0);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A temporary folder that the server's user may enter, also when this process is root.
pub(crate) fn open_folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Polls for an outcome that another process brings about; panics if it does not come.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process runs. One that has ended and that nobody has waited for does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    // SAFETY: a plain call; signal 0 only asks.
    let there = unsafe { libc::kill(i32::try_from(pid).unwrap(), 0) } == 0;
    let ended = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'));
    there && !ended
}

/// Ends a process that this test has started through another.
pub(crate) fn terminate(pid: u32) {
    // SAFETY: a plain call; the number names one process.
    unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGTERM) };
}
