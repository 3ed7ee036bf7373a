//! PostgreSQL for tests: shared servers with a database per test, and private servers to kill.
//!
//! Loopback servers with a generated password, `wal_level = logical`, 64 slots and walsenders. Shared ones run without
//! fsync and serve all test processes of a run; see [`Kind`] for which to take. A version that cannot be had is an
//! error with its reason: a test that could not run fails.
//!
//! Roles and slots belong to the server, not to a database: on a shared server a test names them after its database,
//! and drops its roles itself. A private server takes settings at its start, or by `alter system` and a restart.
//!
//! Environment: `TIDEGATE_TEST_PG=15,18` chooses the versions, `TIDEGATE_TEST_DIR` the servers' folder,
//! `TIDEGATE_TEST_IDLE` the seconds after which an unused shared server goes, `TIDEGATE_TEST_KEEP` keeps databases.

mod blocking;
mod shared;
mod sql;
mod template;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::binaries::Binaries;
use crate::cluster::{Cluster, SUPERUSER, client_command};
use crate::error::Error;
use crate::options::{Lifetime, Stop};

pub use shared::{TEST_DIR_VARIABLE, TEST_IDLE_VARIABLE};
pub use sql::Rows;
pub use template::{TEST_KEEP_VARIABLE, Template, TemplateBuild, TemplateState, TestDatabase};

/// Chooses the major versions that [`majors`] gives, separated by commas.
pub const TEST_PG_VARIABLE: &str = "TIDEGATE_TEST_PG";

/// Which server a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Shared. For tests that create no replication slot: creating one waits for every open transaction of the
    /// whole server, so tests that hold transactions open must not meet tests that create slots.
    NoSlots,
    /// Shared. For tests that create slots; they must not hold transactions open for long.
    Slots,
    /// Shared. For tests that create many slots and write briefly, so that none of them waits for those on [`Slots`](Self::Slots)
    /// that write without pause.
    BriefSlots,
    /// The test's own, with fsync, thrown away at the end. For tests that stop, kill or reconfigure the server.
    Private,
}

/// Failure of a test server. Panic with it: it says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    /// The server could not be had.
    #[error(transparent)]
    Embedded(#[from] Error),
    /// The server refused a statement.
    #[error("{message} (SQLSTATE {code})")]
    Server {
        /// SQLSTATE.
        code: String,
        /// The primary message, without DETAIL.
        message: String,
    },
    /// The connection did not go as expected.
    #[error("talk to the test server: {0}")]
    Protocol(String),
    /// An operating system call failed.
    #[error("use the test server: {0}")]
    Io(#[from] io::Error),
    /// The caller's builder of a template failed.
    #[error("build a template: {0}")]
    Template(Box<dyn std::error::Error + Send + Sync>),
}

/// The major versions to test: 15 and 18, or those of `TIDEGATE_TEST_PG`.
///
/// # Panics
/// If the variable is set and no list of numbers.
pub fn majors() -> Vec<u32> {
    match std::env::var(TEST_PG_VARIABLE) {
        Ok(list) => list
            .split(',')
            .map(|major| match major.trim().parse() {
                Ok(major) => major,
                Err(_) => panic!("{TEST_PG_VARIABLE} must list major versions, as in 15,18"),
            })
            .collect(),
        Err(_) => vec![15, 18],
    }
}

/// A server to test against. Clones are the same server.
#[derive(Clone)]
pub struct TestServer {
    inner: Arc<Inner>,
}

struct Inner {
    major: u32,
    kind: Kind,
    binaries: Binaries,
    port: u16,
    password: String,
    lock_dir: PathBuf,
    /// Of a private server only.
    cluster: Option<Mutex<Cluster>>,
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestServer({} {:?})", self.inner.major, self.inner.kind)
    }
}

impl TestServer {
    /// A server of this major version and kind. Blocks while one is started.
    pub fn get(major: u32, kind: Kind) -> Result<Self, TestError> {
        match kind {
            Kind::Private => Self::private(major, &[]),
            _ => Self::shared(major, kind),
        }
    }

    fn shared(major: u32, kind: Kind) -> Result<Self, TestError> {
        static JOINED: Mutex<Option<HashMap<(u32, Kind), TestServer>>> = Mutex::new(None);
        let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = joined.get_or_insert_with(HashMap::new);
        if let Some(server) = joined.get(&(major, kind)) {
            return Ok(server.clone());
        }
        let binaries = Binaries::find_version(major)?;
        let place = shared::join(binaries.clone(), kind)?;
        let inner = Inner {
            major,
            kind,
            binaries,
            port: place.port,
            password: place.password,
            lock_dir: place.dir,
            cluster: None,
        };
        let server = Self { inner: Arc::new(inner) };
        template::sweep(&mut server.session("postgres")?)?;
        joined.insert((major, kind), server.clone());
        Ok(server)
    }

