//! Executes the write lists of a batch: set-based, one statement per list that is not empty, never one per row. Each statement
//! must touch exactly as many rows as its list has; anything else is a blocking failure, never repaired by guessing.

use super::Target;
use crate::CaptureError;
use crate::columns::{Byteas, Lsns, OptionalByteas, OptionalLsns, SqlLsn};
use crate::error::Doing;
use bytes::Bytes;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres};
use tidegate_model::{GenerationId, Lsn, RegistryGeneration, RelationId, StateId};
use tidegate_stream::{
    ActivationColumns, EdgeColumns, Failure, FailureClass, FenceColumns, GrantColumns, GrantEffectColumns,
    GrantKeyColumns, NewScopeColumns, ProjectionWrites, RowColumns, ScopeColumns, Writes,
};

/// Where the stream stands after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) commit_lsn: Lsn,
    pub(super) end_lsn: Lsn,
    pub(super) registry: RegistryGeneration,
}

/// Everything of one batch. `end` is where the stream stands after it; absent while a large transaction is incomplete.
pub(super) async fn all(
    transaction: &mut PgConnection,
    target: &Target,
    writes: &Writes,
    end: Option<End>,
) -> Result<(), CaptureError> {
    let state = target.state();
    for projection in &writes.projections {
        self::projection(transaction, state, projection).await?;
    }
    new_scopes(transaction, state, target.delivers(), &writes.new_scopes).await?;
    edges_removed(transaction, state, &writes.edges_removed).await?;
    edges_added(transaction, state, &writes.edges_added).await?;
    grants_set(transaction, state, target.delivers(), &writes.grants_set).await?;
    grants_removed(transaction, state, &writes.grants_removed).await?;
    match *target {
        Target::Live { generation, .. } => {
            fences_live(transaction, generation, &writes.fences).await?;
            activations(transaction, generation, &writes.activations).await?;
            grant_effects(transaction, generation, &writes.grant_effects).await?;
            core(transaction, state, generation, writes, end).await
        }
        Target::Candidate { .. } => {
            // B10: nothing from before activation is exposed: no records, no effects, no tails.
            fences_staged(transaction, state, &writes.fences).await?;
            scopes_staged(transaction, state, &writes.scopes).await
        }
    }
}

type Statement<'q> = Query<'q, Postgres, PgArguments>;

async fn run(
    transaction: &mut PgConnection,
    doing: &'static str,
    statement: Statement<'_>,
) -> Result<u64, CaptureError> {
    Ok(statement.execute(transaction).await.doing(doing)?.rows_affected())
}

fn exactly(touched: u64, expected: usize, class: FailureClass, what: &str) -> Result<(), CaptureError> {
    if touched == expected as u64 {
        return Ok(());
    }
    Err(Failure::new(class, format!("{what}: {touched} rows matched where {expected} must")).into())
}

async fn projection(
    transaction: &mut PgConnection,
    state: StateId,
    writes: &ProjectionWrites,
) -> Result<(), CaptureError> {
    let relation = writes.relation;
    if !writes.delete.is_empty() {
        let sql = format!("delete from tidegate_projection.s{state}_p{relation} where key_index = any ($1)");
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(Byteas(&writes.delete));
        let touched = run(transaction, "delete projected rows", statement).await?;
        exactly(touched, writes.delete.len(), FailureClass::DeleteOnMissing, "delete projected rows")?;
    }
    if !writes.update.key_index.is_empty() {
        let sql = format!(
            "update tidegate_projection.s{state}_p{relation} p
             set version = u.version, row = u.row, digest = u.digest, scope_ids = u.scope_ids::int8[], grants = u.grants::jsonb
             from unnest($1, $2::uuid[], $3, $4::bytea[], $5::text[], $6::text[])
                 as u(key_index, version, row, digest, scope_ids, grants)
             where p.key_index = u.key_index"
        );
        let touched = run(transaction, "update projected rows", bind_rows(sql, &writes.update)).await?;
        exactly(
            touched,
            writes.update.key_index.len(),
            FailureClass::UpdateOnMissing,
            "update projected rows",
        )?;
    }
    if !writes.insert.key_index.is_empty() {
        let sql = format!(
            "insert into tidegate_projection.s{state}_p{relation} (key_index, version, row, digest, scope_ids, grants)
             select u.key_index, u.version, u.row, u.digest, u.scope_ids::int8[], u.grants::jsonb
             from unnest($1, $2::uuid[], $3, $4::bytea[], $5::text[], $6::text[])
                 as u(key_index, version, row, digest, scope_ids, grants)"
        );
        bind_rows(sql, &writes.insert)
            .execute(transaction)
            .await
            .map_err(|error| insert_on_existing(error, relation))?;
    }
    Ok(())
}

