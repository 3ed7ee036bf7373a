//! Finds, initialises, starts and stops a private PostgreSQL. Used by `tidegate dev` and by every test.
//!
//! Synchronous, Unix only, on no other crate of ours. A program does:
//!
//! ```no_run
//! # fn main() -> Result<(), tidegate_embedded::Error> {
//! use tidegate_embedded::{Binaries, Cluster, Options};
//! let dir = std::path::Path::new(".tidegate/postgres");
//! let binaries = Binaries::find_for_cluster(dir, None)?; // or find(None), find_version(18)
//! let mut cluster = Cluster::open_or_init(Options::new(binaries, dir))?;
//! cluster.start()?;
//! let url = cluster.connection_url("postgres"); // carries the password: never print it
//! # Ok(()) }
//! ```
//!
//! `stop(Stop::Fast)`, `restart`, `kill`, `is_running`, `pid`, `port`, `tool("psql", "postgres")` and `log_tail` do
//! what they say. Dropping a cluster stops its server; a watchdog stops it when this process is killed. As root the
//! server runs as an unprivileged user.
//!
//! A test (feature `testing`, in dev-dependencies) does:
//!
//! ```text
//! use tidegate_embedded::pg_test;
//! use tidegate_embedded::testing::{Kind, TestDatabase, TestServer};
//!
//! // One test per PostgreSQL version: f3_rolls_back_with_its_row::pg15 and ::pg18.
//! pg_test!(NoSlots, async fn f3_rolls_back_with_its_row(db: TestDatabase) {
//!     let pool = connect(&db.url()).await; // dropped at the end, slots too
//! });
//!
//! // By hand: a database from a template that is built once per server and key.
//! let server = TestServer::get(15, Kind::Slots)?;
//! let template = server.template_async(&schema_hash, |url| async move { migrate(&url).await }).await?;
//! let db = server.create_database_from(&template)?;
//!
//! // A server of the test's own, with settings; killed, stopped and started at the same port.
//! // In the macro: pg_test!(Private { "wal_sender_timeout" = "2s" }, async fn name(server: TestServer) { … });
//! let server = TestServer::private(18, &[("wal_sender_timeout", "2s")])?;
//! server.kill()?;
//! server.start()?;
//! ```
//!
//! A crate's own fixture implements `testing::TestContext` and stands where `TestDatabase` stands.

mod binaries;
mod cluster;
mod configuration;
mod error;
mod fetch;
mod initdb;
mod options;
mod port;
mod postmaster;
mod run_as;
#[cfg(feature = "testing")]
pub mod testing;
mod watchdog;

pub use binaries::{BIN_VARIABLE, Binaries, CACHE_VARIABLE, MAJOR_MAX, MAJOR_MIN, Version};
pub use cluster::Cluster;
pub use error::{Error, NotFound};
pub use options::{Auth, Lifetime, Options, Stop};
pub use run_as::{RunAs, USER_VARIABLE, is_root};
