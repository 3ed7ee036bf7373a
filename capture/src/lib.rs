//! The capture worker: reads the WAL and materializes effects.
//!
//! ```text
//! WAL ─ source ─ intake (decode, assemble, pair) ─ materialize (project, membership, effects) ─ acknowledge ─ notify
//!                                                   one database transaction                    slot
//! ```
//!
//! [`run()`] owns the order of the awaits; what each stage decides is pure and lives in `tidegate-stream`. Exactly one worker owns a
//! stream (`ownership`); every failure ends its session, and `supervise` decides what follows. A first start, or a reset, makes
//! the state that the stream continues from (`baseline`). Operators deal with what blocks through [`poison`] and [`reset`].
//!
//! Absent here: any client, any knowledge of the gateway. They meet in PostgreSQL.

mod acknowledge;
mod baseline;
mod columns;
mod config;
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
pub use run::run;
