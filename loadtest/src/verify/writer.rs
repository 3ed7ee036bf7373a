//! The application: random transactions by ordinary SQL, from a seed, at a fixed rate, through crashes.

use crate::stage::pool;
use anyhow::Context;
use fastrand::Rng;
use sqlx::{AssertSqlSafe, Executor, PgConnection, PgPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Lists that items move between.
pub const LISTS: i64 = 10;
const ITEMS: i64 = 2000;

/// What the writers share with the others.
#[derive(Debug, Default)]
pub struct Work {
    /// Transactions committed.
    pub commits: AtomicU64,
    /// Tries that a crash or a deadlock ended.
    pub interrupted: AtomicU64,
    /// Set to end the writers.
    pub stop: AtomicBool,
    next_id: AtomicI64,
}

/// Commits at `rate` per second until told to stop.
///
/// # Errors
/// When a statement fails for another reason than a crash, a conflict or a duplicate key.
pub async fn write(url: String, work: Arc<Work>, rate: f64, seed: u64) -> anyhow::Result<()> {
    let mut rng = Rng::with_seed(seed);
    let pool = pool(&url, 1).await?;
    let started = Instant::now();
    let mut turn = 0u32;
    while !work.stop.load(Relaxed) {
        tokio::time::sleep_until(started + Duration::from_secs_f64(f64::from(turn) / rate)).await;
        turn += 1;
        let transaction = random_transaction(&mut rng, &work);
        match commit(&pool, &transaction).await {
            Ok(()) => {
                work.commits.fetch_add(1, Relaxed);
            }
            Err(error) if passes(&error) => {
                work.interrupted.fetch_add(1, Relaxed);
            }
            Err(error) => return Err(error).context("a writer's transaction"),
        }
    }
    Ok(())
}

async fn commit(pool: &PgPool, statements: &str) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let connection: &mut PgConnection = &mut connection;
    // One simple query with several statements is one transaction.
    connection.execute(AssertSqlSafe(statements.to_owned())).await.map(|_| ())
}

/// Whether an error is one that an application meets in a crash or a race, and takes in its stride.
pub fn passes(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            matches!(
                error.code().as_deref(),
                Some("40001" | "40P01" | "23505" | "57P01" | "57P02" | "57P03" | "57014" | "08006")
            )
        }
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_) => true,
        _ => false,
    }
}

/// Every kind keeps the balances' sum at zero. Rows are locked in key order, so that deadlocks stay rare.
fn random_transaction(rng: &mut Rng, work: &Work) -> String {
    let any = |rng: &mut Rng| rng.i64(1..=ITEMS);
    let list = |rng: &mut Rng| rng.i64(0..LISTS);
    match rng.u32(0..100) {
        0..=29 => {
            let (a, b) = (any(rng), any(rng));
            let (low, high) = (a.min(b), a.max(b));
            let amount = rng.i64(1..100);
            if low == high {
                return format!("update loadtest.item set title = 'same {amount}' where id = {low}");
            }
            let move_too = if rng.bool() { format!(", list_no = {}", list(rng)) } else { String::new() };
            format!(
                "update loadtest.item set balance = balance - {amount}{move_too} where id = {low};
                 update loadtest.item set balance = balance + {amount} where id = {high}"
            )
        }
        30..=44 => {
            format!("update loadtest.item set title = 'title {}' where id = {}", rng.u32(..), any(rng))
        }
        45..=54 => format!("update loadtest.item set list_no = {} where id = {}", list(rng), any(rng)),
        55..=64 => {
            let id = 1_000_000 + work.next_id.fetch_add(1, Relaxed);
            format!("insert into loadtest.item (id, list_no, title) values ({id}, {}, 'new')", list(rng))
        }
        65..=72 => {
            let from = 1_000_000 + rng.i64(0..=work.next_id.load(Relaxed).max(1));
            format!("delete from loadtest.item where id between {from} and {} and balance = 0", from + 2)
        }
        73..=78 => {
            let first = any(rng);
            format!(
                "update loadtest.item set hot = not hot where id between {first} and {}",
                first + rng.i64(1..20)
            )
        }
        79..=83 => {
            let id = -1 - rng.i64(0..1000);
            format!(
                "insert into loadtest.item (id, list_no) values ({id}, 1);
                 update loadtest.item set list_no = 2 where id = {id};
                 delete from loadtest.item where id = {id}"
            )
        }
        84..=87 => {
            let id = any(rng);
            format!(
                "begin; savepoint s; update loadtest.item set title = 'never' where id = {id}; rollback to s;
                 update loadtest.item set title = 'after a savepoint' where id = {id}; commit"
            )
        }
        88..=91 => format!(
            "insert into loadtest.note values ('note {}', {}, 'body {}')
             on conflict (id) do update set list_no = excluded.list_no, body = excluded.body",
            rng.u32(0..400),
            list(rng),
            rng.u32(..)
        ),
        92..=94 => {
            let id = format!("note {}", rng.u32(0..400));
            format!(
                "delete from loadtest.note where id = '{id}'; insert into loadtest.note values ('{id}', {}, null)",
                list(rng)
            )
        }
        95..=96 => format!(
            "update loadtest.item set big = (select string_agg(md5((n * {})::text), '') from generate_series(1, 300) n) where id = {}",
            rng.u32(1..1000),
            any(rng)
        ),
        // Only rows without a balance leave all lists, so that the lists' sum stays zero.
        97 => format!(
            "update loadtest.item set list_no = null where id = {} and balance = 0",
            1_000_000 + rng.i64(0..=work.next_id.load(Relaxed).max(1))
        ),
        _ => format!("update loadtest.item set title = title where id = {}", any(rng)),
    }
}