    /// A server of the test's own with these settings on top: `&[("wal_sender_timeout", "2s")]`.
    pub fn private(major: u32, settings: &[(&str, &str)]) -> Result<Self, TestError> {
        let binaries = Binaries::find_version(major)?;
        shared::sweep_private();
        let folder = tempfile::Builder::new().prefix("private-").tempdir_in(shared::test_dir()?)?;
        let mut options = shared::test_options(binaries.clone(), folder.path());
        for (name, value) in settings {
            options = options.setting(name, value);
        }
        options.lifetime = Lifetime::ThrowAway;
        let mut cluster = Cluster::init(options)?;
        cluster.start()?;
        let dir = folder.keep();
        let inner = Inner {
            major,
            kind: Kind::Private,
            binaries,
            port: cluster.port().unwrap_or_default(),
            password: cluster.password().to_owned(),
            lock_dir: dir,
            cluster: Some(Mutex::new(cluster)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The server's major version.
    pub fn major(&self) -> u32 {
        self.inner.major
    }

    /// The server's kind.
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// The server programs, for tools such as `pg_dump`.
    pub fn binaries(&self) -> &Binaries {
        &self.inner.binaries
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// The superuser's name.
    pub fn user(&self) -> &'static str {
        SUPERUSER
    }

    /// The superuser's password.
    pub fn password(&self) -> &str {
        &self.inner.password
    }

    /// A connection string for the superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}:{}@127.0.0.1:{}/{database}", self.inner.password, self.inner.port)
    }

    /// A client program of this version, such as `psql`, with its connection in the environment.
    pub fn tool(&self, name: &str, database: &str) -> Result<Command, TestError> {
        Ok(client_command(&self.inner.binaries, name, self.inner.port, &self.inner.password, database)?)
    }

    /// Runs SQL on a connection of its own. Text in, text out.
    pub fn sql(&self, database: &str, sql: &str) -> Result<Rows, TestError> {
        self.session(database)?.query(sql)
    }

    /// A new database made from `template1`.
    pub fn create_database(&self) -> Result<TestDatabase, TestError> {
        template::create(self, None)
    }

    /// A new database made from a template.
    pub fn create_database_from(&self, template: &Template) -> Result<TestDatabase, TestError> {
        template::create(self, Some(template))
    }

    /// The template of this key, or the right to build it. Waits while another process builds it.
    ///
    /// The key stands for the content: put a hash of the schema into it, so that a changed schema makes a new template.
    pub fn template_or_build(&self, key: &str) -> Result<TemplateState, TestError> {
        template::template_or_build(self, key)
    }

    /// The template of this key, built once per server by the closure, which gets the connection string of an empty
    /// database and must have closed its connections when it returns.
    pub fn template<E>(
        &self,
        key: &str,
        build: impl FnOnce(&str) -> Result<(), E>,
    ) -> Result<Template, TestError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self.template_or_build(key)? {
            TemplateState::Ready(template) => Ok(template),
            TemplateState::Build(work) => {
                build(&work.url()).map_err(|err| TestError::Template(err.into()))?;
                work.finish()
            }
        }
    }

    /// As [`template`](Self::template), for a builder that awaits. Waiting does not block the executor.
    pub async fn template_async<F, E>(
        &self,
        key: &str,
        build: impl FnOnce(String) -> F,
    ) -> Result<Template, TestError>
    where
        F: Future<Output = Result<(), E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (server, key) = (self.clone(), key.to_owned());
        match blocking::blocking(move || server.template_or_build(&key)).await? {
            TemplateState::Ready(template) => Ok(template),
            TemplateState::Build(work) => {
                build(work.url()).await.map_err(|err| TestError::Template(err.into()))?;
                blocking::blocking(move || work.finish()).await
            }
        }
    }

