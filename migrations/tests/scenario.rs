//! F7, F9 as a table: what a transaction does, and whether its fences are in the order of its rows or it is refused. One harness
//! plays every scenario on a database of its own and proves it over the decoded WAL.

use crate::fence::Tables;
use crate::stream::failure;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_embedded::testing::TestServer;
use tokio::task::JoinHandle;

/// What the application's transaction is told when a nested statement broke the order (F9).
pub const HINT: &str = "A row-level trigger changed a row whose own change was not fenced yet. \
    Make it AFTER ... FOR EACH STATEMENT or a deferred constraint trigger.";

/// One line of the table.
pub struct Scenario {
    pub name: &'static str,
    since: u32,
    setup: Vec<String>,
    /// Whether the set-up goes around triggers, so that nothing can be proved of it.
    bypasses: bool,
    steps: Vec<Step>,
    expectation: Expectation,
}

enum Step {
    /// Session 0 unless said otherwise; sessions stay open over the steps.
    Run(usize, String),
    /// Waits for another session: seen waiting before the next step begins.
    Behind(usize, String),
    Copy(String, String),
    Refused(&'static str, String),
}

enum Expectation {
    /// These changes in this order, and their fences in the same.
    Changes(Vec<String>),
    /// So many changes, and their fences in the same order.
    Count(usize),
}

/// A scenario of this name that expects no change.
pub fn scenario(name: &'static str) -> Scenario {
    Scenario {
        name,
        since: 15,
        setup: Vec::new(),
        bypasses: false,
        steps: Vec::new(),
        expectation: Expectation::Count(0),
    }
}

impl Scenario {
    /// From this major version on.
    pub fn since(mut self, major: u32) -> Self {
        self.since = major;
        self
    }

    /// Committed before; proved, but not part of what is expected.
    pub fn setup(mut self, sql: impl Into<String>) -> Self {
        self.setup.push(sql.into());
        self
    }

    /// As [`setup`](Self::setup), around triggers or over our tables: not proved.
    pub fn bypass(mut self, sql: impl Into<String>) -> Self {
        self.bypasses = true;
        self.setup(sql)
    }

    /// Several statements without `begin` are one transaction.
    pub fn run(self, sql: impl Into<String>) -> Self {
        self.on(0, sql)
    }

    pub fn on(mut self, session: usize, sql: impl Into<String>) -> Self {
        self.steps.push(Step::Run(session, sql.into()));
        self
    }

    pub fn behind(mut self, session: usize, sql: impl Into<String>) -> Self {
        self.steps.push(Step::Behind(session, sql.into()));
        self
    }

    pub fn copy(mut self, statement: &str, data: &str) -> Self {
        self.steps.push(Step::Copy(statement.to_owned(), data.to_owned()));
        self
    }

    /// Fails with this SQLSTATE of the application's own or of PostgreSQL's.
    pub fn fails(mut self, sqlstate: &'static str, sql: impl Into<String>) -> Self {
        self.steps.push(Step::Refused(sqlstate, sql.into()));
        self
    }

    /// F9: refused because its fences are out of order.
    pub fn refused(self, sql: impl Into<String>) -> Self {
        self.fails(OUT_OF_ORDER, sql)
    }

    /// F1: refused because a key changes.
    pub fn refused_key(self, sql: impl Into<String>) -> Self {
        self.fails(KEY_CHANGE, sql)
    }

    pub fn gives(mut self, changes: &[&str]) -> Self {
        self.expectation = Expectation::Changes(changes.iter().map(|change| (*change).to_owned()).collect());
        self
    }

