//! Fifth stage. Says which scopes a row image is in and which pairs it grants. Pure, one row at a time: rules with joins, whose
//! answer depends on other rows, are not evaluated here.

use tidegate_model::{Relation, ScopeName, Snapshot, Subject};

/// What the rules in force make of one row image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Scopes that the row is in, sorted, each once however many rules say so.
    pub scopes: Vec<ScopeName>,
    /// (subject, scope) pairs that it grants, sorted, each once.
    pub grants: Vec<(Subject, ScopeName)>,
}

/// Evaluates every rule of `relation` over `row`, an image of its columns. Null in a template or an unknown condition: no
/// member (DT-08). Baseline and stream both come through here.
pub fn evaluate(snapshot: &Snapshot, relation: &Relation, row: &[u8]) -> Membership {
    let mut grants = snapshot.grants_of(relation.relation_id).peekable();
    if relation.scopes.is_empty() && grants.peek().is_none() {
        return Membership::default();
    }
    let values = relation.values(row);
    // Clients see no rows of a dependency, so none is in a scope.
    let scopes = if relation.table_id.is_some() { relation.scopes_of(&values) } else { Vec::new() };
    let mut grants: Vec<_> = grants.filter_map(|grant| grant.pair_of(relation, &values)).collect();
    grants.sort_unstable();
    grants.dedup();
    Membership { scopes, grants }
}
