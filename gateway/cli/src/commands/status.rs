//! `tidegate status`: readiness, check by check.

use crate::args::Args;
use crate::{output, target};
use std::process::ExitCode;
use tidegate_gateway::readiness::{self, ReadinessConfig};

/// Prints every check; fails unless all are good.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let url = target::database_url(args)?;
    let database = target::database_name(&target::connect_options(&url)?);
    let pool = target::pool_of(&url, 2).await?;
    let report = readiness::look(&pool, &ReadinessConfig::new(database)).await;
    output::print(args, &serde_json::to_value(&report)?, || {
        let mut text = String::new();
        for check in &report.checks {
            text += &format!("{} {}\n", if check.ok { "ok  " } else { "FAIL" }, check.name);
            if let Some(reason) = &check.reason {
                text += &format!("       {reason}\n");
            }
            if let Some(advice) = check.advice.filter(|_| !check.ok) {
                text += &format!("       what to do: {advice}\n");
            }
        }
        text + if report.ready() { "ready" } else { "not ready" }
    });
    Ok(if report.ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
