//! R3. What comes again after a restart, because the slot trails what is durable: recognised by its identity, compared with what was
//! stored under it, and otherwise ignored.

use crate::CaptureError;
use crate::columns::SqlLsn;
use crate::error::Doing;
use crate::materialize::Target;
use sqlx::PgConnection;
use tidegate_model::Lsn;
use tidegate_stream::{Failure, FailureClass, Header};

/// What was durable when a stream began: each transaction comes once per connection, so this does not change while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    target: Target,
    processed: Lsn,
}

impl Replay {
    pub(crate) fn new(target: Target, processed: Lsn) -> Replay {
        Replay { target, processed }
    }

    /// Whether this identity is durable already: its commit record starts before the boundary (A1).
    pub(crate) fn covers(&self, header: &Header) -> bool {
        header.commit_lsn < self.processed
    }

    /// The event manifest stored under a durable identity; `None` for a candidate, which keeps no records: its boundary alone says
    /// what it has applied.
    pub(crate) async fn stored_manifest(
        &self,
        connection: &mut PgConnection,
        header: &Header,
    ) -> Result<Option<Vec<u8>>, CaptureError> {
        let Target::Live { generation, .. } = self.target else { return Ok(None) };
        let stored: Option<Vec<u8>> = sqlx::query_scalar(
            "select manifest from tidegate.source_transaction where generation = $1 and commit_lsn = $2",
        )
        .bind(generation.0)
        .bind(SqlLsn(header.commit_lsn))
        .fetch_optional(connection)
        .await
        .doing("look up a replayed transaction")?;
        if stored.is_none() {
            let what = "a transaction before the processed boundary has no record";
            let failure = Failure::new(FailureClass::ManifestMismatch, what);
            return Err(failure.at(header.commit_lsn, Some(header.end_lsn)).into());
        }
        Ok(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_a1_a_commit_record_that_begins_where_the_boundary_ends_is_new() {
        let replay = Replay::new(
            Target::Live { generation: tidegate_model::GenerationId(1), state: tidegate_model::StateId(1) },
            Lsn(100),
        );
        let header = |commit_lsn| Header {
            commit_lsn: Lsn(commit_lsn),
            end_lsn: Lsn(commit_lsn + 48),
            xid: 1,
            committed_at_pg_micros: 0,
            event_count: 1,
        };
        // Of two transactions that commit one right after the other, the second's record begins at the end of the first's.
        assert!(!replay.covers(&header(100)));
        assert!(replay.covers(&header(52)));
    }
}
