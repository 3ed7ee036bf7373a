//! The capture worker: reads the WAL and materializes effects.
//!
//! ```text
//! WAL ─ source ─ intake (decode, assemble, pair) ─ materialize (project, membership, effects) ─ acknowledge ─ notify
//!                                                   one database transaction                    slot
//! ```
//!
//! [`run()`] owns the order of the awaits; what each stage decides is pure and lives in `tidegate-stream`. Exactly one worker owns a
//! stream (`ownership`); every failure ends its session, and `supervise` decides what follows. A first start, or a reset, makes
//! the state that the stream continues from (`baseline`). Operators deal with what blocks through [`poison`] and [`reset`]. What
//! is kept no longer goes beside the stream (`retention`).
//!
//! Metrics, through the `metrics` facade, labels without values: counters `tidegate_transactions_total`, `tidegate_events_total`,
//! `tidegate_effects_total`, `tidegate_replayed_transactions_total`, `tidegate_spooled_transactions_total`, `tidegate_poison_total`
//! by class, `tidegate_idle_acknowledgements_total`, `tidegate_session_failures_total`, `tidegate_effects_removed_total`; histogram `tidegate_group_transactions`;
//! gauges `tidegate_processed_lsn`, `tidegate_acknowledged_lsn`, `tidegate_lag_bytes`, `tidegate_pending_commit_age_seconds`,
//! `tidegate_retained_wal_bytes`, `tidegate_effect_log_bytes`, and during a baseline `tidegate_baseline_rows` and `tidegate_baseline_bytes` by table.
//!
//! Absent here: any client, any knowledge of the gateway. They meet in PostgreSQL.

mod acknowledge;
mod baseline;
mod columns;
mod config;
mod decide;
mod drift;
mod endpoint;
mod error;
pub mod failpoints;
mod failure;
mod heartbeat;
mod intake;
mod materialize;
mod notify;
mod ownership;
pub mod poison;
mod progress;
mod registry;
mod replay;
pub mod reset;
mod retention;
mod run;
mod settings;
mod slot;
mod source;
mod supervise;
mod visibility;

pub use config::{Config, Limits};
pub use error::{CaptureError, Refusal};
pub use failure::{Disposition, Fault, INTERNAL_TRIES, SqlState, classify};
pub use notify::{Committed, Hooks};
pub use retention::RETENTION_MIN;
pub use run::run;
