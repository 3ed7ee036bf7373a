//! Named moments at which a test may hold the gateway up (feature `failpoints`; otherwise they compile to nothing). One name per
//! arrow of the flow from log to socket and from socket to outcome.
//!
//! Whoever is held up waits as a task, not as a thread: everything else of the process goes on. Dropping a held task is how a test
//! makes the gateway fail there.

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* pub const $name: &str = stringify!($name);)*
        /// Every name.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

names! {
    /// A tail read is about to begin. On nobody's behalf.
    TAIL_READ;
    /// A batch was read; nobody has it. On nobody's behalf.
    TAIL_PUBLISH;
    /// A session is registered at the hub; its grants have not come.
    SESSION_REGISTERED;
    /// A session has its grants; its client's numbers have not been read.
    SESSION_EVALUATED;
    /// A session's stretch of the log is about to be read.
    SCOPE_ASKED;
    /// A session's stretch of the log was read; the session does not have it.
    SCOPE_READ;
    /// A page of a rebuild is about to be read.
    REBUILD_ASKED;
    /// A page of a rebuild was read; the session does not have it.
    REBUILD_READ;
    /// A push is about to run.
    PUSH_RUN;
    /// A push has ended, durably; its outcome has not been told.
    PUSH_ENDED;
}

/// Comes to a point on behalf of `whom`, a subject.
#[cfg(not(feature = "failpoints"))]
pub(crate) async fn reach(_point: &'static str, _whom: &str) {}

#[cfg(feature = "failpoints")]
mod hold;
#[cfg(feature = "failpoints")]
pub use hold::Hold;
#[cfg(feature = "failpoints")]
pub(crate) use hold::reach;
