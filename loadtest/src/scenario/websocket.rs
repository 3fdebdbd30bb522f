//! WebSocket messages that come back: how many a second, and how long the round trip takes.
//!
//! Without a rate each connection sends the next message when the last has come back. With a rate
//! messages are due at even intervals, and the connections take turns, whatever the target does; see `paced`.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    sync::Arc,
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use bytesize::ByteSize;
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use http::{HeaderValue, Method, StatusCode, Uri, header};
use hyper::{ext::Protocol, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        Error, Message,
        error::ProtocolError,
        handshake::client::generate_key,
        protocol::{Role, WebSocketConfig},
    },
};
use tokio_util::either::Either;

use crate::{
    client::{
        Stream, body,
        connection::Http2,
        template::{PAUSE, Template, connected, within},
    },
    load::{BodyBytes, Client, Load, LoadArgs, LoadModel, Schedule, Worker},
    measure::{
        Recorder, Window,
        errors::{Failure, FailureKind},
    },
    progress::Progress,
    report::Report,
    scenario::{open, parse_rate},
    stack::Plan,
    target::TargetArgs,
};

/// Flags of `loadtest websocket`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// WebSockets, each over a connection of its own
    #[arg(long, short = 'c', value_name = "N", default_value_t = 64)]
    pub connections: usize,
    /// Open loop: messages per second for each connection, due at even intervals, whether the
    /// last has come back or not
    #[arg(long, short = 'r', value_name = "PER_SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Size of each message
    #[arg(long, value_name = "SIZE", default_value = "64B")]
    pub message_size: ByteSize,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened, or the load cannot be run.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let title = ("websocket", "WebSocket echoes from");
    let (target, mut report) = open(progress, title, &args.target, Plan::default()).await?;
    let echo = Arc::new(Echo {
        template: target.sample_template(Method::GET, "/echo")?,
        size: usize::try_from(args.message_size.as_u64())?,
    });
    let mut load = Load::new(args.load);
    match args.rate {
        None => load.requests(&target.name, args.connections, LoadModel::Closed, echo),
        Some(rate) => {
            let pace = LoadModel::Open(rate * args.connections as f64);
            load.group(&target.name, args.connections, pace, move |worker| {
                work(echo.clone(), worker)
            });
        }
    }
    report.add(load.run(progress, &target.roles).await?);
    report.add_standard_charts();
    Ok(report)
}

impl Client for Echo {
    type Connection = Socket;

    async fn connect(&self, _worker: usize) -> Result<Socket, Failure> {
        self.connect().await
    }

    async fn exchange(&self, socket: &mut Socket) -> Result<BodyBytes, Failure> {
        let size = self.size as u64;
        socket.sender.send().await?;
        socket.receiver.receive().await?;
        Ok(BodyBytes {
            up: size,
            down: size,
        })
    }
}

/// Memory for each of many sockets; a longer message takes more reads.
const READ_BUFFER: usize = 16 * 1024;

/// The version of the protocol (RFC 6455).
const VERSION: &str = "13";

/// A message is filled up with this behind its number.
const FILL: u8 = b'x';

/// Makes WebSockets whose messages come back.
#[derive(Debug)]
pub(crate) struct Echo {
    pub(crate) template: Template,
    /// Size of a message.
    pub(crate) size: usize,
}

type Web = WebSocketStream<Either<Stream, TokioIo<Upgraded>>>;

/// A WebSocket whose two directions can be used at once.
pub(crate) struct Socket {
    sender: Sender,
    receiver: Receiver,
}

/// Sends the next message.
struct Sender {
    sink: SplitSink<Web, Message>,
    numbers: NumberedMessages,
    /// A WebSocket over HTTP/2 ends with its connection.
    _connection: Option<Http2>,
}

/// Expects the next message.
struct Receiver {
    stream: SplitStream<Web>,
    numbers: NumberedMessages,
}

impl Echo {
    /// Connects and agrees on a WebSocket.
    async fn connect(&self) -> Result<Socket, Failure> {
        let (web, connection) = if self.template.http2 {
            let (web, connection) = self.extended_connect().await?;
            (web, Some(connection))
        } else {
            (self.upgrade().await?, None)
        };
        let (sink, stream) = web.split();
        Ok(Socket {
            sender: Sender {
                sink,
                numbers: NumberedMessages::new(self.size),
                _connection: connection,
            },
            receiver: Receiver {
                stream,
                numbers: NumberedMessages::new(self.size),
            },
        })
    }

