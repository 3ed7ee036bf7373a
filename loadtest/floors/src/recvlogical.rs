//! The floor of capture: PostgreSQL's own `pg_recvlogical`, which decodes the same backlog with the same plugin and options, and
//! throws it away. What it takes is what the server's decoding and the socket take; nothing that is made of it is in it.

use crate::server::Server;
use anyhow::{Context, bail};
use sqlx::{Executor, PgPool};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(600);

/// A slot that stands where a backlog begins. The server keeps its WAL until [`Mark::remove`].
pub struct Mark {
    name: String,
}

impl Mark {
    /// Marks the present.
    ///
    /// # Errors
    /// When the slot cannot be created.
    pub async fn now(pool: &PgPool, name: &str) -> anyhow::Result<Mark> {
        sqlx::query("select pg_create_logical_replication_slot($1, 'pgoutput')")
            .bind(name)
            .execute(pool)
            .await
            .context("mark where the backlog begins")?;
        Ok(Mark { name: name.to_owned() })
    }

    /// Removes the mark.
    ///
    /// # Errors
    /// When somebody still reads from it.
    pub async fn remove(self, pool: &PgPool) -> anyhow::Result<()> {
        let dropped = sqlx::query("select pg_drop_replication_slot($1)").bind(&self.name).execute(pool);
        dropped.await.context("drop the mark").map(drop)
    }
}

/// A position after everything written so far, at which a stream ends by itself: a message that belongs to no transaction is sent
/// as soon as decoding reaches it.
///
/// # Errors
/// When the server cannot be asked.
pub async fn end_of_backlog(pool: &PgPool) -> anyhow::Result<String> {
    let end: String = sqlx::query_scalar("select pg_logical_emit_message(false, 'loadtest', 'end')::text")
        .fetch_one(pool)
        .await
        .context("mark where the backlog ends")?;
    // Decoding reads flushed WAL only, and nothing flushes an asynchronous tail as surely as a checkpoint.
    pool.execute("checkpoint").await.context("flush the backlog")?;
    Ok(end)
}

/// Decodes from the mark up to `end`, to nowhere.
///
/// # Errors
/// When `pg_recvlogical` fails or does not reach the end in time.
pub async fn receive(
    server: &Server,
    database: &str,
    publication: &str,
    mark: &Mark,
    end: &str,
) -> anyhow::Result<Duration> {
    let mut command = Command::from(server.tool("pg_recvlogical", database)?);
    command
        .args(["--start", "--no-loop", "--file=/dev/null"])
        .args(["--option=proto_version=1", "--option=messages=true"])
        .arg(format!("--option=publication_names={publication}"))
        .arg(format!("--dbname={database}"))
        .arg(format!("--slot={}", mark.name))
        .arg(format!("--endpos={end}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let started = Instant::now();
    let output = tokio::time::timeout(LIMIT, command.output()).await.context("pg_recvlogical in time")?;
    let output = output.context("run pg_recvlogical")?;
    if !output.status.success() {
        bail!("pg_recvlogical failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(started.elapsed())
}
