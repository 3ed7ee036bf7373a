//! What all clients hold at one moment, asked while the gateway is stopped: whom it had served when it was killed.

use crate::replica::Replica;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Silence after which everything that was sent has been applied.
const QUIET: Duration = Duration::from_millis(60);
/// Longest wait for that silence.
const QUIET_LIMIT: Duration = Duration::from_secs(3);
/// How long clients may take to answer; who is between two connections, or slow by intent, does not.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// A joined scope of one client: name, digest of its rows.
pub type Standing = (String, [u8; 16]);

/// Shared by all clients and whoever asks.
#[derive(Debug)]
pub struct Census {
    asked: watch::Sender<u32>,
    answers: Mutex<Vec<Standing>>,
    frames: AtomicU64,
}

impl Default for Census {
    fn default() -> Census {
        Census { asked: watch::Sender::new(0), answers: Mutex::default(), frames: AtomicU64::new(0) }
    }
}

impl Census {
    /// The client's end: changes when somebody asks.
    pub fn questions(&self) -> watch::Receiver<u32> {
        self.asked.subscribe()
    }

    /// A client has applied a frame.
    pub fn count_frame(&self) {
        self.frames.fetch_add(1, Relaxed);
    }

    /// A client says what it holds.
    pub fn answer(&self, replica: &Replica) {
        let joined = replica.scopes.iter().filter(|(_, scope)| scope.joined);
        let standings = joined.map(|(name, scope)| (name.clone(), scope.rows.digest_bytes()));
        if let Ok(mut answers) = self.answers.lock() {
            answers.extend(standings);
        }
    }

    /// Waits until nothing more arrives at any client, and then asks all of them.
    pub async fn take(&self) -> Vec<Standing> {
        let limit = Instant::now() + QUIET_LIMIT;
        let mut seen = self.frames.load(Relaxed);
        loop {
            tokio::time::sleep(QUIET).await;
            let now = self.frames.load(Relaxed);
            if now == seen || Instant::now() > limit {
                break;
            }
            seen = now;
        }
        if let Ok(mut answers) = self.answers.lock() {
            answers.clear();
        }
        self.asked.send_modify(|asked| *asked += 1);
        tokio::time::sleep(ANSWER_TIME).await;
        self.answers.lock().map(|mut answers| std::mem::take(&mut *answers)).unwrap_or_default()
    }
}
