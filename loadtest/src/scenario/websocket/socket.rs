//! One WebSocket: the upgrade over HTTP/1.1 (RFC 6455) or HTTP/2 (RFC 8441), and numbered messages
//! that are expected back in order.

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use http::{HeaderValue, Method, StatusCode, Uri, header};
use hyper::{ext::Protocol, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
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
    client::{Stream, body, connection::Http2, template::Template},
    measure::errors::{Failure, FailureKind},
};

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
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

/// Sends the next message.
pub(super) struct Sender {
    sink: SplitSink<Web, Message>,
    numbers: NumberedMessages,
    /// A WebSocket over HTTP/2 ends with its connection.
    _connection: Option<Http2>,
}

/// Expects the next message.
pub(super) struct Receiver {
    stream: SplitStream<Web>,
    numbers: NumberedMessages,
}

impl Echo {
    /// Connects and agrees on a WebSocket.
    pub(super) async fn connect(&self) -> Result<Socket, Failure> {
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
    pub(super) async fn send(&mut self) -> Result<(), Failure> {
        let message = Message::Binary(self.numbers.next());
        self.sink
            .send(message)
            .await
            .map_err(|error| Failure::fatal(kind(&error)))
    }
}

impl Receiver {
    /// Waits for the next message that comes back, and compares it with what was sent.
    pub(super) async fn receive(&mut self) -> Result<(), Failure> {
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
