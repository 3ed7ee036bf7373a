//! What follows from a failure, as one table over facts, without an await.

use crate::CaptureError;
use crate::failure::{Disposition, Fault, INTERNAL_TRIES, SqlState};
use tidegate_model::Lsn;
use tidegate_stream::{Failure, FailureClass, PairedTransaction};

/// Transactions on their way into one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    first_commit: Lsn,
    last_end: Lsn,
    transactions: usize,
}

impl Attempt {
    pub(crate) fn of(group: &[PairedTransaction]) -> Option<Attempt> {
        Some(Attempt {
            first_commit: group.first()?.header().commit_lsn,
            last_end: group.last()?.header().end_lsn,
            transactions: group.len(),
        })
    }
}

/// What to do about the end of a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Try again now: the group one by one.
    Singly(Lsn),
    /// Try again after a delay.
    Again,
    /// Write a poison record, and wait for an operator.
    Quarantine(Box<Failure>, Option<SqlState>),
    /// A poison record exists: wait for an operator.
    Wait,
    /// Publication or triggers are not as they must be: wait until they are.
    Mend,
    /// Return the error.
    GiveUp,
}

/// The whole table of failures and what follows.
///
/// `refusals`: how often the server has refused to go on with the active stream, without progress since; `None` where the session has
/// not got there.
pub(crate) fn decide(
    error: &CaptureError,
    attempt: Option<Attempt>,
    internal_failures: u32,
    refusals: Option<u32>,
) -> Next {
    match error {
        CaptureError::Killed(_)
        | CaptureError::OwnershipLost
        | CaptureError::Config(_)
        | CaptureError::Refused(_) => Next::GiveUp,
        CaptureError::PoisonActive(_) => Next::Wait,
        CaptureError::Drifted(_) => Next::Mend,
        CaptureError::Waiting(_) | CaptureError::Unregistered(_) | CaptureError::Spool(_) => Next::Again,
        CaptureError::Blocked(failure) => match attempt {
            Some(attempt) if attempt.transactions > 1 => Next::Singly(attempt.last_end),
            Some(attempt) => {
                let placed = failure.as_ref().clone().at(attempt.first_commit, Some(attempt.last_end));
                Next::Quarantine(Box::new(placed), None)
            }
            None => Next::Quarantine(failure.clone(), None),
        },
        CaptureError::Failed { doing, fault } => match attempt {
            Some(attempt) => refused(doing, fault, attempt, internal_failures),
            None => unreadable(doing, fault, refusals),
        },
    }
}

/// The server refused no transaction that we know. Before the active stream, asking again is all there is to do. On it, what does not
/// pass and comes again is poison like any other (Q4): what follows the boundary cannot be read.
fn unreadable(doing: &str, fault: &Fault, refusals: Option<u32>) -> Next {
    let Some(refusals) = refusals.filter(|_| !fault.disposition.passes()) else { return Next::Again };
    let class = match fault.too_large_bytes {
        Some(_) => FailureClass::MessageTooLarge,
        None if refusals + 1 < INTERNAL_TRIES => return Next::Again,
        None => FailureClass::StreamUnreadable,
    };
    Next::Quarantine(Box::new(Failure::new(class, format!("{doing}: {fault}"))), fault.code)
}

/// The server refused to materialize.
fn refused(doing: &str, fault: &Fault, attempt: Attempt, internal_failures: u32) -> Next {
    match fault.disposition {
        Disposition::Transient | Disposition::Configuration => Next::Again,
        _ if attempt.transactions > 1 => Next::Singly(attempt.last_end),
        Disposition::Internal if internal_failures + 1 < INTERNAL_TRIES => Next::Again,
        Disposition::Internal | Disposition::Poison => {
            let failure = Failure::new(FailureClass::DatabaseRefused, format!("{doing}: {fault}"));
            Next::Quarantine(Box::new(failure.at(attempt.first_commit, Some(attempt.last_end))), fault.code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::classify;

    fn failed(code: &str) -> CaptureError {
        let code = SqlState::parse(code).expect("a code");
        let fault = Fault { code: Some(code), ..Fault::ours(classify(code), "x") };
        CaptureError::Failed { doing: "insert effects".into(), fault }
    }

    #[test]
    fn r2_a_failed_group_goes_one_by_one_and_only_the_bad_one_is_quarantined() {
        let group = Some(Attempt { first_commit: Lsn(10), last_end: Lsn(50), transactions: 3 });
        let single = Some(Attempt { first_commit: Lsn(20), last_end: Lsn(30), transactions: 1 });
        assert_eq!(decide(&failed("23505"), group, 0, Some(0)), Next::Singly(Lsn(50)));
        let Next::Quarantine(failure, code) = decide(&failed("23505"), single, 0, Some(0)) else {
            panic!("quarantined")
        };
        assert_eq!((failure.commit_lsn, failure.end_lsn), (Some(Lsn(20)), Some(Lsn(30))));
        assert_eq!(code, SqlState::parse("23505"));
    }

    #[test]
    fn q4_transient_failures_never_quarantine_and_internal_ones_do_at_the_third_try() {
        let single = Some(Attempt { first_commit: Lsn(20), last_end: Lsn(30), transactions: 1 });
        for code in ["40P01", "53100", "57P01", "42501"] {
            assert_eq!(decide(&failed(code), single, 100, Some(0)), Next::Again, "{code}");
        }
        assert_eq!(decide(&failed("XX000"), single, 0, Some(0)), Next::Again);
        assert_eq!(decide(&failed("XX000"), single, 1, Some(0)), Next::Again);
        assert!(matches!(decide(&failed("XX000"), single, 2, Some(0)), Next::Quarantine(..)));
        assert!(matches!(decide(&failed("XX001"), single, 0, Some(0)), Next::Quarantine(..)));
    }

    #[test]
    fn q4_a_stream_that_cannot_be_read_is_poison_at_the_third_refusal() {
        for code in ["42704", "55000", "XX000"] {
            assert_eq!(decide(&failed(code), None, 0, None), Next::Again, "nothing was read");
            assert_eq!(decide(&failed(code), None, 0, Some(1)), Next::Again, "{code}");
            let Next::Quarantine(failure, found) = decide(&failed(code), None, 0, Some(2)) else {
                panic!("quarantined")
            };
            assert_eq!((failure.class, failure.commit_lsn), (FailureClass::StreamUnreadable, None));
            assert_eq!(found, SqlState::parse(code));
        }
        assert_eq!(decide(&failed("57P01"), None, 0, Some(100)), Next::Again, "it passes");
        assert_eq!(decide(&failed("42501"), None, 0, Some(100)), Next::Again, "an administrator acts");
    }
}
