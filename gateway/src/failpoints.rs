//! Named moments at which a test may pause or delay the gateway (feature `failpoints`; otherwise they compile to nothing). One name
//! per arrow of the flow from log to socket.

/// A tail read is about to begin.
pub const TAIL_READ: &str = "TAIL_READ";
/// A batch was read; nobody has it.
pub const TAIL_PUBLISH: &str = "TAIL_PUBLISH";
/// A session is registered; its client's numbers have not been read.
pub const SESSION_REGISTERED: &str = "SESSION_REGISTERED";
/// A session's stretch of the log was read; it has not been sent.
pub const SCOPE_READ: &str = "SCOPE_READ";
/// A page of a rebuild was read; it has not been sent.
pub const REBUILD_READ: &str = "REBUILD_READ";
/// A push is about to run.
pub const PUSH_RUN: &str = "PUSH_RUN";
/// A push has ended; its outcome has not been told.
pub const PUSH_ENDED: &str = "PUSH_ENDED";

/// Every name.
pub const ALL: &[&str] =
    &[TAIL_READ, TAIL_PUBLISH, SESSION_REGISTERED, SCOPE_READ, REBUILD_READ, PUSH_RUN, PUSH_ENDED];
