//! Parses command lines with clap, with additions to its error messages.
//!
//! In: a clap parser and the arguments. Out: the parsed command, or an exit code after the help or an error
//! was printed. An error names the environment variable that its value came from, and does not contain a
//! value that may include a password.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Exit code for an invalid command line or configuration, so that a supervisor can distinguish them from a
/// failure at run time.
pub const EXIT_BAD_CONFIGURATION: u8 = 2;

/// Parses the command line. If it asks for the help or is invalid, prints the help or the error, and
/// returns an exit code: 0 after the help, [`EXIT_BAD_CONFIGURATION`] otherwise.
pub fn parse<P: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<P, ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = P::try_parse_from(&arguments);
    if parsed.is_ok() {
        for name in unknown_variables(&P::command(), std::env::vars_os().map(|(name, _)| name)) {
            // Not an error: an orchestrator may set variables with this prefix for its own purposes.
            crate::print_note!(
                "warning: the environment variable {name} is unknown to this program"
            );
        }
    }
    parsed.map_err(|mut error| {
        let note = environment_note(&P::command(), &error, &arguments, |name| {
            std::env::var_os(name)
        });
        hide_userinfo(&mut error);
        let printed = error.print();
        if let Some(note) = note {
            crate::print_note!("note: {note}");
        }
        match (error.exit_code(), printed) {
            (0, Ok(())) => ExitCode::SUCCESS,
            _ => ExitCode::from(EXIT_BAD_CONFIGURATION),
        }
    })
}

/// Hides a refused value that contains `@`: it may be a URL with a password, and errors may be logged.
fn hide_userinfo(error: &mut clap::Error) {
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && value.contains('@')
    {
        error.insert(
            ContextKind::InvalidValue,
            ContextValue::String("(not shown)".to_owned()),
        );
    }
}

/// The note that names the environment variable of a refused value: clap names only the flag.
fn environment_note(
    command: &clap::Command,
    error: &clap::Error,
    arguments: &[OsString],
    variable: impl Fn(&OsStr) -> Option<OsString>,
) -> Option<String> {
    if !matches!(
        error.kind(),
        ErrorKind::ValueValidation | ErrorKind::InvalidValue
    ) {
        return None;
    }
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let long = shown.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let flag = format!("--{long}");
    let given = |argument: &OsString| {
        argument.to_str().is_some_and(|argument| {
            argument
                .strip_prefix(&flag)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    if arguments.iter().any(given) {
        return None;
    }
    let name = arguments_of(command)
        .find(|argument| argument.get_long() == Some(long))?
        .get_env()?;
    variable(name).map(|_| {
        format!(
            "the value comes from the environment variable {}",
            name.display()
        )
    })
}

/// Variables with the program's prefix that it does not know, since a misspelt one would be ignored
/// silently. Excludes those that Kubernetes derives from the name of a Service.
fn unknown_variables(
    command: &clap::Command,
    names: impl Iterator<Item = OsString>,
) -> Vec<String> {
    let mut known = Vec::new();
    collect_variables(command, &mut known);
    let prefix = format!("{}_", command.get_name().to_uppercase().replace('-', "_"));
    let is_service = |rest: &str| rest.starts_with("SERVICE_") || rest.starts_with("PORT");
    names
        .filter(|name| !known.contains(name))
        .filter_map(|name| name.into_string().ok())
        .filter(|name| {
            name.strip_prefix(&prefix)
                .is_some_and(|rest| !is_service(rest))
        })
        .collect()
}

fn collect_variables(command: &clap::Command, known: &mut Vec<OsString>) {
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    known.extend(variables.map(OsStr::to_owned));
    for subcommand in command.get_subcommands() {
        collect_variables(subcommand, known);
    }
}

fn arguments_of(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    // Two levels: the program and its subcommands. A third (`token create`) has no settings.
    command.get_arguments().chain(
        command
            .get_subcommands()
            .flat_map(clap::Command::get_arguments),
    )
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Subcommand};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(Debug, Subcommand)]
    enum Command {
        Run {
            #[arg(long, env = "TUNNEL_OPS_TEST_SHARDS")]
            shards: Option<u8>,
        },
    }

    #[test]
    fn unknown_variables_with_the_programs_prefix_are_reported() {
        let command = Cli::command().name("tunnel-ops");
        let names = [
            "TUNNEL_OPS_TEST_SHARDS",
            "TUNNEL_OPS_TEST_SHARD",
            "TUNNEL_OPS_SERVICE_HOST",
            "TUNNEL_OPS_PORT_80_TCP",
            "PATH",
        ];
        let unknown = unknown_variables(&command, names.into_iter().map(OsString::from));
        assert_eq!(unknown, ["TUNNEL_OPS_TEST_SHARD"]);
    }

    fn note(arguments: &[&str], set: bool) -> Option<String> {
        let error = Cli::try_parse_from(["p", "run", "--shards", "many"]).unwrap_err();
        let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
        environment_note(&Cli::command(), &error, &arguments, |_| {
            set.then(OsString::new)
        })
    }

    #[test]
    fn a_refused_value_names_its_environment_variable() {
        let expected = "the value comes from the environment variable TUNNEL_OPS_TEST_SHARDS";
        assert_eq!(note(&["p", "run"], true).as_deref(), Some(expected));
        assert_eq!(note(&["p", "run", "--shards", "many"], true), None);
        assert_eq!(note(&["p", "run", "--shards=many"], true), None);
        assert_eq!(note(&["p", "run"], false), None);
    }

    #[test]
    fn a_value_with_a_password_is_not_repeated() {
        let mut error =
            Cli::try_parse_from(["p", "run", "--shards", "https://me:secret@host"]).unwrap_err();
        hide_userinfo(&mut error);
        let text = error.to_string();
        assert!(
            !text.contains("secret") && text.contains("(not shown)"),
            "{text}"
        );
    }
}
