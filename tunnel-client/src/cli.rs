//! The command line: every subcommand and flag.
//!
//! The flags that configure a client are in [`crate::config::Source`], with those of the file and the environment.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tunnel_ops::build;
use tunnel_ops::config_value::{PositiveDuration, ValueError};
use tunnel_ops::shell::{CompletionsArgs, ManArgs};
use tunnel_proto::handshake;

use crate::check::LONGEST_IDLE;
use crate::config::{Given, UpstreamUrl};

const EXIT_CODES: &str = "\
Exit codes:
  0  done, or stopped by a signal
  1  failed while running, or refused by the server for good
  2  bad usage or configuration";

const CHECK_EXIT_CODES: &str = "\
Exit codes:
  0  every step held
  1  a step did not
  2  bad usage";
const ROUTES_EXIT_CODES: &str = "\
Exit codes:
  0  a route takes the request, and sends it on or answers it
  1  no route takes it, or the one that does denies it or refuses a segment
  2  bad usage or configuration";

/// Dials a tunnel server and answers what comes through the tunnel from local services
#[derive(Debug, Parser)]
#[command(
    name = "tunnel-client",
    version,
    long_version = build::long_version(env!("CARGO_PKG_VERSION"), handshake::wire_version()),
    after_help = EXIT_CODES
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep the tunnel up until stopped by a signal
    #[command(after_help = EXIT_CODES)]
    Run(Box<Given>),
    /// Put a local service behind the tunnel, and print where it is reached: run with one upstream
    #[command(after_help = EXIT_CODES)]
    Http(Box<HttpArgs>),
    /// Check the path to the server and to the upstreams step by step, and say what is wrong and what to do about it
    #[command(after_help = CHECK_EXIT_CODES)]
    Check(Box<CheckArgs>),
    /// Answer requests at a listener by the same routes, behind an ingress controller, without a tunnel
    #[command(after_help = EXIT_CODES)]
    Serve(Box<Given>),
    /// Check the configuration and the files that it names, without dialling
    #[command(after_help = EXIT_CODES)]
    Validate(Box<ValidateArgs>),
    /// Test the table of routes
    #[command(subcommand)]
    Routes(RoutesCommand),
    /// Print a script that completes commands and flags in a shell
    #[command(after_help = EXIT_CODES)]
    Completions(CompletionsArgs),
    /// Write man pages of the program and of its commands
    #[command(after_help = EXIT_CODES)]
    Man(ManArgs),
}

/// The arguments of `http`.
#[derive(Debug, Args)]
pub struct HttpArgs {
    /// The local service: its port on this machine, host and port, or a URL as of --upstream
    #[arg(value_name = "SERVICE")]
    pub service: UpstreamUrl,

    /// As for `run`; without a file, the admin listener is off and warnings are logged.
    #[command(flatten)]
    pub given: Given,
}

/// The arguments of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Check what serve needs, instead of what run needs
    #[arg(long)]
    pub serve: bool,

    /// The configuration.
    #[command(flatten)]
    pub given: Given,
}

/// The subcommands of `routes`.
#[derive(Debug, Subcommand)]
pub enum RoutesCommand {
    /// Show which route takes a request, why, and what its upstream is sent, without dialling
    #[command(after_help = ROUTES_EXIT_CODES)]
    Test(Box<RoutesTest>),
}

/// The arguments of `routes test`.
#[derive(Debug, Args)]
pub struct RoutesTest {
    /// The method (GET if it is left out) and the URL: https://host/path?query, or /path?query
    #[arg(value_names = ["METHOD", "URL"], num_args = 1..=2, required = true)]
    pub request: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The configuration.
    #[command(flatten)]
    pub given: Given,
}

/// The arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// As for `run`.
    #[command(flatten)]
    pub given: Given,

    /// Print one JSON object with all steps in place of lines
    #[arg(long)]
    pub json: bool,

    /// Find out how long the path keeps an idle connection, and say how often to ping
    #[arg(long)]
    pub idle_probe: bool,

    /// Longest idle time that is tried, at most 50m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = idle_time, requires = "idle_probe")]
    pub idle_probe_max: Duration,
}

fn idle_time(text: &str) -> Result<Duration, ValueError> {
    let time: Duration = text.parse::<PositiveDuration>()?.into();
    match time <= LONGEST_IDLE {
        true => Ok(time),
        false => Err(ValueError::new(
            "expected at most `50m`: servers end longer checks",
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