fn bind_rows(sql: String, rows: &RowColumns) -> Statement<'_> {
    sqlx::query(AssertSqlSafe(sql))
        .bind(Byteas(&rows.key_index))
        .bind(&rows.version)
        .bind(Byteas(&rows.row))
        .bind(&rows.digest)
        .bind(&rows.scope_ids)
        .bind(&rows.grants)
}

/// Inserted rows were not looked up: the primary key tells.
fn insert_on_existing(error: sqlx::Error, relation: RelationId) -> CaptureError {
    let duplicate =
        error.as_database_error().is_some_and(|database| database.code().as_deref() == Some("23505"));
    if duplicate {
        let what = "an inserted row exists already in the projection: a delete was missed";
        return Failure::new(FailureClass::InsertOnExisting, what).of(relation).into();
    }
    CaptureError::sql("insert projected rows")(error)
}

async fn new_scopes(
    transaction: &mut PgConnection,
    state: StateId,
    with_tail: bool,
    scopes: &NewScopeColumns,
) -> Result<(), CaptureError> {
    if scopes.name.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "insert into tidegate_projection.s{state}_scope
             (name_hash, name, scope_id, row_count, digest, tail_commit_lsn, tail_event_ordinal, tail_effect_ordinal)
         select u.name_hash, u.name, u.scope_id, u.row_count, u.digest, case when $9 then u.commit_lsn end,
                case when $9 then u.event_ordinal end, case when $9 then u.effect_ordinal end
         from unnest($1::bytea[], $2::text[], $3::int8[], $4::int8[], $5::bytea[], $6, $7::int8[], $8::int4[])
             as u(name_hash, name, scope_id, row_count, digest, commit_lsn, event_ordinal, effect_ordinal)"
    );
    let totals = &scopes.totals;
    let statement = sqlx::query(AssertSqlSafe(sql))
        .bind(&scopes.name_hash)
        .bind(&scopes.name)
        .bind(&totals.scope_id)
        .bind(&totals.row_count)
        .bind(&totals.digest)
        .bind(Lsns(&totals.tail_commit_lsn))
        .bind(&totals.tail_event_ordinal)
        .bind(&totals.tail_effect_ordinal)
        .bind(with_tail);
    run(transaction, "insert scopes", statement).await.map(drop)
}

async fn scopes_staged(
    transaction: &mut PgConnection,
    state: StateId,
    scopes: &ScopeColumns,
) -> Result<(), CaptureError> {
    if scopes.scope_id.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "update tidegate_projection.s{state}_scope s set row_count = u.row_count, digest = u.digest
         from unnest($1::int8[], $2::int8[], $3::bytea[]) as u(scope_id, row_count, digest)
         where s.scope_id = u.scope_id"
    );
    let statement =
        sqlx::query(AssertSqlSafe(sql)).bind(&scopes.scope_id).bind(&scopes.row_count).bind(&scopes.digest);
    let touched = run(transaction, "update scopes", statement).await?;
    exactly(touched, scopes.scope_id.len(), FailureClass::ProjectionInconsistent, "update scopes")
}

async fn edges_added(
    transaction: &mut PgConnection,
    state: StateId,
    edges: &EdgeColumns,
) -> Result<(), CaptureError> {
    if edges.scope_id.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "insert into tidegate_projection.s{state}_scope_row (scope_id, relation_id, key_index)
         select * from unnest($1::int8[], $2::int4[], $3)"
    );
    run(transaction, "insert edges", bind_edges(sql, edges)).await.map(drop)
}

async fn edges_removed(
    transaction: &mut PgConnection,
    state: StateId,
    edges: &EdgeColumns,
) -> Result<(), CaptureError> {
    if edges.scope_id.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "delete from tidegate_projection.s{state}_scope_row r
         using unnest($1::int8[], $2::int4[], $3) as u(scope_id, relation_id, key_index)
         where r.scope_id = u.scope_id and r.relation_id = u.relation_id and r.key_index = u.key_index"
    );
    let touched = run(transaction, "delete edges", bind_edges(sql, edges)).await?;
    exactly(touched, edges.scope_id.len(), FailureClass::ProjectionInconsistent, "delete edges")
}

