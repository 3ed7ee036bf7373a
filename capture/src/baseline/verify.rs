//! B9. Recomputes everything that follows from the staged rows: key, digest, membership and grants of each row, totals of each scope,
//! counts of each pair, edges. Totals are checked by subtraction: what is stored, less every row, must be nothing.

use super::binary::{int8_array, tuple};
use super::record::{Candidate, staged};
use crate::error::Doing;
use crate::{CaptureError, Refusal, registry};
use bytes::Bytes;
use futures_util::TryStreamExt;
use sqlx::{Acquire, AssertSqlSafe, PgConnection, Row};
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_model::{Relation, RowDigest, RowVersion, ScopeDigest, ScopeName, Snapshot, StateId, Subject};
use tidegate_stream::{Failure, FailureClass, evaluate, projected_digest};
use tokio::sync::mpsc;
use uuid::Uuid;

/// Rows that travel together between reading and recomputing.
const CHUNK_ROWS: usize = 256;

/// What is stored, less the rows seen so far.
struct Totals {
    scopes: HashMap<ScopeName, Rest>,
    grants: Pairs,
}

struct Rest {
    id: i64,
    row_count: i64,
    digest: ScopeDigest,
}

/// Verifies the whole staged state under one snapshot.
pub(super) async fn verify(connection: &mut PgConnection, candidate: &Candidate) -> Result<(), CaptureError> {
    let record = staged(connection, candidate.reset)
        .await?
        .ok_or(Refusal::Inconsistent("a staged baseline has no record"))?;
    let registry = registry::load(connection, record.registry).await?;
    let mut transaction = connection.begin().await.doing("begin verification")?;
    sqlx::raw_sql("set transaction isolation level repeatable read read only")
        .execute(&mut *transaction)
        .await
        .doing("begin verification")?;
    let mut totals = Totals {
        scopes: scopes(&mut transaction, candidate.state).await?,
        grants: grants(&mut transaction, candidate.state).await?,
    };
    for relation in &registry.relations {
        totals = rows(&mut transaction, candidate.state, &registry, relation, totals).await?;
    }
    if totals.scopes.values().any(|rest| rest.row_count != 0 || rest.digest != ScopeDigest::EMPTY) {
        return Err(wrong("a scope's totals are not those of its rows").into());
    }
    if totals.grants.values().any(|rest| *rest != 0) {
        return Err(wrong("a grant's count is not that of its rows").into());
    }
    edges(&mut transaction, candidate.state, &registry).await?;
    transaction.commit().await.doing("end verification")
}

fn wrong(what: &str) -> Failure {
    Failure::new(FailureClass::ProjectionInconsistent, format!("verify the staged state: {what}"))
}

async fn scopes(
    connection: &mut PgConnection,
    state: StateId,
) -> Result<HashMap<ScopeName, Rest>, CaptureError> {
    let sql = format!(
        "select name, name_hash, scope_id, row_count, digest from tidegate_projection.s{state}_scope"
    );
    let mut stream = sqlx::query(AssertSqlSafe(sql)).fetch(connection);
    let mut scopes = HashMap::new();
    while let Some(row) = stream.try_next().await.doing("read staged scopes")? {
        let name = ScopeName(row.try_get("name").doing("read staged scopes")?);
        let digest: &[u8] = row.try_get("digest").doing("read staged scopes")?;
        let hash: &[u8] = row.try_get("name_hash").doing("read staged scopes")?;
        let rest = Rest {
            id: row.try_get("scope_id").doing("read staged scopes")?,
            row_count: row.try_get("row_count").doing("read staged scopes")?,
            digest: ScopeDigest::from_bytes(digest).ok_or_else(|| wrong("a digest has another length"))?,
        };
        if hash != name.hash() {
            return Err(wrong("a scope's hash is not that of its name").into());
        }
        scopes.insert(name, rest);
    }
    Ok(scopes)
}

type Pairs = HashMap<(Subject, ScopeName), i64>;

async fn grants(connection: &mut PgConnection, state: StateId) -> Result<Pairs, CaptureError> {
    let sql = format!("select subject, scope, row_count from tidegate_projection.s{state}_subject_grant");
    let mut stream = sqlx::query_as::<_, (String, String, i64)>(AssertSqlSafe(sql)).fetch(connection);
    let mut pairs = HashMap::new();
    while let Some((subject, scope, row_count)) = stream.try_next().await.doing("read staged grants")? {
        pairs.insert((Subject(subject), ScopeName(scope)), row_count);
    }
    Ok(pairs)
}

