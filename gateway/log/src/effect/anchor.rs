//! What every answer of the effect log is bound to: the history that it is of, and how far that history had come.

use sqlx::postgres::PgRow;
use tidegate_model::{GenerationId, Lsn, RegistryGeneration, ServerIdentity, StateId, StreamGeneration};

use super::row::Fields;
use super::{ANCHOR_ROW, ANCHOR_SQL, EffectLogError, TailPosition};

/// The history that a log is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The stream's generation, as tables carry it.
    pub generation: GenerationId,
    /// The same, as cursors carry it.
    pub stream: StreamGeneration,
    /// The projected state that it reads.
    pub state: StateId,
    /// The server and its timeline.
    pub server: ServerIdentity,
}

/// What one snapshot was bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The history.
    pub lineage: Lineage,
    /// Newest materialized transaction; `None`: none since the baseline.
    pub tip: Option<Lsn>,
    /// Registry generation in force there.
    pub registry: RegistryGeneration,
    /// Every transaction whose commit record begins before here is materialized (A1).
    pub processed: Lsn,
    /// End of the WAL where it is made; `None`: this server only follows another one.
    pub written: Option<Lsn>,
    /// Effects of transactions up to here may have been removed; `None`: none ever was.
    pub removed: Option<Lsn>,
}

impl Anchor {
    /// The newest materialized transaction as a position.
    pub fn tip_position(&self) -> TailPosition {
        TailPosition { end: self.tip, inside: None }
    }

    /// Whether a transaction that somebody has seen committed at `commit` is none of this history, and never will be: either
    /// everything there is materialized and it is not among it, or the WAL has never reached so far. False for what is only not
    /// materialized yet.
    ///
    /// Exact, whoever answers, within one lineage: nobody sees a transaction before it is materialized, and nothing is materialized
    /// before its commit record is flushed on the server that wrote it.
    pub fn lacks(&self, commit: Lsn) -> bool {
        let passed = self.tip < Some(commit) && commit < self.processed;
        passed || self.written.is_some_and(|written| commit >= written)
    }

    pub(super) fn read(fields: &Fields<'_>) -> Result<Anchor, EffectLogError> {
        Ok(Anchor {
            lineage: Lineage {
                generation: GenerationId(fields.sv()?),
                stream: StreamGeneration(fields.uuid()?),
                state: StateId(fields.table()?),
                server: ServerIdentity { system: fields.scope()? as u64, timeline: fields.effect()? as u32 },
            },
            tip: fields.lsn()?,
            registry: RegistryGeneration(fields.event()? as i32),
            processed: fields.processed()?,
            written: fields.written()?,
            removed: fields.removed()?,
        })
    }

    /// The anchor of a statement of somebody else's that selects the anchor's row first, checked against `lineage`.
    pub fn of_row(row: &PgRow, lineage: &Lineage) -> Result<Anchor, EffectLogError> {
        let anchor = Anchor::read(&Fields(row))?;
        lineage.check(&anchor.lineage)?;
        Ok(anchor)
    }

    /// The statement's text up to and including the anchor's row, for statements of somebody else's: `ctes` come between.
    pub fn statement(ctes: &str) -> String {
        format!("{ANCHOR_SQL}{ctes}{ANCHOR_ROW}")
    }
}

impl Lineage {
    pub(super) fn check(&self, seen: &Lineage) -> Result<(), EffectLogError> {
        if seen.server.system != self.server.system {
            Err(EffectLogError::LineageChanged("server"))
        } else if seen.server.timeline != self.server.timeline {
            Err(EffectLogError::LineageChanged("server's timeline"))
        } else if seen.stream != self.stream || seen.generation != self.generation || seen.state != self.state
        {
            Err(EffectLogError::LineageChanged("stream generation"))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p9_what_was_passed_or_never_written_is_lost_and_what_is_on_its_way_is_not() {
        let lineage = Lineage {
            generation: GenerationId(1),
            stream: StreamGeneration(uuid::Uuid::nil()),
            state: StateId(1),
            server: ServerIdentity { system: 7, timeline: 1 },
        };
        let (tip, processed, written) = (Some(Lsn(100)), Lsn(150), Some(Lsn(300)));
        let primary =
            Anchor { lineage, tip, registry: RegistryGeneration(1), processed, written, removed: None };
        let standby = Anchor { written: None, ..primary };
        for (commit, lost, lost_by_a_standby) in [
            (99, false, false),
            (100, false, false),
            (101, true, true),
            (149, true, true),
            (150, false, false),
            (299, false, false),
            (300, true, false),
            (1 << 60, true, false),
        ] {
            assert_eq!(primary.lacks(Lsn(commit)), lost, "{commit}");
            assert_eq!(standby.lacks(Lsn(commit)), lost_by_a_standby, "{commit}, as a standby tells");
        }
        let restored = Anchor { tip: None, ..primary };
        assert!(restored.lacks(Lsn(1)), "put back to before the first transaction");
    }
}