    /// The cluster of a private server.
    ///
    /// # Panics
    /// If the server is shared: nobody may stop or change what other tests use.
    pub fn cluster(&self) -> MutexGuard<'_, Cluster> {
        match &self.inner.cluster {
            Some(cluster) => cluster.lock().unwrap_or_else(PoisonError::into_inner),
            None => panic!("a shared test server cannot be stopped or changed: use Kind::Private"),
        }
    }

    /// Starts a private server again, at its old port on Linux. Panics if the server is shared.
    pub fn start(&self) -> Result<(), TestError> {
        Ok(self.cluster().start()?)
    }

    /// Stops a private server. Panics if the server is shared.
    pub fn stop(&self, how: Stop) -> Result<(), TestError> {
        Ok(self.cluster().stop(how)?)
    }

    /// Stops a private server as told and starts it again. Panics if the server is shared.
    pub fn restart(&self, how: Stop) -> Result<(), TestError> {
        Ok(self.cluster().restart(how)?)
    }

    /// Kills a private server's main process with SIGKILL. Panics if the server is shared.
    pub fn kill(&self) -> Result<(), TestError> {
        Ok(self.cluster().kill()?)
    }

    fn session(&self, database: &str) -> Result<sql::Session, TestError> {
        sql::Session::connect(self.inner.port, &self.inner.password, database)
    }

    fn lock_dir(&self) -> &Path {
        &self.inner.lock_dir
    }
}

/// What [`pg_test!`](crate::pg_test) can hand to a test. Implement it for a crate's own fixture, such as a database
/// with the schema loaded; panic if it cannot be made.
pub trait TestContext: Sized {
    /// Makes the fixture on this server.
    fn prepare(server: TestServer) -> impl Future<Output = Self>;
}

impl TestContext for TestServer {
    async fn prepare(server: TestServer) -> Self {
        server
    }
}

impl TestContext for TestDatabase {
    async fn prepare(server: TestServer) -> Self {
        match server.create_database() {
            Ok(database) => database,
            Err(err) => panic!("create a test database: {err}"),
        }
    }
}

/// The server of a generated test; `None` if `TIDEGATE_TEST_PG` leaves this version out.
#[doc(hidden)]
pub fn server_for_test(major: u32, kind: Kind, settings: &[(&str, &str)]) -> Option<TestServer> {
    if !majors().contains(&major) {
        eprintln!("{TEST_PG_VARIABLE} leaves PostgreSQL {major} out: nothing is tested here");
        return None;
    }
    assert!(kind == Kind::Private || settings.is_empty(), "only a private server takes settings");
    let server = match kind {
        Kind::Private => TestServer::private(major, settings),
        _ => TestServer::get(major, kind),
    };
    match server {
        Ok(server) => Some(server),
        Err(err) => panic!("have a PostgreSQL {major} to test with: {err}"),
    }
}

/// Makes one `#[tokio::test]` per PostgreSQL version out of an async function: `name::pg15` and `name::pg18`.
///
/// The argument's type is a [`TestContext`](crate::testing::TestContext), the first word a
/// [`Kind`](crate::testing::Kind). The calling crate needs `tokio` with `macros` and `rt-multi-thread`.
///
/// ```text
/// pg_test!(NoSlots, async fn f3_rolls_back_with_its_row(db: TestDatabase) {
///     assert_eq!(db.sql("select 1").unwrap().len(), 1);
/// });
/// pg_test!(
///     Private { "wal_sender_timeout" = "2s" },
///     async fn survives_a_kill(server: TestServer) -> anyhow::Result<()> {
///         server.kill()?;
///         Ok(server.start()?)
///     }
/// );
/// ```
#[macro_export]
macro_rules! pg_test {
    (
        $(#[$meta:meta])*
        $kind:ident $({ $($setting:literal = $value:literal),* $(,)? })?,
        async fn $name:ident($arg:ident: $context:ty $(,)?) $(-> $out:ty)? $body:block
    ) => {
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            const KIND: $crate::testing::Kind = $crate::testing::Kind::$kind;
            const SETTINGS: &[(&str, &str)] = &[$($(($setting, $value)),*)?];

            async fn body($arg: $context) $(-> $out)? $body

            $crate::pg_test!(@one pg15, 15, $context, $($out)?);
            $crate::pg_test!(@one pg18, 18, $context, $($out)?);
        }
    };
    (@one $test:ident, $major:literal, $context:ty, $out:ty) => {
        #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() -> $out {
            match $crate::testing::server_for_test($major, KIND, SETTINGS) {
                Some(server) => body(<$context as $crate::testing::TestContext>::prepare(server).await).await,
                None => Ok(()),
            }
        }
    };
    (@one $test:ident, $major:literal, $context:ty,) => {
        #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            if let Some(server) = $crate::testing::server_for_test($major, KIND, SETTINGS) {
                body(<$context as $crate::testing::TestContext>::prepare(server).await).await;
            }
        }
    };
}
