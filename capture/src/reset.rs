//! The second way out of poison (Q3): an operator authorizes that the stream starts anew. Recorded here; the worker carries it out
//! (`baseline`), and the old stream stays as it is until the new one is active.

use crate::CaptureError;
use crate::error::Doing;
use crate::settings::APPLICATION_PREFIX;
use sqlx::{Acquire, PgConnection};
use uuid::Uuid;

/// What a request for a reset led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetRequest {
    /// The worker will carry it out; `tidegate.stream_reset` has its phases under this id.
    Accepted(Uuid),
    /// One is under way.
    UnderWay(Uuid),
    /// There is no stream yet: the first start makes one.
    NoStream,
}

/// Authorizes a reset. Audited (Q5). The running worker's stream is ended, so that it notices at once.
///
/// # Errors
/// The database refused.
pub async fn request(
    connection: &mut PgConnection,
    actor: &str,
    reason: &str,
) -> Result<ResetRequest, CaptureError> {
    let mut transaction = connection.begin().await.doing("request a reset")?;
    // One request at a time: the worker row is what every baseline holds when it activates.
    sqlx::query("select from tidegate.worker for update")
        .execute(&mut *transaction)
        .await
        .doing("request a reset")?;
    let (exists, under_way): (bool, Option<Uuid>) = sqlx::query_as(
        "select exists (select from tidegate.progress),
                (select reset_id from tidegate.stream_reset
                 where kind = 'reset' and phase not in ('activated', 'cleaned', 'discarded') limit 1)",
    )
    .fetch_one(&mut *transaction)
    .await
    .doing("request a reset")?;
    let request = match under_way {
        Some(reset) => ResetRequest::UnderWay(reset),
        None if !exists => ResetRequest::NoStream,
        None => ResetRequest::Accepted(crate::baseline::request_reset(&mut transaction, reason).await?),
    };
    let (outcome, reset) = match request {
        ResetRequest::Accepted(reset) => ("accepted", Some(reset)),
        ResetRequest::UnderWay(reset) => ("refused: one is under way", Some(reset)),
        ResetRequest::NoStream => ("refused: there is no stream", None),
    };
    sqlx::query(
        "insert into tidegate.audit (actor, action, subject, outcome)
         values ($1, 'stream.reset', jsonb_build_object('reset', $2::uuid, 'reason', $3::text), $4)",
    )
    .bind(actor)
    .bind(reset)
    .bind(reason)
    .bind(outcome)
    .execute(&mut *transaction)
    .await
    .doing("request a reset")?;
    transaction.commit().await.doing("request a reset")?;
    if matches!(request, ResetRequest::Accepted(_)) {
        sqlx::query(
            "select pg_terminate_backend(a.pid) from tidegate.worker w join pg_stat_activity a on a.pid = w.walsender_pid
             where starts_with(a.application_name, $1)",
        )
        .bind(APPLICATION_PREFIX)
        .execute(connection)
        .await
        .doing("end the old stream")?;
    }
    Ok(request)
}

/// Whether a reset waits to be carried out or is under way.
pub(crate) async fn is_requested(connection: &mut PgConnection) -> Result<bool, CaptureError> {
    sqlx::query_scalar(
        "select exists (select from tidegate.stream_reset
                        where kind = 'reset' and phase not in ('activated', 'cleaned', 'discarded'))",
    )
    .fetch_one(connection)
    .await
    .doing("look for a reset")
}
