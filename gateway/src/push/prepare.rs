//! From a mutation to the statement that runs it, or to the refusal that is stored instead. Pure.
//!
//! A statement is composed from quoted identifiers of the registry alone. Values go in as one text array, `$1`, each cast to its
//! column's base type; `$2` is the key, `$3` the base. `RETURNING` must give exactly one row, and it must be the row with that key.

use super::fingerprint::fingerprints;
use super::target::{Target, Targets};
use super::text::{ArrayLiteral, key_text, value_text};
use std::fmt::Write;
use std::sync::Arc;
use tidegate_model::{ColumnType, Relation, RowKey, RowVersion, Snapshot, TableId};
use tidegate_protocol::{Base, Mutation, MutationOp, Push, RejectionCode};
use uuid::Uuid;

/// One mutation, ready for `tidegate.push`.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) number: i64,
    pub(super) table: TableId,
    pub(super) op: MutationOp,
    pub(super) fingerprint: [u8; 32],
    /// Or why no SQL of it runs.
    pub(super) statement: Result<Statement, Refusal>,
}

/// What runs it.
#[derive(Clone)]
pub(super) struct Statement {
    pub(super) target: Arc<Target>,
    pub(super) key: String,
    pub(super) base: Option<Uuid>,
    /// The earlier mutation of the same client whose version is the base.
    pub(super) after: Option<i64>,
    pub(super) sql: String,
    /// To run instead where that earlier mutation deleted the row; absent: a conflict.
    pub(super) insert: Option<String>,
    /// One array literal.
    pub(super) values: String,
}

/// A permanent refusal, found without SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: RejectionCode,
    pub(super) message: Option<String>,
}

impl From<RejectionCode> for Refusal {
    fn from(code: RejectionCode) -> Refusal {
        Refusal { code, message: None }
    }
}

impl Prepared {
    /// The key as the model knows it, where it is one.
    pub(super) fn row_key(&self) -> Option<RowKey> {
        let statement = self.statement.as_ref().ok()?;
        RowKey::from_text(statement.target.key_type, &statement.key)
    }
}

/// Every mutation of a push. Its numbers are known to be consecutive. `written`: the registry that it was written under, where
/// [`Targets::outdates`] asks for it.
pub(super) fn prepare(push: &Push<'_>, targets: &Targets, written: Option<&Snapshot>) -> Vec<Prepared> {
    push.mutations
        .iter()
        .zip(fingerprints(push))
        .map(|(mutation, fingerprint)| Prepared {
            // The wire's uint ends at 2^53.
            number: mutation.number.0.cast_signed(),
            table: mutation.table,
            op: mutation.op,
            fingerprint,
            statement: statement(mutation, targets, written),
        })
        .collect()
}

