//! The one catch-up-then-live loop (S5), for every log.

use crate::{Batch, Bounds, OrderedLog, Wakes};
use std::sync::Arc;
use std::time::Duration;

/// Reads a log from a position (exclusive) to its tip and then follows it.
///
/// Catching up and following are the same act, a scan; only the wait between scans differs. The wake is armed before each
/// scan, so one that comes while the scan runs is not lost; a wake that is lost altogether delays by `rescan` at most.
#[derive(Debug)]
pub struct Subscription<L: OrderedLog> {
    log: Arc<L>,
    at: L::Position,
    wakes: Wakes<L::Position>,
    bounds: Bounds,
    rescan: Duration,
    /// The last scan reached what was then the tip.
    at_tip: bool,
}

impl<L: OrderedLog> Subscription<L> {
    /// Begins after `from` (exclusive). `rescan` is the longest wait for a wake before looking anyway.
    pub fn new(log: Arc<L>, from: L::Position, bounds: Bounds, rescan: Duration) -> Self {
        let wakes = log.wakes();
        Subscription { log, at: from, wakes, bounds, rescan, at_tip: false }
    }

    /// Where it stands: everything at or before was returned.
    pub fn position(&self) -> &L::Position {
        &self.at
    }

    /// Waits until a scan may find something: at once while catching up, else for a wake, or until `rescan` has passed.
    /// Cancel-safe.
    pub async fn ready(&mut self) {
        if self.at_tip {
            // The elapsed case is no error: it is the periodic look.
            let _ = tokio::time::timeout(self.rescan, self.wakes.beyond(&self.at)).await;
        }
    }

    /// One scan: what follows the position, which may be nothing. Moves the position past what it returns. After an error, and
    /// when cancelled, it stands where it stood.
    pub async fn scan(&mut self) -> Result<L::Batch, L::Error> {
        self.wakes.arm();
        self.at_tip = false;
        let batch = self.log.read_all(&self.at, self.bounds).await?;
        debug_assert!(*batch.through() >= self.at, "S3: a log never goes back");
        self.at = batch.through().clone();
        self.at_tip = batch.at_tip();
        Ok(batch)
    }

    /// The next batch that is not empty.
    pub async fn next(&mut self) -> Result<L::Batch, L::Error> {
        loop {
            self.ready().await;
            let batch = self.scan().await?;
            if !batch.is_empty() {
                return Ok(batch);
            }
        }
    }
}
