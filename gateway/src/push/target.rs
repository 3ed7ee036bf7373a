//! What pushes may write, from one registry generation: tables by their client-visible id, with quoted names and casts ready.
//! Pure; `start.rs` loads it, and `run.rs` asks for it again when the registry has changed.

use std::collections::HashMap;
use std::sync::Arc;
use tidegate_model::{
    ColumnType, KeyType, RegistryGeneration, Snapshot, SnapshotError, TableId, WritePolicy,
};

/// The tables of one registry generation.
#[derive(Debug)]
pub(super) struct Targets {
    pub(super) generation: RegistryGeneration,
    /// Whether anything in the database can be deferred: then mutations that stand alone must not share a transaction.
    pub(super) defers: bool,
    tables: HashMap<TableId, Arc<Target>>,
}

/// One synced table.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) relation_id: i32,
    /// The registry generation that first had the table in this form.
    pub(super) since: RegistryGeneration,
    pub(super) oid: u32,
    /// Schema-qualified and quoted.
    pub(super) name: String,
    pub(super) writable: bool,
    /// Row-level security must apply to the role.
    pub(super) secured: bool,
    pub(super) key_type: KeyType,
    pub(super) key: Column,
    /// Whether a row with key $1 is visible.
    pub(super) probe: String,
    columns: HashMap<String, Column>,
}

/// One captured column.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) quoted: String,
    /// Name of its base type without length, so that the table's own length or precision is applied, and refused, by assignment.
    pub(super) cast: String,
    pub(super) pg_type: String,
    pub(super) wire: ColumnType,
}

impl Targets {
    /// From the stored snapshot and the names of its columns' types by OID.
    pub(super) fn new(
        snapshot: &str,
        types: &HashMap<String, String>,
        defers: bool,
    ) -> Result<Targets, SnapshotError> {
        let snapshot = Snapshot::from_json(snapshot)?;
        let mut tables = HashMap::new();
        for relation in &snapshot.relations {
            let Some(table) = relation.table_id else { continue };
            let columns: HashMap<String, Column> = relation
                .columns
                .iter()
                // A type that is gone takes its column out of reach; drift is readiness's to report (H4).
                .filter_map(|column| {
                    let cast = types.get(&column.type_oid.to_string())?.clone();
                    let name = column.name.clone();
                    let quoted = quote(&name);
                    Some((
                        name.clone(),
                        Column { name, quoted, cast, pg_type: column.pg_type.clone(), wire: column.wire },
                    ))
                })
                .collect();
            let Some(key) = columns.get(&relation.key.column).cloned() else { continue };
            let name = format!("{}.{}", quote(&relation.schema), quote(&relation.name));
            let probe = format!("select true from {name} t where t.{} = $1::{}", key.quoted, key.cast);
            tables.insert(
                table,
                Arc::new(Target {
                    relation_id: relation.relation_id.0,
                    since: relation.since,
                    oid: relation.oid,
                    name,
                    writable: relation.write == WritePolicy::Enabled,
                    secured: !relation.unrestricted,
                    key_type: relation.key.key_type,
                    key,
                    probe,
                    columns,
                }),
            );
        }
        Ok(Targets { generation: snapshot.generation, defers, tables })
    }

    /// Whether mutations of `tables` that were written under `version` must be judged by that version's registry too: a table has
    /// another form since, or was not there, or is not there any more.
    pub(super) fn outdates(
        &self,
        version: RegistryGeneration,
        mut tables: impl Iterator<Item = TableId>,
    ) -> bool {
        version < self.generation
            && tables.any(|table| self.table(table).is_none_or(|target| target.since > version))
    }

    pub(super) fn table(&self, id: TableId) -> Option<&Arc<Target>> {
        self.tables.get(&id)
    }
}

impl Target {
    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.get(name)
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
