//! B2, B8. Copies every registered relation as the snapshot has it into the candidate state: COPY text out, encoded in Rust, COPY
//! binary in. Memory holds a few batches and one entry per scope and per grant pair.

use super::binary::BinaryCopy;
use super::candidate::{Exported, check_drift, filenodes};
use super::encode::{EncodedRow, Encoder, VersionKey, grants_json, quoted};
use super::record::Candidate;
use crate::error::Doing;
use crate::failpoints::fail_point;
use crate::heartbeat::State;
use crate::materialize::{create_projection, fresh_ids};
use crate::run::Connections;
use crate::settings::{self, Purpose};
use crate::supervise::Worker;
use crate::{CaptureError, Refusal, registry};
use bytes::Bytes;
use futures_util::TryStreamExt;
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_model::{RegistryGeneration, Relation, ScopeDigest, ScopeName, Snapshot, Subject};
use tokio::sync::mpsc;

/// Bytes of one COPY command, about. Three such batches are alive at a time.
const BATCH_BYTES: usize = 4 << 20;
/// Rows that travel together between reading and encoding.
const CHUNK_ROWS: usize = 256;
const CHUNK_BYTES: usize = 256 << 10;
/// How often progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);

/// Totals of one scope while it is staged.
#[derive(Default)]
struct ScopeTotal {
    id: i64,
    row_count: i64,
    digest: ScopeDigest,
}

/// What grows with the data while it is staged.
#[derive(Default)]
struct Totals {
    scopes: HashMap<ScopeName, ScopeTotal>,
    grants: HashMap<(Subject, ScopeName), i64>,
}

/// Stages everything under the exported snapshot. The slot's session stays open until the snapshot has been imported.
pub(super) async fn stage(
    worker: &Worker,
    sql: &mut Connections,
    candidate: &Candidate,
    exported: Exported,
) -> Result<(), CaptureError> {
    let mut reader =
        settings::connect(&worker.endpoint, worker.id, Purpose::Snapshot, &worker.config.limits).await?;
    let generation = import(&mut reader, &exported).await?;
    let registry = registry::load(&mut reader, generation).await?;
    lock_and_compare(&mut reader, &registry, &exported).await?;
    // Behind these locks no drift begins any more; what there is shows only outside of the reader's snapshot.
    check_drift(&mut sql.writer).await?;
    // The snapshot lives on in our transaction.
    exported.session.end();

    create_state(&mut sql.writer, candidate).await?;
    let edges = "scope_row".to_owned();
    key(&mut sql.writer, candidate, &edges, "drop constraint {table}_pkey").await?;
    let mut totals = Totals::default();
    for relation in &registry.relations {
        create_projection(&mut sql.writer, candidate.state, relation.relation_id).await?;
        let projection = format!("p{}", relation.relation_id);
        key(&mut sql.writer, candidate, &projection, "drop constraint {table}_pkey").await?;
        let copied =
            copy_relation(worker, &mut reader, &mut sql.writer, candidate, &registry, relation, &mut totals)
                .await?;
        count(&mut reader, relation, copied).await?;
        key(&mut sql.writer, candidate, &projection, "add primary key (key_index)").await?;
    }
    key(&mut sql.writer, candidate, &edges, "add primary key (scope_id, relation_id, key_index)").await?;
    let mut transaction = sql.writer.begin().await.doing("complete the stage")?;
    write_scopes(&mut transaction, candidate, totals.scopes).await?;
    write_grants(&mut transaction, candidate, totals.grants).await?;
    cover_fences(&mut reader, &mut transaction, candidate).await?;
    fail_point!(BASELINE_COPIED);
    sqlx::query(
        "update tidegate.stream_reset
         set phase = 'staged', phase_at = clock_timestamp(), registry_generation = $2
         where reset_id = $1",
    )
    .bind(candidate.reset)
    .bind(generation.0)
    .execute(&mut *transaction)
    .await
    .doing("record the stage")?;
    transaction.commit().await.doing("commit the stage")?;
    let _ = reader.close().await;
    Ok(())
}

