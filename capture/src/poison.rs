//! Quarantine (Q). The record of a source transaction that cannot be materialized, and what operators do with it. It blocks: the
//! worker neither processes nor acknowledges anything after it (Q2, A7). Two ways out: retry here, or a stream reset (Q3).

use crate::CaptureError;
use crate::columns::SqlLsn;
use crate::error::Doing;
use crate::failpoints::fail_point;
use crate::failure::SqlState;
use sqlx::postgres::PgRow;
use sqlx::{Acquire, PgConnection, Row};
use tidegate_model::{GenerationId, Lsn, RelationId};
use tidegate_stream::{Failure, FailureClass};

/// One quarantine record. No row values, no text of the server (Q1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoisonRecord {
    /// Its number.
    pub id: i64,
    /// Stream generation.
    pub generation: GenerationId,
    /// Commit position of the transaction.
    pub commit_lsn: Lsn,
    /// Its end, where known.
    pub end_lsn: Option<Lsn>,
    /// Bounded class: one of [`tidegate_stream::FailureClass`].
    pub failure_class: String,
    /// A sentence for operators.
    pub explanation: String,
    /// The server's code, where it refused.
    pub sqlstate: Option<String>,
    /// The relation, where known.
    pub relation: Option<RelationId>,
    /// Whether a retry may clear it (K3).
    pub retryable: bool,
    /// Tries so far.
    pub attempts: i32,
    /// First failure, ISO 8601.
    pub first_at: String,
    /// Last failure, ISO 8601.
    pub last_at: String,
    /// `active`, `retrying` or `resolved`.
    pub status: String,
}

/// What a request to retry led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryRequest {
    /// The worker will try the same transaction once more, under the same identities.
    Accepted,
    /// There is no such record.
    Unknown,
    /// It is not blocking, or already being retried.
    NotActive,
    /// Retry cannot clear it: only a stream reset leads out (K3).
    ResetOnly,
}

