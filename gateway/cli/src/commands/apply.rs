//! `tidegate apply`: brings the registrations of a file to the database, all of them or none; or, with `--plan`, says what that would do.

use crate::args::{Apply, Args};
use crate::plan::{self, Change, Shown};
use crate::{connect, output, target};
use anyhow::Context;
use sqlx::Connection;
use std::process::ExitCode;
use tidegate_migrations::definition::{self, ApplyError, Definitions, Plan, PlanEntry, Status};
use tidegate_migrations::notice::{self, Notices};

/// Plans with `--plan`, else applies; prints what became of each entry.
pub async fn run(args: &Args, apply: &Apply) -> anyhow::Result<ExitCode> {
    let text =
        std::fs::read_to_string(&apply.file).with_context(|| format!("read {}", apply.file.display()))?;
    let definitions: Definitions =
        toml::from_str(&text).with_context(|| format!("read {}", apply.file.display()))?;
    if apply.plan {
        return show_plan(args, &definitions).await;
    }
    let pool = target::pool(args, 2).await?;
    tidegate_migrations::connect_and_load(&pool).await?;
    connect::warn_of_replication(&pool).await?;
    let (plan, applied) = match definition::apply(&pool, &definitions).await {
        Ok(plan) => (plan, true),
        Err(ApplyError::Refused(plan)) => (plan, false),
        Err(error) => return Err(error.into()),
    };
    // What is refused is said alone: the rest is for a file that can be applied.
    let notices = if applied { notice::notices(&pool, &definitions).await? } else { Notices::default() };
    let changes = vec![Vec::new(); plan.entries.len()];
    let outcome = match (applied, plan.is_unchanged()) {
        (true, true) => "nothing to do",
        (true, false) => "applied",
        (false, _) => "refused: no registration was changed",
    };
    print(args, applied, None, &plan, &changes, &notices, outcome);
    Ok(if applied { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn show_plan(args: &Args, definitions: &Definitions) -> anyhow::Result<ExitCode> {
    let options = target::connect_options(&target::database_url(args)?)?;
    // Says at once, and in words, when there is no server.
    connect::once(&options).await?.close().await.ok();
    let Shown { plan, changes, notices, installed } = plan::plan(&options, definitions).await?;
    let mut outcome = format!("plan only: {}; nothing was changed", counted(&plan));
    if !installed {
        outcome =
            format!("Tidegate's schema is not in this database yet: applying installs it first\n{outcome}");
    }
    print(args, false, Some(installed), &plan, &changes, &notices, &outcome);
    Ok(if plan.refused().next().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn counted(plan: &Plan) -> String {
    let count = |status| plan.entries.iter().filter(|entry| entry.status == status).count();
    let counts = [
        (Status::New, "new"),
        (Status::Changed, "changed"),
        (Status::Unchanged, "unchanged"),
        (Status::Refused, "refused"),
    ];
    let said: Vec<String> = counts
        .into_iter()
        .map(|(status, word)| (count(status), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if said.is_empty() { "the file declares nothing".to_owned() } else { said.join(", ") }
}

fn print(
    args: &Args,
    applied: bool,
    installed: Option<bool>,
    plan: &Plan,
    changes: &[Vec<Change>],
    notices: &Notices,
    outcome: &str,
) {
    let entries: Vec<serde_json::Value> =
        plan.entries.iter().zip(changes).map(|(entry, changes)| entry_json(entry, changes)).collect();
    let mut json = serde_json::json!({
        "applied": applied, "entries": entries, "warnings": notices.warnings, "kept": notices.kept,
    });
    if let Some(installed) = installed {
        json["installed"] = installed.into();
    }
    output::print(args, &json, || {
        let mut text = String::new();
        for (entry, changes) in plan.entries.iter().zip(changes) {
            text += &entry_text(entry, changes);
        }
        for kept in &notices.kept {
            text += &format!("  {} {} (stays registered: not in this file)\n", kept.kind, kept.name);
        }
        for warning in &notices.warnings {
            text += &format!("warning: {warning}\n");
        }
        text + outcome
    });
}

fn entry_json(entry: &PlanEntry, changes: &[Change]) -> serde_json::Value {
    let mut json = serde_json::json!(entry);
    json["changes"] = serde_json::json!(changes);
    json
}

fn entry_text(entry: &PlanEntry, changes: &[Change]) -> String {
    let (sign, word) = match entry.status {
        Status::Unchanged => (' ', "unchanged"),
        Status::New => ('+', "new"),
        Status::Changed => ('~', "changed"),
        Status::Refused => ('!', "refused"),
    };
    let mut text = format!("{sign} {} {} ({word})\n", entry.kind, entry.name);
    for change in changes {
        text += &format!("    {}\n", change.line());
    }
    for (label, detail) in [("", &entry.reason), ("hint: ", &entry.hint)] {
        if let Some(detail) = detail {
            text += &format!("    {label}{detail}\n");
        }
    }
    text
}
