//! The durable boundaries of the active generation, and the only statements that move them besides materialization itself.

use crate::columns::SqlLsn;
use crate::error::Doing;
use crate::{CaptureError, Refusal};
use sqlx::{PgConnection, Row};
use tidegate_model::{GenerationId, Lsn, RegistryGeneration, StateId, StreamGeneration};

/// How far the stream is durable, and how far it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boundary {
    /// Every source transaction whose commit record starts before it is durable (A1).
    pub(crate) processed: Lsn,
    /// Recorded from a slot position read back (A4).
    pub(crate) acknowledged: Lsn,
}

/// The active generation with its progress: which slot, which state, which server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) generation: GenerationId,
    pub(crate) token: StreamGeneration,
    pub(crate) state: StateId,
    pub(crate) slot: String,
    /// Lower bound of A8.
    pub(crate) consistent: Lsn,
    pub(crate) system_identifier: String,
    pub(crate) timeline: i32,
    pub(crate) database_oid: i64,
    pub(crate) boundary: Boundary,
    pub(crate) materialized_commit: Option<Lsn>,
    pub(crate) registry_generation: RegistryGeneration,
}

/// Reads the pointer to the active generation; `None` before the first start.
pub(crate) async fn read(connection: &mut PgConnection) -> Result<Option<Stream>, CaptureError> {
    let row = sqlx::query(include_str!("progress_read.sql"))
        .fetch_optional(connection)
        .await
        .map_err(schema_missing("read progress"))?;
    row.map(|row| stream(&row).doing("read progress")).transpose()
}

/// A missing table means that the loader has not run here.
pub(crate) fn schema_missing(doing: &'static str) -> impl FnOnce(sqlx::Error) -> CaptureError {
    move |error| match &error {
        sqlx::Error::Database(database) if matches!(database.code().as_deref(), Some("42P01" | "3F000")) => {
            Refusal::SchemaMissing.into()
        }
        _ => CaptureError::sql(doing)(error),
    }
}

fn stream(row: &sqlx::postgres::PgRow) -> Result<Stream, sqlx::Error> {
    let consistent = row.try_get::<SqlLsn, _>("consistent_lsn")?.0;
    Ok(Stream {
        generation: GenerationId(row.try_get("generation")?),
        token: StreamGeneration(row.try_get("token")?),
        state: StateId(row.try_get("state_id")?),
        slot: row.try_get("slot_name")?,
        consistent,
        system_identifier: row.try_get("system_identifier")?,
        timeline: row.try_get("timeline")?,
        database_oid: row.try_get("database_oid")?,
        boundary: Boundary {
            processed: row.try_get::<SqlLsn, _>("processed_end_lsn")?.0,
            // A null acknowledgement counts as the generation start (H9).
            acknowledged: row
                .try_get::<Option<SqlLsn>, _>("acknowledged_end_lsn")?
                .map_or(consistent, |lsn| lsn.0),
        },
        materialized_commit: row.try_get::<Option<SqlLsn>, _>("materialized_commit_lsn")?.map(|lsn| lsn.0),
        registry_generation: RegistryGeneration(row.try_get("registry_generation")?),
    })
}

/// The registry generation in force for transactions that commit at or after `boundary`.
pub(crate) async fn registry_in_force(
    connection: &mut PgConnection,
    generation: GenerationId,
    boundary: Lsn,
) -> Result<RegistryGeneration, CaptureError> {
    let id: Option<i32> = sqlx::query_scalar(
        "select max(registry_generation) from tidegate.registry_activation
         where stream_generation = $1 and (commit_lsn is null or commit_lsn < $2)",
    )
    .bind(generation.0)
    .bind(SqlLsn(boundary))
    .fetch_one(connection)
    .await
    .doing("read the registry in force")?;
    id.map(RegistryGeneration).ok_or_else(|| {
        Refusal::Inconsistent("no registry generation is in force at the durable boundary").into()
    })
}

/// Moves the boundaries outside of materialization, each time only while this worker owns the stream.
pub(crate) struct ProgressWriter<'c> {
    pub(crate) connection: &'c mut PgConnection,
    pub(crate) epoch: i64,
    pub(crate) generation: GenerationId,
}

impl ProgressWriter<'_> {
    /// Records an idle boundary (A3). Returns the boundaries and where our write ended.
    pub(crate) async fn record_idle(
        &mut self,
        expected: Lsn,
        target: Lsn,
    ) -> Result<(Boundary, Lsn), CaptureError> {
        debug_assert!(target > expected);
        let row = sqlx::query(include_str!("progress_record_idle.sql"))
            .bind(self.epoch)
            .bind(self.generation.0)
            .bind(SqlLsn(expected))
            .bind(SqlLsn(target))
            .fetch_optional(&mut *self.connection)
            .await
            .doing("record the idle boundary")?;
        let Some(row) = row else { return Err(self.explain().await?) };
        let acknowledged = row.try_get::<SqlLsn, _>(0).doing("record the idle boundary")?.0;
        Ok((Boundary { processed: target, acknowledged }, self.wal_end().await?))
    }

    /// Records an acknowledgement read back from the slot (A4).
    pub(crate) async fn record_acknowledged(&mut self, target: Lsn) -> Result<Lsn, CaptureError> {
        let done = sqlx::query(include_str!("progress_record_acknowledged.sql"))
            .bind(self.epoch)
            .bind(self.generation.0)
            .bind(SqlLsn(target))
            .execute(&mut *self.connection)
            .await
            .doing("record the acknowledgement")?;
        if done.rows_affected() != 1 {
            return Err(self.explain().await?);
        }
        self.wal_end().await
    }

    /// Where WAL ends after our own write, so that it does not count as news (A10).
    async fn wal_end(&mut self) -> Result<Lsn, CaptureError> {
        let end: SqlLsn = sqlx::query_scalar("select pg_current_wal_insert_lsn()")
            .fetch_one(&mut *self.connection)
            .await
            .doing("read the WAL position")?;
        Ok(end.0)
    }

    /// Why a guarded statement matched nothing.
    async fn explain(&mut self) -> Result<CaptureError, CaptureError> {
        let epoch: i64 = sqlx::query_scalar("select epoch from tidegate.worker")
            .fetch_one(&mut *self.connection)
            .await
            .doing("read the worker's epoch")?;
        if epoch != self.epoch {
            return Ok(CaptureError::OwnershipLost);
        }
        Ok(CaptureError::Waiting("progress is not where this session left it: read it again".into()))
    }
}
