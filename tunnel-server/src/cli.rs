//! The command line: subcommands and flags.
//!
//! The flags that configure a server are in [`crate::config::Source`], together with the configuration file and the
//! environment variables.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Parser, Subcommand};
use tunnel_directory::{AccountName, NameError, NodeName, RuntimeName};
use tunnel_http::tail::watch::TailFlags;
use tunnel_ops::{
    admin::AdminUrl,
    build,
    config_value::{DurationFrom, PositiveDuration, ValueError},
    shell::{CompletionsArgs, ManArgs},
};
use tunnel_proto::handshake;

use crate::config::Given;
use crate::events::EventKind;
use crate::runtimes::{HostName, Moment};
use crate::token::TokenId;

const EXIT_CODES: &str = "\
Exit codes:
  0  done, or stopped when asked
  1  failed while running
  2  bad usage or configuration";

const UPGRADE_EXIT_CODES: &str = "\
Exit codes:
  0  the new process serves
  1  it could not take over, and the running one continues; it does not serve yet; or no server was reached
  2  bad usage or configuration of this command";

const DRAIN_EXIT_CODES: &str = "\
Exit codes:
  0  the server has ended
  1  it has not ended in time, or was not reached
  2  bad usage or configuration";

/// Forwards requests of platform clients through the tunnels that tunnel clients have dialled
#[derive(Debug, Parser)]
#[command(
    name = "tunnel-server",
    version,
    long_version = build::long_version(env!("CARGO_PKG_VERSION"), handshake::wire_version()),
    after_help = EXIT_CODES
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve until asked to stop
    #[command(after_help = EXIT_CODES)]
    Run(Box<Given>),
    /// Check the configuration and the files that it names, without serving; show what would change on a running server
    #[command(after_help = EXIT_CODES)]
    Validate(Box<ValidateArgs>),
    /// Make a CA for development, with a server's and a client's certificate; keep what is there
    #[command(after_help = EXIT_CODES)]
    Certs(CertsArgs),
    /// Manage the tokens of tunnel clients
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show the state of a running server
    #[command(after_help = EXIT_CODES)]
    Status(StatusArgs),
    /// Stop a running server without loss, and wait until it has ended
    #[command(after_help = DRAIN_EXIT_CODES)]
    Drain(DrainArgs),
    /// Replace a running server's process by a new one of the program that is installed now, without loss
    #[command(after_help = UPGRADE_EXIT_CODES)]
    Upgrade(UpgradeArgs),
    /// Show what happens at a running server, as it happens
    #[command(after_help = EXIT_CODES)]
    Events(EventsArgs),
    /// Show the exchanges of a runtime at a running server, each at its end
    ///
    /// Those that begin from now on, at all server nodes; also requests that fail without a tunnel
    #[command(after_help = EXIT_CODES)]
    Tail(TailArgs),
    /// Show the runtimes of a running server, and act on them
    #[command(subcommand)]
    Runtimes(RuntimesCommand),
    /// Print a script that completes commands and flags in a shell
    #[command(after_help = EXIT_CODES)]
    Completions(CompletionsArgs),
    /// Write man pages of the program and of its commands
    #[command(after_help = EXIT_CODES)]
    Man(ManArgs),
}

/// Flags of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// The settings to check.
    #[command(flatten)]
    pub given: Given,

    /// Show what would change on the running server with this admin listener, such as http://127.0.0.1:9090; the request
    /// has the token of --admin-token-file
    #[arg(long, value_name = "URL")]
    pub against: Option<AdminUrl>,
}

/// The subcommands of `token`.
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
    /// Show the tokens of the runtimes file, without their secrets
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
    #[arg(long = "name", value_name = "NAME", required_unless_present = "peers")]
    pub names: Vec<String>,

    /// Name of a server node among several: also, or only, write peer-NAME.pem with its key for --peer-cert, and
    /// peer-ca.pem, with its key, for --peer-ca
    #[arg(long = "peer", value_name = "NAME")]
    pub peers: Vec<NodeName>,

    /// Days for which the certificates are valid
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

    /// A note for people, stored with the token
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,

    /// When the token expires: a time from now such as 90d, or a moment such as
    /// 2027-01-01T00:00:00Z; without this flag never
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    pub expires: Option<Moment>,

    /// The server's domain, as hosts of runtimes are checked and printed
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

    /// The server's domain, as hosts of runtimes are checked and printed
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

    /// The server's domain, as hosts of runtimes are checked and printed
    #[arg(long, value_name = "DOMAIN", env = "TUNNEL_SERVER_DOMAIN", default_value_t = HostName::default_domain())]
    pub domain: HostName,
}

