//! The program `tunnel-server`: parses the command line, executes it, and ends with its exit
//! code.

use std::process::ExitCode;

use tunnel_ops::flags;
use tunnel_server::cli::Cli;
use tunnel_server::command;

/// Measured against the system's allocator: less CPU for each exchange (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match flags::parse::<Cli>(std::env::args_os()) {
        Ok(cli) => command::execute(cli),
        Err(code) => code,
    }
}
