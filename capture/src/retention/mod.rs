//! Retention: effects that are old, or more than there is room for, go in bounded batches beside the stream, with the records of
//! their transactions. A task of its own does it, on a connection of its own, for as long as its worker owns the stream.
//!
//! Nothing here can disturb a reader or the stream: floors move with the effects, in one transaction; a scope that is being
//! materialized is left for the next batch; between two batches the server has as long for itself as the last one took.

use crate::columns::SqlLsn;
use crate::config::Limits;
use crate::endpoint::Endpoint;
use crate::error::Doing;
use crate::progress::Stream;
use crate::settings::{self, Purpose};
use crate::{CaptureError, ownership::Claim};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use std::time::{Duration, Instant};
use tidegate_model::{GenerationId, Lsn, StateId};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Shortest time that effects are kept. Whoever rebuilds or resumes has this long to catch up with what it began with; a gateway
/// that has not read for longer begins anew.
pub const RETENTION_MIN: Duration = Duration::from_secs(15 * 60);

/// Batches in a row that may find every scope locked before the rest is left for the next pass.
const LOCKED_MAX: u32 = 50;
/// Pause after such a batch.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);

/// What a session of the worker owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tenure {
    epoch: i64,
    generation: GenerationId,
    state: StateId,
}

/// The loop's end of retention.
pub(crate) struct Retention {
    tenure: watch::Sender<Option<Tenure>>,
    task: JoinHandle<()>,
}

impl Retention {
    /// Starts the task. It begins with the first session.
    pub(crate) fn start(endpoint: Endpoint, worker: Uuid, limits: Limits) -> Retention {
        let (tenure, seen) = watch::channel(None);
        let remover =
            Remover { endpoint, worker, limits, seen, connection: None, counted: Counted::default() };
        Retention { tenure, task: tokio::spawn(remover.run()) }
    }

    /// A session streams.
    pub(crate) fn streaming(&self, claim: Claim, stream: &Stream) {
        let (generation, state) = (stream.generation, stream.state);
        self.tenure.send_replace(Some(Tenure { epoch: claim.epoch, generation, state }));
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is known of a tenure's log from pass to pass.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    of: Option<Tenure>,
    /// Bytes of effects whose transactions have records, through [`through`](Self::through).
    bytes: u64,
    through: Lsn,
    /// No effect lies before.
    from: Lsn,
}

struct Remover {
    endpoint: Endpoint,
    worker: Uuid,
    limits: Limits,
    seen: watch::Receiver<Option<Tenure>>,
    connection: Option<PgConnection>,
    counted: Counted,
}

impl Remover {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(self.limits.retention_interval).await;
            let Some(tenure) = *self.seen.borrow_and_update() else { continue };
            if let Err(error) = self.pass(tenure).await {
                tracing::warn!(%error, "retention goes on later");
                self.connection = None;
            }
        }
    }

    /// Everything that may go now.
    async fn pass(&mut self, tenure: Tenure) -> Result<(), CaptureError> {
        if self.counted.of != Some(tenure) {
            self.counted = Counted { of: Some(tenure), ..Counted::default() };
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => {
                let purpose = Purpose::Retention;
                empty.insert(settings::connect(&self.endpoint, self.worker, purpose, &self.limits).await?)
            }
        };
        let mut pass = Pass { connection, tenure, limits: &self.limits, counted: &mut self.counted };
        pass.left().await?;
        if let Some(through) = pass.bounds().await? {
            let removed = pass.effects(through).await?;
            if let Some(removed) = removed {
                pass.ledger(through).await?;
                if removed > 0 {
                    tracing::info!(effects = removed, %through, "retention: removed effects");
                }
            }
        }
        metrics::gauge!("tidegate_effect_log_bytes").set(self.counted.bytes as f64);
        Ok(())
    }
}

/// One pass over the log.
struct Pass<'a> {
    connection: &'a mut PgConnection,
    tenure: Tenure,
    limits: &'a Limits,
    counted: &'a mut Counted,
}

