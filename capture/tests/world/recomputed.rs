//! The recomputation that every test ends with: from the application's tables, independently of everything incremental.

use super::World;
use sqlx::{AssertSqlSafe, Row};
use std::collections::BTreeMap;
use tidegate_model::{
    RowDigest, RowKey, RowReader, RowVersion, ScopeDigest, Snapshot, TableId, WireValue, encode_row_header,
    encode_text_value, row_digest,
};

/// A value of a row image, as a test writes it; null is `None`.
pub fn shown(value: &WireValue<'_>) -> Option<String> {
    match value {
        WireValue::Nil => None,
        WireValue::Other(bytes) => Some(format!("{bytes:02x?}")),
        value => value.text().map(|text| text.into_owned()),
    }
}

impl World {
    /// The registered relation of this name.
    async fn relation(&self, name: &str) -> tidegate_model::Relation {
        let relations = self.snapshot().await.relations;
        relations.into_iter().find(|relation| relation.name == name).expect("a registered table")
    }

    /// Values of every projected row of a table, in the order of their keys.
    pub async fn projected_rows(&self, name: &str) -> Vec<Vec<Option<String>>> {
        let relation = self.relation(name).await;
        let state: i32 = self.scalar("select state_id from tidegate.stream_generation g join tidegate.progress p on p.generation = g.id").await;
        let mut rows: BTreeMap<RowKey, Vec<Option<String>>> = BTreeMap::new();
        for (key, (_, image, ..)) in self.projected(state, &relation).await {
            rows.insert(key, relation.values(&image).iter().map(shown).collect());
        }
        rows.into_values().collect()
    }

    /// Values of every upserted row of a table among the effects, in delivery order.
    pub async fn effect_rows(&self, name: &str) -> Vec<Vec<Option<String>>> {
        let relation = self.relation(name).await;
        let sql = "select row from tidegate.effect where op = 1 and table_id = $1
                   order by commit_lsn, event_ordinal, effect_ordinal, scope_id";
        let table = relation.table_id.expect("a synced table").0;
        let images: Vec<Vec<u8>> =
            sqlx::query_scalar(sql).bind(table).fetch_all(self.pool()).await.expect("effects");
        images.iter().map(|image| relation.values(image).iter().map(shown).collect()).collect()
    }