/// The candidate's tables. Nobody looks at them before activation, and a stage that was not completed is dropped whole.
async fn create_state(writer: &mut PgConnection, candidate: &Candidate) -> Result<(), CaptureError> {
    sqlx::query("select tidegate.create_state($1)")
        .bind(candidate.state.0)
        .execute(&mut *writer)
        .await
        .doing("create the candidate state")?;
    // Write fences that catch-up will meet wait here for activation (V2); dropped with the state.
    sqlx::raw_sql(AssertSqlSafe(format!(
        "create table tidegate_projection.s{}_fence (fence_id uuid primary key, commit_lsn pg_lsn not null)",
        candidate.state
    )))
    .execute(writer)
    .await
    .map(drop)
    .doing("create the candidate state")
}

/// Building an index over rows that are there costs half of what keeping it up with each row does, and less WAL for the candidate
/// slot to read through. A key that the snapshot holds twice is found all the same.
async fn key(
    writer: &mut PgConnection,
    candidate: &Candidate,
    table: &str,
    action: &str,
) -> Result<(), CaptureError> {
    let table = format!("s{}_{table}", candidate.state);
    let action = action.replace("{table}", &table);
    sqlx::raw_sql(AssertSqlSafe(format!("alter table tidegate_projection.{table} {action}")))
        .execute(writer)
        .await
        .map(drop)
        .doing("index the candidate state")
}

/// Adopts the exported snapshot; gives the newest registry generation in it.
async fn import(reader: &mut PgConnection, exported: &Exported) -> Result<RegistryGeneration, CaptureError> {
    if !exported.snapshot.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
        return Err(Refusal::Inconsistent("the snapshot's name has an unknown form").into());
    }
    sqlx::raw_sql(AssertSqlSafe(format!(
        "begin isolation level repeatable read read only; set transaction snapshot '{}'",
        exported.snapshot
    )))
    .execute(&mut *reader)
    .await
    .doing("import the snapshot")?;
    let id: i32 = sqlx::query_scalar("select max(id) from tidegate.registry_generation")
        .fetch_one(reader)
        .await
        .doing("read the registry of the snapshot")?;
    Ok(RegistryGeneration(id))
}

/// B1: nothing may have rewritten a table between the slot and our lock: it would read as empty.
async fn lock_and_compare(
    reader: &mut PgConnection,
    registry: &Snapshot,
    exported: &Exported,
) -> Result<(), CaptureError> {
    let changed = |relation: &Relation| {
        CaptureError::Waiting(format!(
            "{}.{} was changed while the slot was created",
            relation.schema, relation.name
        ))
    };
    for relation in &registry.relations {
        let sql = format!(
            "lock table only {}.{} in access share mode",
            quoted(&relation.schema),
            quoted(&relation.name)
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *reader).await.doing("lock a table for copying")?;
    }
    let now = filenodes(reader).await?;
    for relation in &registry.relations {
        let before = exported.filenodes.get(&relation.oid);
        if before.is_none() || before != now.get(&relation.oid) {
            return Err(changed(relation));
        }
        // The name that was locked must still mean this table.
        let same: bool = sqlx::query_scalar("select to_regclass($1)::oid::int8 is not distinct from $2")
            .bind(format!("{}.{}", quoted(&relation.schema), quoted(&relation.name)))
            .bind(i64::from(relation.oid))
            .fetch_one(&mut *reader)
            .await
            .doing("identify a table")?;
        if !same {
            return Err(changed(relation));
        }
    }
    Ok(())
}

/// How `row_version` keeps the keys of a relation.
async fn version_key(reader: &mut PgConnection, relation: &Relation) -> Result<VersionKey, CaptureError> {
    let is_text: bool = sqlx::query_scalar(
        "select atttypid = 'text'::regtype from pg_attribute where attrelid = to_regclass($1) and attname = 'key'",
    )
    .bind(format!("tidegate.row_version_{}", relation.relation_id))
    .fetch_one(reader)
    .await
    .doing("read the form of versions")?;
    Ok(if is_text { VersionKey::Text } else { VersionKey::Typed })
}

