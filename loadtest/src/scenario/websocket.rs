//! WebSocket messages that come back: how many a second, and how long the round trip takes.
//!
//! Without a rate each connection sends the next message when the last has come back. With a rate messages are due at
//! even intervals and do not wait for one another; the connections take turns. A message's latency counts from when it
//! was due, so a target that stalls shows in all messages that it delayed. Without a connection, each failed dial fails
//! the message that is due next; the others are sent late, over the next connection.
//!
//! The upgrade is that of HTTP/1.1 (RFC 6455) or HTTP/2 (RFC 8441). Messages are numbered, and expected back in order.

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
use http::{HeaderValue, Method, StatusCode, header};
use hyper::{ext::Protocol, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        Error, Message,
        client::IntoClientRequest as _,
        error::ProtocolError,
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
    load::{BodyBytes, Client, Load, LoadArgs, Schedule, Worker},
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

/// Memory for each of many sockets; a longer message takes more reads.
const READ_BUFFER: usize = 16 * 1024;

/// A message is filled up with this behind its number.
const FILL: u8 = b'x';

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
        None => load.requests(&target.name, args.connections, None, echo),
        Some(rate) => {
            let pace = Some(rate * args.connections as f64);
            load.group(&target.name, args.connections, pace, echo, work_paced);
        }
    }
    report.add(load.run(progress, &target.roles).await?);
    report.add_standard_charts();
    Ok(report)
}

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
    sink: SplitSink<Web, Message>,
    stream: SplitStream<Web>,
    /// Messages that have come back in a closed loop.
    count: u64,
    /// A WebSocket over HTTP/2 ends with its connection.
    _connection: Option<Http2>,
}

impl Client for Echo {
    type Connection = Socket;

    async fn connect(&self, _worker: usize) -> Result<Socket, Failure> {
        let (web, connection) = match self.template.http2 {
            true => self.extended_connect().await?,
            false => (self.upgrade().await?, None),
        };
        let (sink, stream) = web.split();
        Ok(Socket {
            sink,
            stream,
            count: 0,
            _connection: connection,
        })
    }

    async fn exchange(&self, socket: &mut Socket) -> Result<BodyBytes, Failure> {
        let message = self.message(socket.count);
        send(&mut socket.sink, message.clone()).await?;
        receive(&mut socket.stream, &message).await?;
        socket.count += 1;
        let size = self.size as u64;
        Ok(BodyBytes {
            up: size,
            down: size,
        })
    }
}

impl Echo {
    async fn upgrade(&self) -> Result<Web, Failure> {
        // The library wants a scheme and a host, and sends the path alone.
        let uri = format!("ws://target{}", self.template.uri);
        let mut request = uri.into_client_request()?;
        request.headers_mut().extend(self.template.headers.clone());
        let stream = Either::Left(self.template.dialer.dial().await?);
        let (web, _) = client_async_with_config(request, stream, Some(config())).await?;
        Ok(web)
    }

    async fn extended_connect(&self) -> Result<(Web, Option<Http2>), Failure> {
        let mut request = self.template.request(body::empty());
        *request.method_mut() = Method::CONNECT;
        let version = HeaderValue::from_static("13");
        let headers = request.headers_mut();
        headers.insert(header::SEC_WEBSOCKET_VERSION, version);
        let protocol = Protocol::from_static("websocket");
        request.extensions_mut().insert(protocol);
        let mut connection = self.template.dialer.http2().await?;
        let mut answer = connection.send(request).await?;
        if answer.status() != StatusCode::OK {
            return Err(FailureKind::Status(answer.status().as_u16()).into());
        }
        let upgraded = hyper::upgrade::on(&mut answer).await?;
        let io = Either::Right(TokioIo::new(upgraded));
        let web = WebSocketStream::from_raw_socket(io, Role::Client, Some(config())).await;
        Ok((web, Some(connection)))
    }

    /// The message with this number: the number, as far as there is room for it, and a filling.
    fn message(&self, number: u64) -> Bytes {
        let mut message = BytesMut::with_capacity(self.size);
        // The last bytes of the number change most.
        let number = number.to_be_bytes();
        let room = self.size.min(number.len());
        message.put_slice(&number[number.len() - room..]);
        message.put_bytes(FILL, self.size - room);
        message.freeze()
    }
}

async fn send(sink: &mut SplitSink<Web, Message>, message: Bytes) -> Result<(), Failure> {
    Ok(sink.send(Message::Binary(message)).await?)
}

