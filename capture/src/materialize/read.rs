//! What a batch asks for (see `tidegate_stream`'s calling contract): old rows, one query per relation; scopes and grant pairs,
//! one query each. From the cache where it has them.

use super::cache::Cache;
use crate::CaptureError;
use crate::columns::Byteas;
use crate::error::Doing;
use bytes::Bytes;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use std::collections::HashMap;
use tidegate_model::{RowDigest, RowVersion, ScopeDigest, ScopeId, ScopeName, StateId, Subject};
use tidegate_stream::{Batch, OldRow, RowNeeds, ScopeAnswer, ScopeAnswers, ScopeNeeds, ScopeTotals};

/// Round 1. Inserted rows are not looked up: the projection's primary key tells.
pub(super) async fn rows(
    transaction: &mut PgConnection,
    state: StateId,
    cache: &mut Cache,
    needs: &RowNeeds,
    batch: &mut Batch,
) -> Result<(), CaptureError> {
    for needed in &needs.relations {
        let mut missing = Vec::new();
        for key_index in &needed.present {
            match cache.row(needed.relation, key_index) {
                Some(row) => batch.provide_row(needed.relation, key_index, row),
                None => missing.push(key_index.clone()),
            }
        }
        if missing.is_empty() {
            continue;
        }
        let sql = format!(
            "select key_index, version, row, digest, scope_ids, grants::text as grants
             from tidegate_projection.s{state}_p{} where key_index = any ($1)",
            needed.relation
        );
        let found = sqlx::query(AssertSqlSafe(sql)).bind(Byteas(&missing)).fetch_all(&mut *transaction).await;
        for row in found.doing("read old rows")? {
            let key_index: &[u8] = row.try_get("key_index").doing("read old rows")?;
            let old = old_row(&row).doing("read old rows")?;
            batch.provide_row(needed.relation, key_index, old);
        }
    }
    Ok(())
}

fn old_row(row: &PgRow) -> Result<OldRow, sqlx::Error> {
    let damaged = |what: &'static str| sqlx::Error::Decode(what.into());
    let digest: &[u8] = row.try_get("digest")?;
    let scope_ids: Vec<i64> = row.try_get("scope_ids")?;
    Ok(OldRow {
        version: RowVersion(row.try_get("version")?),
        row: Bytes::copy_from_slice(row.try_get("row")?),
        digest: RowDigest::from_bytes(digest).ok_or_else(|| damaged("digest"))?,
        scopes: scope_ids.into_iter().map(ScopeId).collect(),
        grants: match row.try_get::<Option<&str>, _>("grants")? {
            None => Vec::new(),
            Some(json) => grants(json).ok_or_else(|| damaged("grants"))?,
        },
    })
}

/// A jsonb array of two-element arrays.
pub(super) fn grants(json: &str) -> Option<Vec<(Subject, ScopeName)>> {
    let pairs: Vec<(String, String)> = serde_json::from_str(json).ok()?;
    Some(pairs.into_iter().map(|(subject, scope)| (Subject(subject), ScopeName(scope))).collect())
}

/// Round 2. Scopes that do not exist get fresh ids.
pub(super) async fn scopes(
    transaction: &mut PgConnection,
    state: StateId,
    cache: &mut Cache,
    needs: &ScopeNeeds,
) -> Result<ScopeAnswers, CaptureError> {
    let ids = totals_by_id(transaction, state, cache, &needs.ids).await?;
    let names = by_name(transaction, state, cache, needs).await?;
    let pairs = pair_counts(transaction, state, needs).await?;
    Ok(ScopeAnswers { ids, names, pairs })
}