async fn copy_relation(
    worker: &Worker,
    reader: &mut PgConnection,
    writer: &mut PgConnection,
    candidate: &Candidate,
    registry: &Arc<Snapshot>,
    relation: &Relation,
    totals: &mut Totals,
) -> Result<u64, CaptureError> {
    let version_key = version_key(reader, relation).await?;
    let query = Encoder::query(relation, &version_key);
    let (lines, chunks) = mpsc::channel(4);
    let (encoded, mut batches) = mpsc::channel(1);
    let encoder = Encoder::new(registry, relation);
    // Encoding has a thread of its own, so that reading, encoding and writing overlap.
    let encoding = tokio::task::spawn_blocking(move || encode(encoder, chunks, &encoded));
    let reading = read(reader, query, lines);
    let writing = async {
        let mut rows = 0_u64;
        let mut bytes = 0_u64;
        let (started, mut shown) = (Instant::now(), Instant::now());
        let mut copy = CopyBuffers::new();
        while let Some(batch) = batches.recv().await {
            rows += batch.len() as u64;
            bytes += write_batch(writer, candidate, relation, batch, totals, &mut copy).await?;
            if shown.elapsed() >= SHOW_INTERVAL {
                shown = Instant::now();
                show(worker, relation, rows, bytes, started.elapsed());
            }
        }
        show(worker, relation, rows, bytes, started.elapsed());
        Ok::<u64, CaptureError>(rows)
    };
    let (read, written) = tokio::join!(reading, writing);
    // A failed writer closes its channel, and the others stop; a failed reader is the cause of a short stream.
    let encoded = encoding.await.map_err(|_| Refusal::Inconsistent("encoding ended unexpectedly"))?;
    let rows = written?;
    encoded?;
    read?;
    Ok(rows)
}

fn show(worker: &Worker, relation: &Relation, rows: u64, bytes: u64, elapsed: Duration) {
    let rate = rows as f64 / elapsed.as_secs_f64().max(0.001);
    let table = format!("{}.{}", relation.schema, relation.name);
    tracing::info!(table, rows, bytes, rows_per_second = rate as u64, "baseline: copying");
    metrics::gauge!("tidegate_baseline_rows", "table" => table.clone()).set(rows as f64);
    metrics::gauge!("tidegate_baseline_bytes", "table" => table.clone()).set(bytes as f64);
    let reason = format!("baseline: {table}: {rows} rows, {} MiB, {rate:.0} rows/s", bytes >> 20);
    worker.heartbeat.state(State::Starting, Some(reason));
}

async fn read(
    reader: &mut PgConnection,
    query: String,
    lines: mpsc::Sender<Vec<Bytes>>,
) -> Result<(), CaptureError> {
    let statement = format!("copy ({query}) to stdout");
    let mut stream = reader.copy_out_raw(&statement).await.doing("copy a table out")?;
    let (mut chunk, mut bytes) = (Vec::with_capacity(CHUNK_ROWS), 0);
    // The server sends one message per row.
    while let Some(line) = stream.try_next().await.doing("copy a table out")? {
        bytes += line.len();
        chunk.push(line);
        if chunk.len() >= CHUNK_ROWS || bytes >= CHUNK_BYTES {
            if lines.send(std::mem::take(&mut chunk)).await.is_err() {
                // The encoder has stopped; its own error says why.
                return Ok(());
            }
            bytes = 0;
        }
    }
    if !chunk.is_empty() {
        let _ = lines.send(chunk).await;
    }
    Ok(())
}

/// Runs on a blocking thread: nothing but computation between two channels.
fn encode(
    mut encoder: Encoder,
    mut chunks: mpsc::Receiver<Vec<Bytes>>,
    encoded: &mpsc::Sender<Vec<EncodedRow>>,
) -> Result<(), CaptureError> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while let Some(chunk) = chunks.blocking_recv() {
        for line in &chunk {
            let row = encoder.encode(line)?;
            bytes += row.row.len() + row.key_index.len() + 100;
            batch.push(row);
        }
        if bytes >= BATCH_BYTES {
            if encoded.blocking_send(std::mem::take(&mut batch)).is_err() {
                return Ok(());
            }
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        let _ = encoded.blocking_send(batch);
    }
    debug_assert!(encoder.relation_id().0 > 0);
    Ok(())
}

