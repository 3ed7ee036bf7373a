//! Reads what readiness judges. Each part that cannot be read stays unknown, with the reason; nothing else fails with it.

use sqlx::{FromRow, PgPool};
use std::time::Duration;
use tidegate_migrations::check::{Part, Problem};

/// What was read, or why it was not.
pub(super) struct Observed {
    pub(super) facts: Result<Facts, Unknown>,
    pub(super) relations: Result<Vec<Problem>, Unknown>,
    pub(super) triggers: Result<Vec<Problem>, Unknown>,
    pub(super) publication: Result<Vec<Problem>, Unknown>,
}

/// Why something could not be read, in our own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown {
    pub(super) reason: String,
    pub(super) kind: UnknownKind,
}

/// What would have to be done to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownKind {
    /// The database could not be reached at all.
    Unreachable,
    /// It was reached and refused the login.
    Login,
    /// Our schema is missing, or older than this program.
    Schema,
    /// The role lacks a right.
    Right,
    /// Anything else.
    Other,
}

impl Observed {
    /// As of a database that nothing could be asked of.
    pub(super) fn nothing(unknown: &Unknown) -> Observed {
        let same = || Err(unknown.clone());
        Observed { relations: same(), triggers: same(), publication: same(), facts: Err(unknown.clone()) }
    }
}

/// See `facts.sql`. Times are seconds since 1970 by the database's clock.
#[derive(Clone, Debug, Default, FromRow)]
pub(super) struct Facts {
    pub(super) database: String,
    pub(super) standby: bool,
    pub(super) wal_level: String,
    pub(super) registered: bool,
    pub(super) now: f64,
    pub(super) started: bool,
    pub(super) same_cluster: Option<bool>,
    pub(super) same_database: Option<bool>,
    pub(super) consistent: Option<String>,
    pub(super) processed: Option<String>,
    pub(super) acknowledged: Option<String>,
    pub(super) materialized_end: Option<String>,
    pub(super) materialized_commit: Option<String>,
    pub(super) registry: Option<i32>,
    pub(super) snapshot: Option<String>,
    pub(super) registry_activated: bool,
    pub(super) worker_epoch: Option<i64>,
    pub(super) beat_epoch: Option<i64>,
    pub(super) beat_at: Option<f64>,
    pub(super) beat_state: Option<String>,
    pub(super) beat_reason: Option<String>,
    pub(super) beat_since: Option<f64>,
    pub(super) beat_processed: Option<String>,
    pub(super) beat_materialized_commit: Option<String>,
    pub(super) beat_registry: Option<i32>,
    pub(super) oldest_pending: Option<f64>,
    pub(super) slot_exists: bool,
    pub(super) slot_plugin: Option<String>,
    pub(super) slot_type: Option<String>,
    pub(super) slot_here: Option<bool>,
    pub(super) slot_temporary: Option<bool>,
    pub(super) slot_wal_status: Option<String>,
    pub(super) slot_confirmed: Option<String>,
    pub(super) slot_restart: Option<String>,
    pub(super) wal: Option<String>,
    pub(super) poison_class: Option<String>,
    pub(super) poison_at: Option<String>,
    pub(super) poison_status: Option<String>,
    pub(super) poison_since: Option<f64>,
    pub(super) poison_relation: Option<String>,
}

pub(super) async fn observe(pool: &PgPool, timeout: Duration) -> Observed {
    let facts = within(timeout, sqlx::query_as(include_str!("facts.sql")).fetch_one(pool)).await;
    match &facts {
        // Each further try would take its full time to say the same.
        Err(unknown) if matches!(unknown.kind, UnknownKind::Unreachable | UnknownKind::Login) => {
            return Observed::nothing(unknown);
        }
        Err(Unknown { kind: UnknownKind::Schema, .. }) => {
            let there = sqlx::query_scalar("select to_regnamespace('tidegate') is not null").fetch_one(pool);
            if let Ok(false) = within(timeout, there).await {
                let reason = "Tidegate's schema is not in this database".to_owned();
                return Observed::nothing(&Unknown { reason, kind: UnknownKind::Schema });
            }
        }
        _ => {}
    }
    let problems = |part: Part| within(timeout, sqlx::query_as(part.query()).fetch_all(pool));
    Observed {
        relations: problems(Part::Relations).await,
        triggers: problems(Part::Triggers).await,
        publication: problems(Part::Publication).await,
        facts,
    }
}

async fn within<T>(
    timeout: Duration,
    read: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Unknown> {
    let error = match tokio::time::timeout(timeout, read).await {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error,
        Err(_) => sqlx::Error::PoolTimedOut,
    };
    use UnknownKind::{Login, Other, Right, Schema, Unreachable};
    let (reason, kind) = match error {
        sqlx::Error::Database(error) => match error.code().as_deref() {
            Some("42P01" | "42703" | "42883" | "3F000") => {
                ("Tidegate's schema in this database is older than this program".to_owned(), Schema)
            }
            Some("42501") => (missing_right(error.message()), Right),
            Some(code) if code.starts_with("28") || code == "3D000" => {
                (format!("the database refuses the login (SQLSTATE {code})"), Login)
            }
            Some(code) if code.starts_with("57P") || code.starts_with("08") || code.starts_with("53") => {
                (format!("the database takes no connections now (SQLSTATE {code})"), Unreachable)
            }
            code => {
                (format!("the database refused the question (SQLSTATE {})", code.unwrap_or("unknown")), Other)
            }
        },
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) | sqlx::Error::Decode(_) => {
            ("the answer was not of the expected form".to_owned(), Other)
        }
        sqlx::Error::Io(error) => (format!("the database is not reachable ({})", error.kind()), Unreachable),
        sqlx::Error::PoolTimedOut => ("the database did not answer in time".to_owned(), Unreachable),
        _ => ("the database is not reachable".to_owned(), Unreachable),
    };
    Err(Unknown { reason, kind })
}

/// Which right is missing. Of the server's sentence only the object is taken, which is ours or the catalogue's.
fn missing_right(message: &str) -> String {
    let object = message.strip_prefix("permission denied for ");
    let right = match object.and_then(|object| object.split_once(' ')) {
        Some(("schema", name)) => format!("usage on schema {name}"),
        Some(("table" | "view" | "relation", name)) => format!("select on {name}"),
        Some(("function", name)) => format!("execute on function {name}"),
        _ => "a right that reading the schema tidegate needs".to_owned(),
    };
    format!("the role lacks {right}")
}
