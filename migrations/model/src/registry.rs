//! The registrations in force: `registry_generation.snapshot`, immutable and self-contained (G2).

use crate::{
    ColumnType, KeyType, Predicate, RegistryGeneration, RelationId, RelationKind, RowKey, RowReader,
    ScopeName, Subject, TableId, Template, TemplatePart, WireValue,
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// One validated, numbered state of the registrations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its number.
    pub generation: RegistryGeneration,
    /// Every registered relation, active ones only.
    pub relations: Vec<Relation>,
    /// Which scopes a subject may subscribe to.
    pub grants: Vec<Grant>,
}

/// A registered relation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Relation {
    /// Immutable id.
    pub relation_id: RelationId,
    /// Client-visible id; present exactly for synced relations (F4).
    pub table_id: Option<TableId>,
    /// What it is registered for.
    pub kind: RelationKind,
    /// Physical identity: schema.
    pub schema: String,
    /// Physical identity: name.
    pub name: String,
    /// Physical identity: OID.
    pub oid: u32,
    /// The primary key.
    pub key: KeyColumn,
    /// Captured columns in row order; the key is one of them.
    pub columns: Vec<Column>,
    /// Whether clients may write.
    pub write: WritePolicy,
    /// Writable although the table has no row-level security.
    pub unrestricted: bool,
    /// The registry generation that first had it in this form.
    pub since: RegistryGeneration,
    /// Which scopes a row is in.
    pub scopes: Vec<Rule>,
}

/// The primary-key column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyColumn {
    /// Its name.
    pub column: String,
    /// Its portable type.
    #[serde(rename = "type")]
    pub key_type: KeyType,
}

/// A captured column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// `pg_attribute.attnum`.
    pub attnum: i16,
    /// PostgreSQL's name of its type, for people.
    #[serde(rename = "type")]
    pub pg_type: String,
    /// Its form on the wire.
    pub wire: ColumnType,
    /// `pg_attribute.atttypid`, as decoding reports it.
    pub type_oid: u32,
    /// Whether null is possible.
    pub nullable: bool,
}

/// Whether clients may write to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WritePolicy {
    /// Pushes run, as the configured role.
    Enabled,
    /// Pushes are refused by name.
    ReadOnly,
}

/// One membership rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Its id.
    pub rule_id: i32,
    /// As written.
    pub name: String,
    /// Parsed.
    pub template: Template,
    /// Which rows it holds for; absent: all.
    #[serde(rename = "where")]
    pub condition: Option<Predicate>,
}

/// One grant rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// Its id.
    pub grant_id: i32,
    /// As written.
    pub scope: String,
    /// Parsed.
    pub template: Template,
    /// The relation whose rows grant; absent: static.
    pub relation_id: Option<RelationId>,
    /// The column that names the subject; present exactly with `relation_id`.
    pub subject_column: Option<String>,
    /// Which rows grant; absent: all.
    #[serde(rename = "where")]
    pub condition: Option<Predicate>,
    /// Holds also for sockets without a token.
    pub anonymous: bool,
}

/// A stored snapshot that this program cannot use: a newer one's, or damage.
#[derive(Debug, thiserror::Error)]
#[error("registry snapshot is not usable: {0}")]
pub struct SnapshotError(String);

impl Snapshot {
    /// Reads and checks the stored form.
    ///
    /// # Errors
    /// [`SnapshotError`] when a field is missing or a reference dangles. Names of columns may appear in it, values never do.
    pub fn from_json(json: &str) -> Result<Snapshot, SnapshotError> {
        let snapshot: Snapshot =
            serde_json::from_str(json).map_err(|error| SnapshotError(error.to_string()))?;
        for relation in &snapshot.relations {
            let known = |name: &str| relation.column_index(name).is_some();
            if !known(&relation.key.column)
                || (relation.table_id.is_some() != (relation.kind == RelationKind::Synced))
            {
                return Err(SnapshotError(format!("relation {} is inconsistent", relation.relation_id)));
            }
            if !relation.scopes.iter().all(|rule| template_columns(&rule.template).all(known)) {
                return Err(SnapshotError(format!(
                    "a rule of relation {} names an unknown column",
                    relation.relation_id
                )));
            }
        }
        for grant in &snapshot.grants {
            let relation = grant.relation_id.map(|id| snapshot.relation(id));
            let consistent = match relation {
                None => grant.subject_column.is_none(),
                Some(None) => false,
                Some(Some(relation)) => {
                    let known = |name: &str| relation.column_index(name).is_some();
                    grant.subject_column.as_deref().is_some_and(known)
                        && template_columns(&grant.template).all(known)
                }
            };
            if !consistent {
                return Err(SnapshotError(format!("grant {} is inconsistent", grant.grant_id)));
            }
        }
        Ok(snapshot)
    }

