//! gRPC calls: unary, and streams whose messages come back. Needs no service definition: a message
//! is bytes behind the five of its prefix.
//!
//! Several calls share a connection, as they do in the channels of gRPC libraries. Without a rate
//! each call sends the next message when the last was answered; with one, messages are due at even
//! intervals, whatever the target does.

mod call;
mod message;

use std::{fs, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use bytesize::ByteSize;
use http::{HeaderValue, Method, header};

use crate::{
    client::shared::Shared,
    load::{Load, LoadArgs, LoadModel},
    progress::Progress,
    report::Report,
    scenario::{open, parse_rate},
    stack::Plan,
    target::TargetArgs,
};
use call::Calls;

/// Flags of `loadtest grpc`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// What the calls are like
    #[arg(long, value_name = "KIND", value_enum, default_value_t = CallKind::Unary)]
    pub kind: CallKind,
    /// HTTP/2 connections
    #[arg(long, short = 'c', value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Calls at once on each connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub calls: u32,
    /// Messages of each streaming call
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Open loop: messages per second in all, due at even intervals, whatever the target does
    #[arg(long, short = 'r', value_name = "PER_SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Size of each message; one that is not empty means nothing to a service of your own
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "16B",
        conflicts_with = "message_file"
    )]
    pub message_size: ByteSize,
    /// File whose bytes are the message, as your service expects it
    #[arg(long, value_name = "FILE")]
    pub message_file: Option<PathBuf>,
}

/// What calls are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CallKind {
    /// One message, one answer.
    Unary,
    /// Many messages, each answered by one while the call goes on.
    Stream,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened, or there is no such file of a message.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let mut target = args.target;
    // There is no gRPC over anything else.
    target.client.http2 = true;
    let plan = Plan {
        scheme: "h2c",
        ..Plan::default()
    };
    let title = ("grpc", "gRPC calls to");
    let (target, mut report) = open(progress, title, &target, plan).await?;
    let message = match &args.message_file {
        Some(file) => {
            fs::read(file).with_context(|| format!("--message-file {}", file.display()))?
        }
        None => vec![b'x'; usize::try_from(args.message_size.as_u64())?],
    };
    let (sample, messages) = match args.kind {
        CallKind::Unary => ("/grpc/unary", 1),
        CallKind::Stream => ("/grpc/stream", args.messages),
    };
    let mut template = target.sample_template(Method::POST, sample)?;
    let kind = HeaderValue::from_static("application/grpc");
    template.headers.insert(header::CONTENT_TYPE, kind);
    let trailers = HeaderValue::from_static("trailers");
    template.headers.insert(header::TE, trailers);
    let calls = Calls {
        template,
        message: message::with_prefix(&message)?,
        is_echoed: target.is_sample(),
        messages,
        shared: Shared::new(args.calls as usize),
    };
    let pace = args.rate.map_or(LoadModel::Closed, LoadModel::Open);
    let workers = args.connections as usize * args.calls as usize;
    let mut load = Load::new(args.load);
    load.requests(&target.name, workers, pace, Arc::new(calls));
    report.add(load.run(progress, &target.roles).await?);
    report.add_standard_charts();
    Ok(report)
}
