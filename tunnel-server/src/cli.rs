//! The command line: every subcommand and flag, and nothing done.
//!
//! The flags that configure a server are in [`crate::config::Source`], which the file and the
//! environment share.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::Given;
use crate::runtimes::{AccountName, HostName, RuntimeName};

const EXIT_CODES: &str = "\
Exit codes:
  0  done, or stopped when asked
  1  failed while running
  2  bad usage or configuration";

/// Answers platform clients with what runs behind tunnels that clients have dialled
#[derive(Debug, Parser)]
#[command(name = "tunnel-server", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve until asked to stop
    #[command(after_help = EXIT_CODES)]
    Run(Box<Given>),
    /// Check the configuration and the files it names, and serve nothing
    #[command(after_help = EXIT_CODES)]
    Validate(Box<Given>),
    /// Make a throw-away CA with a server's and a client's certificate
    #[command(after_help = EXIT_CODES)]
    Certs(CertsArgs),
    /// Manage the tokens that clients show
    #[command(subcommand)]
    Token(TokenCommand),
}

/// What can be done about tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Add a token to the runtimes file, and its runtime if missing; print the token, once and
    /// alone
    #[command(after_help = EXIT_CODES)]
    Create(TokenCreateArgs),
}

/// Flags of `certs`.
#[derive(Debug, Args)]
pub struct CertsArgs {
    /// Folder to write ca.pem, server.pem, server.key, client.pem and client.key to
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Name the server is reached by: a host, a wildcard such as *.tunnels.localhost, or an IP
    /// address
    #[arg(long = "name", value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Days the certificates are good
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=i64::from(crate::certs::MAX_DAYS)))]
    pub days: u32,

    /// Replace files that are there
    #[arg(long)]
    pub force: bool,
}

/// Flags of `token create`.
#[derive(Debug, Args)]
pub struct TokenCreateArgs {
    /// Account that the runtime belongs to
    #[arg(long, value_name = "NAME")]
    pub account: AccountName,

    /// Runtime that the token is for
    #[arg(long, value_name = "NAME")]
    pub runtime: RuntimeName,

    /// The runtimes file; made if absent
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_RUNTIMES")]
    pub runtimes: PathBuf,

    /// Host that the runtime is reached at, beside the one under the domain
    #[arg(long = "host", value_name = "HOST", value_delimiter = ',')]
    pub hosts: Vec<HostName>,

    /// A note for people, kept beside the token
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,

    /// The server's domain
    #[arg(long, value_name = "DOMAIN", env = "TUNNEL_SERVER_DOMAIN", default_value = crate::config::DEFAULT_DOMAIN)]
    pub domain: HostName,
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