    /// The relation with this id.
    pub fn relation(&self, id: RelationId) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.relation_id == id)
    }

    /// The relation with this OID (G1: never by bare name).
    pub fn relation_by_oid(&self, oid: u32) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.oid == oid)
    }

    /// The synced relation that clients know by this id.
    pub fn table(&self, id: TableId) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.table_id == Some(id))
    }

    /// Grants whose rows are those of `relation`.
    pub fn grants_of(&self, relation: RelationId) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(move |grant| grant.relation_id == Some(relation))
    }

    /// Scopes that `subject` holds by static grants: without a look at any row.
    pub fn static_scopes(&self, subject: &Subject) -> Vec<ScopeName> {
        self.grants
            .iter()
            .filter(|grant| grant.relation_id.is_none() && (grant.anonymous || !subject.is_anonymous()))
            .filter_map(|grant| {
                grant
                    .template
                    .render(|_| (!subject.is_anonymous()).then_some(Cow::Borrowed(subject.0.as_str())))
            })
            .collect()
    }
}

fn template_columns(template: &Template) -> impl Iterator<Item = &str> {
    template.0.iter().filter_map(|part| match part {
        TemplatePart::Column(name) => Some(name.as_str()),
        _ => None,
    })
}

impl Relation {
    /// Index of a captured column in row order.
    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Index of the key in row order.
    pub fn key_index(&self) -> usize {
        // Snapshot::from_json has checked that the key is captured.
        self.column_index(&self.key.column).unwrap_or(0)
    }

    /// Reads the key out of a row image.
    pub fn key_of(&self, row: &[u8]) -> Option<RowKey> {
        match RowReader::new(row)?.nth_value(self.key_index())?.0 {
            WireValue::Int(value) => Some(RowKey::Int(value)),
            WireValue::Str(text) => Some(RowKey::Text(text.to_owned())),
            _ => None,
        }
    }

    /// A look at the columns of one row image; unknown columns and damaged rows read as null.
    pub fn values<'r>(&self, row: &'r [u8]) -> Vec<WireValue<'r>> {
        let mut values = Vec::with_capacity(self.columns.len());
        let mut reader = RowReader::new(row);
        while let Some((value, _)) = reader.as_mut().and_then(RowReader::next_value) {
            values.push(value);
        }
        values.resize(self.columns.len(), WireValue::Nil);
        values
    }

    /// The scopes that a row with these values is in, sorted, each once.
    pub fn scopes_of<'r>(&'r self, values: &[WireValue<'r>]) -> Vec<ScopeName> {
        let column = |name: &str| self.column_index(name).map_or(WireValue::Nil, |index| values[index]);
        let mut scopes: Vec<_> = self
            .scopes
            .iter()
            .filter(|rule| {
                rule.condition.as_ref().is_none_or(|condition| condition.evaluate(&column) == Some(true))
            })
            .filter_map(|rule| rule.template.render(|part| hole(part, &column, None)))
            .collect();
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    }
}

impl Grant {
    /// The (subject, scope) pair that a row of the grant's relation grants, if any.
    pub fn pair_of<'r>(
        &'r self,
        relation: &Relation,
        values: &[WireValue<'r>],
    ) -> Option<(Subject, ScopeName)> {
        let column = |name: &str| relation.column_index(name).map_or(WireValue::Nil, |index| values[index]);
        if self.condition.as_ref().is_some_and(|condition| condition.evaluate(&column) != Some(true)) {
            return None;
        }
        let subject = column(self.subject_column.as_deref()?).text().filter(|text| !text.is_empty())?;
        let scope = self.template.render(|part| hole(part, &column, Some(&subject)))?;
        Some((Subject(subject.into_owned()), scope))
    }
}

fn hole<'r>(
    part: &TemplatePart,
    column: &impl Fn(&str) -> WireValue<'r>,
    subject: Option<&str>,
) -> Option<Cow<'r, str>> {
    match part {
        TemplatePart::Text(text) => Some(Cow::Owned(text.clone())),
        TemplatePart::Column(name) => column(name).text(),
        TemplatePart::Subject(_) => subject.map(|subject| Cow::Owned(subject.to_owned())),
    }
}
