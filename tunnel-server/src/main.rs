//! The program `tunnel-server`: parses the command line, does what it says, and ends with its exit
//! code.

use std::process::ExitCode;

use tunnel_ops::flags;
use tunnel_server::cli::Cli;
use tunnel_server::command;

fn main() -> ExitCode {
    match flags::parse::<Cli>(std::env::args_os()) {
        Ok(cli) => command::execute(cli),
        Err(code) => code,
    }
}
