//! A throw-away PostgreSQL for load tests that stop and kill it. Durable like a real one: `fsync` stays on.

use crate::relay::Database;
use anyhow::Context;
use std::path::PathBuf;
use tidegate_embedded::{Auth, Binaries, Cluster, Lifetime, Options, Stop};

/// A private server; gone, with its data, when it is dropped.
pub struct Server {
    cluster: Cluster,
}

impl Server {
    /// Starts one of the given major version (15 to 18) in a new folder, with extra settings.
    ///
    /// # Errors
    /// When no such PostgreSQL can be found or fetched, or it does not start.
    pub fn start(major: u32, settings: &[(&str, &str)]) -> anyhow::Result<Server> {
        let binaries = Binaries::find_version(major).context("find PostgreSQL")?;
        let dir = std::env::temp_dir().join(format!("tidegate-loadtest-{}-{major}", std::process::id()));
        let mut options =
            Options::new(binaries, dir).setting("max_wal_senders", "16").setting("max_wal_size", "4GB");
        options.auth = Auth::Scram;
        options.lifetime = Lifetime::ThrowAway;
        options.max_connections = 200;
        for (name, value) in settings {
            options = options.setting(name, value);
        }
        let mut cluster = Cluster::init(options).context("initialise PostgreSQL")?;
        cluster.start().context("start PostgreSQL")?;
        Ok(Server { cluster })
    }

    /// Connection string of a database; carries the password.
    pub fn url(&self, database: &str) -> String {
        self.cluster.connection_url(database)
    }

    /// The parts of it that replication needs.
    pub fn database(&self, name: &str) -> Database {
        Database {
            host: "127.0.0.1".to_owned(),
            port: self.cluster.port().unwrap_or_default(),
            user: "postgres".to_owned(),
            password: self.cluster.password().to_owned(),
            name: name.to_owned(),
        }
    }

    /// Shuts down as a crash would (`-m immediate`) and starts again at the same port.
    ///
    /// # Errors
    /// When the server does not come back.
    pub fn crash_and_restart(&mut self) -> anyhow::Result<()> {
        self.cluster.restart(Stop::Immediate).context("crash and restart PostgreSQL")
    }

    /// A client program of the same version (`pgbench`, `pg_recvlogical`), with its connection in the environment.
    ///
    /// # Errors
    /// When the installation does not have it.
    pub fn tool(&self, name: &str, database: &str) -> anyhow::Result<std::process::Command> {
        self.cluster.tool(name, database).with_context(|| format!("find {name}"))
    }

    /// The process id of the server's main process.
    ///
    /// # Errors
    /// When it has never been started.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.cluster.pid().context("PostgreSQL was not started")
    }

    /// The server's folder.
    pub fn dir(&self) -> PathBuf {
        self.cluster.dir().to_owned()
    }
}