fn statement(
    mutation: &Mutation<'_>,
    targets: &Targets,
    written: Option<&Snapshot>,
) -> Result<Statement, Refusal> {
    let then = written.map(|snapshot| Then::new(snapshot, mutation.table)).transpose()?;
    // What was there when it was written was taken away since: the user decides, not the client's programmer.
    let gone = |code| if then.is_some() { RejectionCode::SchemaChanged } else { code };
    let target = targets.table(mutation.table).ok_or_else(|| gone(RejectionCode::UnknownTable))?;
    if !target.writable {
        return Err(RejectionCode::NotWritable.into());
    }
    let key = key_text(target.key.wire, &target.key.pg_type, &mutation.key)
        .map_err(|message| invalid(&target.key.name, message))?;

    let mut values = ArrayLiteral::new();
    let mut columns = Vec::with_capacity(mutation.cols.0.len());
    for (name, value) in &mutation.cols.0 {
        let was = then.as_ref().map(|then| then.column(name)).transpose()?;
        let column = target.column(name).ok_or_else(|| gone(RejectionCode::UnknownColumn))?;
        if was.is_some_and(|was| was != column.wire) {
            return Err(RejectionCode::SchemaChanged.into());
        }
        let text =
            value_text(column.wire, &column.pg_type, value).map_err(|message| invalid(name, message))?;
        if column.name == target.key.name {
            // Repeating the key is allowed; changing it is not.
            if key_text(column.wire, &column.pg_type, value).as_ref() != Ok(&key) {
                return Err(RejectionCode::KeyChange.into());
            }
            continue;
        }
        values.push(text.as_deref());
        columns.push((column.quoted.as_str(), column.cast.as_str()));
    }

    let (base, after) = match mutation.base {
        Base::None => (None, None),
        Base::Version(version) => (Some(version.0), None),
        Base::After(number) if number.0 == 0 || number >= mutation.number => {
            return Err(RejectionCode::DependencyRejected.into());
        }
        Base::After(number) => (None, Some(number.0.cast_signed())),
    };
    let guarded = base.is_some() || after.is_some();
    let (sql, insert) = match mutation.op {
        // A row that must not exist has no version that it must have.
        MutationOp::Insert if base.is_some() => return Err(RejectionCode::Conflict.into()),
        MutationOp::Insert => {
            let sql = insert_sql(target, &columns, false);
            match after {
                None => (sql, None),
                // Only a mutation that deleted the row leaves one that may be inserted; any other has left a version.
                Some(_) => (NOTHING.to_owned(), Some(sql)),
            }
        }
        MutationOp::Upsert if guarded => {
            (update_sql(target, &columns, true), after.map(|_| insert_sql(target, &columns, false)))
        }
        MutationOp::Upsert => (insert_sql(target, &columns, true), None),
        MutationOp::Update if columns.is_empty() => {
            return Err(Refusal {
                code: RejectionCode::InvalidValue,
                message: Some("an update sets at least one column".to_owned()),
            });
        }
        MutationOp::Update => (update_sql(target, &columns, guarded), None),
        MutationOp::Delete if !mutation.cols.0.is_empty() => {
            return Err(Refusal {
                code: RejectionCode::InvalidValue,
                message: Some("a delete has no columns".to_owned()),
            });
        }
        MutationOp::Delete => (delete_sql(target, guarded), None),
    };
    Ok(Statement { target: target.clone(), key, base, after, sql, insert, values: values.finish() })
}

/// A table as it was under the schema version that a mutation was written under.
struct Then<'a>(&'a Relation);

