//! The program `tunnel-client`: parses the command line, runs the command, and ends with its exit code.

use std::process::ExitCode;

use tunnel_client::cli::Cli;
use tunnel_client::command;
use tunnel_ops::{build, flags};

/// Measured against the system's allocator: less CPU for each exchange (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// In this file alone, so that another commit has only this file compiled again.
const COMMIT: &str = match option_env!("TUNNEL_COMMIT") {
    Some(commit) => commit,
    None => git_version::git_version!(
        args = ["--always", "--dirty", "--abbrev=7", "--exclude=*"],
        fallback = "unknown"
    ),
};

fn main() -> ExitCode {
    build::set_commit(COMMIT);
    match flags::parse::<Cli>(std::env::args_os()) {
        Ok(cli) => command::execute(cli),
        Err(code) => code,
    }
}
