//! Load tests and verification for Tidegate: speaks the protocol like a client, knows no server code.

mod baseline;
mod capture;
mod connection;
mod fanout;
mod fence_cost;
mod idle_database;
mod process;
mod replica;
mod report;
mod stage;
mod verify;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures and verifies a Tidegate binary against a private PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version)]
struct Args {
    /// The binary under test; otherwise `tidegate` beside this program.
    #[arg(long, global = true, env = "TIDEGATE_BIN")]
    tidegate: Option<PathBuf>,
    /// PostgreSQL's major version.
    #[arg(long, visible_alias = "pg", global = true, default_value_t = 15)]
    postgres: u32,
    /// Print the report as JSON.
    #[arg(long, global = true)]
    json: bool,
    /// What to run.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Committed rows to many subscribers, against an unsafe relay.
    Fanout(fanout::Fanout),
    /// The first start over existing rows, against COPY of the same rows.
    Baseline(baseline::Baseline),
    /// A backlog to durable effects, against decoding to nowhere and COPY; and live writers.
    Capture(capture::Capture),
    /// What fences cost the application, against no trigger and a minimal one.
    FenceCost(fence_cost::FenceCost),
    /// What a running worker costs a database in which nothing happens.
    IdleDatabase(idle_database::IdleDatabase),
    /// Random writes, pushes and kills; then every client against the tables.
    Verify(verify::Verify),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(run(&args)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> anyhow::Result<()> {
    let binary = match &args.tidegate {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("tidegate"),
    };
    match &args.command {
        Command::Fanout(fanout) => fanout::run(fanout, &binary, args.postgres, args.json).await,
        Command::Baseline(baseline) => baseline::run(baseline, &binary, args.postgres, args.json).await,
        Command::Capture(capture) => capture::run(capture, &binary, args.postgres, args.json).await,
        Command::FenceCost(fences) => fence_cost::run(fences, &binary, args.postgres, args.json).await,
        Command::IdleDatabase(idle) => idle_database::run(idle, &binary, args.postgres, args.json).await,
        Command::Verify(verify) => verify::run(verify, &binary, args.postgres, args.json).await,
    }
}
