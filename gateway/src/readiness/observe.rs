//! Reads what readiness judges. Each part that cannot be read stays unknown, with the reason; nothing else fails with it.

use sqlx::{FromRow, PgPool};
use std::time::Duration;

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
    /// Whether the database could not be reached at all.
    pub(super) unreachable: bool,
}

/// A difference between the catalogue and what was registered.
#[derive(Clone, Debug, FromRow)]
pub(super) struct Problem {
    pub(super) relation: Option<String>,
    pub(super) problem: String,
}

/// See `facts.sql`. Times are seconds since 1970 by the database's clock.
#[derive(Clone, Debug, Default, FromRow)]
pub(super) struct Facts {
    pub(super) database: String,
    pub(super) standby: bool,
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
    if let Err(unknown) = &facts
        && unknown.unreachable
    {
        // Each further try would take its full time to say the same.
        let same = || Err(unknown.clone());
        return Observed { relations: same(), triggers: same(), publication: same(), facts };
    }
    let problems = |sql: &'static str| within(timeout, sqlx::query_as(sql).fetch_all(pool));
    Observed {
        relations: problems("select relation, problem from tidegate.relation_problems()").await,
        triggers: problems("select relation, problem from tidegate.trigger_problems()").await,
        publication: problems("select relation, problem from tidegate.publication_problems()").await,
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
    let (reason, unreachable) = match error {
        sqlx::Error::Database(error) => match error.code().as_deref() {
            Some("42P01" | "42703" | "42883" | "3F000") => {
                ("the schema tidegate is missing, or older than this program".to_owned(), false)
            }
            Some("42501") => ("the gateway's role may not read the schema tidegate".to_owned(), false),
            Some(code) if code.starts_with("28") || code == "3D000" => {
                (format!("the database refuses the gateway's login (SQLSTATE {code})"), true)
            }
            Some(code) if code.starts_with("57P") || code.starts_with("08") || code.starts_with("53") => {
                (format!("the database takes no connections now (SQLSTATE {code})"), true)
            }
            code => {
                (format!("the database refused the question (SQLSTATE {})", code.unwrap_or("unknown")), false)
            }
        },
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) | sqlx::Error::Decode(_) => {
            ("the answer was not of the expected form".to_owned(), false)
        }
        sqlx::Error::Io(error) => (format!("the database is not reachable ({})", error.kind()), true),
        sqlx::Error::PoolTimedOut => ("the database did not answer in time".to_owned(), true),
        _ => ("the database is not reachable".to_owned(), true),
    };
    Err(Unknown { reason, unreachable })
}
