//! Where a kill hits. The program is stopped (SIGSTOP), what it was in the middle of is read from the server and from the clients,
//! and only then is it killed: what was seen cannot have changed in between. Three of four kills are aimed: if the program was
//! between two batches, it goes on for some milliseconds and is stopped again. The fourth hits whatever it hits.

use super::census::{Census, Standing};
use crate::process::Tidegate;
use anyhow::Context;
use fastrand::Rng;
use sqlx::{AssertSqlSafe, PgPool};
use std::time::Duration;

/// Tries of an aimed kill. With some hundred commits per second a batch is under way most of the time, but not while a worker that
/// has just been started reads what it knows already.
const TRIES_MAX: u32 = 300;
/// A gateway has been told of a commit after this long: twice the 2 ms for which capture holds a wake back.
const TOLD_AFTER: Duration = Duration::from_millis(4);
/// How long the server may take to end the statement that it was given last.
const STATEMENT_LIMIT: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Kills of one kind.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Tally {
    /// All of them.
    pub kills: u32,
    /// Those that were aimed.
    pub aimed: u32,
    /// Those that hit in the middle of a batch, aimed or not.
    pub in_mid_batch: u32,
    /// Those of them in which the transaction of a push was open (gateway only).
    pub in_open_push: u32,
    /// `in_mid_batch` of `kills`.
    pub share: f64,
    /// How often a program was stopped to look.
    pub looks: u32,
}

impl Tally {
    /// Counts one.
    pub fn count(&mut self, shot: Shot) {
        self.kills += 1;
        self.aimed += u32::from(shot.aimed);
        self.in_mid_batch += u32::from(shot.at != At::Rest);
        self.in_open_push += u32::from(shot.at == At::Push);
        self.looks += shot.looks;
        self.share = f64::from(self.in_mid_batch) / f64::from(self.kills);
    }
}

/// What was seen at the moment of a kill.
#[derive(Clone, Copy, Debug)]
pub struct Shot {
    aimed: bool,
    at: At,
    looks: u32,
}

/// What a program was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Between two batches.
    Rest,
    /// A batch: materialized in part, or delivered in part.
    Batch,
    /// A push: its transaction is open.
    Push,
}

/// Stops `program` and leaves it stopped: in the middle of a batch if it can be helped and `aimed` asks for it, else wherever it is.
/// `before` looks before the stop, `look` after it.
async fn stop_within<T>(
    program: &Tidegate,
    aimed: bool,
    rng: &mut Rng,
    mut before: impl AsyncFnMut() -> anyhow::Result<T>,
    mut look: impl AsyncFnMut(T) -> anyhow::Result<At>,
) -> anyhow::Result<Shot> {
    let tries = if aimed { TRIES_MAX } else { 1 };
    let mut looks = 0;
    loop {
        looks += 1;
        let seen_before = before().await?;
        program.signal(libc::SIGSTOP)?;
        let at = look(seen_before).await?;
        if at != At::Rest || looks == tries {
            return Ok(Shot { aimed, at, looks });
        }
        program.signal(libc::SIGCONT)?;
        tokio::time::sleep(Duration::from_millis(rng.u64(1..30))).await;
    }
}

/// Stops the worker, if it can be helped, where a materialization has written and not committed.
///
/// # Errors
/// When it cannot be stopped, or the server cannot be asked.
pub async fn worker(capture: &Tidegate, pool: &PgPool, aimed: bool, rng: &mut Rng) -> anyhow::Result<Shot> {
    let sessions = "a.application_name like 'tidegate capture % materialize'";
    let look = async |()| Ok(if has_open_transaction(pool, sessions).await? { At::Batch } else { At::Rest });
    stop_within(capture, aimed, rng, async || Ok(()), look).await
}

/// Stops the gateway, if it can be helped, where the transaction of a push is open, or where a batch that was durable before has
/// not reached every client that reads as fast as it can.
///
/// # Errors
/// When it cannot be stopped, or the server cannot be asked.
pub async fn gateway(
    gateway: &Tidegate,
    pool: &PgPool,
    census: &Census,
    aimed: bool,
    rng: &mut Rng,
) -> anyhow::Result<Shot> {
    let state: i32 = sqlx::query_scalar(
        "select g.state_id from tidegate.progress p join tidegate.stream_generation g on g.id = p.generation",
    )
    .fetch_one(pool)
    .await
    .context("find the projected state")?;
    let look = async |durable: Tails| {
        if has_open_transaction(pool, "a.application_name = 'tidegate push'").await? {
            return Ok(At::Push);
        }
        Ok(if is_behind(pool, state, &durable, census.take().await).await? { At::Batch } else { At::Rest })
    };
    let before = async || {
        let durable = tails(pool, state).await?;
        tokio::time::sleep(TOLD_AFTER).await;
        Ok(durable)
    };
    stop_within(gateway, aimed, rng, before, look).await
}

/// Whether one of these sessions, whose client is stopped, has a transaction with writes that nobody has committed. Its last statement
/// may still run: where that is the COMMIT, its end tells.
async fn has_open_transaction(pool: &PgPool, sessions: &str) -> anyhow::Result<bool> {
    let sql = format!(
        "select coalesce(bool_or(a.state = 'active'), false), coalesce(bool_or(a.state <> 'active' and a.backend_xid is not null), false)
         from pg_stat_activity a where a.datname = current_database() and {sessions}"
    );
    let limit = tokio::time::Instant::now() + STATEMENT_LIMIT;
    loop {
        let (active, open): (bool, bool) =
            sqlx::query_as(AssertSqlSafe(sql.clone())).fetch_one(pool).await.context("look at sessions")?;
        if open || !active {
            return Ok(open);
        }
        if tokio::time::Instant::now() > limit {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Scope names with the position of their last durable effect.
type Tails = (Vec<String>, Vec<String>);

async fn tails(pool: &PgPool, state: i32) -> anyhow::Result<Tails> {
    let sql = format!(
        "select coalesce(array_agg(name), '{{}}'), coalesce(array_agg(tail_commit_lsn::text), '{{}}')
         from tidegate_projection.s{state}_scope where tail_commit_lsn is not null"
    );
    sqlx::query_as(AssertSqlSafe(sql)).fetch_one(pool).await.context("read what is durable")
}

/// Whether a client stands before what was durable: none of the effects from there on left the scope as that client holds it.
async fn is_behind(pool: &PgPool, state: i32, durable: &Tails, held: Vec<Standing>) -> anyhow::Result<bool> {
    let (names, digests): (Vec<String>, Vec<[u8; 16]>) = held.into_iter().unzip();
    let sql = format!(
        "select exists (
             select from (select distinct * from unnest($1::text[], $2::bytea[]) as h(name, digest)) h
             join unnest($3::text[], $4::text[]) as d(name, tail) on d.name = h.name
             join tidegate_projection.s{state}_scope s on s.name = h.name
             where not exists (select from tidegate.effect e
                 where e.scope_id = s.scope_id and e.commit_lsn >= d.tail::pg_lsn and e.digest_after = h.digest))"
    );
    sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(&names)
        .bind(&digests)
        .bind(&durable.0)
        .bind(&durable.1)
        .fetch_one(pool)
        .await
        .context("compare clients with what is durable")
}
