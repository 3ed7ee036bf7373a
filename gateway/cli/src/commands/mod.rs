//! One file per command.

mod apply;
pub mod capture;
mod check;
mod dev;
mod gateway;
mod generate;
mod migrate;
mod poison;
mod reset;
mod sql;
mod status;
mod token;
mod uninstall;

use crate::args::{Args, Command};
use std::process::ExitCode;

/// Runs the command that was asked for.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Migrate(migrate) => migrate::run(args, migrate).await,
        Command::Apply(apply) => apply::run(args, apply).await,
        Command::Dev(dev) => dev::run(args, dev).await,
        Command::Gateway(gateway) => gateway::run(args, gateway).await,
        Command::Status => status::run(args).await,
        Command::Capture(capture) => capture::run(args, capture).await,
        Command::Check(check) => check::run(args, check).await,
        Command::Poison(poison) => poison::run(args, poison).await,
        Command::Reset(reset) => reset::run(args, reset).await,
        Command::Token(token) => token::run(args, token),
        Command::Sql(sql) => sql::run(args, sql).await,
        Command::Gen(gen_args) => generate::run(args, &gen_args.target).await,
        Command::Uninstall(uninstall) => uninstall::run(args, uninstall).await,
    }
}

/// Who the audit names.
fn operator() -> String {
    let name = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    name.unwrap_or_else(|_| "operator".to_owned())
}
