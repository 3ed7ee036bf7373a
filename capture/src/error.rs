//! Why the worker stopped, and who acts next.

use crate::failure::{Disposition, Fault};
use std::borrow::Cow;
use tidegate_model::Lsn;
use tidegate_stream::{Failure, StreamError};

/// Failure of the worker. [`run`](crate::run()) keeps trying through what passes by itself and through poison, so it returns
/// only what needs another act.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The configuration cannot work. Whoever starts the worker acts.
    #[error("configuration: {0}")]
    Config(String),
    /// Server or network refused. [`Fault::disposition`] says who acts.
    #[error("{doing}: {fault}")]
    Failed {
        /// Verb and object.
        doing: Cow<'static, str>,
        /// What happened, redacted.
        fault: Fault,
    },
    /// The stream must not go on from here: an operator decides, usually for a reset.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another worker owns the stream now. Nobody needs to act.
    #[error("another worker has taken over the stream")]
    OwnershipLost,
    /// A source transaction is poison (Q1). An operator repairs and retries it, or resets the stream.
    #[error("{0}")]
    Blocked(Box<Failure>),
    /// A poison record blocks. An operator retries it, or resets the stream.
    #[error("poison record {0} blocks the stream: see `tidegate poison show {0}`")]
    PoisonActive(i64),
    /// The spool's disk failed. Passes once there is room again.
    #[error("spool a large transaction: {0}")]
    Spool(std::io::ErrorKind),
    /// Something must happen in the database first; the worker asks again.
    #[error("{0}")]
    Waiting(String),
    /// Publication or triggers are not as installed: blocked until they are. Whoever changed them acts.
    #[error("{0}")]
    Drifted(String),
    /// The ordinary wait of a first start: there is nothing to capture yet. Nobody needs to hurry.
    #[error("{0}")]
    Unregistered(&'static str),
    /// A test's fail point.
    #[error("killed at {0}")]
    Killed(&'static str),
}

/// What A8, A9, B and H forbid to go on from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The address leads to another cluster.
    #[error(
        "this is another cluster: its system identifier differs from the stream's; connect to the right server or reset the stream"
    )]
    OtherCluster,
    /// The cluster was promoted or restored.
    #[error(
        "the server is on timeline {actual}, the stream on {expected}: after a promotion or restore the stream must be reset"
    )]
    OtherTimeline {
        /// The stream's.
        expected: i32,
        /// The server's.
        actual: i32,
    },
    /// The address leads to another database of the cluster.
    #[error("this is another database of the cluster; connect to the configured one or reset the stream")]
    OtherDatabase,
    /// No such slot.
    #[error("slot {0} does not exist: changes may be lost, the stream must be reset")]
    SlotMissing(String),
    /// The slot is not ours.
    #[error(
        "slot {slot} is not a permanent pgoutput slot of this database ({found}); the stream must be reset"
    )]
    SlotForeign {
        /// Its name.
        slot: String,
        /// What it is instead.
        found: String,
    },
    /// WAL that it needs is gone.
    #[error("slot {0} is invalidated: WAL that the stream needs is gone, the stream must be reset")]
    SlotInvalidated(String),
    /// A8: before the generation's start.
    #[error("the slot stands at {slot}, before the generation's start {start}: the stream must be reset")]
    SlotBeforeStart {
        /// The slot's confirmed position.
        slot: Lsn,
        /// The lower bound.
        start: Lsn,
    },
    /// A8: past what is durable.
    #[error(
        "the slot stands at {slot}, past the processed boundary {processed}: changes are lost, the stream must be reset"
    )]
    SlotPastProcessed {
        /// The slot's confirmed position.
        slot: Lsn,
        /// The durable boundary.
        processed: Lsn,
    },
    /// A8: our progress is beyond the server's WAL.
    #[error(
        "progress stands at {processed}, beyond the server's WAL at {flush}: a restore or another server, the stream must be reset"
    )]
    ProgressPastServer {
        /// The durable boundary.
        processed: Lsn,
        /// The server's flush position.
        flush: Lsn,
    },
    /// Replication through a pooler cannot work (CRATES 9).
    #[error(
        "DATABASE_URL leads to a connection pooler, which cannot carry replication: give the server's own address"
    )]
    Pooler,
    /// A session setting does not have the pinned value.
    #[error(
        "session setting {name} is not what was asked for: a pooler, or a role or database setting that wins over it"
    )]
    Setting {
        /// Its name.
        name: String,
    },
    /// The server cannot do logical replication.
    #[error("wal_level is {0}, it must be logical: set it and restart the server")]
    WalLevel(String),
    /// Too old or too new.
    #[error("PostgreSQL {0} is not supported: 15 to 18 are")]
    ServerVersion(u32),
    /// Our schema is missing or older than this program.
    #[error("the tidegate schema is not installed in this database: run `tidegate migrate`")]
    SchemaMissing,
    /// What is stored contradicts itself.
    #[error("stored state is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl CaptureError {
    pub(crate) fn sql(doing: impl Into<Cow<'static, str>>) -> impl FnOnce(sqlx::Error) -> CaptureError {
        move |error| CaptureError::Failed { doing: doing.into(), fault: Fault::from(&error) }
    }

    pub(crate) fn replication(
        doing: impl Into<Cow<'static, str>>,
    ) -> impl FnOnce(pgwire_replication::PgWireError) -> CaptureError {
        move |error| CaptureError::Failed { doing: doing.into(), fault: Fault::from(&error) }
    }

    pub(crate) fn blocked(failure: Failure) -> CaptureError {
        CaptureError::Blocked(Box::new(failure))
    }

    /// Whether asking again later may help without anybody acting on the stream.
    pub(crate) fn disposition(&self) -> Disposition {
        match self {
            CaptureError::Failed { fault, .. } => fault.disposition,
            CaptureError::Spool(_) | CaptureError::Waiting(_) | CaptureError::Unregistered(_) => {
                Disposition::Transient
            }
            _ => Disposition::Poison,
        }
    }

    /// As one bounded word for heartbeat and metrics.
    pub(crate) fn reason(&self) -> String {
        let mut text = self.to_string();
        if text.len() > 300 {
            let end = (0..=300).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
        text
    }
}

impl From<StreamError> for CaptureError {
    fn from(error: StreamError) -> CaptureError {
        match error {
            StreamError::Blocked(failure) => CaptureError::blocked(failure),
            StreamError::Spool(error) => CaptureError::Spool(error.kind()),
        }
    }
}

impl From<Failure> for CaptureError {
    fn from(failure: Failure) -> CaptureError {
        CaptureError::blocked(failure)
    }
}

/// Names the act that a failed statement belonged to.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, CaptureError>;
}

impl<T> Doing<T> for Result<T, sqlx::Error> {
    fn doing(self, doing: &'static str) -> Result<T, CaptureError> {
        self.map_err(CaptureError::sql(doing))
    }
}

impl<T> Doing<T> for Result<T, pgwire_replication::PgWireError> {
    fn doing(self, doing: &'static str) -> Result<T, CaptureError> {
        self.map_err(CaptureError::replication(doing))
    }
}
