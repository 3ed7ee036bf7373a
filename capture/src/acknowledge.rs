//! Last arrow but one. One owner of "may I acknowledge?": nothing else makes an [`AckPosition`], and the source reports nothing else.
//!
//! Order of A4: materialization commits → processed boundary recorded → status update sent → slot's position read back →
//! acknowledgement recorded. The first two are one commit; the last two cost a query each, so they happen at most once per
//! `acknowledge_interval`.

use crate::config::Limits;
use crate::failpoints::fail_point;
use crate::progress::{Boundary, ProgressWriter};
use crate::slot;
use crate::source::Source;
use crate::{CaptureError, Refusal};
use sqlx::PgConnection;
use std::time::Instant;
use tidegate_model::Lsn;

/// A position that the server may be told: everything before it is durable (A5). Earned from a commit or from a recorded idle
/// observation, of this session or of an earlier one whose record was read back; never built from a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckPosition(Lsn);

impl AckPosition {
    pub(crate) fn lsn(&self) -> Lsn {
        self.0
    }
}

/// What the loop knows when a keepalive reaches it, in stream order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleObservation {
    /// End position of the keepalive, from this connection.
    pub(crate) keepalive_end: Lsn,
    /// A source transaction has begun and not ended.
    pub(crate) transaction_open: bool,
    /// Whole transactions received and not durable.
    pub(crate) pending_transactions: usize,
    /// Activation barrier of a bootstrap that is catching up (A11).
    pub(crate) barrier: Option<Lsn>,
}

/// Owner of the acknowledgement of one connection.
#[derive(Debug)]
pub(crate) struct Acknowledger {
    processed: Lsn,
    acknowledged: Lsn,
    /// Where our own last write ended: WAL up to here says nothing about others (A10).
    own_write_end: Lsn,
    last_idle: Instant,
    last_read_back: Instant,
}

impl Acknowledger {
    /// After reconciliation, when slot and acknowledgement agree (A9).
    pub(crate) fn new(boundary: &Boundary, now: Instant) -> Acknowledger {
        Acknowledger {
            processed: boundary.processed,
            acknowledged: boundary.acknowledged,
            own_write_end: boundary.processed,
            last_idle: now,
            last_read_back: now,
        }
    }

    /// What an earlier session made durable may be told again: a crash may have come between its commit and its report (A6).
    pub(crate) fn resumed(&self) -> AckPosition {
        AckPosition(self.processed)
    }

    /// A commit has returned: its boundary may be told. Where our own writes end is learned when the acknowledgement that
    /// follows is recorded; until then no idle observation is wanted.
    pub(crate) fn committed(&mut self, processed: Lsn) -> AckPosition {
        debug_assert!(processed >= self.processed, "the processed boundary never moves back");
        self.processed = processed;
        AckPosition(self.processed)
    }

    /// Whether this keepalive may and should move the boundary (A3, A7, A10). A worker with an active poison does not stream, so
    /// it never gets here: the blocked state has no source to observe.
    pub(crate) fn wants_idle(&self, seen: IdleObservation, limits: &Limits, now: Instant) -> bool {
        // A3: only with nothing open, nothing queued and everything before it durable.
        if seen.transaction_open || seen.pending_transactions > 0 || seen.keepalive_end <= self.processed {
            return false;
        }
        // One acknowledgement at a time: the record of the last one is WAL of our own.
        if self.acknowledged < self.processed {
            return false;
        }
        if seen.barrier.is_some_and(|barrier| seen.keepalive_end > barrier) {
            return false;
        }
        // A10: the write that records it must not be what makes the next one due.
        let foreign = seen.keepalive_end.bytes_since(self.own_write_end);
        foreign >= limits.idle_ack_bytes
            || (foreign >= limits.idle_ack_bytes_min
                && now.duration_since(self.last_idle) >= limits.idle_ack_interval)
    }

    /// Records the idle boundary, then allows it to be told.
    pub(crate) async fn record_idle(
        &mut self,
        seen: IdleObservation,
        writer: &mut ProgressWriter<'_>,
        now: Instant,
    ) -> Result<AckPosition, CaptureError> {
        let (boundary, own_write_end) = writer.record_idle(self.processed, seen.keepalive_end).await?;
        fail_point!(IDLE_RECORDED);
        self.last_idle = now;
        self.own_write_end = self.own_write_end.max(own_write_end);
        Ok(self.committed(boundary.processed))
    }

