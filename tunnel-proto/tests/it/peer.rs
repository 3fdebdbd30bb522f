//! A scripted peer: sends whatever a test wants, frame by frame.

use std::{collections::BTreeSet, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
pub(crate) use testkit::yamux::{ACK, DATA, FIN, Frame, GO_AWAY, PING, RST, SYN, WINDOW};
use tokio::io::{AsyncRead, AsyncWrite, duplex};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};
use tunnel_proto::session::{Session, SessionEvents, SessionSettings, Side};

use crate::pair::{Drivers, session, within};

/// Bytes that the connection takes before it blocks.
const CONNECTION_BYTES: usize = 64 * 1024;

/// Any connection.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Io for IO {}

/// The scripted end of a session.
pub(crate) struct Peer {
    socket: WebSocketStream<Box<dyn Io>>,
    buffer: BytesMut,
    /// Streams on which something was sent.
    accepted: BTreeSet<u32>,
}

impl Peer {
    /// A session on this side, and the scripted peer at its other end.
    pub(crate) async fn of(side: Side, drivers: &mut Drivers) -> (Session, SessionEvents, Self) {
        let (ours, theirs) = duplex(CONNECTION_BYTES);
        Self::over(ours, Box::new(theirs), side, drivers).await
    }

    /// A session and its peer over these two ends of a connection.
    pub(crate) async fn over<IO: Io + 'static>(
        ours: IO,
        theirs: Box<dyn Io>,
        side: Side,
        drivers: &mut Drivers,
    ) -> (Session, SessionEvents, Self) {
        let (session, events) = session(drivers, ours, side, SessionSettings::default()).await;
        let role = if side == Side::Server {
            Role::Client
        } else {
            Role::Server
        };
        let socket = WebSocketStream::from_raw_socket(theirs, role, None).await;
        (
            session,
            events,
            Self {
                socket,
                buffer: BytesMut::new(),
                accepted: BTreeSet::new(),
            },
        )
    }

    /// The bare connection, for bytes that no WebSocket library would write.
    pub(crate) fn into_connection(self) -> Box<dyn Io> {
        self.socket.into_inner()
    }

    /// Sends a message; false when the session takes none any more.
    pub(crate) async fn send(&mut self, message: Message) -> bool {
        within(self.socket.send(message)).await.is_ok()
    }

    /// Sends bytes of the multiplexer.
    pub(crate) async fn bytes(&mut self, bytes: impl Into<Bytes>) -> bool {
        self.send(Message::Binary(bytes.into())).await
    }

    pub(crate) async fn frame(&mut self, frame: Frame) -> bool {
        let mut out = BytesMut::new();
        frame.write(&mut out);
        self.bytes(out).await
    }

    /// Sends many frames, as many as possible in each message.
    pub(crate) async fn frames(&mut self, frames: impl IntoIterator<Item = Frame>) -> bool {
        let mut out = BytesMut::new();
        for frame in frames {
            frame.write(&mut out);
            if out.len() > 60_000 && !self.bytes(out.split()).await {
                return false;
            }
        }
        out.is_empty() || self.bytes(out).await
    }

    /// Sends bytes on a stream, the first time after the byte that accepts it.
    pub(crate) async fn answer(&mut self, stream: u32, bytes: &[u8]) -> bool {
        let first: &[u8] = if self.accepted.insert(stream) {
            &[1]
        } else {
            &[]
        };
        self.frame(Frame::data(ACK, stream, &[first, bytes].concat()))
            .await
    }

    pub(crate) async fn reset(&mut self, stream: u32) -> bool {
        self.frame(Frame::bare(DATA, RST, stream, 0)).await
    }

    /// The next frame except pings; `None` when the session has ended.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        within(async {
            loop {
                match Frame::take(&mut self.buffer) {
                    Some(frame) if frame.kind == PING && frame.flags & ACK == 0 => {}
                    Some(frame) => return Some(frame),
                    None => match self.socket.next().await {
                        Some(Ok(Message::Binary(bytes))) => self.buffer.extend_from_slice(&bytes),
                        Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                        Some(Ok(_)) => {}
                    },
                }
            }
        })
        .await
    }

    /// The payload of the next ping, which is answered when the next message is read.
    pub(crate) async fn next_ping(&mut self) -> Bytes {
        within(async {
            loop {
                match self.socket.next().await.expect("the session has ended") {
                    Ok(Message::Ping(payload)) => return payload,
                    Ok(Message::Binary(bytes)) => self.buffer.extend_from_slice(&bytes),
                    Ok(_) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .await
    }

    /// The next frame that is wanted.
    async fn next_that(&mut self, is_wanted: impl Fn(&Frame) -> bool) -> Frame {
        within(async {
            loop {
                let frame = self.next().await.expect("the session has ended");
                if is_wanted(&frame) {
                    return frame;
                }
            }
        })
        .await
    }

    /// The next data frame with content.
    pub(crate) async fn next_data(&mut self) -> Frame {
        self.next_that(|frame| frame.kind == DATA && !frame.body.is_empty())
            .await
    }

    /// The next frame that opens a stream.
    pub(crate) async fn opened(&mut self) -> Frame {
        self.next_that(|frame| frame.flags & SYN != 0).await
    }

    /// The next frame of this stream.
    pub(crate) async fn next_of(&mut self, stream: u32) -> Frame {
        self.next_that(|frame| frame.stream == stream).await
    }

    /// Whether no frame arrives for a moment. A frame that arrives is not lost.
    pub(crate) async fn is_silent(&mut self) -> bool {
        match tokio::time::timeout(Duration::from_secs(1), self.next()).await {
            Err(_) => true,
            Ok(frame) => {
                let mut out = BytesMut::new();
                frame.expect("the session has ended").write(&mut out);
                out.unsplit(std::mem::take(&mut self.buffer));
                self.buffer = out;
                false
            }
        }
    }

    /// The code with which the session is closed.
    pub(crate) async fn close_code(&mut self) -> Option<u16> {
        within(async {
            loop {
                match self.socket.next().await? {
                    Ok(Message::Close(frame)) => return frame.map(|frame| frame.code.into()),
                    Ok(_) => {}
                    Err(_) => return None,
                }
            }
        })
        .await
    }
}
