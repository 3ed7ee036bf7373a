//! The one binary, `tidegate`: wires capture and gateway together, and is the operator's tool.
//!
//! Each command is a file under `commands/`; what they share is where the database is ([`target`]) and how results are
//! printed ([`output`]).

mod args;
mod commands;
mod connect;
mod demo;
mod output;
mod plan;
mod secret;
mod serving;
mod shutdown;
mod target;
mod typescript;
mod uninstall;

use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = args::Args::parse();
    output::start_logging(&args);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tidegate: start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(commands::run(&args)) {
        Ok(code) => code,
        Err(error) => {
            output::print_error(&args, &error);
            ExitCode::FAILURE
        }
    }
}
