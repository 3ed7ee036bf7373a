//! Registry generations as the gateway needs them: immutable snapshots, each read once, and the manifests made from them.

use sqlx::PgPool;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use tidegate_model::{
    RegistryGeneration, Relation, ScopeName, Snapshot, SnapshotError, TableId, Template, TemplatePart,
    WritePolicy,
};
use tidegate_protocol::{ColumnSpec, Manifest, TableSpec};

/// Why a snapshot could not be had.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No such generation.
    #[error("registry generation {0} does not exist")]
    Unknown(RegistryGeneration),
    /// Written by a newer program, or damaged.
    #[error("{0}")]
    Unusable(#[from] SnapshotError),
    /// PostgreSQL refused or was not reachable.
    #[error("read a registry generation: {0}")]
    Database(#[from] sqlx::Error),
}

/// The snapshots read so far. They are immutable and few, so none is ever forgotten.
#[derive(Debug, Default)]
pub struct Registries(RwLock<HashMap<RegistryGeneration, Arc<Snapshot>>>);

impl Registries {
    /// A snapshot that was read before.
    pub fn get(&self, sv: RegistryGeneration) -> Option<Arc<Snapshot>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&sv).cloned()
    }

    /// Takes a snapshot.
    pub fn insert(&self, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(snapshot.generation, snapshot.clone());
        snapshot
    }

    /// A snapshot, read if need be.
    pub async fn load(&self, pool: &PgPool, sv: RegistryGeneration) -> Result<Arc<Snapshot>, RegistryError> {
        if let Some(snapshot) = self.get(sv) {
            return Ok(snapshot);
        }
        let json: Option<String> =
            sqlx::query_scalar("select snapshot::text from tidegate.registry_generation where id = $1")
                .bind(sv.0)
                .fetch_optional(pool)
                .await?;
        let mut snapshot = Snapshot::from_json(&json.ok_or(RegistryError::Unknown(sv))?)?;
        // The row's id is the truth.
        snapshot.generation = sv;
        Ok(self.insert(snapshot))
    }
}

/// The synced tables whose rows can be in one of `scopes`: what a subject's manifest shows.
pub fn reachable<'s>(
    snapshot: &Snapshot,
    scopes: impl Iterator<Item = &'s ScopeName> + Clone,
) -> BTreeSet<TableId> {
    let reaches = |relation: &Relation| {
        relation.scopes.iter().any(|rule| scopes.clone().any(|scope| can_render(&rule.template, &scope.0)))
    };
    snapshot
        .relations
        .iter()
        .filter(|relation| reaches(relation))
        .filter_map(|relation| relation.table_id)
        .collect()
}

/// The manifest of these tables.
pub fn manifest<'r>(snapshot: &'r Snapshot, tables: &BTreeSet<TableId>) -> Manifest<'r> {
    let table = |relation: &'r Relation| {
        let id = relation.table_id.filter(|id| tables.contains(id))?;
        Some(TableSpec {
            id,
            name: format!("{}.{}", relation.schema, relation.name).into(),
            key: relation.key_index() as u32,
            cols: relation
                .columns
                .iter()
                .map(|column| ColumnSpec {
                    name: column.name.as_str().into(),
                    wire_type: column.wire.name().into(),
                    nullable: column.nullable,
                })
                .collect(),
            write: relation.write == WritePolicy::Enabled,
        })
    };
    Manifest { tables: snapshot.relations.iter().filter_map(table).collect() }
}

/// Whether some values of its holes make `template` this name. Values are percent-encoded, so a hole never holds the character
/// that the literal after it begins with: matching needs no search.
fn can_render(template: &Template, name: &str) -> bool {
    let mut rest = name;
    let mut parts = template.0.iter().peekable();
    while let Some(part) = parts.next() {
        match part {
            TemplatePart::Text(text) => match rest.strip_prefix(text.as_str()) {
                Some(after) => rest = after,
                None => return false,
            },
            _ => {
                let end = match parts.peek() {
                    Some(TemplatePart::Text(text)) => text.chars().next().and_then(|first| rest.find(first)),
                    _ => Some(rest.len()),
                };
                let Some(end) = end else { return false };
                rest = &rest[end..];
            }
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_reaches_exactly_the_names_that_it_can_render() {
        let hole = || TemplatePart::Column("c".into());
        let text = |text: &str| TemplatePart::Text(text.into());
        let list = Template(vec![text("list:"), hole()]);
        assert!(can_render(&list, "list:L1") && can_render(&list, "list:"));
        assert!(!can_render(&list, "team:L1") && !can_render(&list, "list"));
        let two = Template(vec![text("a:"), hole(), text("/"), hole()]);
        assert!(can_render(&two, "a:1/2") && !can_render(&two, "a:1"));
        let closed = Template(vec![hole(), text(":end")]);
        assert!(can_render(&closed, "x:end") && !can_render(&closed, "x:end2"));
        assert!(can_render(&Template(vec![text("catalog")]), "catalog"));
        assert!(!can_render(&Template(vec![text("catalog")]), "catalogue"));
    }
}
