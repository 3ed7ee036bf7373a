//! What the worker must be told. Every limit is finite and carries its unit (H1).

use crate::retention::RETENTION_MIN;
use std::path::PathBuf;
use std::time::Duration;

/// Configuration of one worker.
#[derive(Clone)]
pub struct Config {
    /// Connection string of the one database (`postgres://…`). Goes straight to the server, not through a transaction pooler.
    /// Never logged.
    pub database_url: String,
    /// Folder for transactions that do not fit into memory (R9). Files there are unlinked at once; nothing needs to survive.
    pub spool_dir: PathBuf,
    /// Limits.
    pub limits: Limits,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The connection string may hold a password.
        f.debug_struct("Config").field("spool_dir", &self.spool_dir).field("limits", &self.limits).finish()
    }
}

impl Config {
    /// Defaults for this database.
    pub fn new(database_url: impl Into<String>) -> Config {
        Config {
            database_url: database_url.into(),
            spool_dir: std::env::temp_dir(),
            limits: Limits::default(),
        }
    }
}

/// Limits of the worker, each finite.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Source transactions that may share one commit under backlog (R2).
    pub group_transactions_max: usize,
    /// Row changes that may share one commit under backlog; also the most of one piece of a large transaction.
    pub group_events_max: usize,
    /// Received bytes that may share one commit under backlog.
    pub group_bytes_max: usize,
    /// How long the first transaction of a group waits for company, at most. A group never waits while nothing arrives.
    pub group_age_max: Duration,
    /// Received bytes of one transaction kept in memory; more goes to the spool.
    pub transaction_memory_bytes_max: usize,
    /// Row changes of one transaction; more is poison (TX-07).
    pub transaction_events_max: u64,
    /// Received bytes of one transaction; more is poison (TX-07).
    pub transaction_bytes_max: u64,
    /// Received bytes that wait for the loop.
    pub receive_queue_bytes_max: usize,
    /// One protocol message, and so one row.
    pub message_bytes_max: usize,
    /// Old rows and scopes kept from one commit to the next.
    pub cache_bytes_max: usize,
    /// Shortest time between two idle acknowledgements (A10), unless [`idle_ack_bytes`](Self::idle_ack_bytes) passed.
    pub idle_ack_interval: Duration,
    /// WAL after which an idle acknowledgement does not wait for the interval (A10).
    pub idle_ack_bytes: u64,
    /// WAL beyond our own last write below which an idle acknowledgement is not worth its own WAL (A10). One such write is
    /// about 250 bytes, a heartbeat's commit record 50, a checkpoint about 8 KiB in full-page images.
    pub idle_ack_bytes_min: u64,
    /// How often, at most, the slot's position is read back and the acknowledgement recorded (A4).
    pub acknowledge_interval: Duration,
    /// How often the heartbeat is written while nothing changes. Each costs a commit record.
    pub heartbeat_interval: Duration,
    /// First delay after a transient failure; doubles up to [`backoff_max`](Self::backoff_max).
    pub backoff_min: Duration,
    /// Longest delay after a transient failure.
    pub backoff_max: Duration,
    /// How often a blocked worker looks whether an operator asked for a retry.
    pub poison_poll_interval: Duration,
    /// How often the catalogs are compared with what is registered (G5). Reads only, and writes no WAL.
    pub drift_check_interval: Duration,
    /// How long the creation of a slot may wait for open writers (B1).
    pub slot_creation_timeout: Duration,
    /// A first start waits until no table has been registered for this long.
    pub first_start_quiet: Duration,
    /// Shortest time between two notifications (S5: each is a hint).
    pub notify_interval: Duration,
    /// How long effects are kept for clients that are away. A cursor from before rebuilds.
    pub retention_age: Duration,
    /// Bytes of effects that are kept; beyond it the oldest go, but not before [`retention_min`](Self::retention_min).
    pub retention_bytes: u64,
    /// How long effects are kept whatever their size; no longer than [`retention_age`](Self::retention_age).
    pub retention_min: Duration,
    /// Time between two looks whether effects may go.
    pub retention_interval: Duration,
    /// Effects, or records, removed by one transaction.
    pub retention_batch: u32,
    /// After how long PostgreSQL ends our transaction when this process is stopped in the middle of one.
    pub idle_in_transaction_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            group_transactions_max: 4096,
            group_events_max: 20_000,
            group_bytes_max: 8 << 20,
            group_age_max: Duration::from_millis(100),
            transaction_memory_bytes_max: 32 << 20,
            transaction_events_max: 50_000_000,
            transaction_bytes_max: 64 << 30,
            receive_queue_bytes_max: 8 << 20,
            message_bytes_max: 256 << 20,
            cache_bytes_max: 32 << 20,
            idle_ack_interval: Duration::from_secs(60),
            idle_ack_bytes: 16 << 20,
            idle_ack_bytes_min: 16 << 10,
            acknowledge_interval: Duration::from_secs(1),
            heartbeat_interval: Duration::from_secs(5),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            poison_poll_interval: Duration::from_secs(1),
            drift_check_interval: Duration::from_secs(10),
            slot_creation_timeout: Duration::from_secs(60),
            first_start_quiet: Duration::from_secs(1),
            notify_interval: Duration::from_millis(2),
            retention_age: Duration::from_secs(24 * 3600),
            retention_bytes: 16 << 30,
            retention_min: RETENTION_MIN,
            retention_interval: Duration::from_secs(60),
            retention_batch: 2000,
            idle_in_transaction_timeout: Duration::from_secs(60),
        }
    }
}
