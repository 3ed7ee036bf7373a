//! Places in the effect log (S2): of the whole log, transaction ends; of a scope, effects.

use serde::{Deserialize, Serialize};
use tidegate_model::{Lsn, Point, ScopeId};

/// Where a reader of the whole effect log stands, within one lineage: the end of a source transaction, or, inside one that is
/// too large to be read whole, an effect of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TailPosition {
    /// Everything through this transaction was read; `None`: nothing of this generation.
    pub end: Option<Lsn>,
    /// And of the next one, everything through this effect, in order of scope.
    pub inside: Option<Inside>,
}

/// A place inside one source transaction, in the order in which its parts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Inside {
    /// The transaction.
    pub commit_lsn: Lsn,
    /// Scope of the last effect read.
    pub scope: ScopeId,
    /// Its event ordinal.
    pub event_ordinal: u64,
    /// Its effect ordinal.
    pub effect_ordinal: u32,
}

impl TailPosition {
    /// After the transaction that committed at `lsn`.
    pub fn end_of(lsn: Lsn) -> TailPosition {
        TailPosition { end: Some(lsn), inside: None }
    }

    /// As a point of the stream: the last transaction end read.
    pub fn point(&self) -> Point {
        match self.end {
            Some(commit_lsn) => Point::TransactionEnd { commit_lsn },
            None => Point::GenerationStart,
        }
    }
}

/// Place of one effect in its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EffectPosition {
    /// Commit position of its source transaction.
    pub commit_lsn: Lsn,
    /// Event within the transaction (P4).
    pub event_ordinal: u64,
    /// Effect within event and scope (P5).
    pub effect_ordinal: u32,
}

impl EffectPosition {
    /// The first place after `point`, so that an inclusive read begins with the very next effect (P6).
    pub fn after(point: Point) -> EffectPosition {
        match point {
            Point::GenerationStart => {
                EffectPosition { commit_lsn: Lsn::ZERO, event_ordinal: 0, effect_ordinal: 0 }
            }
            Point::Effect { commit_lsn, event_ordinal, effect_ordinal } => {
                EffectPosition { commit_lsn, event_ordinal, effect_ordinal: effect_ordinal + 1 }
            }
            Point::TransactionEnd { commit_lsn } => EffectPosition {
                commit_lsn: Lsn(commit_lsn.0.saturating_add(1)),
                event_ordinal: 0,
                effect_ordinal: 0,
            },
        }
    }

    /// As a point of the stream.
    pub fn point(self) -> Point {
        Point::Effect {
            commit_lsn: self.commit_lsn,
            event_ordinal: self.event_ordinal,
            effect_ordinal: self.effect_ordinal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(commit: u64, event: u64, ordinal: u32) -> EffectPosition {
        EffectPosition { commit_lsn: Lsn(commit), event_ordinal: event, effect_ordinal: ordinal }
    }

    #[test]
    fn p6_the_place_after_a_point_skips_nothing_and_repeats_nothing() {
        let effects = [effect(5, 0, 0), effect(5, 0, 1), effect(5, 3, 0), effect(6, 0, 0)];
        for (i, at) in effects.iter().enumerate() {
            let next = EffectPosition::after(at.point());
            assert!(next > *at);
            assert!(effects.get(i + 1).is_none_or(|following| next <= *following));
        }
        assert!(
            EffectPosition::after(Point::TransactionEnd { commit_lsn: Lsn(5) })
                > effect(5, u64::MAX, u32::MAX)
        );
        assert_eq!(EffectPosition::after(Point::TransactionEnd { commit_lsn: Lsn(5) }), effect(6, 0, 0));
        assert_eq!(EffectPosition::after(Point::GenerationStart), effect(0, 0, 0));
    }

    #[test]
    fn s2_tail_positions_are_ordered_by_end_then_by_place_inside_the_next_transaction() {
        let inside = |scope, event| {
            let inside =
                Inside { commit_lsn: Lsn(9), scope: ScopeId(scope), event_ordinal: event, effect_ordinal: 0 };
            TailPosition { end: Some(Lsn(5)), inside: Some(inside) }
        };
        let ordered = [
            TailPosition::default(),
            TailPosition::end_of(Lsn(5)),
            inside(1, 7),
            inside(2, 0),
            TailPosition::end_of(Lsn(9)),
        ];
        assert!(ordered.windows(2).all(|pair| pair[0] < pair[1]));
        for position in ordered {
            let text = serde_json::to_string(&position).expect("serialize");
            assert_eq!(serde_json::from_str::<TailPosition>(&text).expect("read back"), position);
        }
    }
}
