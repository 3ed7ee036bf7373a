//! Named moments at which a test may kill or pause the worker (feature `failpoints`; otherwise they compile to nothing).
//!
//! Action `return` ends the worker on the spot, as a crash would: nothing is cleaned up, connections drop. `pause` stops it as
//! SIGSTOP would. One name per arrow of the flow, per step of A4 and per phase of a baseline.

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* pub const $name: &str = stringify!($name);)*
        /// Every name.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

names! {
    /// The worker row is ours; nothing else has happened.
    OWNERSHIP_CLAIMED;
    /// The slot is reconciled (A8); the stream has not been started.
    SLOT_RECONCILED;
    /// The server has accepted START_REPLICATION.
    STREAM_STARTED;
    /// One event of the stream has been taken in, be it the last of its transaction or not; nothing of it is written.
    EVENT_RECEIVED;
    /// A whole transaction has been decoded and assembled; nothing of it is written.
    TRANSACTION_ASSEMBLED;
    /// Its fences are paired.
    TRANSACTION_PAIRED;
    /// Inside the materialization transaction, epoch checked, nothing written.
    MATERIALIZE_BEGUN;
    /// Old rows and scopes are read.
    MATERIALIZE_READ;
    /// Everything is written, progress too; not committed.
    MATERIALIZE_WRITTEN;
    /// The commit has returned; nobody has been told.
    MATERIALIZE_COMMITTED;
    /// The processed boundary of an idle observation is durable; the server has not been told.
    IDLE_RECORDED;
    /// The status update is on its way.
    STATUS_REPORTED;
    /// The slot's position has been read back; the acknowledgement is not recorded.
    SLOT_READ_BACK;
    /// The acknowledgement is recorded.
    ACKNOWLEDGED;
    /// A poison record is about to be written.
    POISON_BEFORE_RECORD;
    /// A baseline's record exists; its slot does not.
    BASELINE_RECORDED;
    /// The slot exists on the server; the record does not say so yet.
    BASELINE_SLOT_CREATED;
    /// The record has the consistent point; nothing is staged.
    BASELINE_SLOT_RECORDED;
    /// Rows are staged; not committed.
    BASELINE_COPIED;
    /// The staged phase is durable.
    BASELINE_STAGED;
    /// The marker is in the WAL; catch-up has not begun.
    BASELINE_MARKED;
    /// The barrier is reached and recorded.
    BASELINE_CAUGHT_UP;
    /// Recomputation agreed and is recorded.
    BASELINE_VERIFIED;
    /// Activation is written; not committed.
    BASELINE_ACTIVATING;
    /// Activation is durable.
    BASELINE_ACTIVATED;
}

/// Ends the calling function with [`crate::CaptureError::Killed`] where a test says so.
macro_rules! fail_point {
    ($name:ident) => {
        fail::fail_point!($crate::failpoints::$name, |_| Err($crate::CaptureError::Killed(
            $crate::failpoints::$name
        )));
    };
}
pub(crate) use fail_point;
