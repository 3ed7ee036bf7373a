//! Databases for tests, and the templates that they are copied from.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::sql::Session;
use super::{Kind, Rows, TestError, TestServer};
use crate::postmaster::{is_alive, wait_until};

/// Set to keep the databases of tests, for a look at them as long as their server runs.
pub const TEST_KEEP_VARIABLE: &str = "TIDEGATE_TEST_KEEP";

/// SQLSTATE object_in_use.
const IN_USE: &str = "55006";

/// A finished template database: nobody connects to it any more.
#[derive(Debug, Clone)]
pub struct Template {
    pub(super) name: String,
}

/// A database of its own for one test, dropped at the end together with its replication slots.
#[derive(Debug)]
pub struct TestDatabase {
    server: TestServer,
    name: String,
}

impl TestDatabase {
    /// A database that is there already, on a private server that was stopped meanwhile. Goes with the server.
    pub fn existing(server: &TestServer, name: &str) -> TestDatabase {
        assert_eq!(server.kind(), Kind::Private, "databases of shared servers belong to one test");
        TestDatabase { server: server.clone(), name: name.to_owned() }
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connection string for the superuser.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// The server that the database is on.
    pub fn server(&self) -> &TestServer {
        &self.server
    }

    /// Runs SQL on a connection of its own. Text in, text out.
    pub fn sql(&self, sql: &str) -> Result<Rows, TestError> {
        self.server.sql(&self.name, sql)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // A private server goes as a whole.
        if self.server.kind() == Kind::Private || std::env::var_os(TEST_KEEP_VARIABLE).is_some() {
            return;
        }
        let drop = || drop_database(&mut self.server.session("postgres")?, &self.name);
        if let Err(err) = drop() {
            // Not a reason to fail a test that passed: the next process to join sweeps it up.
            eprintln!("drop test database {}: {err}", self.name);
        }
    }
}

pub(super) fn create(server: &TestServer, template: Option<&Template>) -> Result<TestDatabase, TestError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("t_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut session = server.session("postgres")?;
    // Left by an earlier process of the same number.
    drop_database(&mut session, &name)?;
    let from = template.map_or("template1", |template| &template.name);
    create_from(&mut session, &name, from)?;
    Ok(TestDatabase { server: server.clone(), name })
}

/// An autovacuum worker in the source makes creation fail after some seconds; it goes by itself.
fn create_from(session: &mut Session, name: &str, from: &str) -> Result<(), TestError> {
    let mut outcome = Ok(());
    wait_until(Duration::from_secs(30), || {
        outcome = session.query(&format!("create database {name} template {from}")).map(drop);
        !matches!(&outcome, Err(TestError::Server { code, .. }) if code == IN_USE)
    });
    outcome
}

pub(super) fn drop_database(session: &mut Session, name: &str) -> Result<(), TestError> {
    // Slots hold the database, and their walsenders hold the slots.
    let slots = format!(
        "select slot_name, pg_terminate_backend(active_pid) from pg_replication_slots where database = '{name}'"
    );
    let mut outcome = Ok(());
    let mut drop_slots = || {
        let rows = session.query(&slots)?;
        for slot in rows.iter().filter_map(|row| row.first()?.as_deref()) {
            session.query(&format!("select pg_drop_replication_slot('{slot}')"))?;
        }
        Ok::<_, TestError>(rows.is_empty())
    };
    wait_until(Duration::from_secs(10), || match drop_slots() {
        Ok(none_left) => none_left,
        Err(TestError::Server { .. }) => false,
        Err(err) => {
            outcome = Err(err);
            true
        }
    });
    outcome?;
    session.query(&format!("drop database if exists {name} with (force)")).map(drop)
}

/// Drops the databases of test processes that have died.
pub(super) fn sweep(session: &mut Session) -> Result<(), TestError> {
    let rows = session.query("select datname from pg_database where datname like 't\\_%'")?;
    for name in rows.iter().flatten().flatten() {
        let pid = name.split('_').nth(1).and_then(|pid| pid.parse().ok());
        if pid.is_some_and(|pid| !is_alive(pid)) {
            // Two processes may sweep the same one.
            let _ = drop_database(session, name);
        }
    }
    Ok(())
}

/// What `TestServer::template_or_build` finds.
#[derive(Debug)]
pub enum TemplateState {
    /// The template is there.
    Ready(Template),
    /// It is ours to build; everybody else waits.
    Build(TemplateBuild),
}

/// A template being built. Dropping it unfinished lets the next process start over.
#[derive(Debug)]
pub struct TemplateBuild {
    server: TestServer,
    name: String,
    _lock: File,
}

impl TemplateBuild {
    fn building(&self) -> String {
        format!("{}_building", self.name)
    }

    /// Where to build: a database made from `template1`.
    pub fn url(&self) -> String {
        self.server.url(&self.building())
    }

    /// Closes the database to further connections and makes it the template.
    pub fn finish(self) -> Result<Template, TestError> {
        let mut session = self.server.session("postgres")?;
        let building = self.building();
        session.query(&format!("alter database {building} with allow_connections false"))?;
        session.query(&format!(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '{building}'"
        ))?;
        session.query(&format!("alter database {building} rename to {}", self.name))?;
        Ok(Template { name: self.name })
    }
}

pub(super) fn template_or_build(server: &TestServer, key: &str) -> Result<TemplateState, TestError> {
    let name = template_name(key);
    let ready = |session: &mut Session| {
        session
            .query(&format!("select 1 from pg_database where datname = '{name}'"))
            .map(|rows| !rows.is_empty())
    };
    let mut session = server.session("postgres")?;
    if ready(&mut session)? {
        return Ok(TemplateState::Ready(Template { name }));
    }
    let lock = File::create(server.lock_dir().join(format!("{name}.lock")))?;
    lock.lock()?;
    if ready(&mut session)? {
        return Ok(TemplateState::Ready(Template { name }));
    }
    let build = TemplateBuild { server: server.clone(), name, _lock: lock };
    drop_database(&mut session, &build.building())?;
    create_from(&mut session, &build.building(), "template1")?;
    Ok(TemplateState::Build(build))
}

/// Keys of any length and alphabet become names that PostgreSQL takes unquoted.
fn template_name(key: &str) -> String {
    // A hasher made by `new` uses fixed keys: all processes of one toolchain agree.
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    format!("tpl_{:016x}", hasher.finish())
}
