//! `tidegate gen types`: TypeScript for the registered tables.

use crate::args::{Args, GenTarget};
use crate::{connect, output, target, typescript};
use anyhow::Context;
use std::process::ExitCode;
use tidegate_model::Snapshot;

/// Writes the file, or prints it.
pub async fn run(args: &Args, wanted: &GenTarget) -> anyhow::Result<ExitCode> {
    let GenTarget::Types { out } = wanted;
    let mut connection = target::connect(args).await?;
    connect::require_schema(&mut connection).await?;
    let newest = "select snapshot::text from tidegate.registry_generation order by id desc limit 1";
    let json: String = sqlx::query_scalar(newest)
        .fetch_one(&mut connection)
        .await
        .map_err(|error| anyhow::anyhow!("read the registrations: {}", output::database_error(&error)))?;
    let snapshot = Snapshot::from_json(&json)?;
    let text = typescript::generate(&snapshot)?;
    match out {
        None if args.json => output::print(args, &serde_json::json!({ "text": text }), String::new),
        None => print!("{text}"),
        Some(path) => {
            std::fs::write(path, &text).with_context(|| format!("write {}", path.display()))?;
            let tables = snapshot.relations.iter().filter(|relation| relation.table_id.is_some()).count();
            output::print(args, &serde_json::json!({ "out": path, "tables": tables }), || {
                format!("{tables} tables written to {}", path.display())
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}
