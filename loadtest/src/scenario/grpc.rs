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
    load::{Load, LoadArgs, Pace},
    report::Report,
    scenario::{
        Context,
        connection::{has_own_path, parse_rate, path},
    },
    stack,
    target::TargetArgs,
};
use call::{Plan, Streaming, Unary};

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
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Kind::Unary)]
    pub kind: Kind,
    /// HTTP/2 connections
    #[arg(long, short = 'c', value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Calls at once on each connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub calls: u32,
    /// Messages of each streaming call
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Open loop: so many messages a second in all, due at even intervals, whatever the target does
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
pub enum Kind {
    /// One message, one answer.
    Unary,
    /// Many messages, each answered by one while the call goes on.
    Stream,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened, or the file with the message cannot be read.
pub async fn run(mut args: Args, context: &Context) -> anyhow::Result<Report> {
    context.progress.message("starting");
    // There is no gRPC over anything else.
    args.target.manner.http2 = true;
    let programs = stack::Plan {
        scheme: "h2c",
        ..stack::Plan::default()
    };
    let target = &Box::pin(args.target.open_with(programs)).await?;
    let message = match &args.message_file {
        Some(file) => {
            fs::read(file).with_context(|| format!("--message-file {}", file.display()))?
        }
        None => vec![b'x'; usize::try_from(args.message_size.as_u64())?],
    };
    let mut report = Report::new("grpc", format!("gRPC calls to {}", target.name));
    report.setting("url", target.uri());
    let (kind, sample) = match args.kind {
        Kind::Unary => ("unary", "/grpc/unary"),
        Kind::Stream => ("stream", "/grpc/stream"),
    };
    report.setting("kind", kind);
    report.setting("connections", args.connections);
    report.setting("calls", args.calls);
    if args.kind == Kind::Stream {
        report.setting("messages", args.messages);
    }
    if let Some(rate) = args.rate {
        report.setting("rate", rate);
    }
    report.setting("message-size", ByteSize(message.len() as u64));
    report.load_settings(&args.load);

    let mut template = target.template(Method::POST, path(target, sample))?;
    let headers = &mut template.headers;
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    let plan = Plan {
        dialer: target.dialer.clone(),
        template,
        message: message::with_prefix(&message)?,
        is_echoed: !has_own_path(target),
        messages: args.messages,
        shared: Shared::new(args.calls as usize),
    };
    let pace = args.rate.map_or(Pace::Closed, Pace::Open);
    let workers = args.connections as usize * args.calls as usize;
    let mut load = Load::new(args.load.stretch(), args.load.threads.into());
    match args.kind {
        Kind::Unary => load.requests(&target.name, workers, pace, Arc::new(Unary(plan))),
        Kind::Stream => load.requests(&target.name, workers, pace, Arc::new(Streaming(plan))),
    }
    let outcome = load.run(&context.progress, &target.roles).await?;
    report.add(outcome);
    report.add_standard_charts();
    Ok(report)
}