    async fn upgrade(&self) -> Result<Web, Failure> {
        let mut request = self.template.request(());
        let fields = [
            (header::CONNECTION, "Upgrade"),
            (header::UPGRADE, "websocket"),
            (header::SEC_WEBSOCKET_VERSION, VERSION),
            (header::SEC_WEBSOCKET_KEY, &generate_key()),
        ];
        for (name, value) in fields {
            // All of them are values of fields.
            let value = HeaderValue::try_from(value).ok();
            request
                .headers_mut()
                .extend(value.map(|value| (name, value)));
        }
        // The library wants a scheme, and sends the path alone.
        let uri = Uri::try_from(format!("ws://target{}", self.template.uri));
        *request.uri_mut() = uri.map_err(|_| Failure::fatal(FailureKind::Protocol))?;
        let stream = Either::Left(self.template.dialer.dial().await?);
        let made = client_async_with_config(request, stream, Some(config())).await;
        let (web, _) = made.map_err(|error| Failure::fatal(kind(&error)))?;
        Ok(web)
    }

    async fn extended_connect(&self) -> Result<(Web, Http2), Failure> {
        let mut request = self.template.request(body::empty());
        *request.method_mut() = Method::CONNECT;
        let version = HeaderValue::from_static(VERSION);
        let headers = request.headers_mut();
        headers.insert(header::SEC_WEBSOCKET_VERSION, version);
        let protocol = Protocol::from_static("websocket");
        request.extensions_mut().insert(protocol);
        let mut connection = self.template.dialer.http2().await?;
        let mut answer = connection.send(request).await?;
        if answer.status() != StatusCode::OK {
            return Err(Failure::fatal(FailureKind::Status(
                answer.status().as_u16(),
            )));
        }
        let upgraded = hyper::upgrade::on(&mut answer).await;
        let upgraded = upgraded.map_err(|error| Failure::fatal(FailureKind::of_hyper(&error)))?;
        let io = Either::Right(TokioIo::new(upgraded));
        let web = WebSocketStream::from_raw_socket(io, Role::Client, Some(config())).await;
        Ok((web, connection))
    }
}

impl Sender {
    /// Sends the next message.
    async fn send(&mut self) -> Result<(), Failure> {
        let message = Message::Binary(self.numbers.next());
        self.sink
            .send(message)
            .await
            .map_err(|error| Failure::fatal(kind(&error)))
    }
}

impl Receiver {
    /// Waits for the next message that comes back, and compares it with what was sent.
    async fn receive(&mut self) -> Result<(), Failure> {
        loop {
            let message = match self.stream.next().await {
                None => return Err(Failure::fatal(FailureKind::ClosedEarly)),
                Some(message) => message.map_err(|error| Failure::fatal(kind(&error)))?,
            };
            return match message {
                Message::Binary(_) | Message::Text(_) => {
                    let is_right = message.into_data() == self.numbers.next();
                    let wrong = Failure::fatal(FailureKind::Other("wrong_echo"));
                    if is_right { Ok(()) } else { Err(wrong) }
                }
                Message::Close(_) => Err(Failure::fatal(FailureKind::Other("closed_by_target"))),
                // The library answers a ping when the next message is sent.
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
            };
        }
    }
}

/// The messages of one socket: a number, as far as there is room for it, and a filling.
struct NumberedMessages {
    size: usize,
    next: u64,
}

impl NumberedMessages {
    fn new(size: usize) -> Self {
        Self { size, next: 0 }
    }

    fn next(&mut self) -> Bytes {
        let mut message = BytesMut::with_capacity(self.size);
        // The last bytes of the number change most.
        let number = self.next.to_be_bytes();
        let room = self.size.min(number.len());
        message.put_slice(&number[number.len() - room..]);
        message.put_bytes(FILL, self.size - room);
        self.next += 1;
        message.freeze()
    }
}

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        // A message must not wait for the next.
        .write_buffer_size(0)
        .max_message_size(None)
        .max_frame_size(None)
}

/// Why a WebSocket broke.
fn kind(error: &Error) -> FailureKind {
    match error {
        Error::Io(error) => FailureKind::of_io(error),
        Error::Http(answer) => FailureKind::Status(answer.status().as_u16()),
        Error::ConnectionClosed | Error::AlreadyClosed => FailureKind::Other("closed_by_target"),
        Error::Protocol(error) => match error {
            ProtocolError::ResetWithoutClosingHandshake | ProtocolError::HandshakeIncomplete => {
                FailureKind::ClosedEarly
            }
            ProtocolError::SecWebSocketAcceptKeyMismatch => {
                FailureKind::Other("upgrade_wrong_accept")
            }
            ProtocolError::MissingConnectionUpgradeHeader
            | ProtocolError::MissingUpgradeWebSocketHeader => {
                FailureKind::Other("upgrade_incomplete")
            }
            _ => FailureKind::Protocol,
        },
        _ => FailureKind::Protocol,
    }
}

