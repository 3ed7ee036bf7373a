//! Which database a command speaks to.

use crate::args::Args;
use anyhow::{Context, bail};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use std::path::{Path, PathBuf};

/// What a running `tidegate dev` leaves for the other commands, readable by its owner only.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct DevState {
    /// Carries the private database's password.
    pub database_url: String,
    /// Where the gateway listens.
    pub url: String,
    /// Process id of `tidegate dev`.
    pub pid: u32,
}

impl DevState {
    /// The file inside the data folder.
    pub fn path(data: &Path) -> PathBuf {
        data.join("dev.json")
    }

    fn read(data: &Path) -> Option<DevState> {
        serde_json::from_slice(&std::fs::read(Self::path(data)).ok()?).ok()
    }

    /// Writes the file with mode 0600.
    pub fn write(&self, data: &Path) -> anyhow::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let path = Self::path(data);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("write {}", path.display()))?;
        file.write_all(&serde_json::to_vec_pretty(self)?).with_context(|| format!("write {}", path.display()))
    }
}

/// The database's URL: `--database-url` or `DATABASE_URL`, else that of a running `tidegate dev` in the data folder.
///
/// The URL carries a password: it must never be printed.
pub fn database_url(args: &Args) -> anyhow::Result<String> {
    if let Some(url) = &args.database_url {
        return Ok(url.clone());
    }
    match DevState::read(&args.data) {
        Some(state) => Ok(state.database_url),
        None => bail!(
            "no database: set DATABASE_URL or --database-url, or run `tidegate dev` first (looked in {})",
            DevState::path(&args.data).display()
        ),
    }
}

/// Reads a URL without letting it into the error text.
pub fn connect_options(url: &str) -> anyhow::Result<PgConnectOptions> {
    match url.parse::<PgConnectOptions>() {
        Ok(options) => Ok(options.application_name("tidegate").disable_statement_logging()),
        Err(_) => bail!("the database URL is not valid (expected postgres://user@host:port/database)"),
    }
}

/// The database that these options lead to. Without a name in the URL it is, as everywhere in PostgreSQL, the user's.
pub fn database_name(options: &PgConnectOptions) -> String {
    options.get_database().unwrap_or(options.get_username()).to_owned()
}

/// A pool on the target.
pub async fn pool(args: &Args, connections: u32) -> anyhow::Result<sqlx::PgPool> {
    pool_of(&database_url(args)?, connections).await
}

/// A pool on the database of this URL.
pub async fn pool_of(url: &str, connections: u32) -> anyhow::Result<sqlx::PgPool> {
    sqlx::postgres::PgPoolOptions::new()
        .max_connections(connections)
        .connect_with(connect_options(url)?)
        .await
        .map_err(|error| {
            anyhow::anyhow!("connect to the database: {}", crate::output::database_error(&error))
        })
}

/// One connection to the target.
pub async fn connect(args: &Args) -> anyhow::Result<PgConnection> {
    let options = connect_options(&database_url(args)?)?;
    PgConnection::connect_with(&options).await.map_err(|error| {
        anyhow::anyhow!("connect to the database: {}", crate::output::database_error(&error))
    })
}
