//! What is written of rows and edges at the end of a batch: the last state of each, however many transactions touched it (R2).

use super::{RelationRows, RowState};
use crate::carry::Carry;
use crate::writes::{EdgeColumns, ProjectionWrites, RowColumns, Writes};
use tidegate_model::ScopeId;

/// The physical end state of every row: what the projection had against what it has now.
pub(super) fn write_rows(rows: &[RowState], relations: &[RelationRows], carry: &Carry, writes: &mut Writes) {
    let empty = |rows: &RelationRows| ProjectionWrites {
        relation: rows.relation,
        insert: RowColumns::default(),
        update: RowColumns::default(),
        delete: Vec::new(),
    };
    writes.projections = relations.iter().map(empty).collect();
    for row in rows {
        let Some(at) = relations.iter().position(|rows| rows.relation == row.relation) else { continue };
        let projection = &mut writes.projections[at];
        let (mut before, after): (Vec<ScopeId>, &[ScopeId]) = (
            row.stored.as_ref().map(|old| old.scopes.clone()).unwrap_or_default(),
            row.live.as_ref().map_or(&[], |(_, scopes)| scopes),
        );
        before.sort_unstable();
        write_edges(
            row,
            after.iter().filter(|id| before.binary_search(id).is_err()),
            &mut writes.edges_added,
        );
        write_edges(
            row,
            before.iter().filter(|id| after.binary_search(id).is_err()),
            &mut writes.edges_removed,
        );
        match (&row.current, &row.live) {
            (Some((version, image)), Some((digest, scopes))) => {
                let columns =
                    if row.stored.is_some() { &mut projection.update } else { &mut projection.insert };
                columns.key_index.push(row.key_index.clone());
                columns.version.push(version.0);
                columns.row.push(image.clone());
                columns.digest.push(digest.0);
                columns.scope_ids.push(array_literal(scopes));
                columns.grants.push(grants_literal(&row.grants, carry));
            }
            _ if row.stored.is_some() => projection.delete.push(row.key_index.clone()),
            _ => {}
        }
    }
    writes.projections.sort_unstable_by_key(|projection| projection.relation);
}

fn write_edges<'i>(row: &RowState, ids: impl Iterator<Item = &'i ScopeId>, columns: &mut EdgeColumns) {
    for id in ids {
        columns.scope_id.push(id.0);
        columns.relation_id.push(row.relation.0);
        columns.key_index.push(row.key_index.clone());
    }
}

fn array_literal(ids: &[ScopeId]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 + ids.len() * 8);
    text.push('{');
    for (at, id) in ids.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{}", if at > 0 { "," } else { "" }, id.0);
    }
    text.push('}');
    text
}

/// Pairs in the order of subject and scope, so that equal sets have equal text.
fn grants_literal(slots: &[usize], carry: &Carry) -> Option<String> {
    if slots.is_empty() {
        return None;
    }
    let pair = |slot: &usize| {
        let pair = carry.pairs.pair(*slot);
        [pair.subject.0.as_str(), pair.scope.0.as_str()]
    };
    let mut pairs: Vec<[&str; 2]> = slots.iter().map(pair).collect();
    pairs.sort_unstable();
    Some(
        serde_json::Value::from_iter(pairs.into_iter().map(|pair| serde_json::Value::from(pair.to_vec())))
            .to_string(),
    )
}