    /// Name and number of rows of every scope that has any.
    pub async fn scope_counts(&self) -> BTreeMap<String, i64> {
        let state: i32 = self.scalar("select state_id from tidegate.stream_generation g join tidegate.progress p on p.generation = g.id").await;
        let scopes = self.scopes(state).await;
        scopes
            .into_iter()
            .map(|(name, (_, count, _))| (name, count))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    pub async fn snapshot(&self) -> Snapshot {
        let sql = "select snapshot::text from tidegate.registry_generation g
                   where id = (select registry_generation from tidegate.progress)";
        Snapshot::from_json(&self.text(sql).await).expect("a snapshot")
    }

    /// Recomputes everything from the application's tables and compares: projections, edges, scope totals; and replays the
    /// effects of each scope, checking the digest after every one.
    pub async fn assert_consistent(&self) {
        let state: i32 = self.scalar("select state_id from tidegate.stream_generation g join tidegate.progress p on p.generation = g.id").await;
        let registry = self.snapshot().await;
        let mut expected: BTreeMap<String, (i64, ScopeDigest)> = BTreeMap::new();
        for relation in &registry.relations {
            let projected = self.projected(state, relation).await;
            let source = self.source(relation).await;
            assert_eq!(
                projected.keys().collect::<Vec<_>>(),
                source.keys().collect::<Vec<_>>(),
                "keys of {}",
                relation.name
            );
            for (key, row) in &source {
                let (version, image, digest, scope_ids) = &projected[key];
                assert_eq!(image, row, "row {key:?} of {}", relation.name);
                let table = relation.table_id.unwrap_or(TableId(0));
                assert_eq!(*digest, row_digest(table, key, *version, image));
                let names = if relation.table_id.is_some() {
                    relation.scopes_of(&relation.values(image))
                } else {
                    vec![]
                };
                assert_eq!(names.len(), scope_ids.len());
                for name in names {
                    let total = expected.entry(name.0).or_default();
                    total.0 += 1;
                    total.1 = total.1.plus(*digest);
                }
            }
        }
        let mut stored = self.scopes(state).await;
        let ids: BTreeMap<String, i64> = stored.iter().map(|(name, (id, ..))| (name.clone(), *id)).collect();
        stored.retain(|_, (_, count, digest)| (*count, *digest) != (0, ScopeDigest::EMPTY));
        let stored: BTreeMap<_, _> =
            stored.into_iter().map(|(name, (_, count, digest))| (name, (count, digest))).collect();
        assert_eq!(stored, expected, "scope totals");
        for id in ids.values() {
            self.replay_effects(state, *id).await;
        }
        let edges: i64 =
            self.scalar(&format!("select count(*) from tidegate_projection.s{state}_scope_row")).await;
        assert_eq!(edges, expected.values().map(|(count, _)| *count).sum::<i64>(), "edges");
    }

    async fn projected(
        &self,
        state: i32,
        relation: &tidegate_model::Relation,
    ) -> BTreeMap<RowKey, (RowVersion, Vec<u8>, RowDigest, Vec<i64>)> {
        let sql = format!(
            "select version, row, digest, scope_ids from tidegate_projection.s{state}_p{}",
            relation.relation_id
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("projection");
        rows.iter()
            .map(|row| {
                let image: Vec<u8> = row.get("row");
                let key = relation.key_of(&image).expect("a key");
                let digest = RowDigest::from_bytes(row.get("digest")).expect("16 bytes");
                (key, (RowVersion(row.get("version")), image, digest, row.get("scope_ids")))
            })
            .collect()
    }

    async fn source(&self, relation: &tidegate_model::Relation) -> BTreeMap<RowKey, Vec<u8>> {
        let columns: Vec<String> =
            relation.columns.iter().map(|column| format!("format('%s', \"{0}\")", column.name)).collect();
        let nulls: Vec<String> =
            relation.columns.iter().map(|column| format!("\"{}\" is null", column.name)).collect();
        let sql = format!(
            "select array[{}]::text[] as v, array[{}] as nulls from only \"{}\".\"{}\"",
            columns.join(", "),
            nulls.join(", "),
            relation.schema,
            relation.name
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("source rows");
        rows.iter()
            .map(|row| {
                let (values, nulls): (Vec<String>, Vec<bool>) = (row.get("v"), row.get("nulls"));
                let mut image = Vec::new();
                encode_row_header(values.len(), &mut image);
                for ((column, value), null) in relation.columns.iter().zip(&values).zip(nulls) {
                    let value = (!null).then_some(value.as_str());
                    encode_text_value(column.wire, value, &mut image).expect("encodable");
                }
                (relation.key_of(&image).expect("a key"), image)
            })
            .collect()
    }

    async fn scopes(&self, state: i32) -> BTreeMap<String, (i64, i64, ScopeDigest)> {
        let sql = format!("select scope_id, name, row_count, digest from tidegate_projection.s{state}_scope");
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("scopes");
        rows.iter()
            .map(|row| {
                let digest = ScopeDigest::from_bytes(row.get("digest")).expect("16 bytes");
                (row.get("name"), (row.get("scope_id"), row.get("row_count"), digest))
            })
            .collect()
    }

    /// V4: from the totals before the first effect, each effect leads to the digest and count that it carries, the last one to
    /// the scope's own.
    async fn replay_effects(&self, state: i32, scope: i64) {
        let sql = format!(
            "select op, table_id, key, version, row, digest_after, count_after from tidegate.effect
             where scope_id = {scope} and generation = (select generation from tidegate.progress) order by commit_lsn, event_ordinal, effect_ordinal"
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool()).await.expect("effects");
        let mut held: BTreeMap<(i32, Vec<u8>), RowDigest> = BTreeMap::new();
        // What retention has removed ended here.
        let floor = format!(
            "select floor_row_count, floor_digest from tidegate_projection.s{state}_scope where scope_id = {scope} and floor_digest is not null"
        );
        let floor =
            sqlx::query(AssertSqlSafe(floor)).fetch_optional(self.pool()).await.expect("the scope's floor");
        let mut known: Option<(i64, ScopeDigest)> =
            floor.map(|row| (row.get(0), ScopeDigest::from_bytes(row.get(1)).expect("16 bytes")));
        for row in &rows {
            let (table, wire): (i32, Vec<u8>) = (row.get("table_id"), row.get("key"));
            let after = (
                row.get::<i64, _>("count_after"),
                ScopeDigest::from_bytes(row.get("digest_after")).expect("16"),
            );
            let before = held.remove(&(table, wire.clone()));
            let upserted = row.get::<Option<Vec<u8>>, _>("row").map(|image| {
                row_digest(TableId(table), &wire_key(&wire), RowVersion(row.get("version")), &image)
            });
            if let Some(digest) = upserted {
                held.insert((table, wire), digest);
            }
            // A row that the baseline brought is unknown here until its first effect: then only the next step can be checked.
            if let (Some((count, digest)), true) =
                (known, before.is_some() || upserted.is_some() && after.0 > known.map_or(0, |k| k.0))
            {
                let mut expected = (count, digest);
                if let Some(before) = before {
                    expected = (expected.0 - 1, expected.1.minus(before));
                }
                if let Some(upserted) = upserted {
                    expected = (expected.0 + 1, expected.1.plus(upserted));
                }
                assert_eq!(after, expected, "effects of scope {scope}");
            }
            known = Some(after);
        }
        if let Some(known) = known {
            let sql = format!(
                "select row_count, digest from tidegate_projection.s{state}_scope where scope_id = {scope}"
            );
            let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(self.pool()).await.expect("the scope");
            let digest = ScopeDigest::from_bytes(row.get("digest")).expect("16 bytes");
            assert_eq!(
                known,
                (row.get("row_count"), digest),
                "the last effect carries the scope's own totals"
            );
        }
    }
}

/// A key from its wire form.
pub fn wire_key(wire: &[u8]) -> RowKey {
    let mut array = vec![0x91];
    array.extend_from_slice(wire);
    match RowReader::new(&array).and_then(|mut reader| {
        reader.next_value().map(|(value, _)| match value {
            WireValue::Int(number) => RowKey::Int(number),
            WireValue::Str(text) => RowKey::Text(text.to_owned()),
            _ => panic!("a key is a number or a string"),
        })
    }) {
        Some(key) => key,
        None => panic!("a key"),
    }
}