const COLUMNS: &str = "id, generation, commit_lsn, end_lsn, failure_class, explanation, sqlstate, relation_id, retryable, attempts,
    to_char(first_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') as first_at,
    to_char(last_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') as last_at, status";

/// The newest records, blocking ones first.
///
/// # Errors
/// The database refused.
pub async fn list(
    connection: &mut PgConnection,
    records_max: i64,
) -> Result<Vec<PoisonRecord>, CaptureError> {
    let sql = format!("select {COLUMNS} from tidegate.poison order by status = 'resolved', id desc limit $1");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(records_max).fetch_all(connection).await;
    rows.doing("list poison")?.iter().map(|row| record_of(row).doing("list poison")).collect()
}

/// One record.
///
/// # Errors
/// The database refused.
pub async fn show(connection: &mut PgConnection, id: i64) -> Result<Option<PoisonRecord>, CaptureError> {
    let sql = format!("select {COLUMNS} from tidegate.poison where id = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id).fetch_optional(connection).await;
    row.doing("show poison")?.map(|row| record_of(&row).doing("show poison")).transpose()
}

/// Asks the worker to try once more. Audited with its outcome, whatever that is (Q5).
///
/// # Errors
/// The database refused.
pub async fn retry(
    connection: &mut PgConnection,
    id: i64,
    actor: &str,
) -> Result<RetryRequest, CaptureError> {
    let mut transaction = connection.begin().await.doing("retry poison")?;
    let found: Option<(String, bool)> =
        sqlx::query_as("select status, retryable from tidegate.poison where id = $1 for update")
            .bind(id)
            .fetch_optional(&mut *transaction)
            .await
            .doing("retry poison")?;
    let request = match found {
        None => RetryRequest::Unknown,
        Some((status, _)) if status != "active" => RetryRequest::NotActive,
        Some((_, false)) => RetryRequest::ResetOnly,
        Some(_) => RetryRequest::Accepted,
    };
    if request == RetryRequest::Accepted {
        sqlx::query("update tidegate.poison set status = 'retrying' where id = $1")
            .bind(id)
            .execute(&mut *transaction)
            .await
            .doing("retry poison")?;
    }
    let outcome = match request {
        RetryRequest::Accepted => "accepted",
        RetryRequest::Unknown => "refused: no such record",
        RetryRequest::NotActive => "refused: not active",
        RetryRequest::ResetOnly => "refused: only a stream reset leads out",
    };
    sqlx::query(
        "insert into tidegate.audit (actor, action, subject, outcome)
         values ($1, 'poison.retry', jsonb_build_object('poison', $2::int8), $3)",
    )
    .bind(actor)
    .bind(id)
    .bind(outcome)
    .execute(&mut *transaction)
    .await
    .doing("retry poison")?;
    transaction.commit().await.doing("retry poison")?;
    Ok(request)
}

/// Writes the record of a failure, or counts one more attempt on it. Failing to do so blocks as well (Q2): the caller stops.
pub(crate) async fn record(
    connection: &mut PgConnection,
    generation: GenerationId,
    failure: &Failure,
    code: Option<SqlState>,
    otherwise_at: Lsn,
) -> Result<i64, CaptureError> {
    fail_point!(POISON_BEFORE_RECORD);
    let id: i64 = sqlx::query_scalar(include_str!("poison_record.sql"))
        .bind(generation.0)
        .bind(SqlLsn(failure.commit_lsn.unwrap_or(otherwise_at)))
        .bind(failure.end_lsn.map(SqlLsn))
        .bind(failure.class.as_str())
        .bind(failure.explanation())
        .bind(code.map(|code| code.as_str().to_owned()))
        .bind(failure.relation.map(|relation| relation.0))
        .bind(failure.class.retryable())
        .fetch_one(connection)
        .await
        .doing("record poison")?;
    metrics::counter!("tidegate_poison_total", "class" => failure.class.as_str()).increment(1);
    Ok(id)
}

/// What blocks now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocking {
    pub(crate) id: i64,
    pub(crate) commit_lsn: Lsn,
    pub(crate) failure_class: String,
    /// The transaction is not known: `commit_lsn` is the processed boundary.
    pub(crate) at_boundary: bool,
    /// An operator has asked for one more try.
    pub(crate) retrying: bool,
}

impl Blocking {
    /// Whether comparing the catalogs again is what clears it.
    pub(crate) fn is_drift(&self) -> bool {
        self.failure_class == FailureClass::RelationDrifted.as_str()
    }

    /// Whether materializing this transaction clears the record: it is the poisoned one, or the first that could be read again.
    pub(crate) fn is_settled_by(&self, commit_lsn: Lsn) -> bool {
        if self.at_boundary { commit_lsn >= self.commit_lsn } else { commit_lsn == self.commit_lsn }
    }
}

/// The one blocking record, if any.
pub(crate) async fn blocking(connection: &mut PgConnection) -> Result<Option<Blocking>, CaptureError> {
    let row = sqlx::query(
        "select id, commit_lsn, failure_class, status from tidegate.poison where status in ('active', 'retrying')",
    )
    .fetch_optional(connection)
    .await
    .doing("look for poison")?;
    let blocking = |row: PgRow| -> Result<Blocking, sqlx::Error> {
        let failure_class: String = row.try_get("failure_class")?;
        Ok(Blocking {
            id: row.try_get("id")?,
            commit_lsn: row.try_get::<SqlLsn, _>("commit_lsn")?.0,
            at_boundary: FailureClass::ALL.iter().any(|c| c.as_str() == failure_class && c.at_boundary()),
            failure_class,
            retrying: row.try_get::<String, _>("status")? == "retrying",
        })
    };
    row.map(blocking).transpose().doing("look for poison")
}

/// Clears the record of a transaction that a retry has materialized, in the same database transaction.
pub(crate) async fn resolve(transaction: &mut PgConnection, id: i64) -> Result<(), CaptureError> {
    clear(transaction, id, "materialized").await
}

/// Clears a record without a transaction of its own: `outcome` says for the audit what showed that it no longer holds.
pub(crate) async fn resolve_alone(
    connection: &mut PgConnection,
    id: i64,
    outcome: &str,
) -> Result<(), CaptureError> {
    let mut transaction = connection.begin().await.doing("resolve poison")?;
    clear(&mut transaction, id, outcome).await?;
    transaction.commit().await.doing("resolve poison")?;
    tracing::info!(poison = id, "poison resolved");
    Ok(())
}

async fn clear(transaction: &mut PgConnection, id: i64, outcome: &str) -> Result<(), CaptureError> {
    sqlx::query(
        "update tidegate.poison set status = 'resolved', resolved_at = clock_timestamp() where id = $1",
    )
    .bind(id)
    .execute(&mut *transaction)
    .await
    .doing("resolve poison")?;
    sqlx::query(
        "insert into tidegate.audit (actor, action, subject, outcome)
         values ('worker', 'poison.retry', jsonb_build_object('poison', $1::int8), $2)",
    )
    .bind(id)
    .bind(outcome)
    .execute(&mut *transaction)
    .await
    .doing("resolve poison")?;
    Ok(())
}

fn record_of(row: &PgRow) -> Result<PoisonRecord, sqlx::Error> {
    Ok(PoisonRecord {
        id: row.try_get("id")?,
        generation: GenerationId(row.try_get("generation")?),
        commit_lsn: row.try_get::<SqlLsn, _>("commit_lsn")?.0,
        end_lsn: row.try_get::<Option<SqlLsn>, _>("end_lsn")?.map(|lsn| lsn.0),
        failure_class: row.try_get("failure_class")?,
        explanation: row.try_get("explanation")?,
        sqlstate: row.try_get("sqlstate")?,
        relation: row.try_get::<Option<i32>, _>("relation_id")?.map(RelationId),
        retryable: row.try_get("retryable")?,
        attempts: row.try_get("attempts")?,
        first_at: row.try_get("first_at")?,
        last_at: row.try_get("last_at")?,
        status: row.try_get("status")?,
    })
}