fn bind_edges(sql: String, edges: &EdgeColumns) -> Statement<'_> {
    sqlx::query(AssertSqlSafe(sql))
        .bind(&edges.scope_id)
        .bind(&edges.relation_id)
        .bind(Byteas(&edges.key_index))
}

async fn grants_set(
    transaction: &mut PgConnection,
    state: StateId,
    with_since: bool,
    grants: &GrantColumns,
) -> Result<(), CaptureError> {
    if grants.subject.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "insert into tidegate_projection.s{state}_subject_grant as g
             (subject_hash, scope_hash, subject, scope, row_count, since_commit_lsn)
         select u.subject_hash, u.scope_hash, u.subject, u.scope, u.row_count, case when $7 then u.since_commit_lsn end
         from unnest($1::bytea[], $2::bytea[], $3::text[], $4::text[], $5::int8[], $6)
             as u(subject_hash, scope_hash, subject, scope, row_count, since_commit_lsn)
         on conflict (subject_hash, scope_hash) do update
         set row_count = excluded.row_count, since_commit_lsn = coalesce(excluded.since_commit_lsn, g.since_commit_lsn)"
    );
    let statement = sqlx::query(AssertSqlSafe(sql))
        .bind(&grants.keys.subject_hash)
        .bind(&grants.keys.scope_hash)
        .bind(&grants.subject)
        .bind(&grants.scope)
        .bind(&grants.row_count)
        .bind(OptionalLsns(&grants.since_commit_lsn))
        .bind(with_since);
    let touched = run(transaction, "set grants", statement).await?;
    exactly(touched, grants.subject.len(), FailureClass::ProjectionInconsistent, "set grants")
}

async fn grants_removed(
    transaction: &mut PgConnection,
    state: StateId,
    grants: &GrantKeyColumns,
) -> Result<(), CaptureError> {
    if grants.subject_hash.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "delete from tidegate_projection.s{state}_subject_grant g
         using unnest($1::bytea[], $2::bytea[]) as u(subject_hash, scope_hash)
         where g.subject_hash = u.subject_hash and g.scope_hash = u.scope_hash"
    );
    let statement = sqlx::query(AssertSqlSafe(sql)).bind(&grants.subject_hash).bind(&grants.scope_hash);
    let touched = run(transaction, "delete grants", statement).await?;
    exactly(touched, grants.subject_hash.len(), FailureClass::ProjectionInconsistent, "delete grants")
}

async fn grant_effects(
    transaction: &mut PgConnection,
    generation: GenerationId,
    effects: &GrantEffectColumns,
) -> Result<(), CaptureError> {
    if effects.ordinal.is_empty() {
        return Ok(());
    }
    let statement = sqlx::query(
        "insert into tidegate.grant_effect (generation, commit_lsn, ordinal, op, subject, scope)
         select $1, u.* from unnest($2, $3::int4[], $4::int2[], $5::text[], $6::text[]) as u",
    )
    .bind(generation.0)
    .bind(Lsns(&effects.commit_lsn))
    .bind(&effects.ordinal)
    .bind(&effects.op)
    .bind(&effects.subject)
    .bind(&effects.scope);
    run(transaction, "insert grant effects", statement).await.map(drop)
}

/// F8: each accepted fence is marked exactly once, by the transaction that brought exactly that row version.
async fn fences_live(
    transaction: &mut PgConnection,
    generation: GenerationId,
    fences: &FenceColumns,
) -> Result<(), CaptureError> {
    if fences.fence_id.is_empty() {
        return Ok(());
    }
    let statement = sqlx::query(
        "update tidegate.write_fence f set generation = $7, materialized_commit_lsn = u.commit_lsn
         from unnest($1::uuid[], $2::int8[], $3::int4[], $4::text[], $5::uuid[], $6)
             as u(fence_id, mutation_id, relation_id, key, version, commit_lsn)
         where f.fence_id = u.fence_id and f.mutation_id = u.mutation_id and f.relation_id = u.relation_id and f.key = u.key
           and f.version = u.version and f.materialized_commit_lsn is null and f.covered_by is null",
    );
    let statement = bind_fences(statement, fences).bind(generation.0);
    let touched = run(transaction, "reconcile write fences", statement).await?;
    exactly(touched, fences.fence_id.len(), FailureClass::WriteFenceMismatch, "reconcile write fences")
}

