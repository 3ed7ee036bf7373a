//! Between the source and materialization: assembles and pairs what arrives, recognises replays, and keeps the group of whole
//! transactions that the next commit will make durable. No transaction is ever dropped from here: a failure waits until what came
//! before it is durable (R5, Q2).

use crate::CaptureError;
use crate::acknowledge::IdleObservation;
use crate::config::{Config, Limits};
use crate::failpoints::fail_point;
use crate::registry;
use crate::replay::Replay;
use crate::source::SourceEvent;
use crate::visibility;
use sqlx::PgConnection;
use std::sync::Arc;
use std::time::Instant;
use tidegate_model::{Lsn, RegistryGeneration, Snapshot};
use tidegate_stream::decode::LogicalMessage;
use tidegate_stream::{
    Assembler, FileSpool, PairedTransaction, PieceLimits, SpoolFactory, Step, Transaction,
};
use uuid::Uuid;

/// What has arrived and is not durable.
pub(crate) struct Intake {
    assembler: Assembler,
    limits: Limits,
    group: Vec<PairedTransaction>,
    group_events: u64,
    group_bytes: u64,
    group_since: Option<Instant>,
    /// A transaction that must not share a commit, and had company when it came.
    held: Option<PairedTransaction>,
    /// A failure that waits for what came before it.
    stopped: Option<CaptureError>,
    /// After a failed group: transactions that begin before this position go one by one, so that exactly the bad one fails alone.
    singly_until: Option<Lsn>,
    /// End of the newest keepalive, while nothing came after it.
    keepalive: Option<Lsn>,
    /// What was durable when the stream began.
    replay: Replay,
    /// Nothing may share a commit with the barrier from behind it.
    barrier: Option<Uuid>,
}

impl Intake {
    pub(crate) fn new(
        registry: Arc<Snapshot>,
        replay: Replay,
        config: &Config,
        singly_until: Option<Lsn>,
    ) -> Intake {
        let limits = config.limits;
        let stream_limits = tidegate_stream::Limits {
            memory_bytes: limits.transaction_memory_bytes_max,
            events_max: usize::try_from(limits.transaction_events_max).unwrap_or(usize::MAX),
            bytes_max: limits.transaction_bytes_max,
        };
        Intake {
            assembler: Assembler::new(registry, stream_limits, spool(config)),
            limits,
            group: Vec::new(),
            group_events: 0,
            group_bytes: 0,
            group_since: None,
            held: None,
            stopped: None,
            singly_until,
            keepalive: None,
            replay,
            barrier: None,
        }
    }

    /// A group ends with the transaction that carries this marker.
    pub(crate) fn end_group_at(&mut self, nonce: Uuid) {
        self.barrier = Some(nonce);
    }

