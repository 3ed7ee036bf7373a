//! `tidegate uninstall`: removes everything of ours, after saying what that is.

use crate::args::{Args, Uninstall};
use crate::uninstall::plan::{self, Plan};
use crate::uninstall::remove::remove;
use crate::{output, target};
use anyhow::{Context, bail};
use serde_json::json;
use sqlx::Connection;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Shows the plan, asks on a terminal unless told not to, removes.
pub async fn run(args: &Args, wanted: &Uninstall) -> anyhow::Result<ExitCode> {
    let mut connection = target::connect(args).await?;
    let plan = plan::look(&mut connection).await?;
    if plan.is_empty() {
        output::print(args, &json!({ "uninstalled": false, "installed": false }), || {
            "nothing of Tidegate's is installed in this database".to_owned()
        });
        return Ok(ExitCode::SUCCESS);
    }
    if wanted.plan {
        let obstacle = plan.obstacle();
        let json = json!({ "uninstalled": false, "installed": true, "plan": plan, "obstacle": obstacle });
        output::print(args, &json, || plan_text(&plan, obstacle.as_deref()));
        return Ok(if obstacle.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let Some(obstacle) = plan.obstacle() {
        bail!("nothing was removed: {obstacle}");
    }
    if !wanted.yes {
        eprint!("{}", plan.text());
        if !std::io::stdin().is_terminal() {
            bail!("nobody can be asked here: pass --yes to uninstall, or --plan to look only");
        }
        if !confirmed()? {
            bail!("nothing was changed");
        }
    }
    let dropped = remove(&mut connection).await?;
    connection.close().await.ok();
    let json = json!({ "uninstalled": true, "plan": plan, "dropped_slots": dropped });
    output::print(args, &json, || done(&plan, &dropped));
    Ok(ExitCode::SUCCESS)
}

fn plan_text(plan: &Plan, obstacle: Option<&str>) -> String {
    let mut text = plan.text();
    if let Some(obstacle) = obstacle {
        text += &format!("It cannot be done now: {obstacle}\n");
    }
    text + "plan only: nothing was changed"
}

fn done(plan: &Plan, dropped: &[String]) -> String {
    let slots = match dropped {
        [] => "no replication slot was left".to_owned(),
        [slot] => format!("replication slot {slot} dropped"),
        slots => format!("replication slots {} dropped", slots.join(", ")),
    };
    format!(
        "uninstalled: triggers of {} tables, {} schemas and the publication removed, {slots}",
        plan.triggers.len(),
        plan.schemas.len()
    )
}

fn confirmed() -> anyhow::Result<bool> {
    eprint!("\nUninstall? [y/N] ");
    std::io::stderr().flush().ok();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