/// One connection, until the window is over and the last message has come back.
async fn work(echo: Arc<Echo>, mut worker: Worker) {
    let limit = worker.timeout;
    // What fails here fails again within the window, and is counted there.
    let mut socket = connected(limit, echo.connect()).await.ok();
    let window = worker.ready().await;
    let Some(schedule) = worker.schedule() else {
        return;
    };
    let paced = PacedSocket {
        schedule,
        window,
        recorder: &worker.recorder,
        size: echo.size as u64,
        limit,
        open: RefCell::default(),
    };
    while !window.is_over() {
        let ready = match socket.take() {
            Some(socket) => Ok(socket),
            None => connected(limit, echo.connect()).await,
        };
        let failure = match ready {
            Ok(socket) => match paced.exchange(socket).await {
                Ok(()) => break,
                Err(failure) => failure,
            },
            Err(failure) => {
                // This is the failure of what is due next.
                let due = schedule.next(&window, &worker.recorder).await;
                paced.open.borrow_mut().extend(due);
                failure
            }
        };
        paced.fail_open(failure.kind);
        sleep(PAUSE).await;
    }
    // What was not taken until the end is counted as not sent.
    let _ = schedule.take(&window, &worker.recorder);
    // The stretch is as long as it was planned, not until the last that was due is answered.
    sleep_until(window.end).await;
}

/// What is on its way over a connection.
struct PacedSocket<'a> {
    schedule: &'a Schedule,
    window: Window,
    recorder: &'a Recorder,
    size: u64,
    limit: Duration,
    /// When the messages were due that this connection took and that have not come back yet, in order.
    open: RefCell<VecDeque<Instant>>,
}

impl PacedSocket<'_> {
    /// Uses a connection until all was sent and has come back, or it breaks.
    async fn exchange(&self, socket: Socket) -> Result<(), Failure> {
        let Socket {
            mut sender,
            mut receiver,
        } = socket;
        let sent = Cell::new(false);
        let receive = self.receive(&mut receiver, &sent);
        let send = async {
            self.send(&mut sender).await?;
            sent.set(true);
            // What is on its way has the usual time limit; then it is the receiver's failure.
            let last = self.open.borrow().back().copied();
            match last {
                Some(last) => sleep_until(last.max(self.window.end) + self.limit).await,
                None => return Ok(()),
            }
            Err(Failure::fatal(FailureKind::Timeout))
        };
        tokio::select! {
            biased;
            received = receive => received,
            sent = send => sent,
        }
    }

    async fn send(&self, sender: &mut Sender) -> Result<(), Failure> {
        while let Some(due) = self.schedule.take(&self.window, self.recorder) {
            self.open.borrow_mut().push_back(due);
            self.schedule.wait(due, self.recorder).await;
            within(self.limit, sender.send()).await?;
        }
        Ok(())
    }

    async fn receive(&self, receiver: &mut Receiver, sent: &Cell<bool>) -> Result<(), Failure> {
        loop {
            // The oldest has the least time left; when none is open, no message is awaited.
            let oldest = self.open.borrow().front().copied();
            let until = oldest.unwrap_or_else(Instant::now) + self.limit;
            match timeout_at(until, receiver.receive()).await {
                Ok(received) => received?,
                Err(_) if oldest.is_none() => continue,
                Err(_) => return Err(Failure::fatal(FailureKind::Timeout)),
            }
            let begun = self.open.borrow_mut().pop_front();
            match begun {
                Some(begun) => self.recorder.completed(begun, self.size, self.size),
                None => return Err(Failure::fatal(FailureKind::Other("wrong_echo"))),
            }
            if sent.get() && self.open.borrow().is_empty() {
                return Ok(());
            }
        }
    }

    /// Everything that is on its way failed with its connection; when nothing is, the connection
    /// is all that failed.
    fn fail_open(&self, kind: FailureKind) {
        if self.open.borrow().is_empty() {
            self.recorder.failed(Instant::now(), kind);
        }
        for begun in self.open.borrow_mut().drain(..) {
            self.recorder.failed(begun, kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_numbered_as_far_as_there_is_room() {
        let mut numbers = NumberedMessages::new(10);
        assert_eq!(&numbers.next()[..], b"\0\0\0\0\0\0\0\0xx");
        assert_eq!(&numbers.next()[..], b"\0\0\0\0\0\0\0\x01xx");
        let mut small = NumberedMessages::new(1);
        assert_eq!((&small.next()[..], &small.next()[..]), (&[0][..], &[1][..]));
        assert_eq!(NumberedMessages::new(0).next().len(), 0);
    }
}
