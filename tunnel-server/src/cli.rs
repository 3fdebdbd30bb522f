//! The command line: every subcommand and flag, and nothing done.
//!
//! The flags that configure a server are in [`crate::config::Source`], which the file and the
//! environment share.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Parser, Subcommand};
use tunnel_ops::config_value::PositiveDuration;

use crate::admin::address::AdminUrl;
use crate::config::Given;
use crate::runtimes::{AccountName, HostName, Moment, NameError, RuntimeName};
use crate::token::TokenId;

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
    /// Check the configuration and the files it names, and serve nothing; say what would change of a running server's
    #[command(after_help = EXIT_CODES)]
    Validate(Box<ValidateArgs>),
    /// Make a CA for development, with a server's and a client's certificate; keep what is there
    #[command(after_help = EXIT_CODES)]
    Certs(CertsArgs),
    /// Manage the tokens that clients show
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show how a running server is
    #[command(after_help = EXIT_CODES)]
    Status(StatusArgs),
    /// Show the runtimes of a running server, and act on them
    #[command(subcommand)]
    Runtimes(RuntimesCommand),
}

/// Flags of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// What is checked.
    #[command(flatten)]
    pub given: Given,

    /// Say what would change if the server took this over whose admin listener is here, such as
    /// http://127.0.0.1:9090; it is asked with the token of --admin-token-file
    #[arg(long, value_name = "URL")]
    pub against: Option<AdminUrl>,
}

/// What can be done about tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Add a token to the runtimes file, and its runtime if missing; print the token, once and
    /// alone
    #[command(after_help = EXIT_CODES)]
    Create(TokenCreateArgs),
    /// Mark a token in the runtimes file as revoked, or all tokens of a runtime; a running server
    /// then cuts the sessions that they opened
    #[command(after_help = EXIT_CODES)]
    Revoke(TokenRevokeArgs),
    /// Show the tokens of the runtimes file, never what lets anybody in
    #[command(after_help = EXIT_CODES)]
    List(TokenListArgs),
}

/// Flags of `certs`.
#[derive(Debug, Args)]
pub struct CertsArgs {
    /// Folder to write ca.pem, server.pem and client.pem to, each with its key; files that are there are kept, and
    /// what lacks is made to fit them
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Name the server is reached by: a host, a wildcard such as *.tunnels.localhost, or an IP
    /// address
    #[arg(long = "name", value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Days the certificates are good
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=i64::from(crate::certs::MAX_DAYS)))]
    pub days: u32,

    /// Replace files that are there, all of them
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

    /// When the token runs out: a time from now such as 90d, or a moment such as
    /// 2027-01-01T00:00:00Z; without it never
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    pub expires: Option<Moment>,

    /// The server's domain
    #[arg(long, value_name = "DOMAIN", env = "TUNNEL_SERVER_DOMAIN", default_value_t = HostName::default_domain())]
    pub domain: HostName,
}

/// Flags of `token revoke`.
#[derive(Debug, Args)]
pub struct TokenRevokeArgs {
    /// Account that the runtime belongs to
    #[arg(long, value_name = "NAME")]
    pub account: AccountName,

    /// Runtime that the token is for
    #[arg(long, value_name = "NAME")]
    pub runtime: RuntimeName,

    /// The token's id; without it all tokens of the runtime
    #[arg(long, value_name = "ID", value_parser = token_id)]
    pub id: Option<TokenId>,

    /// The runtimes file
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_RUNTIMES")]
    pub runtimes: PathBuf,

    /// The server's domain
    #[arg(long, value_name = "DOMAIN", env = "TUNNEL_SERVER_DOMAIN", default_value_t = HostName::default_domain())]
    pub domain: HostName,
}

/// Flags of `token list`.
#[derive(Debug, Args)]
pub struct TokenListArgs {
    /// The runtimes file
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_RUNTIMES")]
    pub runtimes: PathBuf,

    /// Only tokens of this account
    #[arg(long, value_name = "NAME")]
    pub account: Option<AccountName>,

    /// Only tokens of runtimes with this name
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<RuntimeName>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The server's domain
    #[arg(long, value_name = "DOMAIN", env = "TUNNEL_SERVER_DOMAIN", default_value_t = HostName::default_domain())]
    pub domain: HostName,
}

