//! What a failed statement comes to: run again, or an error for the client. PostgreSQL's error texts may hold values, so only
//! SQLSTATEs get past this file (Q1).

use super::reply::{PushError, RETRY_MS};
use super::sqlstate;
use sqlx::postgres::PgDatabaseError;
use tidegate_protocol::ErrorCode;

/// Runs of one push before its failure goes to the client: the first, and repeats after a deadlock, a lost connection or a change of
/// the registry.
pub(super) const ATTEMPTS_MAX: u32 = 4;

/// A failure of one run, reduced to what may be told.
pub(super) enum Failure {
    /// PostgreSQL refused: SQLSTATE, and whether it says where inside our own function.
    Database { sqlstate: String, inside: bool },
    /// The answer was lost with the connection: it may have run or not.
    Connection,
    /// No connection could be had for as long as we wait: it did not run.
    Unreachable,
}

impl Failure {
    /// A trigger that set the session's role for good has made the connection useless: it may not call our functions any more.
    pub(super) fn useless_connection(&self) -> bool {
        matches!(self, Failure::Database { sqlstate, inside: false } if sqlstate == "42501")
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Failure {
        match error {
            sqlx::Error::Database(error) => {
                let error = error.downcast_ref::<PgDatabaseError>();
                let inside = error.r#where().is_some_and(|context| context.contains("tidegate.push"));
                Failure::Database { sqlstate: error.code().to_owned(), inside }
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
                Failure::Database { sqlstate: "XX000".to_owned(), inside: true }
            }
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Failure::Unreachable,
            _ => Failure::Connection,
        }
    }
}

/// Whether to run once more after this failure; else what to tell. Logged here, once.
pub(super) fn repeat_or_tell(failure: Failure, attempt: &mut u32) -> Result<(), PushError> {
    let repeat = match &failure {
        Failure::Connection => true,
        Failure::Unreachable => false,
        Failure::Database { sqlstate, .. } => sqlstate::worth_repeating(sqlstate),
    };
    *attempt += 1;
    if repeat && *attempt <= ATTEMPTS_MAX {
        return Ok(());
    }
    match failure {
        Failure::Connection | Failure::Unreachable => {
            tracing::warn!("push: no connection to the database");
            Err(unavailable())
        }
        Failure::Database { sqlstate, inside } => {
            if !sqlstate::is_transient(&sqlstate) {
                tracing::error!(%sqlstate, inside, "push failed in tidegate's own statement");
                return Err(internal());
            }
            if sqlstate.starts_with("TG") {
                let why = match sqlstate.as_str() {
                    "TG101" => "a registered table was replaced",
                    "TG102" => "a write was not fenced: triggers are missing",
                    _ => "the role of pushes lacks rights: run tidegate.grant_push",
                };
                tracing::error!(why, "push refused: the database is not as registered");
            } else {
                tracing::warn!(%sqlstate, "push failed and may be sent again");
            }
            if sqlstate == sqlstate::LOCK_TIMEOUT {
                let message = "a row that the push writes is locked by another transaction";
                return Err(PushError::retry_after(ErrorCode::Unavailable, message, RETRY_MS));
            }
            Err(unavailable())
        }
    }
}

/// What may be told of a failed statement of our own (Q1).
pub(super) fn describe(error: sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => format!("SQLSTATE {}", error.code().as_deref().unwrap_or("unknown")),
        sqlx::Error::Io(error) => format!("connection: {}", error.kind()),
        sqlx::Error::PoolTimedOut => "no connection in time".to_owned(),
        _ => "connection failed".to_owned(),
    }
}

pub(super) fn unavailable() -> PushError {
    PushError::retry_after(ErrorCode::Unavailable, "the database cannot take pushes now", RETRY_MS)
}

pub(super) fn internal() -> PushError {
    PushError::new(ErrorCode::Internal, "the push could not be run")
}

pub(super) fn client_expired() -> PushError {
    PushError::new(ErrorCode::ClientExpired, "this server does not know what the client knows")
}
