//! The effect log: what capture materialized from the WAL, as PostgreSQL holds it. Nothing else in the gateway reads effects.
//!
//! Each read is one statement, so one snapshot, and each statement carries an *anchor*: server, timeline, generation, newest
//! transaction. A read whose anchor is not that of the log's [`Lineage`] is refused by name: its positions would be compared
//! with those of another history (P3, P9). So is one that no longer finds the transaction where the reader stands as it was: the
//! database was restored, and nothing in its anchor tells.

mod anchor;
mod batch;
mod listen;
mod position;
mod read;
mod row;

pub use anchor::{Anchor, Lineage};
pub use batch::{
    ClientKey, Effect, EffectBatch, GrantChange, HeldGrant, Interest, Materialized, Pending, ScopeFacts,
    ScopeRead, ScopeState, Told,
};
pub use listen::WakeListener;
pub use position::{EffectPosition, Inside, TailPosition};

use sqlx::PgPool;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_model::{Lsn, RegistryGeneration};

use crate::{Bounds, OrderedLog, WakeSender, Wakes, wakes};
use row::{Fields, kind};

/// Prefix of every statement that must be bound to a lineage: a `with` clause that defines `anchor`.
pub const ANCHOR_SQL: &str = include_str!("sql/anchor.sql");
const ANCHOR_ROW: &str = include_str!("sql/anchor_row.sql");

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum EffectLogError {
    /// The database has no stream yet: its first start has not activated.
    #[error("open the effect log: the stream has not been started")]
    NoGeneration,
    /// What was read belongs to another history. Whoever holds positions of this log must let go of them.
    #[error("read the effect log: the {0} is another one than when it was opened")]
    LineageChanged(&'static str),
    /// PostgreSQL refused or was not reachable; worth another try.
    #[error("read the effect log: {0}")]
    Database(#[from] sqlx::Error),
    /// PostgreSQL answered with something that the statement cannot return.
    #[error("read the effect log: {0}")]
    Malformed(&'static str),
}

/// The effect log of one lineage.
#[derive(Debug)]
pub struct EffectLog {
    pool: PgPool,
    lineage: Lineage,
    opened_at: TailPosition,
    registry: RegistryGeneration,
    wake: WakeSender<TailPosition>,
    /// Most pending mutations that a read brings for everybody.
    pending_max: u32,
    interest: Mutex<Arc<Interest>>,
    /// Marks of the transactions where the last tail read left its reader.
    marks: Mutex<BTreeMap<Lsn, Vec<u8>>>,
    statements: read::Statements,
    /// Statements sent so far, for metrics.
    reads: AtomicU64,
}

impl EffectLog {
    /// Opens the log of the lineage that the database is in now. The pool's connections should have the
    /// [settings](Self::CONNECTION_SETTINGS). `pending_max` bounds the pending mutations that one read brings.
    ///
    /// # Errors
    /// [`EffectLogError::NoGeneration`] before the first start has activated.
    pub async fn open(pool: PgPool, pending_max: u32) -> Result<EffectLog, EffectLogError> {
        let text = Anchor::statement("");
        let row = sqlx::query(sqlx::AssertSqlSafe(text)).fetch_optional(&pool).await?;
        let row = row.ok_or(EffectLogError::NoGeneration)?;
        let anchor = Anchor::read(&Fields(&row))?;
        Ok(EffectLog::over(pool, anchor.lineage, anchor.tip_position(), anchor.registry, pending_max))
    }

    /// The same lineage, read over other connections, with wakes of its own.
    pub fn with_pool(&self, pool: PgPool) -> EffectLog {
        EffectLog::over(pool, self.lineage, self.opened_at, self.registry, self.pending_max)
    }

    fn over(
        pool: PgPool,
        lineage: Lineage,
        opened_at: TailPosition,
        registry: RegistryGeneration,
        pending_max: u32,
    ) -> EffectLog {
        let (wake, _) = wakes();
        EffectLog {
            pool,
            lineage,
            opened_at,
            registry,
            wake,
            pending_max,
            interest: Mutex::default(),
            marks: Mutex::default(),
            statements: read::Statements::new(lineage.state),
            reads: AtomicU64::new(0),
        }
    }

    /// Settings for connections that read the log: plans that do not depend on statistics of a table that grew a second ago.
    pub const CONNECTION_SETTINGS: &'static str = "set jit = off; set enable_seqscan = off; set max_parallel_workers_per_gather = 0; set search_path = pg_catalog, pg_temp";

    /// The history it is bound to.
    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// The newest transaction when it was opened.
    pub fn opened_at(&self) -> TailPosition {
        self.opened_at
    }

    /// Registry generation in force when it was opened.
    pub fn registry(&self) -> RegistryGeneration {
        self.registry
    }

    /// The pool that it reads with.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Where wakes for this log are reported.
    pub fn wake(&self) -> &WakeSender<TailPosition> {
        &self.wake
    }

    /// What tail reads that begin from now on tell besides.
    pub fn set_interest(&self, interest: Interest) {
        *self.interest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(interest);
    }

    fn interest(&self) -> Arc<Interest> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Statements sent so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl OrderedLog for EffectLog {
    type Position = TailPosition;
    type StreamPosition = EffectPosition;
    type Stream = tidegate_model::ScopeId;
    type Batch = EffectBatch;
    type StreamBatch = ScopeRead;
    type Error = EffectLogError;

    async fn read_all(&self, from: &TailPosition, bounds: Bounds) -> Result<EffectBatch, EffectLogError> {
        self.read_tail(*from, bounds).await
    }

    async fn read_stream(
        &self,
        stream: &tidegate_model::ScopeId,
        from: &EffectPosition,
        through: &TailPosition,
        bounds: Bounds,
    ) -> Result<ScopeRead, EffectLogError> {
        self.read_scope(*stream, *from, through.end.unwrap_or(Lsn::ZERO), bounds, 0).await
    }

    fn wakes(&self) -> Wakes<TailPosition> {
        self.wake.subscribe()
    }
}