/// Buffers that are used over and over.
struct CopyBuffers {
    rows: BinaryCopy,
    edges: BinaryCopy,
}

impl CopyBuffers {
    fn new() -> CopyBuffers {
        CopyBuffers { rows: BinaryCopy::new(6), edges: BinaryCopy::new(3) }
    }
}

async fn write_batch(
    writer: &mut PgConnection,
    candidate: &Candidate,
    relation: &Relation,
    batch: Vec<EncodedRow>,
    totals: &mut Totals,
    copy: &mut CopyBuffers,
) -> Result<u64, CaptureError> {
    name_scopes(writer, &batch, totals).await?;
    let mut ids = Vec::new();
    for row in &batch {
        ids.clear();
        for name in &row.scopes {
            let scope = totals.scopes.get_mut(name).ok_or(Refusal::Inconsistent("a scope was not named"))?;
            scope.row_count += 1;
            scope.digest = scope.digest.plus(row.digest);
            ids.push(scope.id);
        }
        ids.sort_unstable();
        copy.rows.tuple();
        copy.rows.bytes(&row.key_index);
        copy.rows.bytes(row.version.0.as_bytes());
        copy.rows.bytes(&row.row);
        copy.rows.bytes(&row.digest.0);
        copy.rows.int8_array(&ids);
        copy.rows.jsonb(grants_json(&row.grants).as_deref());
        for id in &ids {
            copy.edges.tuple();
            copy.edges.int8(*id);
            copy.edges.int4(relation.relation_id.0);
            copy.edges.bytes(&row.key_index);
        }
    }
    for pair in batch.into_iter().flat_map(|row| row.grants) {
        *totals.grants.entry(pair).or_default() += 1;
    }
    let bytes = (copy.rows.len() + copy.edges.len()) as u64;
    // A commit per batch: the candidate slot decodes what is staged here, and one transaction of all of it would be spilled to
    // disk there. The commit that completes the stage is flushed, and with it everything before.
    let mut transaction = writer.begin().await.doing("begin a staged batch")?;
    match copy_batch(&mut transaction, candidate, relation, copy).await {
        Ok(()) => transaction.commit().await.doing("commit a staged batch")?,
        Err(error) => {
            // Its locks would keep the stage from being dropped.
            let _ = transaction.rollback().await;
            return Err(error);
        }
    }
    Ok(bytes)
}

async fn copy_batch(
    writer: &mut PgConnection,
    candidate: &Candidate,
    relation: &Relation,
    copy: &mut CopyBuffers,
) -> Result<(), CaptureError> {
    sqlx::raw_sql("set local synchronous_commit = off")
        .execute(&mut *writer)
        .await
        .doing("begin a staged batch")?;
    let state = candidate.state;
    let into = format!(
        "copy tidegate_projection.s{state}_p{} (key_index, version, row, digest, scope_ids, grants) from stdin (format binary)",
        relation.relation_id
    );
    copy_in(writer, &into, copy.rows.take()).await?;
    if !copy.edges.is_empty() {
        let into = format!(
            "copy tidegate_projection.s{state}_scope_row (scope_id, relation_id, key_index) from stdin (format binary)"
        );
        copy_in(writer, &into, copy.edges.take()).await?;
    }
    Ok(())
}

/// Gives new scope names their ids, one query per batch.
async fn name_scopes(
    writer: &mut PgConnection,
    batch: &[EncodedRow],
    totals: &mut Totals,
) -> Result<(), CaptureError> {
    let mut fresh = Vec::new();
    for name in batch.iter().flat_map(|row| &row.scopes) {
        if !totals.scopes.contains_key(name) {
            totals.scopes.insert(name.clone(), ScopeTotal::default());
            fresh.push(name);
        }
    }
    let ids = fresh_ids(writer, fresh.len()).await?;
    for (name, id) in fresh.into_iter().zip(ids) {
        if let Some(scope) = totals.scopes.get_mut(name) {
            scope.id = id;
        }
    }
    Ok(())
}