impl Pass<'_> {
    /// Removes what earlier generations have left.
    async fn left(&mut self) -> Result<(), CaptureError> {
        loop {
            let began = Instant::now();
            let row = sqlx::query(include_str!("left.sql"))
                .bind(self.tenure.epoch)
                .bind(self.tenure.generation.0)
                .bind(i64::from(self.limits.retention_batch))
                .fetch_one(&mut *self.connection)
                .await
                .doing("remove what an earlier generation has left")?;
            if get::<i64>(&row, "removed")? == 0 {
                return Ok(());
            }
            tokio::time::sleep(began.elapsed()).await;
        }
    }

    /// Through which transaction effects may go; `None`: none may.
    async fn bounds(&mut self) -> Result<Option<Lsn>, CaptureError> {
        let limits = self.limits;
        let kept_at_least = limits.retention_min.min(limits.retention_age);
        let excess = self.counted.bytes.saturating_sub(limits.retention_bytes);
        let row = sqlx::query(include_str!("bounds.sql"))
            .bind(self.tenure.epoch)
            .bind(self.tenure.generation.0)
            .bind(limits.retention_age.as_secs_f64())
            .bind(kept_at_least.as_secs_f64())
            .bind(i64::try_from(excess).unwrap_or(i64::MAX))
            .bind(SqlLsn(self.counted.through))
            .fetch_optional(&mut *self.connection)
            .await
            .doing("look which effects may go")?;
        let Some(row) = row else { return Ok(None) };
        let Some(tip) = get::<Option<SqlLsn>>(&row, "tip")? else { return Ok(None) };
        self.counted.bytes += get::<i64>(&row, "new_bytes")? as u64;
        self.counted.through = tip.0;
        if excess == 0 && self.counted.bytes > limits.retention_bytes {
            // What has just been counted is too much already.
            return Box::pin(self.bounds()).await;
        }
        Ok(get::<Option<SqlLsn>>(&row, "through")?.map(|through| through.0))
    }

    /// Removes effects through this transaction. Gives how many, or `None` when some are left for the next pass.
    async fn effects(&mut self, through: Lsn) -> Result<Option<u64>, CaptureError> {
        let text = include_str!("batch.sql").replace("{state}", &self.tenure.state.to_string());
        let (mut total, mut locked) = (0, 0);
        loop {
            let began = Instant::now();
            let row = sqlx::query(AssertSqlSafe(text.clone()))
                .bind(self.tenure.epoch)
                .bind(self.tenure.generation.0)
                .bind(SqlLsn(self.counted.from))
                .bind(SqlLsn(through))
                .bind(i64::from(self.limits.retention_batch))
                .fetch_one(&mut *self.connection)
                .await
                .doing("remove effects")?;
            let (found, removed) = (get::<i64>(&row, "found")?, get::<i64>(&row, "removed")?);
            let left_out = get::<Option<SqlLsn>>(&row, "left_out")?;
            if let Some(SqlLsn(from)) = left_out.or(get(&row, "reached")?) {
                self.counted.from = from;
            }
            total += removed as u64;
            metrics::counter!("tidegate_effects_removed_total").increment(removed as u64);
            if found < i64::from(self.limits.retention_batch) && left_out.is_none() {
                return Ok(Some(total));
            }
            locked = if removed == 0 { locked + 1 } else { 0 };
            if locked == LOCKED_MAX {
                return Ok(None);
            }
            tokio::time::sleep(if removed == 0 { LOCKED_PAUSE } else { began.elapsed() }).await;
        }
    }

    /// Removes the records before the transaction at `through`, whose effects are gone.
    async fn ledger(&mut self, through: Lsn) -> Result<(), CaptureError> {
        loop {
            let began = Instant::now();
            let row = sqlx::query(include_str!("ledger.sql"))
                .bind(self.tenure.epoch)
                .bind(self.tenure.generation.0)
                .bind(SqlLsn(through))
                .bind(i64::from(self.limits.retention_batch))
                .fetch_one(&mut *self.connection)
                .await
                .doing("remove records of transactions")?;
            self.counted.bytes = self.counted.bytes.saturating_sub(get::<i64>(&row, "bytes")? as u64);
            if get::<i64>(&row, "removed")? < i64::from(self.limits.retention_batch) {
                return Ok(());
            }
            tokio::time::sleep(began.elapsed()).await;
        }
    }
}

fn get<'r, T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>>(
    row: &'r PgRow,
    column: &str,
) -> Result<T, CaptureError> {
    row.try_get(column).doing("read an answer about retention")
}
