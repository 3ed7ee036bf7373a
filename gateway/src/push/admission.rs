//! Who may run: as many as there are connections, and a bounded number that waits a bounded time.

use super::failure::unavailable;
use super::reply::{PushError, RETRY_MS};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_protocol::ErrorCode;
use tokio::sync::{Semaphore, SemaphorePermit};

pub(super) struct Admission {
    running: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait_max: Duration,
}

/// Counts one who waits, for as long as it does, also when its socket goes away meanwhile.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    pub(super) fn new(running_max: u32, waiting_max: usize, wait_max: Duration) -> Admission {
        let running = Semaphore::new(running_max as usize);
        Admission { running, waiting: AtomicUsize::new(0), waiting_max, wait_max }
    }

    /// A place among those that run, or a named refusal.
    pub(super) async fn enter(&self) -> Result<SemaphorePermit<'_>, PushError> {
        if let Ok(permit) = self.running.try_acquire() {
            return Ok(permit);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        if before >= self.waiting_max {
            let message = "too many pushes are waiting";
            return Err(PushError::retry_after(ErrorCode::Unavailable, message, RETRY_MS));
        }
        match tokio::time::timeout(self.wait_max, self.running.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(unavailable()),
            Err(_) => Err(PushError::retry_after(ErrorCode::Unavailable, "pushes take too long", RETRY_MS)),
        }
    }
}