    /// Takes what has come of waiting for an event. A source that fails, fails after what it has sent: that becomes durable first, or a
    /// failure that repeats itself would keep it from ever becoming so. `reader` is asked for registry snapshots and for the records of replayed transactions.
    pub(crate) async fn take(
        &mut self,
        event: Result<SourceEvent, CaptureError>,
        reader: &mut PgConnection,
    ) -> Result<(), CaptureError> {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                self.stopped = Some(error);
                return Ok(());
            }
        };
        let step = match event {
            SourceEvent::KeepAlive(end) => {
                // A3: in the middle of a transaction it says nothing about idleness.
                self.keepalive = self.assembler.is_idle().then_some(end);
                return Ok(());
            }
            SourceEvent::Begin(begin) => self.assembler.begin(begin),
            SourceEvent::Commit(commit) => self.assembler.commit(commit),
            SourceEvent::Frame(data) => self.assembler.frame(&data),
            SourceEvent::Message { transactional, prefix, content } => {
                self.assembler.logical(LogicalMessage { transactional, prefix: &prefix, content: &content })
            }
        };
        self.keepalive = None;
        fail_point!(EVENT_RECEIVED);
        let taken = match step {
            Ok(Step::Continue) => Ok(()),
            Ok(Step::Transaction(transaction)) => self.pair(*transaction, reader).await,
            Ok(Step::NeedsSnapshot { generation, xid }) => {
                match self::snapshot(reader, generation, xid).await {
                    Ok(snapshot) => self.assembler.provide_snapshot(snapshot).map_err(CaptureError::from),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error.into()),
        };
        match taken {
            // A test's crash waits for nothing.
            Err(killed @ CaptureError::Killed(_)) => Err(killed),
            // Everything before it becomes durable first, also what is on its way into a commit; then it blocks, or is tried again.
            Err(error) => {
                self.stopped = Some(error);
                Ok(())
            }
            taken => taken,
        }
    }

    async fn pair(
        &mut self,
        transaction: Transaction,
        reader: &mut PgConnection,
    ) -> Result<(), CaptureError> {
        fail_point!(TRANSACTION_ASSEMBLED);
        let paired = transaction.pair()?;
        fail_point!(TRANSACTION_PAIRED);
        if self.replay.covers(paired.header()) {
            let header = *paired.header();
            if let Some(stored) = self.replay.stored_manifest(reader, &header).await? {
                paired.verify_replay(&stored)?;
            }
            metrics::counter!("tidegate_replayed_transactions_total").increment(1);
            return Ok(());
        }
        if !paired.fits(&piece_limits(&self.limits)) && !self.group.is_empty() {
            self.held = Some(paired);
        } else {
            self.push(paired);
        }
        Ok(())
    }

    fn push(&mut self, paired: PairedTransaction) {
        self.group_events += paired.rows() as u64;
        self.group_bytes += paired.bytes();
        self.group_since.get_or_insert_with(Instant::now);
        self.group.push(paired);
    }

    /// Whether nothing more may join the group: a limit is reached, or what comes next must not share its commit.
    pub(crate) fn is_full(&self) -> bool {
        let Some((first, last)) = self.group.first().zip(self.group.last()) else {
            return self.stopped.is_some();
        };
        let singly = self.singly_until.is_some_and(|until| first.header().commit_lsn < until);
        singly
            || self.stopped.is_some()
            || self.held.is_some()
            || self.barrier.is_some_and(|nonce| last.markers().contains(&nonce))
            || self.group.len() >= self.limits.group_transactions_max
            || self.group_events >= self.limits.group_events_max as u64
            || self.group_bytes >= self.limits.group_bytes_max as u64
    }

    /// Whether the group has waited for company long enough.
    pub(crate) fn is_old(&self, now: Instant) -> bool {
        self.group_since.is_some_and(|since| now.duration_since(since) >= self.limits.group_age_max)
    }

    /// The group that the next commit makes durable.
    pub(crate) fn group(&self) -> &[PairedTransaction] {
        &self.group
    }

    /// Takes the group out; a held transaction forms the next one.
    pub(crate) fn take_group(&mut self) -> Vec<PairedTransaction> {
        let group = std::mem::take(&mut self.group);
        (self.group_events, self.group_bytes, self.group_since) = (0, 0, None);
        if let Some(held) = self.held.take() {
            self.push(held);
        }
        group
    }

    /// The failure whose turn it is, once everything before it is durable.
    pub(crate) fn take_failure(&mut self) -> Option<CaptureError> {
        if self.group.is_empty() { self.stopped.take() } else { None }
    }

    /// The newest keepalive, while nothing has come after it (A3).
    pub(crate) fn idle(&self) -> Option<IdleObservation> {
        self.keepalive.map(|keepalive_end| IdleObservation {
            keepalive_end,
            transaction_open: !self.assembler.is_idle(),
            pending_transactions: self.group.len()
                + usize::from(self.held.is_some() || self.stopped.is_some()),
            barrier: None,
        })
    }

    /// Commit time of the oldest transaction that waits, microseconds since 2000-01-01.
    pub(crate) fn pending_since_pg_micros(&self) -> Option<i64> {
        self.group.first().map(|first| first.header().committed_at_pg_micros)
    }
}

/// One piece holds a group, or a part of a transaction that is larger than a group may be.
pub(crate) fn piece_limits(limits: &Limits) -> PieceLimits {
    PieceLimits { rows_max: limits.group_events_max, bytes_max: limits.group_bytes_max }
}

/// Files without a name: nothing is left behind by a crash.
fn spool(config: &Config) -> SpoolFactory {
    let dir = config.spool_dir.clone();
    Box::new(move || {
        metrics::counter!("tidegate_spooled_transactions_total").increment(1);
        Ok(Box::new(FileSpool::new(tempfile::tempfile_in(&dir)?)))
    })
}

/// What the transaction with this id registered (G2).
async fn snapshot(
    reader: &mut PgConnection,
    generation: RegistryGeneration,
    xid: u32,
) -> Result<Arc<Snapshot>, CaptureError> {
    visibility::wait(reader, &[xid]).await?;
    registry::load(reader, generation).await
}
