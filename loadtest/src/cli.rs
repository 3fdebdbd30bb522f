//! Every flag and subcommand. Nothing is done here.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::{
    fleet, hop, relay, scenario::Scenario, stack::child::END_WITH_INPUT, tls_sink, upstream,
};

/// Measures any HTTP tunnel or gateway: rate, latency, errors, and what its programs use.
#[derive(Clone, Debug, Parser)]
#[command(name = "loadtest", version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
    /// End when standard input is closed, as it is when the program that started this one ends
    #[arg(long = END_WITH_INPUT, global = true, hide = true)]
    pub end_with_input: bool,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
#[expect(
    clippy::large_enum_variant,
    reason = "one value in the life of the program"
)]
pub enum Command {
    /// One that measures.
    #[command(flatten)]
    Scenario(Scenario),
    /// The sample upstream: a server of known delay and known error rate
    Upstream(upstream::Args),
    /// Many simulated tunnel clients; scenarios start it
    #[command(hide = true)]
    Fleet(fleet::Args),
    /// A slow link between two programs; scenarios start it
    #[command(hide = true)]
    Relay(relay::Args),
    /// Does TLS handshakes and nothing else; scenarios start it
    #[command(hide = true)]
    TlsSink(tls_sink::Args),
    /// One plain proxy hop, with which `compare` compares: not for production
    Hop(hop::Args),
}

/// Flags for the result of any scenario.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Result")]
pub struct OutputArgs {
    /// Write every figure to this file, JSON
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to this file, HTML
    #[arg(long, global = true, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write the tables to this file, Markdown
    #[arg(long, global = true, value_name = "FILE.md")]
    pub markdown: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short, global = true)]
    pub quiet: bool,
}