/// Waits for the next message that comes back, and compares it with what was sent.
async fn receive(stream: &mut SplitStream<Web>, sent: &Bytes) -> Result<(), Failure> {
    loop {
        let kind = match stream.next().await {
            Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => {
                match message.into_data() == *sent {
                    true => return Ok(()),
                    false => FailureKind::Other("wrong_echo"),
                }
            }
            // The library answers a ping when the next message is sent.
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
            Some(Ok(Message::Close(_))) => FailureKind::Other("closed_by_target"),
            Some(Err(error)) => return Err(error.into()),
            None => FailureKind::ClosedEarly,
        };
        return Err(kind.into());
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
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Io(error) => FailureKind::of_io(&error),
            Error::Http(answer) => FailureKind::Status(answer.status().as_u16()),
            Error::ConnectionClosed | Error::AlreadyClosed => {
                FailureKind::Other("closed_by_target")
            }
            Error::Protocol(
                ProtocolError::ResetWithoutClosingHandshake | ProtocolError::HandshakeIncomplete,
            ) => FailureKind::ClosedEarly,
            Error::Protocol(ProtocolError::SecWebSocketAcceptKeyMismatch) => {
                FailureKind::Other("upgrade_wrong_accept")
            }
            Error::Protocol(
                ProtocolError::MissingConnectionUpgradeHeader
                | ProtocolError::MissingUpgradeWebSocketHeader,
            ) => FailureKind::Other("upgrade_incomplete"),
            _ => FailureKind::Protocol,
        };
        kind.into()
    }
}

/// One connection in open loop, until the window is over and the last message has come back.
async fn work_paced(echo: Arc<Echo>, mut worker: Worker) {
    let limit = worker.timeout;
    // What fails here fails again within the window, and is counted there.
    let mut socket = connected(limit, echo.connect(worker.index)).await.ok();
    let window = worker.ready().await;
    let Some(schedule) = worker.schedule() else {
        return;
    };
    let paced = PacedSocket {
        echo: &echo,
        schedule,
        window,
        recorder: &worker.recorder,
        limit,
        open: RefCell::default(),
    };
    while !window.is_over() {
        let ready = match socket.take() {
            Some(socket) => Ok(socket),
            None => connected(limit, echo.connect(worker.index)).await,
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
    echo: &'a Echo,
    schedule: &'a Schedule,
    window: Window,
    recorder: &'a Recorder,
    limit: Duration,
    /// When the messages were due that this connection took and that have not come back yet, in order.
    open: RefCell<VecDeque<Instant>>,
}

impl PacedSocket<'_> {
    /// Uses a connection until all was sent and has come back, or it breaks.
    async fn exchange(&self, mut socket: Socket) -> Result<(), Failure> {
        let sent = Cell::new(false);
        let receive = self.receive(&mut socket.stream, &sent);
        let send = async {
            self.send(&mut socket.sink).await?;
            sent.set(true);
            // What is on its way has the usual time limit; then it is the receiver's failure.
            let last = self.open.borrow().back().copied();
            match last {
                Some(last) => sleep_until(last.max(self.window.end) + self.limit).await,
                None => return Ok(()),
            }
            Err(FailureKind::Timeout.into())
        };
        tokio::select! {
            biased;
            received = receive => received,
            sent = send => sent,
        }
    }

    async fn send(&self, sink: &mut SplitSink<Web, Message>) -> Result<(), Failure> {
        let mut number = 0;
        while let Some(due) = self.schedule.take(&self.window, self.recorder) {
            self.open.borrow_mut().push_back(due);
            self.schedule.wait(due, self.recorder).await;
            within(self.limit, send(sink, self.echo.message(number))).await?;
            number += 1;
        }
        Ok(())
    }

    async fn receive(
        &self,
        stream: &mut SplitStream<Web>,
        sent: &Cell<bool>,
    ) -> Result<(), Failure> {
        let mut number = 0;
        loop {
            // The oldest has the least time left; when none is open, no message is awaited.
            let oldest = self.open.borrow().front().copied();
            let until = oldest.unwrap_or_else(Instant::now) + self.limit;
            match timeout_at(until, receive(stream, &self.echo.message(number))).await {
                Ok(received) => received?,
                Err(_) if oldest.is_none() => continue,
                Err(_) => return Err(FailureKind::Timeout.into()),
            }
            number += 1;
            let Some(due) = self.open.borrow_mut().pop_front() else {
                return Err(FailureKind::Other("wrong_echo").into());
            };
            let size = self.echo.size as u64;
            self.recorder.completed(due, size, size);
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
        for due in self.open.borrow_mut().drain(..) {
            self.recorder.failed(due, kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{ClientArgs, Target};

    #[tokio::test]
    async fn messages_are_numbered_as_far_as_there_is_room() {
        let url = "http://127.0.0.1:1/".parse().unwrap();
        let target = Target::at(&url, None, &ClientArgs::default())
            .await
            .unwrap();
        let message = |size, number| {
            let template = target.template(Method::GET, None).unwrap();
            Echo { template, size }.message(number)
        };
        assert_eq!(&message(10, 0)[..], b"\0\0\0\0\0\0\0\0xx");
        assert_eq!(&message(10, 1)[..], b"\0\0\0\0\0\0\0\x01xx");
        assert_eq!(
            (&message(1, 0)[..], &message(1, 1)[..]),
            (&[0][..], &[1][..])
        );
        assert_eq!(message(0, 0).len(), 0);
    }
}