impl<'a> Then<'a> {
    fn new(snapshot: &'a Snapshot, table: TableId) -> Result<Then<'a>, RejectionCode> {
        let relation = snapshot.relations.iter().find(|relation| relation.table_id == Some(table));
        relation.map(Then).ok_or(RejectionCode::UnknownTable)
    }

    /// The form that a column's values had.
    fn column(&self, name: &str) -> Result<ColumnType, RejectionCode> {
        let column = self.0.columns.iter().find(|column| column.name == name);
        column.map(|column| column.wire).ok_or(RejectionCode::UnknownColumn)
    }
}

/// A column's name comes from the registry, the message from our own words.
fn invalid(column: &str, message: &str) -> Refusal {
    Refusal { code: RejectionCode::InvalidValue, message: Some(format!("column \"{column}\": {message}")) }
}

/// Finds no row: a base that cannot hold.
const NOTHING: &str = "select true where false";

fn returning(target: &Target, sql: &mut String) {
    let (key, cast) = (&target.key.quoted, &target.key.cast);
    let _ = write!(sql, " returning t.{key} is not distinct from $2::{cast}");
}

fn insert_sql(target: &Target, columns: &[(&str, &str)], or_update: bool) -> String {
    let (name, key, key_cast) = (&target.name, &target.key.quoted, &target.key.cast);
    let mut sql = format!("insert into {name} as t ({key}");
    for (column, _) in columns {
        let _ = write!(sql, ", {column}");
    }
    let _ = write!(sql, ") values ($2::{key_cast}");
    for (i, (_, cast)) in columns.iter().enumerate() {
        let _ = write!(sql, ", ($1[{}])::{cast}", i + 1);
    }
    sql.push(')');
    if or_update {
        let _ = write!(sql, " on conflict ({key}) do update set ");
        // With nothing to set it still locks, and returns, the row.
        let set: &[(&str, &str)] = if columns.is_empty() { &[(key, key_cast)] } else { columns };
        for (i, (column, _)) in set.iter().enumerate() {
            let _ = write!(sql, "{}{column} = excluded.{column}", if i == 0 { "" } else { ", " });
        }
    }
    returning(target, &mut sql);
    sql
}

fn update_sql(target: &Target, columns: &[(&str, &str)], guarded: bool) -> String {
    let mut sql = format!("update {} t set ", target.name);
    for (i, (column, cast)) in columns.iter().enumerate() {
        let _ = write!(sql, "{}{column} = ($1[{}])::{cast}", if i == 0 { "" } else { ", " }, i + 1);
    }
    if columns.is_empty() {
        let _ = write!(sql, "{0} = t.{0}", target.key.quoted);
    }
    condition(target, guarded, &mut sql);
    returning(target, &mut sql);
    sql
}

fn delete_sql(target: &Target, guarded: bool) -> String {
    let mut sql = format!("delete from {} t", target.name);
    condition(target, guarded, &mut sql);
    returning(target, &mut sql);
    sql
}

fn condition(target: &Target, guarded: bool, sql: &mut String) {
    let (key, cast) = (&target.key.quoted, &target.key.cast);
    let _ = write!(sql, " where t.{key} = $2::{cast}");
    if guarded {
        // F6: see tidegate.create_push_functions for why this is as good as a lock taken first.
        let _ = write!(sql, " and tidegate.push_holds_{}(t.{key}::pg_catalog.text, $3)", target.relation_id);
    }
}

/// The version in an answer: none for a delete.
pub(super) fn answered_version(op: MutationOp, version: Option<Uuid>) -> Option<RowVersion> {
    version.filter(|_| op != MutationOp::Delete).map(RowVersion)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use tidegate_protocol::{Columns, Invalid, InvalidReason, MutationNumber, Value};

    fn targets() -> Targets {
        let snapshot = r#"{"generation": 3, "grants": [], "relations": [
            {"relation_id": 7, "table_id": 4, "kind": "synced", "schema": "public", "name": "odd\"name", "oid": 16402,
             "key": {"column": "id", "type": "int64"}, "write": "enabled", "unrestricted": false, "since": 1, "scopes": [],
             "columns": [
                {"name": "id", "attnum": 1, "type": "int8", "wire": "int64", "type_oid": 20, "nullable": false},
                {"name": "a", "attnum": 2, "type": "text", "wire": "string", "type_oid": 25, "nullable": true}]},
            {"relation_id": 8, "table_id": 5, "kind": "synced", "schema": "public", "name": "r", "oid": 16403,
             "key": {"column": "id", "type": "int64"}, "write": "read_only", "unrestricted": false, "since": 1, "scopes": [],
             "columns": [{"name": "id", "attnum": 1, "type": "int8", "wire": "int64", "type_oid": 20, "nullable": false}]}]}"#;
        let types = HashMap::from([
            ("20".to_owned(), "pg_catalog.int8".to_owned()),
            ("25".to_owned(), "pg_catalog.text".to_owned()),
        ]);
        Targets::new(snapshot, &types, false).expect("a snapshot")
    }

    fn run(change: impl FnOnce(&mut Mutation<'static>)) -> Result<Statement, Refusal> {
        let mut mutation = Mutation {
            number: MutationNumber(5),
            table: TableId(4),
            op: MutationOp::Update,
            key: Value::Int(9007199254740993),
            base: Base::None,
            cols: Columns(vec![("a".into(), Value::Str("it's".into()))]),
        };
        change(&mut mutation);
        statement(&mutation, &targets(), None)
    }

    fn code(result: Result<Statement, Refusal>) -> Option<RejectionCode> {
        result.err().map(|refusal| refusal.code)
    }

    #[test]
    fn values_are_parameters_and_names_are_quoted() {
        let statement = run(|_| {}).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert_eq!(
            statement.sql,
            "update \"public\".\"odd\"\"name\" t set \"a\" = ($1[1])::pg_catalog.text where t.\"id\" = $2::pg_catalog.int8 \
             returning t.\"id\" is not distinct from $2::pg_catalog.int8"
        );
        assert_eq!((statement.key.as_str(), statement.values.as_str()), ("9007199254740993", "{\"it's\"}"));
        let upsert = run(|m| m.op = MutationOp::Upsert).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert!(
            upsert.sql.contains("on conflict (\"id\") do update set \"a\" = excluded.\"a\""),
            "{}",
            upsert.sql
        );
    }

    #[test]
    fn f10_a_base_guards_the_statement() {
        let based = run(|m| m.base = Base::Version(RowVersion::UNFENCED)).unwrap_or_else(|r| panic!("{r:?}"));
        assert!(based.sql.contains(" and tidegate.push_holds_7(t.\"id\"::pg_catalog.text, $3)"));
        let deleted = run(|m| {
            (m.op, m.cols, m.base) = (MutationOp::Delete, Columns(vec![]), Base::After(MutationNumber(4)))
        });
        let deleted = deleted.unwrap_or_else(|r| panic!("{r:?}"));
        assert!(deleted.sql.contains("push_holds") && deleted.insert.is_none());
        let upsert = run(|m| (m.op, m.base) = (MutationOp::Upsert, Base::After(MutationNumber(4))));
        let upsert = upsert.unwrap_or_else(|r| panic!("{r:?}"));
        assert!(
            upsert.sql.starts_with("update") && upsert.insert.is_some_and(|sql| sql.starts_with("insert"))
        );
    }

    #[test]
    fn dt05_what_no_row_can_hold_is_refused_without_sql() {
        let invalid = |reason| Value::Invalid(Invalid { reason, raw: vec![0xa1, 0xff].into() });
        for reason in [
            InvalidReason::NotUtf8,
            InvalidReason::Nul,
            InvalidReason::IntegerRange,
            InvalidReason::Duplicate,
        ] {
            assert_eq!(code(run(|m| m.cols.0[0].1 = invalid(reason))), Some(RejectionCode::InvalidValue));
            assert_eq!(code(run(|m| m.key = invalid(reason))), Some(RejectionCode::InvalidValue));
        }
        let refusal = run(|m| m.cols.0[0].1 = Value::Int(1)).err().and_then(|refusal| refusal.message);
        assert_eq!(refusal.as_deref(), Some("column \"a\": text is expected"));
    }

    #[test]
    fn what_was_written_under_another_form_of_the_table_is_judged_by_that_form() {
        use RejectionCode::*;
        let columns = |rest: &str| {
            let json = format!(
                r#"{{"generation": 2, "grants": [], "relations": [
                {{"relation_id": 7, "table_id": 4, "kind": "synced", "schema": "public", "name": "r", "oid": 16402,
                 "key": {{"column": "id", "type": "int64"}}, "write": "enabled", "unrestricted": false, "since": 1, "scopes": [],
                 "columns": [
                    {{"name": "id", "attnum": 1, "type": "int8", "wire": "int64", "type_oid": 20, "nullable": false}}{rest}]}}]}}"#
            );
            Snapshot::from_json(&json).expect("a snapshot")
        };
        let a = r#", {"name": "a", "attnum": 2, "type": "text", "wire": "string", "type_oid": 25, "nullable": true}"#;
        let judge = |table: i32, column: &'static str, written: &Snapshot| {
            let mutation = Mutation {
                number: MutationNumber(5),
                table: TableId(table),
                op: MutationOp::Update,
                key: Value::Int(7),
                base: Base::None,
                cols: Columns(vec![(column.into(), Value::Str("x".into()))]),
            };
            code(statement(&mutation, &targets(), Some(written)))
        };
        assert_eq!(judge(4, "a", &columns(a)), None, "other changes do not matter to it");
        assert_eq!(judge(4, "a", &columns("")), Some(UnknownColumn), "it came later");
        assert_eq!(judge(5, "a", &columns(a)), Some(UnknownTable), "it came later");
        assert_eq!(judge(4, "gone", &columns(&a.replace("\"a\"", "\"gone\""))), Some(SchemaChanged));
        let other = a.replace("string", "bool");
        assert_eq!(judge(4, "a", &columns(&other)), Some(SchemaChanged), "its values had another form");
    }

    #[test]
    fn every_refusal_without_sql_has_its_code() {
        use RejectionCode::*;
        for (expected, result) in [
            (UnknownTable, run(|m| m.table = TableId(99))),
            (NotWritable, run(|m| m.table = TableId(5))),
            (UnknownColumn, run(|m| m.cols.0[0].0 = "b".into())),
            (KeyChange, run(|m| m.cols.0[0] = ("id".into(), Value::Int(1)))),
            (InvalidValue, run(|m| m.cols.0.clear())),
            (InvalidValue, run(|m| m.op = MutationOp::Delete)),
            (Conflict, run(|m| (m.op, m.base) = (MutationOp::Insert, Base::Version(RowVersion::UNFENCED)))),
            (DependencyRejected, run(|m| m.base = Base::After(MutationNumber(5)))),
            (DependencyRejected, run(|m| m.base = Base::After(MutationNumber(0)))),
        ] {
            assert_eq!(code(result), Some(expected));
        }
        let repeated = run(|m| m.cols.0.push(("id".into(), Value::Int(9007199254740993))));
        assert!(repeated.is_ok(), "repeating the key is allowed");
    }
}
