//! `tidegate status`: readiness, check by check.

use crate::args::Args;
use crate::{connect, output, target};
use sqlx::Connection;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_gateway::readiness::{self, ReadinessConfig, Report};

/// Longest wait for each answer: a person who asks once would rather wait than not know.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Prints every check, or the one thing that comes before all of them; fails unless all are good.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = target::connect_options(&target::database_url(args)?)?;
    let mut config = ReadinessConfig::new(target::database_name(&options));
    config.timeout = TIMEOUT;
    let report = match connect::once(&options).await {
        Ok(connection) => {
            connection.close().await.ok();
            readiness::look(&connect::pool_of(options, 2), &config).await
        }
        Err(error) if error.passes => {
            readiness::unreachable(format!("not reachable: {error}"), false, &config)
        }
        Err(error) => readiness::unreachable(error.reason, true, &config),
    };
    output::print(args, &serde_json::to_value(&report)?, || text(&report));
    Ok(if report.ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(report: &Report) -> String {
    if let Some(first) = &report.first {
        return first.clone();
    }
    let mut text = String::new();
    let mut before: Option<&str> = None;
    for check in &report.checks {
        text += &format!("{} {}\n", if check.ok { "ok  " } else { "FAIL" }, check.name);
        let Some(reason) = check.reason.as_deref().filter(|_| !check.ok) else { continue };
        // One cause often fails several checks.
        if before == Some(reason) {
            text += "       as above\n";
            continue;
        }
        before = Some(reason);
        text += &format!("       {reason}\n");
        if let Some(advice) = check.advice {
            text += &format!("       what to do: {advice}\n");
        }
    }
    text + if report.ready() { "ready" } else { "not ready" }
}
