//! Registry generations as stored: immutable, so read once each.

use crate::error::Doing;
use crate::{CaptureError, Refusal};
use sqlx::PgConnection;
use std::sync::Arc;
use tidegate_model::{RegistryGeneration, Snapshot};
use tidegate_stream::{Failure, FailureClass};

/// Loads the snapshot that an activation names. Missing or unreadable is poison: an operator repairs it, then retries (G2).
pub(crate) async fn load(
    connection: &mut PgConnection,
    generation: RegistryGeneration,
) -> Result<Arc<Snapshot>, CaptureError> {
    let json: Option<String> =
        sqlx::query_scalar("select snapshot::text from tidegate.registry_generation where id = $1")
            .bind(generation.0)
            .fetch_optional(connection)
            .await
            .doing("load the registry")?;
    let missing = |why: String| Failure::new(FailureClass::RegistryGenerationMissing, why);
    let json = json.ok_or_else(|| missing(format!("registry generation {generation} is not stored")))?;
    // The error names fields and columns, never values of rows.
    let snapshot = Snapshot::from_json(&json)
        .map_err(|error| missing(format!("registry generation {generation}: {error}")))?;
    if snapshot.generation != generation {
        return Err(Refusal::Inconsistent("a registry snapshot carries another generation's number").into());
    }
    Ok(Arc::new(snapshot))
}
