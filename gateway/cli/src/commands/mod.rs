//! One file per command.

mod apply;
mod capture;
mod migrate;
mod poison;
mod sql;
mod token;

use crate::args::{Args, Command};
use std::process::ExitCode;

/// Runs the command that was asked for.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Migrate(migrate) => migrate::run(args, migrate).await,
        Command::Apply(apply) => apply::run(args, apply).await,
        Command::Capture => capture::run(args).await,
        Command::Poison(poison) => poison::run(args, poison).await,
        Command::Token(token) => token::run(args, token),
        Command::Sql(sql) => sql::run(args, sql).await,
        _ => anyhow::bail!("not wired"),
    }
}