/// What can be asked of a running server about its runtimes.
#[derive(Debug, Subcommand)]
pub enum RuntimesCommand {
    /// List the runtimes
    #[command(after_help = EXIT_CODES)]
    List(RuntimesListArgs),
    /// Show one runtime and its sessions
    #[command(after_help = EXIT_CODES)]
    Show(RuntimesShowArgs),
    /// End a runtime's sessions and what is open in them; its tunnel client dials again
    #[command(after_help = EXIT_CODES)]
    Disconnect(RuntimesActArgs),
    /// Have a runtime's tunnel client move to new sessions; what is open finishes
    #[command(after_help = EXIT_CODES)]
    Drain(RuntimesActArgs),
    /// Make one or all of a runtime's credentials good no more until the server is started again, and
    /// end the sessions that they let in
    #[command(after_help = EXIT_CODES)]
    Revoke(RuntimesRevokeArgs),
}

/// How a running server is reached.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// Where the server's admin listener is
    #[arg(
        long = "admin",
        value_name = "URL",
        env = "TUNNEL_SERVER_ADMIN",
        default_value = "http://127.0.0.1:9090"
    )]
    pub url: AdminUrl,

    /// File with the admin token; needed to change something, or from another machine
    #[arg(
        long = "admin-token-file",
        value_name = "FILE",
        env = "TUNNEL_SERVER_ADMIN_TOKEN_FILE"
    )]
    pub token_file: Option<PathBuf>,
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Where to ask.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// Show it again each second
    #[arg(long)]
    pub watch: bool,

    /// Print JSON; with --watch, an object a line
    #[arg(long)]
    pub json: bool,
}

/// Flags of `runtimes list`.
#[derive(Debug, Args)]
pub struct RuntimesListArgs {
    /// Where to ask.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// Only runtimes that are online
    #[arg(long)]
    pub online: bool,

    /// Only runtimes of this account
    #[arg(long, value_name = "NAME")]
    pub account: Option<AccountName>,

    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// Flags of `runtimes show`.
#[derive(Debug, Args)]
pub struct RuntimesShowArgs {
    /// Where to ask, and about which runtime.
    #[command(flatten)]
    pub act: RuntimesActArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which runtime something is done to.
#[derive(Debug, Args)]
pub struct RuntimesActArgs {
    /// The runtime, as ACCOUNT-RUNTIME
    #[arg(value_parser = label)]
    pub label: String,

    /// Where to ask.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Flags of `runtimes revoke`.
#[derive(Debug, Args)]
pub struct RuntimesRevokeArgs {
    /// Which runtime.
    #[command(flatten)]
    pub act: RuntimesActArgs,

    /// Which of its credentials.
    #[command(flatten)]
    pub which: RevokedArgs,
}

/// Which credentials are revoked. One of the two must be said: an id that a script has lost must not
/// come to mean all of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct RevokedArgs {
    /// The credential with this public id
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,

    /// Every credential that was issued before now
    #[arg(long)]
    pub all: bool,
}

/// A label has the letters of a name.
fn label(text: &str) -> Result<String, NameError> {
    text.parse::<RuntimeName>().map(|name| name.to_string())
}

/// A moment to come, given as such or as a time from now.
fn expiry(text: &str) -> Result<Moment, String> {
    let now = SystemTime::now();
    let moment = match text.parse::<PositiveDuration>() {
        Ok(duration) => Moment::from(now + Duration::from(duration)),
        Err(_) => text.parse().map_err(|_| {
            "expected a time from now of at most 365 days, such as `90d`, or a moment such as \
             `2027-01-01T00:00:00Z`"
        })?,
    };
    match moment > Moment::from(now) {
        true => Ok(moment),
        false => Err(format!("{moment} is over")),
    }
}

fn token_id(text: &str) -> Result<TokenId, &'static str> {
    text.parse().map_err(
        |_| "expected the token's id, 16 lower-case hexadecimal digits, as `token list` shows it",
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_expiry_lies_ahead() {
        let ahead = expiry("90d").unwrap();
        assert!(ahead > Moment::from(SystemTime::now()));
        assert_eq!(
            expiry("2999-01-01T00:00:00Z").unwrap().to_string(),
            "2999-01-01T00:00:00Z"
        );
        for bad in ["2020-01-01T00:00:00Z", "0s", "90", "soon", "2999-01-01"] {
            assert!(expiry(bad).is_err(), "{bad}");
        }
    }
}
