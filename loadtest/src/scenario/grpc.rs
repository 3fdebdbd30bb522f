//! gRPC calls: unary, and streams whose messages come back. Needs no service definition: a message
//! is bytes behind the five of its prefix.
//!
//! Several calls share a connection, as they do in the channels of gRPC libraries. Without a rate
//! each call sends the next message when the last was answered; with one, messages are due at even
//! intervals, whatever the target does.

use std::{fs, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use bytesize::ByteSize;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use crate::{
    client::{
        body,
        connection::{Http2, Shared},
        template::Template,
    },
    load::{BodyBytes, Client, Load, LoadArgs},
    measure::errors::{Failure, FailureKind},
    progress::Progress,
    report::Report,
    scenario::{open, parse_rate},
    stack::Plan,
    target::TargetArgs,
    upstream::is_grpc,
};

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
        message: with_prefix(&message)?,
        is_echoed: target.is_sample(),
        messages,
        shared: Shared::new(args.calls as usize),
    };
    let workers = args.connections as usize * args.calls as usize;
    let mut load = Load::new(args.load);
    load.requests(&target.name, workers, args.rate, Arc::new(calls));
    report.add(load.run(progress, &target.roles).await?);
    report.add_standard_charts();
    Ok(report)
}

/// A flag for compression, and four bytes of length.
const PREFIX: usize = 5;

/// Longest message: the default limit of gRPC libraries is 4 MiB.
const LONGEST: usize = 64 * 1024 * 1024;

/// Where a call's status is, in trailers or in the head of a call that failed at once.
const STATUS: &str = "grpc-status";

/// The highest status that gRPC knows.
const LAST_STATUS: u8 = 16;

/// A message behind its prefix.
fn with_prefix(message: &[u8]) -> anyhow::Result<Bytes> {
    let length = u32::try_from(message.len()).context("a message has less than 4 GiB")?;
    let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
    bytes.put_u8(0);
    bytes.put_u32(length);
    bytes.put_slice(message);
    Ok(bytes.freeze())
}