async fn totals_by_id(
    transaction: &mut PgConnection,
    state: StateId,
    cache: &mut Cache,
    ids: &[ScopeId],
) -> Result<Vec<Option<ScopeTotals>>, CaptureError> {
    let mut answers: Vec<Option<ScopeTotals>> = ids.iter().map(|id| cache.totals(*id)).collect();
    let missing: Vec<i64> =
        ids.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(id, _)| id.0).collect();
    if missing.is_empty() {
        return Ok(answers);
    }
    let sql = format!(
        "select scope_id, row_count, digest from tidegate_projection.s{state}_scope where scope_id = any ($1)"
    );
    let rows =
        sqlx::query(AssertSqlSafe(sql)).bind(&missing).fetch_all(transaction).await.doing("read scopes")?;
    let entry = |row: &PgRow| -> Result<(i64, ScopeTotals), sqlx::Error> {
        Ok((row.try_get("scope_id")?, totals(row)?))
    };
    let found: HashMap<i64, ScopeTotals> =
        rows.iter().map(entry).collect::<Result<_, _>>().doing("read scopes")?;
    for (answer, id) in answers.iter_mut().zip(ids) {
        if answer.is_none() {
            *answer = found.get(&id.0).copied();
        }
    }
    Ok(answers)
}

fn totals(row: &PgRow) -> Result<ScopeTotals, sqlx::Error> {
    let digest: &[u8] = row.try_get("digest")?;
    Ok(ScopeTotals {
        row_count: row.try_get("row_count")?,
        digest: ScopeDigest::from_bytes(digest).ok_or_else(|| sqlx::Error::Decode("digest".into()))?,
    })
}

async fn by_name(
    transaction: &mut PgConnection,
    state: StateId,
    cache: &mut Cache,
    needs: &ScopeNeeds,
) -> Result<Vec<ScopeAnswer>, CaptureError> {
    let mut answers: Vec<Option<ScopeAnswer>> = Vec::with_capacity(needs.names.len());
    let mut missing = Vec::new();
    for name in &needs.names {
        let known = cache
            .scope(&name.hash)
            .and_then(|id| cache.totals(id).map(|totals| ScopeAnswer { id, stored: Some(totals) }));
        if known.is_none() {
            missing.push(name.hash);
        }
        answers.push(known);
    }
    if missing.is_empty() {
        return Ok(answers.into_iter().flatten().collect());
    }
    let sql = format!(
        "select name_hash, scope_id, row_count, digest from tidegate_projection.s{state}_scope where name_hash = any ($1)"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(&missing)
        .fetch_all(&mut *transaction)
        .await
        .doing("read scopes")?;
    let mut found: HashMap<Vec<u8>, ScopeAnswer> = HashMap::with_capacity(rows.len());
    for row in &rows {
        let hash = row.try_get("name_hash").doing("read scopes")?;
        let id = ScopeId(row.try_get("scope_id").doing("read scopes")?);
        found.insert(hash, ScopeAnswer { id, stored: Some(totals(row).doing("read scopes")?) });
    }
    let mut fresh = fresh_ids(transaction, missing.len() - found.len()).await?.into_iter();
    for (answer, name) in answers.iter_mut().zip(&needs.names).filter(|(answer, _)| answer.is_none()) {
        *answer = match found.get(name.hash.as_slice()) {
            Some(stored) => Some(*stored),
            None => fresh.next().map(|id| ScopeAnswer { id: ScopeId(id), stored: None }),
        };
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Ids from the one sequence of all states: gateways keep them apart by id alone.
pub(crate) async fn fresh_ids(connection: &mut PgConnection, count: usize) -> Result<Vec<i64>, CaptureError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    sqlx::query_scalar("select nextval('tidegate.scope_id') from generate_series(1, $1)")
        .bind(i32::try_from(count).unwrap_or(i32::MAX))
        .fetch_all(connection)
        .await
        .doing("allocate scope ids")
}

async fn pair_counts(
    transaction: &mut PgConnection,
    state: StateId,
    needs: &ScopeNeeds,
) -> Result<Vec<i64>, CaptureError> {
    if needs.pairs.is_empty() {
        return Ok(Vec::new());
    }
    let subjects: Vec<[u8; 32]> = needs.pairs.iter().map(|pair| pair.subject_hash).collect();
    let scopes: Vec<[u8; 32]> = needs.pairs.iter().map(|pair| pair.scope_hash).collect();
    let sql = format!(
        "select coalesce(g.row_count, 0)
         from unnest($1::bytea[], $2::bytea[]) with ordinality as n(subject_hash, scope_hash, at)
         left join tidegate_projection.s{state}_subject_grant g using (subject_hash, scope_hash)
         order by n.at"
    );
    sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(&subjects)
        .bind(&scopes)
        .fetch_all(transaction)
        .await
        .doing("read grants")
}