/// V2: a staged reconciliation does not lift the gate. It waits in the candidate's own table for activation.
async fn fences_staged(
    transaction: &mut PgConnection,
    state: StateId,
    fences: &FenceColumns,
) -> Result<(), CaptureError> {
    if fences.fence_id.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "insert into tidegate_projection.s{state}_fence (fence_id, commit_lsn)
         select f.fence_id, u.commit_lsn
         from unnest($1::uuid[], $2::int8[], $3::int4[], $4::text[], $5::uuid[], $6)
             as u(fence_id, mutation_id, relation_id, key, version, commit_lsn)
         join tidegate.write_fence f on f.fence_id = u.fence_id and f.mutation_id = u.mutation_id
             and f.relation_id = u.relation_id and f.key = u.key and f.version = u.version"
    );
    let statement = bind_fences(sqlx::query(AssertSqlSafe(sql)), fences);
    let touched = run(transaction, "stage write fences", statement).await?;
    exactly(touched, fences.fence_id.len(), FailureClass::WriteFenceMismatch, "stage write fences")
}

/// Parameters 1 to 6.
fn bind_fences<'q>(statement: Statement<'q>, fences: &'q FenceColumns) -> Statement<'q> {
    statement
        .bind(&fences.fence_id)
        .bind(&fences.mutation_id)
        .bind(&fences.relation_id)
        .bind(&fences.key)
        .bind(&fences.version)
        .bind(Lsns(&fences.materialized_commit_lsn))
}

async fn activations(
    transaction: &mut PgConnection,
    generation: GenerationId,
    activations: &ActivationColumns,
) -> Result<(), CaptureError> {
    if activations.registry_generation.is_empty() {
        return Ok(());
    }
    let generations: Vec<i32> =
        activations.registry_generation.iter().map(|generation| generation.0).collect();
    let statement = sqlx::query(
        "insert into tidegate.registry_activation (stream_generation, registry_generation, commit_lsn, first_event_ordinal)
         select $1, u.* from unnest($2::int4[], $3, $4::int8[]) as u",
    )
    .bind(generation.0)
    .bind(&generations)
    .bind(Lsns(&activations.commit_lsn))
    .bind(&activations.first_event_ordinal);
    run(transaction, "record registry activations", statement).await.map(drop)
}

async fn core(
    transaction: &mut PgConnection,
    state: StateId,
    generation: GenerationId,
    writes: &Writes,
    end: Option<End>,
) -> Result<(), CaptureError> {
    let (records, effects, scopes) = (&writes.transactions, &writes.effects, &writes.scopes);
    let sql = include_str!("core.sql").replace("{state}", &state.to_string());
    let manifests: Vec<Bytes> =
        records.manifest.iter().map(|manifest| Bytes::copy_from_slice(manifest)).collect();
    let statement = sqlx::query_as(AssertSqlSafe(sql))
        .bind(generation.0)
        .bind(Lsns(&records.commit_lsn))
        .bind(Lsns(&records.end_lsn))
        .bind(&records.xid)
        .bind(&records.committed_at_pg_micros)
        .bind(&records.event_count)
        .bind(&records.effect_count)
        .bind(&records.effect_bytes)
        .bind(Byteas(&manifests))
        .bind(&effects.scope_id)
        .bind(Lsns(&effects.commit_lsn))
        .bind(&effects.event_ordinal)
        .bind(&effects.effect_ordinal)
        .bind(&effects.op)
        .bind(&effects.table_id)
        .bind(Byteas(&effects.key))
        .bind(&effects.version)
        .bind(OptionalByteas(&effects.row))
        .bind(&effects.schema_version)
        .bind(&effects.digest_after)
        .bind(&effects.count_after)
        .bind(&scopes.scope_id)
        .bind(&scopes.row_count)
        .bind(&scopes.digest)
        .bind(Lsns(&scopes.tail_commit_lsn))
        .bind(&scopes.tail_event_ordinal)
        .bind(&scopes.tail_effect_ordinal)
        .bind(end.map(|end| SqlLsn(end.end_lsn)))
        .bind(end.map(|end| SqlLsn(end.commit_lsn)))
        .bind(end.map(|end| end.registry.0));
    let (moved, advanced): (i64, i64) =
        statement.fetch_one(transaction).await.doing("insert effects and move the boundary")?;
    exactly(moved as u64, scopes.scope_id.len(), FailureClass::ProjectionInconsistent, "update scopes")?;
    exactly(
        advanced as u64,
        usize::from(end.is_some()),
        FailureClass::ProjectionInconsistent,
        "move the boundary",
    )
}