    /// When there may be something to do although nothing arrives; `idle` is the newest observation.
    pub(crate) fn next_due(&self, idle: Option<IdleObservation>, limits: &Limits) -> Option<Instant> {
        let idle = idle
            .map(|seen| seen.keepalive_end)
            .filter(|end| {
                end.bytes_since(self.own_write_end) >= limits.idle_ack_bytes_min && *end > self.processed
            })
            .map(|_| self.last_idle + limits.idle_ack_interval);
        self.next_read_back(limits).or(idle)
    }

    /// When the slot's position should be read back next; `None` while nothing is outstanding.
    pub(crate) fn next_read_back(&self, limits: &Limits) -> Option<Instant> {
        (self.acknowledged < self.processed).then(|| self.last_read_back + limits.acknowledge_interval)
    }

    /// Reads the slot's position back and records the acknowledgement (A4).
    pub(crate) async fn read_back(
        &mut self,
        slot: &str,
        control: &mut PgConnection,
        writer: &mut ProgressWriter<'_>,
        now: Instant,
    ) -> Result<(), CaptureError> {
        self.last_read_back = now;
        let confirmed = slot::confirmed_flush(control, slot).await?;
        fail_point!(SLOT_READ_BACK);
        // A5: the only target is the recorded boundary, and the slot cannot be past what we told it.
        if confirmed > self.processed {
            return Err(Refusal::SlotPastProcessed { slot: confirmed, processed: self.processed }.into());
        }
        let target = confirmed;
        if target > self.acknowledged {
            let own_write_end = writer.record_acknowledged(target).await?;
            self.acknowledged = target;
            self.own_write_end = self.own_write_end.max(own_write_end);
            metrics::gauge!("tidegate_acknowledged_lsn").set(target.0 as f64);
            fail_point!(ACKNOWLEDGED);
        }
        Ok(())
    }

    /// Tells the server.
    pub(crate) fn report(&self, position: AckPosition, source: &Source) -> Result<(), CaptureError> {
        source.report(&position);
        fail_point!(STATUS_REPORTED);
        Ok(())
    }

    pub(crate) fn processed(&self) -> Lsn {
        self.processed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn acknowledger(now: Instant) -> Acknowledger {
        let boundary = Boundary { processed: Lsn(1000), acknowledged: Lsn(1000) };
        let mut it = Acknowledger::new(&boundary, now);
        it.own_write_end = Lsn(2000);
        it
    }

    fn seen(end: u64) -> IdleObservation {
        IdleObservation {
            keepalive_end: Lsn(end),
            transaction_open: false,
            pending_transactions: 0,
            barrier: None,
        }
    }

    #[test]
    fn a3_nothing_open_nothing_queued_or_no_idle_acknowledgement() {
        let now = Instant::now();
        let later = now + Duration::from_secs(3600);
        let limits = Limits::default();
        let it = acknowledger(now);
        let far = 2000 + limits.idle_ack_bytes;
        assert!(it.wants_idle(seen(far), &limits, later));
        assert!(!it.wants_idle(IdleObservation { transaction_open: true, ..seen(far) }, &limits, later));
        assert!(!it.wants_idle(IdleObservation { pending_transactions: 1, ..seen(far) }, &limits, later));
        assert!(!it.wants_idle(seen(1000), &limits, later), "not before what is processed");
        let barred = IdleObservation { barrier: Some(Lsn(1500)), ..seen(far) };
        assert!(!it.wants_idle(barred, &limits, later), "A11");
        let unacknowledged = Acknowledger { acknowledged: Lsn(999), ..acknowledger(now) };
        assert!(!unacknowledged.wants_idle(seen(far), &limits, later), "A4: the last one is not recorded");
    }

    #[test]
    fn a10_our_own_writes_and_small_moves_make_nothing_due() {
        let now = Instant::now();
        let limits = Limits::default();
        let it = acknowledger(now);
        let hour = now + Duration::from_secs(3600);
        assert!(!it.wants_idle(seen(2000), &limits, hour), "our own write");
        assert!(!it.wants_idle(seen(2000 + limits.idle_ack_bytes_min - 1), &limits, hour));
        assert!(it.wants_idle(seen(2000 + limits.idle_ack_bytes_min), &limits, hour));
        let soon = now + limits.idle_ack_interval - Duration::from_millis(1);
        assert!(!it.wants_idle(seen(2000 + limits.idle_ack_bytes_min), &limits, soon), "rate-limited");
        assert!(it.wants_idle(seen(2000 + limits.idle_ack_bytes), &limits, now), "much WAL does not wait");
    }
}