/// Takes the first message out of a buffer, without its prefix, if it is complete. One that is compressed, which was not
/// requested, or too long cannot be read.
fn take_message(buffer: &mut BytesMut) -> Result<Option<Bytes>, Failure> {
    let Some(mut prefix) = buffer.get(..PREFIX) else {
        return Ok(None);
    };
    let is_compressed = prefix.get_u8() != 0;
    let length = prefix.get_u32() as usize;
    if is_compressed || length > LONGEST {
        return Err(Failure::harmless(FailureKind::Protocol));
    }
    if buffer.len() < PREFIX + length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// The status in these fields; none when there is none. The error is what to count.
fn status(fields: &HeaderMap) -> Option<Result<(), FailureKind>> {
    let status = fields.get(STATUS)?;
    let code = status.to_str().ok().and_then(|status| status.parse().ok());
    Some(match code {
        Some(0) => Ok(()),
        Some(code @ 1..=LAST_STATUS) => Err(FailureKind::GrpcStatus(code)),
        Some(_) | None => Err(FailureKind::Other("grpc_status_unknown")),
    })
}

fn other(kind: &'static str) -> Failure {
    Failure::harmless(FailureKind::Other(kind))
}

/// Makes calls of one message or many. Each message is answered before the next is sent.
#[derive(Debug)]
struct Calls {
    template: Template,
    /// The message, behind its prefix.
    message: Bytes,
    /// Whether each message must come back as it is.
    is_echoed: bool,
    /// Messages of a call.
    messages: u64,
    /// The connections, each for several calls.
    shared: Shared,
}

/// A call that is going on.
#[derive(Debug)]
struct Call {
    /// None once the last message was sent.
    sender: Option<mpsc::Sender<Bytes>>,
    sent: u64,
    content: Incoming,
    /// What has come of messages that are not complete.
    buffer: BytesMut,
    status: Option<Result<(), FailureKind>>,
}

impl Client for Calls {
    type Connection = (Http2, Option<Call>);

    async fn connect(&self, worker: usize) -> Result<Self::Connection, Failure> {
        let connection = self.shared.connect(&self.template.dialer, worker).await?;
        Ok((connection, None))
    }

    async fn exchange(
        &self,
        (connection, call): &mut Self::Connection,
    ) -> Result<BodyBytes, Failure> {
        // A call that fails is not put back, so the next message begins another.
        let mut current = match call.take() {
            Some(mut current) => {
                if let Some(sender) = &current.sender {
                    // When it is not taken, the call is over, and its answer says why.
                    drop(sender.send(self.message.clone()).await);
                }
                current.sent += 1;
                current
            }
            None => self.begin(connection).await?,
        };
        let is_last = current.sent >= self.messages;
        if is_last {
            // The target hears of the end together with the last message.
            current.sender = None;
        }
        let Some(message) = current.message(connection).await? else {
            // A call that fails has a status and no message.
            current.end(connection).await?;
            return Err(other(match current.sent {
                1 => "no_message",
                _ => "ended_early",
            }));
        };
        if self.is_echoed && self.message.get(PREFIX..) != Some(&message[..]) {
            return Err(other("wrong_message"));
        }
        if is_last {
            current.end(connection).await?;
        } else {
            *call = Some(current);
        }
        Ok(BodyBytes {
            up: self.message.len() as u64,
            down: (PREFIX + message.len()) as u64,
        })
    }

    fn is_open((connection, _): &mut Self::Connection) -> bool {
        connection.is_open()
    }
}

impl Calls {
    /// Begins a call with its first message: a target may wait for it before it answers.
    async fn begin(&self, connection: &mut Http2) -> Result<Call, Failure> {
        let (sender, content) = if self.messages > 1 {
            let (sender, mut receiver) = mpsc::channel(1);
            // There is room for one.
            drop(sender.try_send(self.message.clone()));
            let received = stream::poll_fn(move |context| receiver.poll_recv(context));
            (Some(sender), body::stream(received))
        } else {
            (None, body::full(self.message.clone()))
        };
        let answer = connection.send(self.template.request(content)).await?;
        if answer.status() != StatusCode::OK {
            let status = FailureKind::Status(answer.status().as_u16());
            return Err(Failure::harmless(status));
        }
        if !is_grpc(answer.headers()) {
            return Err(other("no_grpc"));
        }
        Ok(Call {
            sender,
            sent: 1,
            // A call that fails at once may have its status here, and no trailers.
            status: status(answer.headers()),
            content: answer.into_body(),
            buffer: BytesMut::new(),
        })
    }
}

impl Call {
    /// The next message; none when no more come.
    async fn message(&mut self, connection: &Http2) -> Result<Option<Bytes>, Failure> {
        loop {
            let message = take_message(&mut self.buffer)?;
            if message.is_some() {
                return Ok(message);
            }
            let Some(frame) = self.content.frame().await else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| connection.failure(&error))?;
            if let Some(trailers) = frame.trailers_ref() {
                self.status = status(trailers).or(self.status);
            } else if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// Waits for the end, which has no more messages and a good status.
    async fn end(&mut self, connection: &Http2) -> Result<(), Failure> {
        let extra = self.message(connection).await?;
        match self.status {
            None => Err(other("grpc_status_missing")),
            Some(Err(kind)) => Err(Failure::harmless(kind)),
            Some(Ok(())) if extra.is_some() || !self.buffer.is_empty() => {
                Err(other("wrong_message"))
            }
            Some(Ok(())) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn messages_come_back_however_they_are_cut() {
        let mut stream = with_prefix(b"hello").unwrap().to_vec();
        stream.extend_from_slice(&with_prefix(b"").unwrap());
        stream.extend_from_slice(&with_prefix(&[7; 300]).unwrap());
        for size in [1, 2, 3, 7, 311, 1000] {
            let mut buffer = BytesMut::new();
            let mut found = Vec::new();
            for piece in stream.chunks(size) {
                buffer.extend_from_slice(piece);
                while let Some(message) = take_message(&mut buffer).unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(
                found,
                [&b"hello"[..], b"", &[7; 300]],
                "in pieces of {size}"
            );
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn what_cannot_be_a_message_is_refused() {
        for prefix in [[1, 0, 0, 0, 1], [0, 0xff, 0, 0, 0]] {
            let mut buffer = BytesMut::new();
            buffer.extend_from_slice(&prefix);
            assert_eq!(
                take_message(&mut buffer).unwrap_err().kind,
                FailureKind::Protocol
            );
        }
    }

    #[test]
    fn a_status_is_counted_by_its_number() {
        let of = |text: &'static str| {
            let fields = [(
                http::HeaderName::from_static(STATUS),
                HeaderValue::from_static(text),
            )];
            status(&fields.into_iter().collect())
        };
        assert_eq!(of("0"), Some(Ok(())));
        assert_eq!(of("14"), Some(Err(FailureKind::GrpcStatus(14))));
        assert_eq!(
            of("99"),
            Some(Err(FailureKind::Other("grpc_status_unknown")))
        );
        assert_eq!(
            of("x"),
            Some(Err(FailureKind::Other("grpc_status_unknown")))
        );
        assert_eq!(status(&HeaderMap::new()), None);
    }
}
