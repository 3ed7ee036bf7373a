//! `tidegate apply`: brings the registrations of a file to the database, all of them or none.

use crate::args::{Apply, Args};
use crate::{connect, output, target};
use anyhow::Context;
use std::process::ExitCode;
use tidegate_migrations::definition::{self, ApplyError, Definitions, Plan, Status};
use tidegate_migrations::notice::{self, Notices};

/// Plans with `--plan`, else applies; prints what became of each entry.
pub async fn run(args: &Args, apply: &Apply) -> anyhow::Result<ExitCode> {
    let text =
        std::fs::read_to_string(&apply.file).with_context(|| format!("read {}", apply.file.display()))?;
    let definitions: Definitions =
        toml::from_str(&text).with_context(|| format!("read {}", apply.file.display()))?;
    let pool = target::pool(args, 2).await?;
    if apply.plan {
        // A plan changes nothing, the schema included.
        let mut connection = pool.acquire().await.context("connect to plan")?;
        connect::require_current_schema(&mut connection).await?;
    } else {
        tidegate_migrations::connect_and_load(&pool).await?;
    }
    connect::warn_of_replication(&pool).await?;
    let done = if apply.plan {
        definition::plan(&pool, &definitions).await
    } else {
        definition::apply(&pool, &definitions).await
    };
    match done {
        Ok(plan) => {
            // What is refused is said alone: the rest is for a file that can be applied.
            let notices = match plan.refused().next() {
                None => notice::notices(&pool, &definitions).await?,
                Some(_) => Notices::default(),
            };
            print(args, apply, &plan, &notices);
            Ok(if plan.refused().next().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
        Err(ApplyError::Refused(plan)) => {
            print(args, apply, &plan, &Notices::default());
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}

fn print(args: &Args, apply: &Apply, plan: &Plan, notices: &Notices) {
    let applied = !apply.plan && plan.refused().next().is_none();
    let json = serde_json::json!({
        "applied": applied, "entries": plan.entries, "warnings": notices.warnings, "kept": notices.kept,
    });
    output::print(args, &json, || {
        let mut text = String::new();
        for entry in &plan.entries {
            let (sign, word) = match entry.status {
                Status::Unchanged => (' ', "unchanged"),
                Status::New => ('+', "new"),
                Status::Changed => ('~', "changed"),
                Status::Refused => ('!', "refused"),
            };
            text += &format!("{sign} {} {} ({word})\n", entry.kind, entry.name);
            for (label, detail) in [("", &entry.reason), ("hint: ", &entry.hint)] {
                if let Some(detail) = detail {
                    text += &format!("    {label}{detail}\n");
                }
            }
        }
        for kept in &notices.kept {
            text += &format!("  {} {} (stays registered: not in this file)\n", kept.kind, kept.name);
        }
        for warning in &notices.warnings {
            text += &format!("warning: {warning}\n");
        }
        text += match (applied, apply.plan) {
            (true, _) if plan.is_unchanged() => "nothing to do",
            (true, _) => "applied",
            (false, true) => "plan only: nothing was changed",
            (false, false) => "refused: nothing was changed",
        };
        text
    });
}
