//! `tidegate poison`: what blocks the stream, and one more try.

use crate::args::{Args, Poison, PoisonAction};
use crate::{connect, output, target};
use anyhow::bail;
use serde_json::json;
use std::process::ExitCode;
use tidegate_capture::poison::{self, PoisonRecord, RetryRequest};
use tidegate_gateway::readiness::poison_advice;

/// Records shown by `list`.
const LIST_MAX: i64 = 100;

/// Lists, shows, or asks for a retry.
pub async fn run(args: &Args, command: &Poison) -> anyhow::Result<ExitCode> {
    let mut connection = target::connect(args).await?;
    connect::require_schema(&mut connection).await?;
    match command.action {
        PoisonAction::List => {
            let records = poison::list(&mut connection, LIST_MAX).await?;
            output::print(args, &records.iter().map(to_json).collect(), || list(&records));
        }
        PoisonAction::Show { id } => {
            let Some(record) = poison::show(&mut connection, id).await? else {
                bail!("there is no poison record {id}")
            };
            output::print(args, &to_json(&record), || show(&record));
        }
        PoisonAction::Retry { id } => match poison::retry(&mut connection, id, &super::operator()).await? {
            RetryRequest::Accepted => output::print(args, &json!({ "id": id, "retry": "accepted" }), || {
                format!(
                    "the worker will try record {id} once more; `tidegate poison show {id}` tells how it went"
                )
            }),
            RetryRequest::Unknown => bail!("there is no poison record {id}"),
            RetryRequest::NotActive => bail!("record {id} does not block, or is already being retried"),
            RetryRequest::ResetOnly => {
                bail!("record {id} cannot be cleared by a retry: run `tidegate reset --reason …`")
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn to_json(record: &PoisonRecord) -> serde_json::Value {
    json!({
        "id": record.id,
        "status": record.status,
        "failure_class": record.failure_class,
        "explanation": record.explanation,
        "sqlstate": record.sqlstate,
        "relation_id": record.relation.map(|relation| relation.0),
        "commit_lsn": record.commit_lsn,
        "retryable": record.retryable,
        "attempts": record.attempts,
        "first_at": record.first_at,
        "last_at": record.last_at,
        "advice": advice(record),
    })
}

fn list(records: &[PoisonRecord]) -> String {
    if records.is_empty() {
        return "nothing blocks, and nothing ever has".to_owned();
    }
    let header = ["id", "status", "class", "commit", "attempts", "last"].map(str::to_owned);
    let rows: Vec<_> = records
        .iter()
        .map(|record| {
            let cells = [
                record.id.to_string(),
                record.status.clone(),
                record.failure_class.clone(),
                record.commit_lsn.to_string(),
                record.attempts.to_string(),
                record.last_at.clone(),
            ];
            cells.map(Some).to_vec()
        })
        .collect();
    output::table(&header, &rows)
}

/// What to do about it.
fn advice(record: &PoisonRecord) -> String {
    match (record.status.as_str(), poison_advice(&record.failure_class)) {
        ("resolved", _) => "Nothing: it no longer blocks.".to_owned(),
        ("retrying", _) => "Wait: the worker is trying it once more.".to_owned(),
        (_, Some(advice)) => {
            advice.replace("`tidegate poison retry`", &format!("`tidegate poison retry {}`", record.id))
        }
        // Of a newer worker.
        (_, None) if record.retryable => format!(
            "Repair the cause, then run `tidegate poison retry {}`; if it cannot be repaired, `tidegate reset --reason …`.",
            record.id
        ),
        (_, None) => {
            "A retry cannot clear it: start the stream anew with `tidegate reset --reason …`.".to_owned()
        }
    }
}

fn show(record: &PoisonRecord) -> String {
    let act = advice(record);
    format!(
        "record {} ({})\n  {}\n  source transaction committed at {}, {} attempts, first {}, last {}\n  what to do: {act}\n",
        record.id,
        record.failure_class,
        record.explanation,
        record.commit_lsn,
        record.attempts,
        record.first_at,
        record.last_at
    )
}
