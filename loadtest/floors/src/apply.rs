//! The floor of materialization: the very rows that a worker has just written, by COPY into the same tables with the same indexes and
//! checks, in as many transactions, each waiting for the disk. Nothing is read, decided or compared, nothing is updated in place,
//! and whoever fills the copy knows the rows beforehand.

use anyhow::Context;
use bytes::Bytes;
use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use std::time::{Duration, Instant};

/// A table that the worker writes, and how its copy behaves.
struct Copied {
    table: String,
    copy: &'static str,
    /// Of the original; `like` does not bring it.
    fillfactor: u32,
    /// A row that is updated in the original is there once: its copy is emptied before each application.
    keeps_one_row_per_key: bool,
}

/// Copies of everything that one relation's materialization writes.
pub struct Copies {
    tables: Vec<Copied>,
}

/// One round's rows, in COPY's binary form, by transaction and table.
pub struct Rows {
    transactions: Vec<Vec<Bytes>>,
    /// Rows of all tables together.
    pub rows: u64,
    /// Bytes of all tables together.
    pub bytes: u64,
}

impl Copies {
    /// Creates them, empty, for one relation in one projected state.
    ///
    /// # Errors
    /// When a statement fails.
    pub async fn create(pool: &PgPool, state: i32, relation: i32) -> anyhow::Result<Copies> {
        let of = |table: String, copy, fillfactor, keeps_one_row_per_key| Copied {
            table,
            copy,
            fillfactor,
            keeps_one_row_per_key,
        };
        let tables = vec![
            of(format!("tidegate_projection.s{state}_p{relation}"), "loadtest.copy_projection", 80, true),
            of(format!("tidegate_projection.s{state}_scope_row"), "loadtest.copy_scope_row", 100, false),
            of("tidegate.source_transaction".into(), "loadtest.copy_source_transaction", 100, false),
            of("tidegate.effect".into(), "loadtest.copy_effect", 100, false),
            of(format!("tidegate_projection.s{state}_scope"), "loadtest.copy_scope", 70, true),
        ];
        for Copied { table, copy, fillfactor, .. } in &tables {
            let create =
                format!("create table {copy} (like {table} including all) with (fillfactor = {fillfactor})");
            pool.execute(AssertSqlSafe(create))
                .await
                .with_context(|| format!("copy the shape of {table}"))?;
        }
        Ok(Copies { tables })
    }

    /// The rows that transactions from `since` on (a transaction id) have left behind, cut into `transactions`.
    ///
    /// # Errors
    /// When a table cannot be read.
    pub async fn rows_since(&self, pool: &PgPool, since: i64, transactions: u64) -> anyhow::Result<Rows> {
        let mut rows = Rows { transactions: Vec::new(), rows: 0, bytes: 0 };
        let mut parts: Vec<Vec<Bytes>> = (0..transactions).map(|_| Vec::new()).collect();
        for Copied { table, .. } in &self.tables {
            let written = format!("select * from {table} where xmin::text::bigint >= {since} order by ctid");
            let count: i64 = sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from ({written}) w")))
                .fetch_one(pool)
                .await
                .with_context(|| format!("count what was written into {table}"))?;
            rows.rows += count as u64;
            let each = (count as u64).div_ceil(transactions);
            for (part, at) in parts.iter_mut().zip((0..).step_by(each.max(1) as usize)) {
                let out = format!("copy ({written} offset {at} limit {each}) to stdout (format binary)");
                let mut connection = pool.acquire().await.context("connect")?;
                let stream = connection.copy_out_raw(&out).await.with_context(|| format!("read {table}"))?;
                let bytes: Vec<Bytes> =
                    stream.try_collect().await.with_context(|| format!("read {table}"))?;
                let bytes = Bytes::from(bytes.concat());
                rows.bytes += bytes.len() as u64;
                part.push(bytes);
            }
        }
        rows.transactions = parts;
        Ok(rows)
    }

    /// Writes them, and says how long that took.
    ///
    /// # Errors
    /// When a statement fails.
    pub async fn apply(&self, pool: &PgPool, rows: &Rows) -> anyhow::Result<Duration> {
        for Copied { copy, .. } in self.tables.iter().filter(|copied| copied.keeps_one_row_per_key) {
            pool.execute(AssertSqlSafe(format!("truncate {copy}"))).await.context("empty a copy")?;
        }
        pool.execute("checkpoint").await.context("checkpoint")?;
        let mut connection = pool.acquire().await.context("connect")?;
        let connection: &mut PgConnection = &mut connection;
        let started = Instant::now();
        for parts in &rows.transactions {
            let mut transaction = connection.begin().await.context("begin")?;
            for (Copied { copy, .. }, bytes) in self.tables.iter().zip(parts) {
                let into = format!("copy {copy} from stdin (format binary)");
                let mut copy = transaction.copy_in_raw(&into).await.context("begin to copy")?;
                copy.send(&bytes[..]).await.context("copy")?;
                copy.finish().await.context("end the copy")?;
            }
            transaction.commit().await.context("commit")?;
        }
        Ok(started.elapsed())
    }
}
