//! `cargo demo`: the whole tunnel in one process.
//!
//! Parses the flags, starts everything, waits for Ctrl-C, ends with an exit code.

mod assembly;
mod balancer;
mod cli;
mod cluster;
mod display;
mod etcd;
mod probe;

use std::process::ExitCode;

use clap::Parser;

use crate::{cli::Cli, display::Display};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            display::print_error(&format!("demo: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let display = Display::start()?;
    // One thread is enough for one person, and the server brings its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match cli.nodes {
            1 => assembly::run(cli, &display).await,
            _ => cluster::run(cli, &display).await,
        }
    })
}
