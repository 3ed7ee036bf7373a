//! `tidegate migrate`: installs or upgrades the schema.

use crate::args::{Args, Migrate};
use crate::{connect, output, target};
use std::process::ExitCode;

/// Every process does this when it connects; the command exists for those who want it done, or forced, by itself.
pub async fn run(args: &Args, migrate: &Migrate) -> anyhow::Result<ExitCode> {
    let pool = target::pool(args, 2).await?;
    if migrate.force {
        tidegate_migrations::force_replay(&pool).await?;
    }
    let loaded = tidegate_migrations::connect_and_load(&pool).await?;
    connect::warn_of_replication(&pool).await?;
    let schema = tidegate_migrations::Schema::full();
    output::print(
        args,
        &serde_json::json!({ "replayed": loaded.replayed, "generation": schema.generation }),
        || {
            if loaded.replayed {
                format!("schema generation {} installed", schema.generation)
            } else {
                format!("schema generation {} was already there: nothing to do", schema.generation)
            }
        },
    );
    Ok(ExitCode::SUCCESS)
}
