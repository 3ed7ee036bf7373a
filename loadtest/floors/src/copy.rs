//! The baseline of a first start: the same rows by COPY, out to a client and back into a table with a primary key.

use anyhow::Context;
use sqlx::postgres::PgPoolCopyExt;
use sqlx::{Executor, PgPool};
use std::time::{Duration, Instant};

/// What one copy took.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Rows moved.
    pub rows: u64,
    /// Bytes that passed through the client.
    pub bytes: u64,
    /// Wall time, out and in at once.
    pub took: Duration,
}

/// Streams `columns` of `table` out in binary and at once into a new table of the same shape, which is dropped afterwards.
///
/// The names are the load test's own, never input.
///
/// # Errors
/// When a statement fails.
pub async fn copy_through_client(pool: &PgPool, table: &str, columns: &str) -> anyhow::Result<Copied> {
    use futures_util::TryStreamExt;
    let target = format!("{table}_copy");
    let prepare = format!("create table {target} (like {table} including indexes)");
    pool.execute(sqlx::AssertSqlSafe(prepare)).await.context("create the copy's target")?;
    let started = Instant::now();
    let mut out = pool
        .copy_out_raw(&format!("copy (select {columns} from {table}) to stdout (format binary)"))
        .await
        .context("copy out")?;
    let mut into = pool
        .copy_in_raw(&format!("copy {target} ({columns}) from stdin (format binary)"))
        .await
        .context("copy in")?;
    let mut bytes = 0;
    while let Some(chunk) = out.try_next().await.context("copy out")? {
        bytes += chunk.len() as u64;
        into.send(&chunk[..]).await.context("copy in")?;
    }
    let rows = into.finish().await.context("copy in")?;
    let took = started.elapsed();
    pool.execute(sqlx::AssertSqlSafe(format!("drop table {target}")))
        .await
        .context("drop the copy's target")?;
    Ok(Copied { rows, bytes, took })
}