async fn copy_in(writer: &mut PgConnection, statement: &str, data: Vec<u8>) -> Result<(), CaptureError> {
    let mut copy = writer.copy_in_raw(statement).await.doing("copy staged rows in")?;
    copy.send(data).await.doing("copy staged rows in")?;
    copy.finish().await.doing("copy staged rows in")?;
    Ok(())
}

/// B9: what was copied is what the snapshot has.
async fn count(reader: &mut PgConnection, relation: &Relation, copied: u64) -> Result<(), CaptureError> {
    let sql = format!("select count(*) from only {}.{}", quoted(&relation.schema), quoted(&relation.name));
    let there: i64 =
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(reader).await.doing("count a table's rows")?;
    if there as u64 != copied {
        let what = format!("{}.{}: {copied} rows copied of {there}", relation.schema, relation.name);
        return Err(CaptureError::Waiting(what));
    }
    Ok(())
}

async fn write_scopes(
    writer: &mut PgConnection,
    candidate: &Candidate,
    scopes: HashMap<ScopeName, ScopeTotal>,
) -> Result<(), CaptureError> {
    let into = format!(
        "copy tidegate_projection.s{}_scope (scope_id, name_hash, name, row_count, digest) from stdin (format binary)",
        candidate.state
    );
    let mut copy = BinaryCopy::new(5);
    for (name, scope) in scopes {
        copy.tuple();
        copy.int8(scope.id);
        copy.bytes(&name.hash());
        copy.bytes(name.0.as_bytes());
        copy.int8(scope.row_count);
        copy.bytes(&scope.digest.to_bytes());
        if copy.len() >= BATCH_BYTES {
            copy_in(writer, &into, copy.take()).await?;
        }
    }
    if copy.is_empty() { Ok(()) } else { copy_in(writer, &into, copy.take()).await }
}

async fn write_grants(
    writer: &mut PgConnection,
    candidate: &Candidate,
    grants: HashMap<(Subject, ScopeName), i64>,
) -> Result<(), CaptureError> {
    let into = format!(
        "copy tidegate_projection.s{}_subject_grant (subject_hash, scope_hash, subject, scope, row_count) from stdin (format binary)",
        candidate.state
    );
    let mut copy = BinaryCopy::new(5);
    for ((subject, scope), row_count) in grants {
        copy.tuple();
        copy.bytes(&Sha256::digest(subject.0.as_bytes()));
        copy.bytes(&scope.hash());
        copy.bytes(subject.0.as_bytes());
        copy.bytes(scope.0.as_bytes());
        copy.int8(row_count);
        if copy.len() >= BATCH_BYTES {
            copy_in(writer, &into, copy.take()).await?;
        }
    }
    if copy.is_empty() { Ok(()) } else { copy_in(writer, &into, copy.take()).await }
}

/// B5: every accepted fence that the snapshot shows and nothing has materialized.
async fn cover_fences(
    reader: &mut PgConnection,
    writer: &mut PgConnection,
    candidate: &Candidate,
) -> Result<(), CaptureError> {
    const BATCH: usize = 10_000;
    let mut pending = sqlx::query_scalar::<_, uuid::Uuid>(
        "select fence_id from tidegate.write_fence where materialized_commit_lsn is null and covered_by is null",
    )
    .fetch(reader);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let next = pending.try_next().await.doing("read pending fences")?;
        let done = next.is_none();
        batch.extend(next);
        if batch.len() == BATCH || (done && !batch.is_empty()) {
            // The generation is the one that activation will create; it checks that.
            sqlx::query(
                "insert into tidegate.reset_coverage (fence_id, reset_id, slot_name, generation, consistent_lsn)
                 select f, r.reset_id, r.slot_name, (select coalesce(max(id), 0) + 1 from tidegate.stream_generation), r.consistent_lsn
                 from unnest($2::uuid[]) f, tidegate.stream_reset r where r.reset_id = $1
                 on conflict (fence_id) do update
                 set reset_id = excluded.reset_id, slot_name = excluded.slot_name, generation = excluded.generation,
                     consistent_lsn = excluded.consistent_lsn",
            )
            .bind(candidate.reset)
            .bind(&batch)
            .execute(&mut *writer)
            .await
            .doing("record coverage")?;
            batch.clear();
        }
        if done {
            return Ok(());
        }
    }
}
