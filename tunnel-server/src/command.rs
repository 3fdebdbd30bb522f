//! The subcommands, one file each.
//!
//! In: the parsed command line. Out: the exit code. Errors are written to standard error, one per line; standard output
//! has only the result.

mod certs;
mod drain;
mod events;
mod run;
mod runtimes;
mod status;
mod table;
mod tail;
mod token;
mod upgrade;
mod validate;
mod watch;

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use tunnel_ops::{
    admin::{AdminClient, AdminRequestError, AdminTarget, AdminUrl},
    faults::FaultyFile,
    flags::EXIT_BAD_CONFIGURATION,
    settings::GivenSettings,
    shell::{self, Shell},
    signals::Shutdown,
    telemetry::LogFormat,
    terminal,
};

use crate::auth::faulty_files;
use crate::cli::{AdminArgs, Cli, Command, TokenCommand};
use crate::config::{Config, Credentials, Source};
use crate::server::BindError;

/// Why a command failed.
enum Failure {
    /// Its flags, or the files that they name, are not valid.
    Configuration(String),
    /// The command could not be carried out.
    Running(String),
}

/// Executes the command line.
pub fn execute(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Run(given) => run::run(*given),
        Command::Validate(args) => validate::validate(*args),
        Command::Certs(args) => certs::certs(&args),
        Command::Token(TokenCommand::Create(args)) => token::create(&args),
        Command::Token(TokenCommand::Revoke(args)) => token::revoke(&args),
        Command::Token(TokenCommand::List(args)) => token::list(&args),
        Command::Status(args) => block_on(status::status(&args)),
        Command::Drain(args) => block_on(drain::drain(&args)),
        Command::Upgrade(args) => block_on(upgrade::upgrade(&args)),
        Command::Events(args) => block_on(events::events(&args)),
        Command::Tail(args) => block_on(tail::tail(&args)),
        Command::Runtimes(command) => block_on(runtimes::runtimes(&command)),
        Command::Completions(args) => print(&completions(args.shell)).map(|_| ()),
        Command::Man(args) => shell::write_man_pages::<Cli>(&args.out)
            .map_err(|error| Failure::running(format_args!("{}: {error}", args.out.display()))),
    };
    let (code, text) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Configuration(text)) => (ExitCode::from(EXIT_BAD_CONFIGURATION), text),
        Err(Failure::Running(text)) => (ExitCode::FAILURE, text),
    };
    for line in text.lines() {
        tunnel_ops::print_note!("error: {line}");
    }
    code
}

fn completions(shell: Shell) -> String {
    String::from_utf8_lossy(&shell::completions::<Cli>(shell)).into_owned()
}

/// Checks the configuration and the files that it names.
fn check(source: &Source) -> Result<Config, Failure> {
    let config = Config::check(source);
    // Those of credentials are read by their verifiers.
    let files = faulty_files(&Credentials::of(&source.settings()));
    let files = files.iter().map(|fault| named(fault, fault.file(), source));
    let faults: Vec<_> = (config.as_ref().err().map(ToString::to_string).into_iter())
        .chain(files)
        .collect();
    match config {
        Ok(config) if faults.is_empty() => Ok(config),
        _ => Err(Failure::Configuration(faults.join("\n"))),
    }
}

/// The fault of a file, with the setting of `source` that names the file.
fn named(fault: &dyn Display, file: Option<FaultyFile<'_>>, source: &Source) -> String {
    match file.and_then(|file| source.origin_of_file(file)) {
        Some(origin) => format!("{origin}: {fault}"),
        None => fault.to_string(),
    }
}

/// Runs a future on this thread.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|error| Failure::running(format_args!("cannot start: {error}")))?
        .block_on(future)
}

/// Writes a result to standard output. Returns whether standard output is still read.
fn print(text: &str) -> Result<bool, Failure> {
    let printed = terminal::print(text);
    printed.map_err(|error| Failure::running(format_args!("cannot print: {error}")))
}

/// The client of the server that these flags name.
fn admin_client(args: &AdminArgs) -> Result<AdminClient, Failure> {
    admin_client_at("--admin", &args.url, args.token_file.as_deref())
}

/// The client of the server at the URL that was given with this flag.
fn admin_client_at(
    flag: &'static str,
    url: &AdminUrl,
    token_file: Option<&Path>,
) -> Result<AdminClient, Failure> {
    let target = AdminTarget {
        url: url.clone(),
        flag,
        program: "server",
    };
    match token_file {
        Some(file) => AdminClient::with_token(target, file).map_err(Failure::configuration),
        None => Ok(AdminClient::new(target)),
    }
}

impl From<AdminRequestError> for Failure {
    fn from(error: AdminRequestError) -> Self {
        Self::running(error)
    }
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

    /// Why, one fault a line.
    fn text(&self) -> &str {
        match self {
            Self::Configuration(text) | Self::Running(text) => text,
        }
    }

    /// The fault of a file is given with the setting of `source` that names the file.
    fn binding(error: BindError, source: &Source) -> Self {
        match error.is_of_configuration() {
            true => Self::Configuration(named(&error, error.file(), source)),
            false => Self::running(error),
        }
    }
}
