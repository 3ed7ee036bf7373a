//! Positions of the stream (P1–P3).

use crate::{Lsn, StreamGeneration};
use std::cmp::Ordering;

/// A place within one generation, in stream order (P2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before everything: the baseline itself.
    GenerationStart,
    /// One effect.
    Effect {
        /// Commit position of its source transaction as decoding reports it (not the end).
        commit_lsn: Lsn,
        /// Zero-based count of row changes in decoded order (P4).
        event_ordinal: u64,
        /// Zero-based per event and scope (P5).
        effect_ordinal: u32,
    },
    /// After every effect of the transaction; exists also for one without effects.
    TransactionEnd {
        /// Commit position of the source transaction.
        commit_lsn: Lsn,
    },
}

impl Point {
    /// The commit position that the point belongs to; none for the generation's start.
    pub fn commit_lsn(&self) -> Option<Lsn> {
        match *self {
            Point::GenerationStart => None,
            Point::Effect { commit_lsn, .. } | Point::TransactionEnd { commit_lsn } => Some(commit_lsn),
        }
    }

    fn rank(&self) -> (u8, Lsn, u8, u64, u32) {
        match *self {
            Point::GenerationStart => (0, Lsn::ZERO, 0, 0, 0),
            Point::Effect { commit_lsn, event_ordinal, effect_ordinal } => {
                (1, commit_lsn, 0, event_ordinal, effect_ordinal)
            }
            Point::TransactionEnd { commit_lsn } => (1, commit_lsn, 1, 0, 0),
        }
    }
}

impl PartialOrd for Point {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Point {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// A place in the stream. Deliberately without `Ord`: positions of different generations are not comparable (P3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// The lineage.
    pub generation: StreamGeneration,
    /// The place in it.
    pub point: Point,
}

/// Two positions belong to different generations; the older one's holder must rebuild (P3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("positions of different stream generations are not comparable")]
pub struct GenerationMismatch;

impl Position {
    /// Order within one generation.
    ///
    /// # Errors
    /// [`GenerationMismatch`] when the generations differ.
    pub fn compare(&self, other: &Position) -> Result<Ordering, GenerationMismatch> {
        if self.generation == other.generation {
            Ok(self.point.cmp(&other.point))
        } else {
            Err(GenerationMismatch)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn effect(commit: u64, event: u64, ordinal: u32) -> Point {
        Point::Effect { commit_lsn: Lsn(commit), event_ordinal: event, effect_ordinal: ordinal }
    }

    #[test]
    fn p2_points_are_totally_ordered() {
        let ordered = [
            Point::GenerationStart,
            effect(5, 0, 0),
            effect(5, 0, 1),
            effect(5, 1, 0),
            effect(5, 10, 0),
            Point::TransactionEnd { commit_lsn: Lsn(5) },
            Point::TransactionEnd { commit_lsn: Lsn(6) },
            effect(7, 0, 0),
            Point::TransactionEnd { commit_lsn: Lsn(7) },
        ];
        for (i, a) in ordered.iter().enumerate() {
            for (j, b) in ordered.iter().enumerate() {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a:?} against {b:?}");
            }
        }
    }

    #[test]
    fn p3_positions_of_different_generations_do_not_compare() {
        let point = Point::TransactionEnd { commit_lsn: Lsn(9) };
        let a = Position { generation: StreamGeneration(Uuid::from_u128(1)), point };
        let b = Position { generation: StreamGeneration(Uuid::from_u128(2)), point };
        assert_eq!(a.compare(&b), Err(GenerationMismatch));
        assert_eq!(a.compare(&a), Ok(Ordering::Equal));
    }
}
