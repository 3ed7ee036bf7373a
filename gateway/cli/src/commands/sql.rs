//! `tidegate sql`: runs statements, for databases without `psql` at hand.

use crate::args::{Args, Sql};
use crate::{output, target};
use anyhow::{Context, anyhow};
use futures_util::TryStreamExt;
use sqlx::{Column, Either, Row, ValueRef};
use std::io::Read;
use std::process::ExitCode;

/// Result of one statement.
#[derive(Default, serde::Serialize)]
struct Outcome {
    columns: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
    rows_affected: u64,
}

/// Runs all statements as one simple query: without explicit `begin`, they are one transaction.
pub async fn run(args: &Args, sql: &Sql) -> anyhow::Result<ExitCode> {
    let mut statements = sql.statements.clone();
    if statements == "-" {
        statements.clear();
        std::io::stdin().read_to_string(&mut statements).context("read standard input")?;
    }
    let mut connection = target::connect(args).await?;
    let mut outcomes = Vec::new();
    let mut current = Outcome::default();
    // The statements are the operator's own words: there is nothing here that they could escape from.
    let mut results = sqlx::raw_sql(sqlx::AssertSqlSafe(statements)).fetch_many(&mut connection);
    while let Some(result) =
        results.try_next().await.map_err(|error| anyhow!("{}", output::database_error(&error)))?
    {
        match result {
            Either::Left(done) => {
                current.rows_affected = done.rows_affected();
                outcomes.push(std::mem::take(&mut current));
            }
            Either::Right(row) => {
                if current.columns.is_empty() {
                    current.columns = row.columns().iter().map(|column| column.name().to_owned()).collect();
                }
                let value = |index| {
                    let raw = row.try_get_raw(index).map_err(|error| anyhow!("{error}"))?;
                    if raw.is_null() {
                        return Ok(None);
                    }
                    raw.as_str()
                        .map(|text| Some(text.to_owned()))
                        .map_err(|error| anyhow!("read a value: {error}"))
                };
                current.rows.push((0..row.len()).map(value).collect::<anyhow::Result<_>>()?);
            }
        }
    }
    print(args, &outcomes)?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, outcomes: &[Outcome]) -> anyhow::Result<()> {
    if args.json {
        println!("{}", serde_json::to_string(outcomes)?);
        return Ok(());
    }
    for outcome in outcomes {
        if outcome.columns.is_empty() {
            println!("{} rows", outcome.rows_affected);
        } else {
            print!("{}", output::table(&outcome.columns, &outcome.rows));
        }
    }
    Ok(())
}
