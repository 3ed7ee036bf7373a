//! The hub: one tail per process reads the log in order; what somebody here subscribes to becomes pages, once, and every session
//! that they concern gets the same bytes.
//!
//! ```text
//! log ─ run ─ core ─┬ feeds (windows of recent pages)
//!                   └ mailboxes (bounded) ─ sessions
//! ```
//!
//! The hub holds no truth: losing a window, a mailbox or a hint costs latency, never data. It never waits for a session.

mod batch;
mod core;
mod feed;
mod keys;
mod mailbox;
mod page;
mod run;
#[cfg(test)]
mod tests;

pub use self::core::{Core, HubBounds, subject_hash};
pub use batch::{Batch, Snapshot};
pub use feed::{Covered, Feed, FeedKey};
pub use keys::{KeyError, KeyRing};
pub use mailbox::{Mailbox, Message, Request};
pub use page::{Page, PageBounds, Press, Stretch};
pub use run::{Epoch, Hub, HubConfig, Seat};

/// One session of this process, as the hub knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u64);