    pub fn gives_count(mut self, changes: usize) -> Self {
        self.expectation = Expectation::Count(changes);
        self
    }
}

/// Both have SQLSTATE 27000, as PostgreSQL's own refusals of this kind: told apart by the message.
const OUT_OF_ORDER: &str = "27000 out of order";
const KEY_CHANGE: &str = "27000 key change";

/// Plays each and reports a line for each. All are played, also after one has failed.
pub async fn play(server: &TestServer, scenarios: Vec<Scenario>) {
    let mut failed = Vec::new();
    for scenario in scenarios {
        let name = scenario.name;
        if scenario.since > server.major() {
            println!("{name}: not on PostgreSQL {}", server.major());
            continue;
        }
        let server = server.clone();
        match tokio::spawn(async move { scenario.play(&server).await }).await {
            Ok(line) => println!("{name}: {line}"),
            Err(_) => {
                println!("{name}: FAILED");
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

impl Scenario {
    async fn play(self, server: &TestServer) -> String {
        let tables = Tables::on(server).await;
        for sql in &self.setup {
            tables.0.ok(sql).await;
        }
        if self.bypasses {
            tables.0.decode().await;
        } else {
            tables.0.check().await;
        }
        let mut sessions: BTreeMap<usize, Session> = BTreeMap::new();
        let mut refusals = Vec::new();
        for step in self.steps {
            let number = match &step {
                Step::Run(number, _) | Step::Behind(number, _) => *number,
                Step::Copy(..) | Step::Refused(..) => 0,
            };
            let mut session = match sessions.remove(&number) {
                Some(session) => session.free().await,
                None => tables.0.session().await,
            };
            let session = match step {
                Step::Run(_, sql) => {
                    run(&mut session, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
                    Session::Free(session)
                }
                Step::Behind(_, sql) => {
                    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
                        .fetch_one(&mut session)
                        .await
                        .expect("its process");
                    let waiting = tokio::spawn(async move {
                        run(&mut session, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
                        session
                    });
                    until_blocked(&tables, pid).await;
                    Session::Waiting(waiting)
                }
                Step::Copy(statement, data) => {
                    let mut sink = session.copy_in_raw(&statement).await.expect("begin to copy");
                    sink.send(data.as_bytes()).await.expect("send");
                    sink.finish().await.expect("copy");
                    Session::Free(session)
                }
                Step::Refused(sqlstate, sql) => {
                    let error = run(&mut session, &sql).await.expect_err(&sql);
                    refusals.push(refusal(&error, sqlstate));
                    run(&mut session, "rollback").await.expect("roll back");
                    Session::Free(session)
                }
            };
            sessions.insert(number, session);
        }
        for (_, session) in sessions {
            session.free().await.close().await.expect("close");
        }
        let changes = tables.0.check().await;
        match self.expectation {
            Expectation::Changes(expected) => assert_eq!(changes, expected, "{}", self.name),
            Expectation::Count(count) => assert_eq!(changes.len(), count, "{}: {changes:?}", self.name),
        }
        match (changes.len(), refusals.as_slice()) {
            (count, []) => format!("in order, {count} changes"),
            (0, refusals) => format!("refused, {}", refusals.join(", ")),
            (count, refusals) => format!("refused, {}; then in order, {count} changes", refusals.join(", ")),
        }
    }
}

enum Session {
    Free(PgConnection),
    Waiting(JoinHandle<PgConnection>),
}

impl Session {
    async fn free(self) -> PgConnection {
        match self {
            Session::Free(session) => session,
            Session::Waiting(waiting) => waiting.await.expect("the one that waited"),
        }
    }
}

async fn run(session: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await.map(drop)
}

async fn until_blocked(tables: &Tables, pid: i32) {
    let blocked = "select cardinality(pg_blocking_pids($1)) > 0";
    let seen = async {
        while !sqlx::query_scalar::<_, bool>(blocked).bind(pid).fetch_one(tables.0.pool()).await.expect("ask")
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen).await.expect("it never waits");
}

/// What it is refused with, for the report.
fn refusal(error: &sqlx::Error, expected: &'static str) -> String {
    let (message, hint) = failure(error, &expected[..5]);
    let ours = message.ends_with("is fenced out of order");
    let key = message.ends_with("cannot change: tidegate streams this table");
    match expected {
        OUT_OF_ORDER => assert!(ours && hint == HINT, "{message}: {hint}"),
        KEY_CHANGE => {
            assert!(key && hint.starts_with("Delete the row and insert another one."), "{message}: {hint}")
        }
        _ => assert!(!ours && !key, "{message}"),
    }
    expected.to_owned()
}
