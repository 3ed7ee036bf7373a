//! Finds, initialises, starts and stops a private PostgreSQL.
mod binaries;
mod cluster;
mod error;
mod fetch;
mod port;
mod postmaster;
mod run_as;
mod watchdog;

pub use binaries::{BIN_VARIABLE, Binaries, CACHE_VARIABLE, MAJOR_MAX, MAJOR_MIN, Version};
pub use cluster::{Auth, Cluster, Lifetime, Options, Stop};
pub use error::{Error, NotFound};
pub use run_as::{RunAs, USER_VARIABLE, is_root};
