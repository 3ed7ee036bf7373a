//! Connecting, and what a person must know about a server before anything else: that it is there, and what it lacks.
//!
//! A pool waits for a server that is starting; a command must say at once that there is none. So each connects directly first.

use crate::target;
use anyhow::{Context, bail};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use std::io::ErrorKind;
use std::time::Duration;
use tidegate_migrations::{Installed, installed};

/// Longest wait for a connection: a server on another continent answers within one second.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no connection. Names host and port, never user, password or database (Q1).
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotConnected {
    /// A sentence.
    pub reason: String,
    /// Whether it may pass by itself: the server is stopped, starting or out of reach.
    pub passes: bool,
}

/// One connection.
///
/// # Errors
/// [`NotConnected`], within [`TIMEOUT`].
pub async fn once(options: &PgConnectOptions) -> Result<PgConnection, NotConnected> {
    match tokio::time::timeout(TIMEOUT, PgConnection::connect_with(options)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(not_connected(options, &error)),
        Err(_) => Err(NotConnected {
            reason: format!("no answer from {} within {} s", place(options), TIMEOUT.as_secs()),
            passes: true,
        }),
    }
}

/// A pool on the database of this URL, after one direct connection.
///
/// # Errors
/// When the URL is wrong, or [`NotConnected`].
pub async fn pool(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let options = target::connect_options(url)?;
    once(&options).await?.close().await.ok();
    Ok(pool_of(options, connections))
}

/// A pool that connects when it is used.
pub fn pool_of(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new().max_connections(connections).acquire_timeout(TIMEOUT).connect_lazy_with(options)
}

fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => format!("the socket in {}", socket.display()),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

fn not_connected(options: &PgConnectOptions, error: &sqlx::Error) -> NotConnected {
    let place = place(options);
    let (reason, passes) = match error {
        sqlx::Error::Io(io) => match io.kind() {
            ErrorKind::ConnectionRefused => {
                (format!("connection refused at {place}: is PostgreSQL running?"), true)
            }
            ErrorKind::NotFound => (format!("nothing listens at {place}: is PostgreSQL running?"), true),
            _ => (format!("cannot reach {place}: {io}"), true),
        },
        // Its own sentences quote the user and the database.
        sqlx::Error::Database(database) => match database.code().as_deref() {
            Some(code) if code.starts_with("28") => (
                format!(
                    "{place} refuses the login (SQLSTATE {code}): check user and password; {}",
                    target::ENCODE
                ),
                false,
            ),
            Some("3D000") => (format!("{place} has no database of the URL's name (SQLSTATE 3D000)"), false),
            Some(code) if code.starts_with("57P") => {
                (format!("{place} takes no connections now (SQLSTATE {code})"), true)
            }
            Some(code) => {
                (format!("{place} refuses the connection (SQLSTATE {code})"), code.starts_with("53"))
            }
            None => (format!("{place} refuses the connection"), false),
        },
        sqlx::Error::Tls(tls) => (format!("no TLS with {place}: {tls}"), false),
        sqlx::Error::Configuration(_) => ("the database URL is not valid".to_owned(), false),
        _ => (format!("{place} does not speak PostgreSQL's protocol"), false),
    };
    NotConnected { reason, passes }
}

/// That the schema is there at all.
///
/// # Errors
/// When it is not: `tidegate migrate` comes first.
pub async fn require_schema(connection: &mut PgConnection) -> anyhow::Result<()> {
    match installed(connection).await? {
        Installed::Missing => {
            bail!("Tidegate's schema is not in this database: run `tidegate migrate`")
        }
        Installed::Other | Installed::Current => Ok(()),
    }
}

/// Warns of what would stop the worker later on.
pub async fn warn_of_replication(pool: &PgPool) -> anyhow::Result<()> {
    // Managed services give the right by membership.
    let (wal_level, may): (String, bool) = sqlx::query_as(
        "select current_setting('wal_level'), exists (
             select from pg_roles r where r.rolname = session_user and (r.rolsuper or r.rolreplication))
             or exists (select from pg_roles r where r.rolname = 'rds_replication' and pg_has_role(session_user, r.oid, 'member'))",
    )
    .fetch_one(pool)
    .await
    .context("look at the server's settings")?;
    if wal_level != "logical" {
        tracing::warn!(
            "wal_level is {wal_level}: set wal_level = logical and restart PostgreSQL; capture cannot start before"
        );
    }
    if !may {
        tracing::warn!(
            "this role may not replicate, so capture cannot start with it: run `alter role … replication` as a superuser"
        );
    }
    Ok(())
}

/// Warns of a write role that policies do not bind.
pub async fn warn_of_write_role(pool: &PgPool, role: &str) -> anyhow::Result<()> {
    let unbound: Option<bool> = sqlx::query_scalar(
        "select r.rolsuper from pg_roles r where r.rolname = $1 and (r.rolsuper or r.rolbypassrls)",
    )
    .bind(role)
    .fetch_optional(pool)
    .await
    .context("look at the write role")?;
    if let Some(superuser) = unbound {
        let because = if superuser { "is a superuser" } else { "has BYPASSRLS" };
        tracing::warn!(
            "write role {role} {because}: row-level security does not apply to what clients write; use an ordinary role"
        );
    }
    Ok(())
}
