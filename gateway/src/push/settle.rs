//! `hello` and `void`: what a client and this server know of each other's numbers (V3).

use super::ClientPusher;
use super::failure::{Failure, client_expired, internal, repeat_or_tell};
use super::reply::{PushError, PushReply};
use super::run::Runner;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use tidegate_model::{ClientId, RowVersion, Subject};
use tidegate_protocol::{ErrorCode, MutationNumber, MutationResult, MutationStatus};
use uuid::Uuid;

/// The marks of a client at its `hello`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientMarks {
    /// The highest number that has run or was settled: `welcome.last`.
    pub last: MutationNumber,
    /// The highest number whose outcome the client has acknowledged. An awaited number at or below it that has no record counts as
    /// materialized (V6).
    pub settled: MutationNumber,
}

/// What a client's `hello` says of itself and of its mutations.
#[derive(Clone, Copy, Debug)]
pub struct ClientHello<'a> {
    /// Whose client it is.
    pub subject: &'a Subject,
    /// Its id.
    pub client: ClientId,
    /// It has never been welcome.
    pub new: bool,
    /// Mutations accepted and not yet seen to come round.
    pub awaited: &'a [MutationNumber],
    /// Highest number up to which it has stored every outcome.
    pub acked: MutationNumber,
}

/// Judges a client's numbers (V3): `client_expired` if this server never knew it, or knows less than it does. `pool` is not the
/// pushes': a session must begin while all of them wait, and also where none are taken.
///
/// # Errors
/// [`PushError`] with the code to answer.
pub async fn hello(pool: &PgPool, hello: ClientHello<'_>) -> Result<ClientMarks, PushError> {
    let awaited = hello.awaited.iter().copied().max().unwrap_or_default();
    let mut attempt = 1;
    let row = loop {
        let run =
            sqlx::query("select state, last_number, settled from tidegate.push_hello($1, $2, $3, $4, $5)")
                .bind(&hello.subject.0)
                .bind(hello.client.0)
                .bind(hello.new)
                .bind(hello.acked.0.cast_signed())
                .bind(awaited.0.cast_signed())
                .fetch_one(pool)
                .await;
        match run.map_err(Failure::from) {
            Ok(row) => break row,
            Err(failure) => repeat_or_tell(failure, &mut attempt)?,
        }
    };
    let marks = || -> Result<ClientMarks, sqlx::Error> {
        let number =
            |column| Ok::<_, sqlx::Error>(MutationNumber(row.try_get::<i64, _>(column)?.cast_unsigned()));
        Ok(ClientMarks { last: number("last_number")?, settled: number("settled")? })
    };
    match row.try_get("state") {
        Ok("known") => marks().map_err(|_| internal()),
        Ok(_) => Err(client_expired()),
        Err(_) => Err(internal()),
    }
}

impl Runner {
    pub(super) async fn void(&self, client: &ClientPusher, numbers: &[MutationNumber]) -> PushReply {
        if numbers.len() > self.config.batch_mutations_max as usize {
            return PushError::new(ErrorCode::BatchTooLarge, "more numbers than the batch limit").into();
        }
        // Judged before anything is done: a number that was discarded stays discarded.
        if !numbers.is_sorted_by(|earlier, later| earlier < later) {
            return PushError::new(ErrorCode::MalformedFrame, "numbers ascend, each named once").into();
        }
        if numbers.first().is_some_and(|number| number.0 == 0) {
            return PushError::new(ErrorCode::Gap, "numbers start at 1").into();
        }
        if numbers.is_empty() {
            return PushReply::default();
        }
        let _permit = match self.admission.enter(&client.identity.subject).await {
            Ok(permit) => permit,
            Err(error) => return error.into(),
        };
        let mut attempt = 1;
        loop {
            let run = sqlx::query(
                "select failure, coalesce(statuses, '{}') as statuses, codes, messages, versions \
                 from tidegate.push_void($1, $2, $3, $4)",
            )
            .bind(&client.identity.subject.0)
            .bind(client.client.0)
            .bind(client.new)
            .bind(numbers.iter().map(|number| number.0.cast_signed()).collect::<Vec<_>>())
            .fetch_one(&self.pool)
            .await;
            match run.and_then(|row| voided(numbers, &row)).map_err(Failure::from) {
                Ok(reply) => return reply,
                Err(failure) => {
                    if let Err(error) = repeat_or_tell(failure, &mut attempt) {
                        return error.into();
                    }
                }
            }
        }
    }
}

fn voided(numbers: &[MutationNumber], row: &PgRow) -> Result<PushReply, sqlx::Error> {
    let failure: Option<String> = row.try_get("failure")?;
    let statuses: Vec<Option<String>> = row.try_get("statuses")?;
    let text = |column: &str| {
        Ok::<_, sqlx::Error>(row.try_get::<Option<Vec<Option<String>>>, _>(column)?.unwrap_or_default())
    };
    let (codes, messages) = (text("codes")?, text("messages")?);
    let versions: Vec<Option<Uuid>> = row.try_get::<Option<_>, _>("versions")?.unwrap_or_default();
    let mut reply = PushReply::default();
    for (i, number) in numbers.iter().enumerate() {
        let Some(status) = statuses.get(i).and_then(Option::as_deref).and_then(MutationStatus::parse) else {
            break;
        };
        reply.results.push(MutationResult {
            number: *number,
            status,
            version: versions.get(i).copied().flatten().map(RowVersion),
            code: codes.get(i).cloned().flatten().map(Into::into),
            message: messages.get(i).cloned().flatten().map(Into::into),
            row: None,
        });
    }
    reply.error = match failure.as_deref() {
        None => None,
        Some("client_expired") => Some(client_expired()),
        Some(_) => Some(PushError::new(ErrorCode::Gap, "an earlier number is missing")),
    };
    Ok(reply)
}
