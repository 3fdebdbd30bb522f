//! The program `tunnel-client`: parses the command line, runs the command, and ends with its exit code.

use std::process::ExitCode;

use tunnel_client::cli::Cli;
use tunnel_client::command;
use tunnel_ops::flags;

/// Measured against the system's allocator: less CPU for each exchange (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match flags::parse::<Cli>(std::env::args_os()) {
        Ok(cli) => command::execute(cli),
        Err(code) => code,
    }
}
