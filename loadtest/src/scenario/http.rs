//! Small requests: how many a second, how long each takes, what they cost.

use std::{
    cell::RefCell,
    net::SocketAddr,
    num::NonZeroUsize,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use bytesize::ByteSize;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Method, header::HOST};

use crate::{
    client::{
        body,
        connection::{Connection, Shared},
        minimal::{MOST_CONTENT, RequestConnection, SerializedRequest},
        template::{Template, within},
    },
    load::{BodyBytes, Client, Load, LoadArgs},
    measure::errors::{Failure, FailureCounts, FailureKind},
    progress::Progress,
    report::Report,
    scenario::{open, parse_rate},
    stack::Plan,
    target::{Target, TargetArgs},
};

/// Longest time for one request of [`Requests::once_each`].
const ONCE_LIMIT: Duration = Duration::from_secs(10);

/// Flags of `loadtest http`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// What is asked.
    #[command(flatten)]
    pub request: RequestArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Connections, each with one request at a time
    #[arg(long, short = 'c', value_name = "N", default_value = "64")]
    pub connections: NonZeroUsize,
    /// With --http2: requests at a time on each connection
    #[arg(long, value_name = "N", default_value = "1", requires = "http2")]
    pub streams: NonZeroUsize,
    /// Open loop: requests per second, due at even intervals, whatever the target does;
    /// latency counts from when a request was due
    #[arg(long, short = 'r', value_name = "PER_SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
}

/// Flags of the request.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Target")]
pub struct RequestArgs {
    /// With --self-contained: path and query to ask for, such as /bytes/10000
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    pub path: Option<String>,
    /// Method of the requests
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    pub method: Method,
    /// Content of each request, such as 10KiB
    #[arg(long, value_name = "SIZE", default_value = "0B")]
    pub body_size: ByteSize,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened, or the load cannot be run.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let title = ("http", "http requests to");
    let (target, mut report) = open(progress, title, &args.target, Plan::default()).await?;
    let template = target.template(args.request.method, args.request.path.as_deref())?;
    let mut client = Requests::new(template, args.request.body_size.as_u64())?;
    client.shared = Shared::new(args.streams.get());
    let workers = args.connections.get() * args.streams.get();
    let mut load = Load::new(args.load);
    load.requests(&target.name, workers, args.rate, Arc::new(client));
    report.add(load.run(progress, &target.roles).await?);
    report.add_standard_charts();
    Ok(report)
}

/// Sends one request over and over, or several in turn, and takes every answer to its end.
#[derive(Debug)]
pub(crate) struct Requests {
    template: Template,
    /// How many workers share a connection of HTTP/2.
    shared: Shared,
    content: Bytes,
    /// The requests in one piece each, when they are small enough, and HTTP/1.
    written: Vec<SerializedRequest>,
    next: AtomicUsize,
}

impl Requests {
    /// Requests to `template` with so much content.
    ///
    /// # Errors
    /// The content is larger than memory can be.
    pub(crate) fn new(template: Template, body_size: u64) -> anyhow::Result<Self> {
        let content = Bytes::from(vec![b'x'; usize::try_from(body_size)?]);
        let is_minimal = !template.http2 && body_size <= MOST_CONTENT;
        let written = is_minimal.then(|| SerializedRequest::new(&template, &content));
        Ok(Self {
            written: written.into_iter().collect(),
            template,
            shared: Shared::new(1),
            content,
            next: AtomicUsize::new(0),
        })
    }

    /// Small requests to a public listener, for one of these hosts after another.
    ///
    /// # Errors
    /// The listener's address makes no URL.
    pub(crate) async fn in_turn(public: SocketAddr, hosts: &[HeaderValue]) -> anyhow::Result<Self> {
        let target = Target::plain(public).await?;
        let mut requests = Self::new(target.template(Method::GET, None)?, 0)?;
        let mut template = requests.template.clone();
        let written = hosts.iter().map(|host| {
            template.headers.insert(HOST, host.clone());
            SerializedRequest::new(&template, &[])
        });
        requests.written = written.collect();
        Ok(requests)
    }

    /// Sends each request once, over so many connections. Returns how many were answered, and what
    /// failed; a connection that cannot be made counts as a failure of the request that it was for.
    pub(crate) async fn once_each(&self, connections: usize) -> (u64, FailureCounts) {
        let resting = &RefCell::new(Vec::new());
        let ask = async |request| {
            let kept = resting.borrow_mut().pop();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.template.dialer.minimal().await?,
            };
            let answer = connection.exchange(request).await?;
            check_status(answer.status)?;
            resting.borrow_mut().push(connection);
            Ok(())
        };
        let asked = self
            .written
            .iter()
            .map(|request| within(ONCE_LIMIT, ask(request)));
        let mut asked = pin!(stream::iter(asked).buffer_unordered(connections));
        let (mut answered, mut errors) = (0, FailureCounts::default());
        while let Some(done) = asked.next().await {
            match done {
                Ok(()) => answered += 1,
                Err(failure) => errors.add(failure.kind, 1),
            }
        }
        (answered, errors)
    }

    /// The next request in one piece.
    fn next(&self) -> Option<&SerializedRequest> {
        match &self.written[..] {
            [] => None,
            [one] => Some(one),
            all => all.get(self.next.fetch_add(1, Relaxed) % all.len()),
        }
    }
}

impl Client for Requests {
    type Connection = RequestConnection;

    async fn connect(&self, worker: usize) -> Result<RequestConnection, Failure> {
        let dialer = &self.template.dialer;
        Ok(if !self.written.is_empty() {
            RequestConnection::Minimal(Box::new(dialer.minimal().await?))
        } else if self.template.http2 {
            let shared = self.shared.connect(dialer, worker).await?;
            RequestConnection::Hyper(Connection::Two(shared))
        } else {
            RequestConnection::Hyper(dialer.connect(false).await?)
        })
    }

    async fn exchange(&self, connection: &mut RequestConnection) -> Result<BodyBytes, Failure> {
        let (status, down) = match connection {
            RequestConnection::Minimal(connection) => {
                let Some(request) = self.next() else {
                    return Err(Failure::harmless(FailureKind::NotSent));
                };
                let answer = connection.exchange(request).await?;
                (answer.status, answer.length)
            }
            RequestConnection::Hyper(connection) => {
                let content = body::full(self.content.clone());
                let answer = connection.send(self.template.request(content)).await?;
                let status = answer.status().as_u16();
                (status, connection.drain(answer.into_body()).await?)
            }
        };
        check_status(status)?;
        let up = self.content.len() as u64;
        Ok(BodyBytes { up, down })
    }

    fn is_open(connection: &mut RequestConnection) -> bool {
        connection.is_open()
    }
}

/// A redirect is an answer, not a failure.
fn check_status(status: u16) -> Result<(), Failure> {
    let failure = Failure::harmless(FailureKind::Status(status));
    (200..400).contains(&status).then_some(()).ok_or(failure)
}
