//! Beside the stream: G5, H6 and F11 without a write. What was true at registration can be changed by anybody with a DDL right, and
//! PostgreSQL tells nothing before the first row, if then. So the catalogs are compared when a session begins and every
//! `drift_check_interval`, on the control connection, without writing.
//!
//! Drift of a relation is poison: undoing the DDL does not clear it, an operator's retry compares again. A fault of publication or
//! triggers blocks while it lasts; rows that were written meanwhile are missed by their fences, and the other way round (F8).

use crate::CaptureError;
use crate::error::Doing;
use sqlx::{PgConnection, Row};
use std::time::{Duration, Instant};
use tidegate_model::RelationId;
use tidegate_stream::{Failure, FailureClass};

/// A problem counts when it is still there after this: catalogs are not read under one snapshot throughout, and a DDL that commits in
/// between is seen by halves.
const CONFIRM_AFTER: Duration = Duration::from_millis(250);

/// One difference. Names only, no values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    relation: Option<String>,
    relation_id: Option<RelationId>,
    /// Of the relation itself; otherwise of the publication or of its triggers.
    of_relation: bool,
    what: String,
}

impl Problem {
    fn explanation(&self) -> String {
        match &self.relation {
            Some(relation) => format!("{relation}: {}", self.what),
            None => self.what.clone(),
        }
    }

    /// What the catalogs cannot tell to be as before once it is undone is left to a reset, as when a row tells of it: rows may have
    /// been rewritten, and no row event says so.
    fn class(&self) -> FailureClass {
        match self.what.as_str() {
            "the registered table was dropped"
            | "the registered table was replaced by another one of its name" => {
                FailureClass::RelationReplaced
            }
            column if column.starts_with("captured column ") && column.ends_with(" was dropped") => {
                FailureClass::ColumnMissing
            }
            column if column.starts_with("captured column ") && column.ends_with(" has another type") => {
                FailureClass::ColumnTypeChanged
            }
            _ => FailureClass::RelationDrifted,
        }
    }
}

/// When the catalogs are compared next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriftCheck {
    interval: Duration,
    last: Instant,
}

impl DriftCheck {
    /// Compares at once: nothing is processed before.
    pub(crate) async fn begin(
        connection: &mut PgConnection,
        interval: Duration,
    ) -> Result<DriftCheck, CaptureError> {
        check(connection).await?;
        Ok(DriftCheck { interval, last: Instant::now() })
    }

    pub(crate) fn due(&self) -> Instant {
        self.last + self.interval
    }

    /// Compares if it is time to.
    pub(crate) async fn run(&mut self, connection: &mut PgConnection) -> Result<(), CaptureError> {
        if self.due() > Instant::now() {
            return Ok(());
        }
        check(connection).await?;
        self.last = Instant::now();
        Ok(())
    }
}

/// Refuses what has drifted.
pub(crate) async fn check(connection: &mut PgConnection) -> Result<(), CaptureError> {
    let first = read(connection).await?;
    if first.is_empty() {
        return Ok(());
    }
    tokio::time::sleep(CONFIRM_AFTER).await;
    let mut confirmed = read(connection).await?;
    confirmed.retain(|problem| first.contains(problem));
    // What only a reset clears hides behind nothing else.
    confirmed.sort_by_key(|problem| (!problem.of_relation, problem.class().retryable()));
    match confirmed.first() {
        None => Ok(()),
        Some(problem) if problem.of_relation => {
            let failure = Failure::new(problem.class(), problem.explanation());
            Err(CaptureError::blocked(match problem.relation_id {
                Some(relation) => failure.of(relation),
                None => failure,
            }))
        }
        Some(problem) => Err(CaptureError::Drifted(problem.explanation())),
    }
}

async fn read(connection: &mut PgConnection) -> Result<Vec<Problem>, CaptureError> {
    let rows = sqlx::query(include_str!("drift.sql")).fetch_all(connection).await;
    let problem = |row: &sqlx::postgres::PgRow| -> Result<Problem, sqlx::Error> {
        Ok(Problem {
            relation: row.try_get("relation")?,
            relation_id: row.try_get::<Option<i32>, _>("relation_id")?.map(RelationId),
            of_relation: row.try_get("of_relation")?,
            what: row.try_get("problem")?,
        })
    };
    rows.doing("compare the catalogs")?.iter().map(|row| problem(row).doing("compare the catalogs")).collect()
}
