//! What each subcommand does, one file each.
//!
//! In comes the parsed command line; out comes the exit code. Errors go to standard error, one a
//! line; standard output carries only what was asked for.

mod admin_client;
mod atomic_file;
mod certs;
mod run;
mod runtimes;
mod status;
mod table;
mod token;
mod validate;

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use tunnel_ops::flags::EXIT_BAD_CONFIGURATION;

use crate::cli::{Cli, Command, TokenCommand};
use crate::server::BindError;

/// Why a command failed.
enum Failure {
    /// Its flags or the files they name are not good.
    Configuration(String),
    /// It could not be done.
    Running(String),
}

/// Does what the command line says.
pub fn execute(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Run(given) => run::run(*given),
        Command::Validate(args) => validate::validate(*args),
        Command::Certs(args) => certs::certs(&args),
        Command::Token(TokenCommand::Create(args)) => token::create(&args),
        Command::Token(TokenCommand::Revoke(args)) => token::revoke(&args),
        Command::Token(TokenCommand::List(args)) => token::list(&args),
        Command::Status(args) => block_on(status::status(&args)),
        Command::Runtimes(command) => block_on(runtimes::runtimes(&command)),
    };
    let (code, text) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Configuration(text)) => (ExitCode::from(EXIT_BAD_CONFIGURATION), text),
        Err(Failure::Running(text)) => (ExitCode::FAILURE, text),
    };
    for line in text.lines() {
        eprintln!("error: {line}");
    }
    code
}

/// Does something that waits, on this thread.
fn block_on<T>(doing: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|error| Failure::running(format_args!("cannot start: {error}")))?
        .block_on(doing)
}

/// Writes to standard output what was asked for. Whether anybody still reads it.
fn print(text: &str) -> Result<bool, Failure> {
    let mut output = io::stdout().lock();
    let written = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    match written {
        Ok(()) => Ok(true),
        // As when the reader is `head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::running(format_args!("cannot print: {error}"))),
    }
}

impl Failure {
    fn configuration(error: impl Display) -> Self {
        Self::Configuration(error.to_string())
    }

    fn running(error: impl Display) -> Self {
        Self::Running(error.to_string())
    }

    fn binding(error: BindError) -> Self {
        match error.is_of_configuration() {
            true => Self::configuration(error),
            false => Self::running(error),
        }
    }
}
