//! The ground that a load test stands on: a database with the load test's tables, and Tidegate over it.

use crate::process::Tidegate;
use anyhow::{Context, bail};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, PgPool};
use std::path::{Path, PathBuf};
use tidegate_floors::server::Server;

/// What the programs need to know.
pub struct Stage {
    /// A private PostgreSQL, stopped and removed at the end.
    pub server: Server,
    /// Connections to the load test's database.
    pub pool: PgPool,
    /// Its connection string; carries the password.
    pub url: String,
    /// The binary under test.
    pub binary: PathBuf,
    /// Where logs go.
    pub logs: PathBuf,
}

/// Name of the load test's database.
const DATABASE: &str = "loadtest";
/// Signs the load test's tokens; it protects nothing.
pub const JWT_SECRET: &str = "loadtest-loadtest-loadtest-loadtest";
/// Role that pushes run as.
pub const WRITE_ROLE: &str = "loadtest_writer";

impl Stage {
    /// Starts PostgreSQL, creates the database, installs Tidegate's schema with `binary`, and runs `schema`.
    ///
    /// # Errors
    /// When one of these fails; the message says which.
    pub async fn set(
        binary: &Path,
        major: u32,
        settings: &[(&str, &str)],
        schema: &str,
    ) -> anyhow::Result<Stage> {
        let owned: Vec<(String, String)> =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let server = tokio::task::spawn_blocking(move || {
            let borrowed: Vec<(&str, &str)> =
                owned.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            Server::start(major, &borrowed)
        })
        .await
        .context("start PostgreSQL")??;
        let logs = std::env::temp_dir().join(format!("tidegate-loadtest-{}-logs", std::process::id()));
        std::fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
        let admin = pool(&server.url("postgres"), 1).await?;
        admin
            .execute(AssertSqlSafe(format!("create database {DATABASE}")))
            .await
            .context("create the database")?;
        admin
            .execute(AssertSqlSafe(format!("create role {WRITE_ROLE} nologin")))
            .await
            .context("create the write role")?;
        admin.close().await;
        let url = server.url(DATABASE);
        let stage = Stage { pool: pool(&url, 16).await?, server, url, binary: binary.to_owned(), logs };
        stage.run(&["migrate"]).await?;
        stage
            .pool
            .execute(AssertSqlSafe(schema.to_owned()))
            .await
            .context("create the load test's tables")?;
        Ok(stage)
    }

    /// The database's name.
    pub fn database(&self) -> &'static str {
        DATABASE
    }

    /// Environment of the programs under test.
    pub fn environment(&self) -> Vec<(&str, &str)> {
        vec![
            ("DATABASE_URL", &self.url),
            ("TIDEGATE_JWT_SECRET", JWT_SECRET),
            ("TIDEGATE_WRITE_ROLE", WRITE_ROLE),
        ]
    }

    /// Starts a program that stays.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn start(&self, arguments: &[&str]) -> anyhow::Result<Tidegate> {
        let log = self.logs.join(format!("{}.log", arguments.first().unwrap_or(&"tidegate")));
        Tidegate::start(&self.binary, arguments, &self.environment(), &log).await
    }

    /// Runs a command to its end and returns its standard output.
    ///
    /// # Errors
    /// When it fails.
    pub async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = tokio::process::Command::new(&self.binary)
            .args(arguments)
            .arg("--json")
            .envs(self.environment())
            .output()
            .await
            .with_context(|| format!("run {}", self.binary.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!(
                "tidegate {} failed: {}{}",
                arguments.join(" "),
                text.trim(),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(text)
    }
}

/// A pool that does not log statements.
pub async fn pool(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let options: PgConnectOptions =
        url.parse().map_err(|_| anyhow::anyhow!("the database URL is not valid"))?;
    PgPoolOptions::new()
        .max_connections(connections)
        .connect_with(options.disable_statement_logging())
        .await
        .context("connect to the database")
}

/// Host and port of a ready gateway.
pub fn address(url: &str) -> anyhow::Result<String> {
    url.strip_prefix("http://")
        .map(|rest| rest.trim_end_matches('/').to_owned())
        .context("the gateway's URL is not http://…")
}
