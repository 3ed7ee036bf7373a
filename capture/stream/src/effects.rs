//! Sixth stage. Puts the net effects of one transaction into delivery order and numbers them (P5). Pure.

use tidegate_model::{RowDigest, RowKey, ScopeId, TableId};

use crate::writes::EffectOperation;

/// What one transaction means for one row in one scope. At most one per scope and row (R6).
#[derive(Clone, Debug)]
pub(crate) struct NetEffect<'k> {
    /// The last event that touched the row.
    pub(crate) event_ordinal: u64,
    pub(crate) scope: ScopeId,
    pub(crate) table: TableId,
    pub(crate) key: &'k RowKey,
    pub(crate) operation: EffectOperation,
    /// Digest of the row as the scope had it.
    pub(crate) before: Option<RowDigest>,
    /// Digest of the row as the scope has it now.
    pub(crate) after: Option<RowDigest>,
    /// Index of the change that it comes from.
    pub(crate) change: usize,
}

/// Sorts into delivery order: by event, and within an event and a scope by table, typed key and operation.
pub(crate) fn order(effects: &mut [NetEffect<'_>]) {
    // Stable, and fast where the input is sorted already, as it is without joins.
    effects.sort_by(|a, b| {
        (a.event_ordinal, a.scope, a.table, a.key, a.operation).cmp(&(
            b.event_ordinal,
            b.scope,
            b.table,
            b.key,
            b.operation,
        ))
    });
}

/// Numbers effects that come in delivery order: from zero per event and scope.
#[derive(Default)]
pub(crate) struct EffectOrdinals {
    last: Option<(u64, ScopeId, i32)>,
}

impl EffectOrdinals {
    /// Ordinal of the next effect.
    pub(crate) fn next(&mut self, effect: &NetEffect<'_>) -> i32 {
        let ordinal = match self.last {
            Some((event, scope, ordinal)) if (event, scope) == (effect.event_ordinal, effect.scope) => {
                ordinal + 1
            }
            _ => 0,
        };
        self.last = Some((effect.event_ordinal, effect.scope, ordinal));
        ordinal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect<'k>(
        event_ordinal: u64,
        scope: i64,
        table: i32,
        key: &'k RowKey,
        operation: EffectOperation,
    ) -> NetEffect<'k> {
        NetEffect {
            event_ordinal,
            scope: ScopeId(scope),
            table: TableId(table),
            key,
            operation,
            before: None,
            after: None,
            change: 0,
        }
    }

    #[test]
    fn p5_effects_are_numbered_per_event_and_scope_by_table_key_and_operation() {
        use EffectOperation::{Delete, Upsert};
        let keys = [RowKey::Int(-10), RowKey::Int(9), RowKey::Int(10), RowKey::Text("a".into())];
        let expected = [
            (effect(3, 1, 1, &keys[0], Upsert), 0),
            (effect(3, 1, 1, &keys[1], Upsert), 1),
            (effect(3, 1, 1, &keys[2], Upsert), 2),
            (effect(3, 1, 1, &keys[2], Delete), 3),
            (effect(3, 1, 2, &keys[3], Delete), 4),
            (effect(3, 2, 1, &keys[0], Delete), 0),
            (effect(10, 1, 1, &keys[0], Delete), 0),
        ];
        // Every rotation of the input comes out alike: the same choice on every replay.
        for turn in 0..expected.len() {
            let mut effects: Vec<_> = expected.iter().map(|(effect, _)| effect.clone()).collect();
            effects.rotate_left(turn);
            order(&mut effects);
            let mut ordinals = EffectOrdinals::default();
            for (effect, (wanted, ordinal)) in effects.iter().zip(&expected) {
                assert_eq!(
                    (effect.event_ordinal, effect.scope, effect.table),
                    (wanted.event_ordinal, wanted.scope, wanted.table)
                );
                assert_eq!(
                    (effect.key, effect.operation, ordinals.next(effect)),
                    (wanted.key, wanted.operation, *ordinal)
                );
            }
        }
    }
}
