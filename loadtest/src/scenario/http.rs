//! Small requests: how many a second, how long each takes, what they cost.

use std::{num::NonZeroUsize, sync::Arc};

use bytes::Bytes;
use bytesize::ByteSize;
use http::Method;

use crate::{
    client::{
        Dialer,
        body::Outgoing,
        minimal::{MOST_CONTENT, MinimalClient, Written},
        shared::Shared,
        template::Template,
    },
    load::{Client, Load, LoadArgs, Moved, Pace},
    measure::errors::{Failure, Kind},
    report::Report,
    scenario::{
        Context,
        connection::{Connection, parse_rate},
    },
    target::{Target, TargetArgs},
};

/// Flags of `loadtest http`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Connections, each with one request at a time
    #[arg(long, short = 'c', value_name = "N", default_value = "64")]
    pub connections: NonZeroUsize,
    /// With --http2: requests at a time on each connection
    #[arg(long, value_name = "N", default_value = "1", requires = "http2")]
    pub streams: NonZeroUsize,
    /// Open loop: so many requests a second, due at even intervals, whatever the target does;
    /// latency counts from when a request was due
    #[arg(
        long,
        short = 'r',
        value_name = "PER_SECOND",
        value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// With --self-contained: path and query to ask for, such as /bytes/10000
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with = "url",
        help_heading = "Target"
    )]
    pub path: Option<String>,
    /// Method of the requests
    #[arg(
        long,
        short = 'X',
        value_name = "METHOD",
        default_value = "GET",
        help_heading = "Target"
    )]
    pub method: Method,
    /// Content of each request, such as 10KiB
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "0B",
        help_heading = "Target"
    )]
    pub body_size: ByteSize,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened.
pub async fn run(args: Args, context: &Context) -> anyhow::Result<Report> {
    context.progress.message("starting");
    let target = args.target.open().await?;
    let mut report = Report::new("http", format!("http requests to {}", target.name));
    report.setting("connections", args.connections);
    if target.http2 {
        report.setting("streams", args.streams);
    }
    if let Some(rate) = args.rate {
        report.setting("rate", rate);
    }
    if let Some(path) = &args.path {
        report.setting("path", path);
    }
    report.setting("method", &args.method);
    report.setting("body-size", args.body_size);
    report.load_settings(&args.load);

    let size = args.body_size.as_u64();
    let client = Requests::new(&target, args.method, args.path.as_deref(), size)?;
    let client = client.with_streams(args.streams.get());
    let workers = args.connections.get() * args.streams.get();
    let pace = args.rate.map_or(Pace::Closed, Pace::Open);
    let mut load = Load::new(args.load.stretch(), args.load.threads.into());
    load.requests(&target.name, workers, pace, Arc::new(client));
    report.add(load.run(&context.progress, &target.roles).await?);
    report.add_standard_charts();
    Ok(report)
}

/// Sends the same request over and over, and takes every answer to its end.
#[derive(Debug)]
pub(crate) struct Requests {
    dialer: Dialer,
    http2: Option<Shared>,
    template: Template,
    content: Bytes,
    /// The request in one piece, when it is small enough.
    written: Option<Written>,
}

/// What requests go over.
#[derive(Debug)]
pub(crate) enum RequestConnection {
    /// HTTP/1.1, for requests in one piece.
    Minimal(Box<MinimalClient>, Written),
    /// For all others.
    Whole(Connection),
}

impl Requests {
    /// To `path`, or to the target's own path.
    ///
    /// # Errors
    /// The path is none.
    pub(crate) fn new(
        target: &Target,
        method: Method,
        path: Option<&str>,
        body_size: u64,
    ) -> anyhow::Result<Self> {
        Self::of(target, target.template(method, path)?, body_size)
    }

    /// All like this one.
    ///
    /// # Errors
    /// The content is larger than memory can be.
    pub(crate) fn of(target: &Target, template: Template, body_size: u64) -> anyhow::Result<Self> {
        let content = Bytes::from(vec![b'x'; usize::try_from(body_size)?]);
        let is_small = !target.http2 && body_size <= MOST_CONTENT;
        Ok(Self {
            dialer: target.dialer.clone(),
            http2: target.http2.then(|| Shared::new(1)),
            written: is_small.then(|| Written::new(&template, &content)),
            template,
            content,
        })
    }

    /// With HTTP/2, so many workers share a connection.
    #[must_use]
    pub(crate) fn with_streams(self, streams: usize) -> Self {
        Self {
            http2: self.http2.map(|_| Shared::new(streams)),
            ..self
        }
    }
}

impl Client for Requests {
    type Connection = RequestConnection;

    async fn connect(&self, worker: usize) -> Result<RequestConnection, Failure> {
        if let Some(written) = &self.written {
            let connection = Box::new(self.dialer.minimal().await?);
            return Ok(RequestConnection::Minimal(connection, written.clone()));
        }
        Ok(RequestConnection::Whole(match &self.http2 {
            Some(shared) => Connection::Two(Box::new(shared.connect(&self.dialer, worker).await?)),
            None => Connection::One(Box::new(self.dialer.http1().await?)),
        }))
    }

    async fn exchange(&self, connection: &mut RequestConnection) -> Result<Moved, Failure> {
        let request = || self.template.request(Outgoing::full(self.content.clone()));
        let (status, down) = match connection {
            RequestConnection::Minimal(connection, written) => {
                let answer = connection.exchange(written).await?;
                (answer.status, answer.length)
            }
            RequestConnection::Whole(connection) => {
                let answer = connection.send(request()).await?;
                let status = answer.status().as_u16();
                (status, connection.drain(answer.into_body()).await?)
            }
        };
        success(status).map_err(Failure::harmless)?;
        let up = self.content.len() as u64;
        Ok(Moved { up, down })
    }

    fn is_open(connection: &mut RequestConnection) -> bool {
        match connection {
            RequestConnection::Minimal(connection, _) => connection.is_open(),
            RequestConnection::Whole(connection) => connection.is_open(),
        }
    }
}

/// Success is 2xx and 3xx: a redirect is an answer, not a failure.
fn success(status: u16) -> Result<(), Kind> {
    if (200..400).contains(&status) {
        Ok(())
    } else {
        Err(Kind::Status(status))
    }
}
