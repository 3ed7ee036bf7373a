//! `tidegate check`: whether a PostgreSQL can be used, before and after installation.

use crate::args::{Args, Check, ManagedService};
use crate::{connect, output, target};
use anyhow::Context;
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use std::process::ExitCode;
use std::time::Duration;
use tidegate_gateway::readiness::{self, ReadinessConfig, Report};
use tidegate_migrations::check::{
    Examination, Finding, Level, MANAGED, Managed, Repair, RepairKind, Service, examine,
};
use tidegate_migrations::definition::Definitions;

/// Prints every finding; fails if one of them is a failure.
pub async fn run(args: &Args, check: &Check) -> anyhow::Result<ExitCode> {
    if let Some(service) = check.managed {
        print_managed(args, service);
        return Ok(ExitCode::SUCCESS);
    }
    let url = match check.url.as_deref().map(str::trim).filter(|url| !url.is_empty()) {
        Some(url) => url.to_owned(),
        None => target::database_url(args)?,
    };
    let options = target::connect_options(&url)?;
    let tables = tables(check)?;
    let examination = match connect::once(&options).await {
        Ok(mut connection) => {
            let mut examination = examine(&mut connection, &tables).await?;
            connection.close().await.ok();
            examination.findings.extend(stream(&options, &examination).await);
            examination
        }
        Err(error) => Examination::unreachable(error.reason, !error.passes),
    };
    output::print(args, &json(&examination)?, || text(&examination));
    Ok(if examination.usable() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tables(check: &Check) -> anyhow::Result<Vec<String>> {
    let mut tables = check.tables.clone();
    if let Some(file) = &check.file {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let definitions: Definitions =
            toml::from_str(&text).with_context(|| format!("read {}", file.display()))?;
        let of_grants = definitions.grants.into_iter().filter_map(|grant| grant.from);
        tables.extend(definitions.tables.into_iter().map(|table| table.name).chain(of_grants));
    }
    let mut seen = std::collections::HashSet::new();
    tables.retain(|table| seen.insert(table.clone()));
    Ok(tables)
}

/// What readiness says of the stream, once the schema is this program's. What an examination says itself is not said again.
async fn stream(options: &PgConnectOptions, examination: &Examination) -> Vec<Finding> {
    // Only of a schema that is this program's are its differences known.
    if examination.of("triggers").next().is_none() {
        return Vec::new();
    }
    let drifted = examination.of("relations").any(|finding| finding.level != Level::Ok);
    let config =
        ReadinessConfig { timeout: PATIENCE, ..ReadinessConfig::new(target::database_name(options)) };
    let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(PATIENCE);
    let report = readiness::look(&pool.connect_lazy_with(options.clone()), &config).await;
    of_report(&report, drifted)
}

const STREAM: &str = "stream";
/// A probe must answer soon; who examines a busy server can wait, and was already let in.
const PATIENCE: Duration = Duration::from_secs(30);

fn of_report(report: &Report, drifted: bool) -> Vec<Finding> {
    let finding = |level, found: &str, subject: Option<&str>, advice: Option<&str>| Finding {
        name: STREAM,
        subject: subject.map(str::to_owned),
        level,
        found: found.to_owned(),
        needed: "as `tidegate status` says, check by check".to_owned(),
        repair: advice
            .map(|advice| Repair { kind: RepairKind::Act, text: advice.to_owned(), then: None })
            .into_iter()
            .collect(),
    };
    if let Some(first) = &report.first {
        return vec![finding(Level::Ok, first, None, None)];
    }
    let mut findings = Vec::new();
    for check in report.checks.iter().filter(|check| !check.ok) {
        let level = match check.name {
            "triggers" | "publication" => continue,
            "registry" if drifted => continue,
            // These pass when a worker runs and has caught up; the others do not pass by themselves.
            "worker" | "wal_lag" | "commit_lag" => Level::Warning,
            _ => Level::Failure,
        };
        let found = check.reason.as_deref().unwrap_or("not ready");
        findings.push(finding(level, found, Some(check.name), check.advice));
    }
    if findings.is_empty() {
        findings.push(finding(Level::Ok, "at work", None, None));
    }
    findings
}

fn json(examination: &Examination) -> anyhow::Result<serde_json::Value> {
    let mut json = serde_json::to_value(examination).context("print the examination")?;
    json["usable"] = examination.usable().into();
    Ok(json)
}

fn text(examination: &Examination) -> String {
    let mut text = String::new();
    for finding in &examination.findings {
        let mark = match finding.level {
            Level::Ok => "ok  ",
            Level::Warning => "warn",
            Level::Failure => "FAIL",
        };
        let subject = finding.subject.as_deref().map(|subject| format!(" {subject}")).unwrap_or_default();
        text += &format!("{mark} {}{subject}: {}\n", finding.name, finding.found);
        if finding.level == Level::Ok {
            continue;
        }
        text += &format!("       needed: {}\n", finding.needed);
        for Repair { kind, text: step, then } in &finding.repair {
            let label = match kind {
                RepairKind::Sql => "run SQL",
                RepairKind::Command => "run",
                RepairKind::Setting => "set",
                RepairKind::Act => "what to do",
            };
            text += &format!("       {label}: {step}\n");
            if let Some(then) = then {
                text += &format!("         ({then})\n");
            }
        }
    }
    text + &verdict(examination)
}

fn verdict(examination: &Examination) -> String {
    let count = |level| examination.findings.iter().filter(|finding| finding.level == level).count();
    let counted = |count, what| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    match (count(Level::Failure), count(Level::Warning)) {
        (0, 0) => "usable".to_owned(),
        (0, warnings) => format!("usable, with {}", counted(warnings, "warning")),
        (failures, 0) => format!("not usable: {}", counted(failures, "failure")),
        (failures, warnings) => {
            format!("not usable: {}, {}", counted(failures, "failure"), counted(warnings, "warning"))
        }
    }
}

fn print_managed(args: &Args, service: ManagedService) {
    let wanted = match service {
        ManagedService::All => None,
        ManagedService::Rds => Some(Service::Rds),
        ManagedService::Aurora => Some(Service::Aurora),
        ManagedService::Cloudsql => Some(Service::CloudSql),
        ManagedService::Azure => Some(Service::Azure),
        ManagedService::Supabase => Some(Service::Supabase),
        ManagedService::Neon => Some(Service::Neon),
    };
    let managed: Vec<&Managed> =
        MANAGED.iter().filter(|managed| wanted.is_none_or(|wanted| managed.service == wanted)).collect();
    output::print(args, &serde_json::json!({ "managed": managed }), || {
        managed.iter().map(|managed| managed_text(managed)).collect::<Vec<_>>().join("\n")
    });
}

fn managed_text(managed: &Managed) -> String {
    let mut text = format!("{}\n", managed.title);
    for (label, lines) in
        [("set", managed.settings), ("run SQL", managed.statements), ("note", managed.notes)]
    {
        for line in lines {
            text += &format!("  {label}: {line}\n");
        }
    }
    text
}
