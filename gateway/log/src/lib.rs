//! The log contract that every ordered log behind the gateway implements (S), the one subscription loop over it, the suite that
//! every adapter passes, and the adapters.
//!
//! `contract.rs` names no adapter. The loop in `subscription.rs` knows nothing of PostgreSQL. So far there is one adapter: the
//! effect log that capture materializes from the WAL.

pub mod conformance;
mod contract;
mod effect;
mod subscription;
mod wake;

pub use contract::{Batch, Bounds, OrderedLog, Place};
pub use effect::{
    ANCHOR_SQL, Anchor, ClientKey, Effect, EffectBatch, EffectLog, EffectLogError, EffectPosition,
    GrantChange, HeldGrant, Inside, Interest, Lineage, Materialized, Pending, ScopeFacts, ScopeRead,
    ScopeState, TailPosition, Told, WakeListener,
};
pub use subscription::Subscription;
pub use wake::{WakeSender, Wakes, wakes};