/// The subcommands of `runtimes`.
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
    Disconnect(RuntimesTargetArgs),
    /// Have a runtime's tunnel client move to new sessions; what is open finishes
    #[command(after_help = EXIT_CODES)]
    Drain(RuntimesTargetArgs),
    /// Revoke one or all of a runtime's credentials, and end the sessions that they authenticated
    #[command(after_help = EXIT_CODES)]
    Revoke(RuntimesRevokeArgs),
    /// Remove all managed runtimes with their tokens
    #[command(after_help = EXIT_CODES)]
    Clear(RuntimesClearArgs),
}

/// How to reach a running server.
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

    /// File with the admin token; needed to change something, from another machine, and for `tail` where the server has one
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
    /// The admin listener.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// The state again and again.
    #[command(flatten)]
    pub watch: WatchArgs,

    /// Print JSON; with --watch, an object a line
    #[arg(long)]
    pub json: bool,
}

/// How often something is shown again.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Show it again each second, or each TIME
    #[arg(
        long = "watch",
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = watch_interval
    )]
    pub interval: Option<Duration>,
}

/// Flags of `events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// The admin listener.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// Only events of this runtime, as ACCOUNT-RUNTIME
    #[arg(long, value_name = "LABEL", value_parser = label)]
    pub runtime: Option<String>,

    /// Only events of this kind, such as offline or refused; may be repeated
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<EventKind>,

    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
}

/// Flags of `tail`.
#[derive(Debug, Args)]
pub struct TailArgs {
    /// The admin listener, and the runtime.
    #[command(flatten)]
    pub target: RuntimesTargetArgs,

    /// Which exchanges, and how they are printed.
    #[command(flatten)]
    pub flags: TailFlags,
}

/// Flags of `drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The admin listener.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// How long to wait for the end of the server
    ///
    /// Longer than its --grace-period; in a Kubernetes preStop hook, shorter than terminationGracePeriodSeconds
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub timeout: PositiveDuration,
}

/// Flags of `upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// The admin listener.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// How long to wait until the new process serves
    #[arg(long, value_name = "TIME", default_value = "40s")]
    pub timeout: PositiveDuration,
}

/// Flags of `runtimes list`.
#[derive(Debug, Args)]
pub struct RuntimesListArgs {
    /// The admin listener.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// Only runtimes that are online
    #[arg(long, conflicts_with = "offline")]
    pub online: bool,

    /// Only runtimes that are offline
    #[arg(long)]
    pub offline: bool,

    /// Order of the list, by label where it is equal
    #[arg(long, value_name = "KEY", value_enum, default_value_t = SortKey::Label)]
    pub sort: SortKey,

    /// Only runtimes of this account
    #[arg(long, value_name = "NAME")]
    pub account: Option<AccountName>,

    /// The list again and again.
    #[command(flatten)]
    pub watch: WatchArgs,

    /// How the list is printed
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ListOutput::Table)]
    pub output: ListOutput,

    /// Print a JSON array
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
}

/// How a list of runtimes is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ListOutput {
    /// A table
    Table,
    /// A table with more columns
    Wide,
    /// A JSON array; with --watch, an array a line
    Json,
    /// YAML; with --watch, a document each time
    Yaml,
}

/// The order of a list of runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SortKey {
    /// The label
    Label,
    /// Online or offline since, the latest change first
    Since,
    /// Most open exchanges first
    Open,
    /// Most requests first
    Requests,
    /// Most bytes first, both ways
    Bytes,
}

/// Flags of `runtimes show`.
#[derive(Debug, Args)]
pub struct RuntimesShowArgs {
    /// The admin listener, and the runtime.
    #[command(flatten)]
    pub target: RuntimesTargetArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The runtime of an operation.
#[derive(Debug, Args)]
pub struct RuntimesTargetArgs {
    /// The runtime, as ACCOUNT-RUNTIME
    #[arg(value_parser = label)]
    pub label: String,

    /// The admin listener.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Flags of `runtimes clear`.
#[derive(Debug, Args)]
pub struct RuntimesClearArgs {
    /// The admin listener.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// All of them; required, so that no slip removes them
    #[arg(long, required = true)]
    pub all: bool,
}

/// Flags of `runtimes revoke`.
#[derive(Debug, Args)]
pub struct RuntimesRevokeArgs {
    /// The runtime.
    #[command(flatten)]
    pub target: RuntimesTargetArgs,

    /// The credentials.
    #[command(flatten)]
    pub which: RevokedArgs,
}

/// The credentials to revoke. One of the two flags is required, so that an id that is missing by mistake does not mean
/// all credentials.
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

/// Parses a label, which has the syntax of a name.
fn label(text: &str) -> Result<String, NameError> {
    text.parse::<RuntimeName>().map(|name| name.to_string())
}

/// Parses the time between two requests: not so short that they would load the server.
fn watch_interval(text: &str) -> Result<Duration, ValueError> {
    text.parse::<DurationFrom<100>>().map(Duration::from)
}

/// Parses a moment in the future, given as such or as a time from now.
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
        false => Err(format!("{moment} is in the past")),
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
