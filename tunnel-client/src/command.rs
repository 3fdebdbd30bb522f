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
use std::process::ExitCode;

use tunnel_ops::flags::EXIT_BAD_CONFIGURATION;
use tunnel_ops::signals::Shutdown;
use tunnel_ops::telemetry::LogFormat;
use tunnel_ops::{shell, terminal};

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
            print(&String::from_utf8_lossy(&script))
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
        tunnel_ops::print_note!("error: {line}");
    }
    code
}

/// Writes a result to standard output, if that is still read.
fn print(text: &str) -> Result<(), Failure> {
    let printed = terminal::print(text).map(drop);
    printed.map_err(|error| Failure::running(format_args!("cannot print: {error}")))
}

impl Failure {
    /// The failure without its text, if that is in the log already.
    fn logged(self, format: LogFormat) -> Self {
        match self {
            Self::Configuration(text) if format.logs_fatal(&text) => {
                Self::Configuration(String::new())
            }
            Self::Running(text) if format.logs_fatal(&text) => Self::Running(String::new()),
            other => other,
        }
    }

    /// A program that had to stop at once has not done what it should.
    fn of_forced(shutdown: &Shutdown) -> Result<(), Self> {
        match shutdown.is_forced() {
            true => Err(Self::running(
                "stopped at once by a second signal: what was open was cut",
            )),
            false => Ok(()),
        }
    }

    fn configuration(error: impl Display) -> Self {
        Self::Configuration(error.to_string())
    }

    fn running(error: impl Display) -> Self {
        Self::Running(error.to_string())
    }
}
