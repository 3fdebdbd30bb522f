//! The sample upstream: answers with known delay, known errors and known sizes.
//!
//! HTTP/1.1 and h2c on one thread, as cheap as it can be, so that what is measured is in front of
//! it. What it does for each path is said in `upstream/answer.rs`; errors come evenly, not at
//! random, so that a test can count them.

pub(crate) mod answer;
mod plain;

use std::{net::SocketAddr, time::Duration};

use bytesize::ByteSize;
use hyper_util::{rt::TokioIo, server::conn::auto};
use tokio::net::TcpStream;

use crate::{client::connection::LocalExecutor, serve, upstream::answer::Service};

/// Flow-control window of HTTP/2: uploads must not wait for it.
const WINDOW: u32 = 4 * 1024 * 1024;

/// How the sample upstream behaves.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Sample upstream")]
pub struct UpstreamArgs {
    /// Wait so long before each answer to a plain request
    #[arg(long = "delay", value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    pub delay: Duration,
    /// Answer this share (0 to 1) of plain requests with 503
    #[arg(long = "error-rate", value_name = "SHARE", default_value_t = 0.0, value_parser = parse_share)]
    pub error_rate: f64,
    /// Content of each answer to a plain request
    #[arg(long = "answer-size", value_name = "SIZE", default_value = "16B")]
    pub answer_size: ByteSize,
}

impl UpstreamArgs {
    /// These settings as flags of the subcommand.
    pub fn flags(&self) -> Vec<String> {
        vec![
            format!("--delay={}", humantime::format_duration(self.delay)),
            format!("--error-rate={}", self.error_rate),
            format!("--answer-size={}B", self.answer_size.as_u64()),
        ]
    }
}

/// Flags of `loadtest upstream`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// How it behaves.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
}

/// Serves until the process ends. Says where it listens in one line on standard output.
///
/// # Errors
/// It cannot listen there.
pub fn run(args: Args) -> anyhow::Result<()> {
    let service = Service::new(&args.upstream);
    serve::run(args.listen, move |stream| {
        connection(stream, service.clone())
    })
}

async fn connection(stream: TcpStream, service: Service) {
    // It fails only on a socket that is already dead, which the first write tells.
    drop(stream.set_nodelay(true));
    let Ok(Some(stream)) = plain::serve(stream, &service.plain).await else {
        return;
    };
    let answer = hyper::service::service_fn(move |request| service.clone().answer(request));
    let mut builder = auto::Builder::new(LocalExecutor);
    builder
        .http2()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .enable_connect_protocol();
    // The peer knows what went wrong with its own connection.
    drop(
        builder
            .serve_connection_with_upgrades(TokioIo::new(stream), answer)
            .await,
    );
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".to_owned()),
    }
}
