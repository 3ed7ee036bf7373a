//! What a cluster is made from, and how its server ends. Plain values.

use std::path::PathBuf;

use crate::binaries::Binaries;

/// How a server is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Waits for every client to leave (SIGTERM); past 30 s as `Fast`.
    Smart,
    /// Ends every session and writes a checkpoint (SIGINT); past 30 s as `Immediate`, because a
    /// replication client that never acknowledges would block it for ever.
    Fast,
    /// Ends at once, as in a crash (SIGQUIT): the next start recovers from WAL.
    Immediate,
}

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// A generated password, proven by SCRAM-SHA-256.
    Scram,
    /// A generated password, sent as it is: it never leaves the loopback interface, and it spares tests the hashing.
    Password,
}

/// What becomes of server and folder at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// The server stops fast with this process, the folder stays.
    Keep,
    /// The server stops at once with this process, and the folder is removed.
    ThrowAway,
    /// The server goes on without this process: whoever started it this way has another means to stop it.
    Detached,
}

/// What a cluster is made from.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server programs.
    pub binaries: Binaries,
    /// The cluster's folder; its data goes into `data` inside.
    pub dir: PathBuf,
    /// Read at `init` only.
    pub auth: Auth,
    /// What becomes of server and folder at the end.
    pub lifetime: Lifetime,
    /// A fixed loopback port; `None` lets the system choose.
    pub port: Option<u16>,
    /// The most connections at once.
    pub max_connections: u32,
    /// Further server settings, which win over ours; `alter system` wins over both.
    pub settings: Vec<(String, String)>,
}

impl Options {
    /// A cluster that stays, with SCRAM, a port chosen by the system and 100 connections.
    pub fn new(binaries: Binaries, dir: impl Into<PathBuf>) -> Self {
        Self {
            binaries,
            dir: dir.into(),
            auth: Auth::Scram,
            lifetime: Lifetime::Keep,
            port: None,
            max_connections: 100,
            settings: Vec::new(),
        }
    }

    /// Adds a server setting.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}
