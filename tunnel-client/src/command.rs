//! The subcommands, one file each.
//!
//! In: the parsed command line. Out: the exit code. Errors are printed to standard error, one on each line; standard output
//! has only the result.

mod check;
mod http;
mod program;
mod routes;
mod run;
mod serve;
mod tail;
mod validate;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use tunnel_ops::flags::EXIT_BAD_CONFIGURATION;
use tunnel_ops::shell;

use crate::cli::{Cli, Command, RoutesCommand};

/// Why a command failed.
enum Failure {
    /// The flags, or the files that they name, are not valid.
    Configuration(String),
    /// It failed while running.
    Running(String),
    /// It failed, and standard output has the reason.
    Reported,
}

/// Runs the command.
pub fn execute(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Run(given) => run::run(*given),
        Command::Http(arguments) => http::http(*arguments),
        Command::Check(arguments) => check::check(*arguments),
        Command::Serve(given) => serve::serve(*given),
        Command::Validate(given) => validate::validate(*given),
        Command::Routes(RoutesCommand::Test(arguments)) => routes::test(*arguments),
        Command::Tail(arguments) => tail::tail(&arguments),
        Command::Completions(arguments) => {
            let script = shell::completions::<Cli>(arguments.shell);
            io::stdout().write_all(&script).map_err(Failure::running)
        }
        Command::Man(arguments) => shell::write_man_pages::<Cli>(&arguments.out).map_err(|error| {
            Failure::running(format_args!("{}: {error}", arguments.out.display()))
        }),
    };
    let (code, text) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Configuration(text)) => (ExitCode::from(EXIT_BAD_CONFIGURATION), text),
        Err(Failure::Running(text)) => (ExitCode::FAILURE, text),
        Err(Failure::Reported) => return ExitCode::FAILURE,
    };
    for line in text.lines() {
        eprintln!("error: {line}");
    }
    code
}

impl Failure {
    fn configuration(error: impl Display) -> Self {
        Self::Configuration(error.to_string())
    }

    fn running(error: impl Display) -> Self {
        Self::Running(error.to_string())
    }
}