/// Takes every row of one relation off the totals. Reading and recomputing overlap: the latter has a thread of its own.
async fn rows(
    connection: &mut PgConnection,
    state: StateId,
    registry: &Arc<Snapshot>,
    relation: &Relation,
    totals: Totals,
) -> Result<Totals, CaptureError> {
    let statement = format!(
        "copy (select key_index, version, row, digest, scope_ids, grants::text from tidegate_projection.s{state}_p{})
         to stdout (format binary)",
        relation.relation_id
    );
    let (messages, received) = mpsc::channel(4);
    let (registry, checked) = (registry.clone(), relation.clone());
    let checking = tokio::task::spawn_blocking(move || check_all(received, &registry, &checked, totals));
    let mut stream = connection.copy_out_raw(&statement).await.doing("read staged rows")?;
    let mut chunk = Vec::with_capacity(CHUNK_ROWS);
    while let Some(message) = stream.try_next().await.doing("read staged rows")? {
        // Once the checker has found something the rest is read to its end, so that the connection stays usable.
        if !messages.is_closed() {
            chunk.push(message);
        }
        if chunk.len() == CHUNK_ROWS {
            let _ = messages.send(std::mem::take(&mut chunk)).await;
        }
    }
    let _ = messages.send(chunk).await;
    drop(messages);
    let checked = checking.await.map_err(|_| Refusal::Inconsistent("verification ended unexpectedly"))?;
    Ok(checked.map_err(|failure| failure.of(relation.relation_id))?)
}

fn check_all(
    mut received: mpsc::Receiver<Vec<Bytes>>,
    registry: &Arc<Snapshot>,
    relation: &Relation,
    mut totals: Totals,
) -> Result<Totals, Failure> {
    while let Some(chunk) = received.blocking_recv() {
        for message in chunk {
            let values = tuple(message).map_err(|()| wrong("a staged row does not parse"))?;
            let Some(values) = values else { continue };
            let row = StagedRow::new(values).ok_or_else(|| wrong("a staged row has another form"))?;
            check(&row, registry, relation, &mut totals).map_err(wrong)?;
        }
    }
    Ok(totals)
}

struct StagedRow {
    key_index: Bytes,
    version: RowVersion,
    row: Bytes,
    digest: RowDigest,
    scope_ids: Vec<i64>,
    grants: Option<Bytes>,
}

impl StagedRow {
    fn new(values: Vec<Option<Bytes>>) -> Option<StagedRow> {
        let [key_index, version, row, digest, scope_ids, grants] = <[_; 6]>::try_from(values).ok()?;
        Some(StagedRow {
            key_index: key_index?,
            version: RowVersion(Uuid::from_slice(&version?).ok()?),
            row: row?,
            digest: RowDigest::from_bytes(&digest?)?,
            scope_ids: int8_array(scope_ids?)?,
            grants,
        })
    }
}

fn check(
    row: &StagedRow,
    registry: &Arc<Snapshot>,
    relation: &Relation,
    totals: &mut Totals,
) -> Result<(), &'static str> {
    let key = relation.key_of(&row.row).ok_or("a row has no key")?;
    if key.index_bytes() != row.key_index {
        return Err("a row is stored under another key");
    }
    if projected_digest(relation, &key, row.version, &row.row) != row.digest {
        return Err("a row's digest is wrong");
    }
    let membership = evaluate(registry, relation, &row.row);
    let mut ids = Vec::with_capacity(membership.scopes.len());
    for name in &membership.scopes {
        let rest = totals.scopes.get_mut(name).ok_or("a row belongs to a scope that is not staged")?;
        rest.row_count -= 1;
        rest.digest = rest.digest.minus(row.digest);
        ids.push(rest.id);
    }
    ids.sort_unstable();
    let mut stored = row.scope_ids.clone();
    stored.sort_unstable();
    if ids != stored {
        return Err("a row is in other scopes than its rules say");
    }
    if super::encode::grants_json(&membership.grants).is_some() != row.grants.is_some() {
        return Err("a row grants other pairs than its rules say");
    }
    for pair in membership.grants {
        *totals.grants.get_mut(&pair).ok_or("a row grants a pair that is not staged")? -= 1;
    }
    Ok(())
}

/// Every row's scopes are edges, and there are no others: the primary key makes edges distinct, so equal numbers suffice.
async fn edges(
    connection: &mut PgConnection,
    state: StateId,
    registry: &Snapshot,
) -> Result<(), CaptureError> {
    let mut expected = 0_i64;
    for relation in &registry.relations {
        let id = relation.relation_id;
        let sql = format!(
            "select count(*), count(r.scope_id)
             from tidegate_projection.s{state}_p{id} p cross join unnest(p.scope_ids) as u(scope_id)
             left join tidegate_projection.s{state}_scope_row r
                 on r.scope_id = u.scope_id and r.relation_id = {id} and r.key_index = p.key_index"
        );
        let (wanted, found): (i64, i64) =
            sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&mut *connection).await.doing("compare edges")?;
        if wanted != found {
            return Err(wrong("an edge is missing").of(id).into());
        }
        expected += wanted;
    }
    let sql = format!("select count(*) from tidegate_projection.s{state}_scope_row");
    let there: i64 =
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.doing("count edges")?;
    if there == expected { Ok(()) } else { Err(wrong("there is an edge too many").into()) }
}
