//! Small requests: how many a second, how long each takes, what they cost.

use std::{num::NonZeroUsize, sync::Arc};

use bytes::Bytes;
use bytesize::ByteSize;
use http::Method;

use crate::{
    client::{
        body::Outgoing,
        connection::Connection,
        minimal::{MOST_CONTENT, MinimalClient, Written},
        shared::Shared,
        template::Template,
    },
    load::{Client, Load, LoadArgs, Moved, Pace},
    measure::errors::{Failure, Kind},
    scenario::{TargetScenario, parse_rate},
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
    #[arg(long, short = 'r', value_name = "PER_SECOND", value_parser = parse_rate)]
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

impl TargetScenario for Args {
    const NAME: &str = "http";
    const TITLE: &str = "http requests to";
    type Counts = ();

    fn target(&self) -> TargetArgs {
        self.target.clone()
    }

    fn load(&self) -> &LoadArgs {
        &self.load
    }

    fn add_groups(&self, target: &Target, load: &mut Load) -> anyhow::Result<()> {
        let template = target.template(self.method.clone(), self.path.as_deref())?;
        let mut client = Requests::new(template, self.body_size.as_u64())?;
        client.shared = Shared::new(self.streams.get());
        let workers = self.connections.get() * self.streams.get();
        let pace = self.rate.map_or(Pace::Closed, Pace::Open);
        load.requests(&target.name, workers, pace, Arc::new(client));
        Ok(())
    }
}

/// Sends one request over and over, and takes every answer to its end.
#[derive(Debug)]
pub(crate) struct Requests {
    template: Template,
    /// How many workers share a connection of HTTP/2.
    shared: Shared,
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
    Hyper(Connection),
}

impl Requests {
    /// Requests to `template` with so much content.
    ///
    /// # Errors
    /// The content is larger than memory can be.
    pub(crate) fn new(template: Template, body_size: u64) -> anyhow::Result<Self> {
        let content = Bytes::from(vec![b'x'; usize::try_from(body_size)?]);
        let is_small = !template.http2 && body_size <= MOST_CONTENT;
        Ok(Self {
            written: is_small.then(|| Written::new(&template, &content)),
            template,
            shared: Shared::new(1),
            content,
        })
    }
}

impl Client for Requests {
    type Connection = RequestConnection;

    async fn connect(&self, worker: usize) -> Result<RequestConnection, Failure> {
        let dialer = &self.template.dialer;
        Ok(match &self.written {
            Some(written) => {
                let connection = Box::new(dialer.minimal().await?);
                RequestConnection::Minimal(connection, written.clone())
            }
            None if self.template.http2 => {
                let shared = self.shared.connect(dialer, worker).await?;
                RequestConnection::Hyper(Connection::Two(shared))
            }
            None => RequestConnection::Hyper(dialer.connect(false).await?),
        })
    }

    async fn exchange(&self, connection: &mut RequestConnection) -> Result<Moved, Failure> {
        let (status, down) = match connection {
            RequestConnection::Minimal(connection, written) => {
                let answer = connection.exchange(written).await?;
                (answer.status, answer.length)
            }
            RequestConnection::Hyper(connection) => {
                let content = Outgoing::full(self.content.clone());
                let answer = connection.send(self.template.request(content)).await?;
                let status = answer.status().as_u16();
                (status, connection.drain(answer.into_body()).await?)
            }
        };
        // A redirect is an answer, not a failure.
        if !(200..400).contains(&status) {
            return Err(Failure::harmless(Kind::Status(status)));
        }
        let up = self.content.len() as u64;
        Ok(Moved { up, down })
    }

    fn is_open(connection: &mut RequestConnection) -> bool {
        match connection {
            RequestConnection::Minimal(connection, _) => connection.is_open(),
            RequestConnection::Hyper(connection) => connection.is_open(),
        }
    }
}
