//! A second tunnel client, written from `docs/protocol.md` alone.
//!
//! It shares no code with `tunnel-client`, so that it proves the document; and it sends whatever a test wants, so that it
//! can be as hostile as an authenticated client can be. TLS and WebSocket are those of libraries; multiplexer and
//! exchanges are written here, in [`wire`].

pub mod wire;

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::Role,
    },
};

use self::wire::{ACK, DATA, FIN, Frame, PING, RST, SYN, StrangerRequest, WINDOW};
use crate::{
    deadline::{SOON, within},
    entry::Entry,
    http1::Head,
    raw::{Duplex, RawClient, RawConnection, RawResponse},
    secrets,
};

/// The instance secret of every stranger: as one instance, the next one takes over from the last at once.
pub const INSTANCE_LINE: &str = "Tunnel-Instance: 0123456789abcdef0123456789abcdef\r\n";

/// Bytes that a stream may carry before its window grows.
const INITIAL_WINDOW: u32 = 256 * 1024;

/// The longest data frame that is sent: any length up to a message's limit is allowed.
const PIECE: usize = 16 * 1024;

/// One session.
pub struct Stranger {
    head: Head,
    socket: WebSocketStream<Box<dyn Duplex>>,
    /// Bytes of the multiplexer that are not yet a frame.
    buffer: BytesMut,
    streams: BTreeMap<u32, Stream>,
    controls: VecDeque<Value>,
    closed: Option<Option<u16>>,
}

/// A server's response that opens no session.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The answer's head.
    pub head: Head,
    /// The body: `reason`, `detail`, `fatal`.
    pub body: Value,
}

#[derive(Debug)]
struct Stream {
    received: BytesMut,
    may_send: u32,
    is_reset: bool,
}

impl Stranger {
    /// Dials the tunnel listener at `entry` with the token in this file.
    ///
    /// # Errors
    /// The server's refusal.
    ///
    /// # Panics
    /// When there is no answer, or one that is not as RFC 6455 section 4.2.2 has it.
    pub async fn dial(entry: &Entry, token: &Path) -> Result<Self, Refusal> {
        let token = std::fs::read_to_string(token).unwrap();
        let lines = format!("Authorization: Bearer {}\r\n{INSTANCE_LINE}", token.trim());
        Self::dial_with(entry, &lines).await
    }

    /// Dials with these lines beside the bare handshake.
    ///
    /// # Errors
    /// The server's refusal.
    ///
    /// # Panics
    /// As [`Stranger::dial`].
    pub async fn dial_with(entry: &Entry, lines: &str) -> Result<Self, Refusal> {
        let (head, connection) = Self::dial_raw(entry, lines).await?;
        let (stream, rest) = connection.into_parts();
        let socket =
            WebSocketStream::from_partially_read(stream, rest.into(), Role::Client, None).await;
        Ok(Self {
            head,
            socket,
            buffer: BytesMut::new(),
            streams: BTreeMap::new(),
            controls: VecDeque::new(),
            closed: None,
        })
    }

    /// As [`Stranger::dial_with`], for a test that writes WebSocket by hand, too: the answer, and the connection behind it.
    ///
    /// # Errors
    /// As [`Stranger::dial`].
    ///
    /// # Panics
    /// As [`Stranger::dial`].
    pub async fn dial_raw(entry: &Entry, lines: &str) -> Result<(Head, RawConnection), Refusal> {
        let mut client = RawClient::connect(entry).await;
        let key = generate_key();
        let lines = format!(
            "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: tunnel.v1\r\n\
             Tunnel-Client-Version: stranger\r\nTunnel-Session: 1\r\n{lines}"
        );
        client.request("GET", "/connect", &lines, b"").await;
        let RawResponse { head, content, .. } = client.response_to("GET").await;
        if head.status() != 101 {
            let body = serde_json::from_slice(&content.bytes).unwrap_or_default();
            let said = String::from_utf8_lossy(&content.bytes);
            secrets::assert_hidden("a refusal", &format!("{head:?}{said}"));
            return Err(Refusal { head, body });
        }
        let accept = derive_accept_key(key.as_bytes());
        assert_eq!(head.value("sec-websocket-accept"), Some(accept.as_str()));
        assert_eq!(head.value("sec-websocket-protocol"), Some("tunnel.v1"));
        Ok((head, client.into_connection()))
    }

    /// The answer that opened the session.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Whether the session was open at the last read.
    pub fn is_open(&self) -> bool {
        self.closed.is_none()
    }

    /// Answers each request with these bytes, for as long as the session lasts.
    pub async fn answer_all(&mut self, bytes: &[u8]) {
        loop {
            if let Some(request) = self.next_whole_request() {
                self.answer(request.stream, bytes).await;
            } else if !self.read().await {
                return;
            }
        }
    }

    /// Sends the greeting and waits for the server's welcome.
    pub async fn greet(&mut self) -> Value {
        self.control(json!({ "type": "hello", "version": "stranger" }))
            .await;
        self.wait_control("welcome").await
    }

    /// Sends a control message.
    pub async fn control(&mut self, message: Value) {
        self.send(Message::text(message.to_string())).await;
    }

    /// Waits for a control message of this type.
    ///
    /// # Panics
    /// When the session ends first.
    pub async fn wait_control(&mut self, kind: &str) -> Value {
        self.wait_control_within(SOON, kind).await
    }

    /// As [`Stranger::wait_control`], for so long.
    ///
    /// # Panics
    /// As [`Stranger::wait_control`].
    pub async fn wait_control_within(&mut self, limit: Duration, kind: &str) -> Value {
        within(limit, &format!("a control message {kind}"), async {
            loop {
                while let Some(message) = self.controls.pop_front() {
                    if message["type"] == kind {
                        return message;
                    }
                }
                assert!(
                    self.read().await,
                    "the session has ended: {:?}",
                    self.closed
                );
            }
        })
        .await
    }

    /// Sends any bytes as one binary message: the multiplexer's, or garbage.
    pub async fn send_bytes(&mut self, bytes: impl Into<Bytes>) {
        self.send(Message::binary(bytes)).await;
    }

    /// The next request, accepted and whole.
    ///
    /// # Panics
    /// When there is none for long, or the session ends, or it is not as the document says.
    pub async fn next_request(&mut self) -> StrangerRequest {
        within(SOON, "a request from the server", async {
            loop {
                if let Some(request) = self.next_whole_request() {
                    return request;
                }
                assert!(
                    self.read().await,
                    "the session has ended: {:?}",
                    self.closed
                );
            }
        })
        .await
    }

    /// Sends bytes on a stream, as its window allows. Ends early when the stream is reset.
    pub async fn answer(&mut self, stream: u32, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && self.closed.is_none() {
            let Some(state) = self
                .streams
                .get_mut(&stream)
                .filter(|stream| !stream.is_reset)
            else {
                return;
            };
            let most = usize::try_from(state.may_send).unwrap().min(PIECE);
            let (piece, later) = rest.split_at(rest.len().min(most));
            if piece.is_empty() {
                within(SOON, "room in the window", self.read()).await;
                continue;
            }
            rest = later;
            state.may_send -= u32::try_from(piece.len()).unwrap();
            self.send_bytes(Frame::data(0, stream, piece).bytes()).await;
        }
    }

    /// Whether a stream was reset or ended by the server; what has arrived is read first.
    pub async fn wait_reset(&mut self, stream: u32) {
        within(SOON, "a reset stream", async {
            while self.closed.is_none()
                && self
                    .streams
                    .get(&stream)
                    .is_some_and(|stream| !stream.is_reset)
            {
                self.read().await;
            }
        })
        .await;
    }

    /// Reads until the session ends; the close code, or none when it broke off.
    pub async fn wait_close(&mut self, limit: Duration) -> Option<u16> {
        within(limit, "the end of the session", async {
            while self.read().await {}
        })
        .await;
        self.closed.flatten()
    }

    /// A whole request that has arrived.
    fn next_whole_request(&mut self) -> Option<StrangerRequest> {
        let mut streams = self
            .streams
            .iter_mut()
            .filter(|(_, stream)| !stream.is_reset);
        streams.find_map(|(id, stream)| StrangerRequest::take(*id, &mut stream.received))
    }

    async fn send(&mut self, message: Message) {
        let sent = within(SOON, "sending", self.socket.send(message)).await;
        if sent.is_err() {
            self.closed.get_or_insert(None);
        }
    }

    /// Reads one message; `false` when the session has ended.
    async fn read(&mut self) -> bool {
        match self.socket.next().await {
            Some(Ok(Message::Binary(bytes))) => {
                self.buffer.extend_from_slice(&bytes);
                while let Some(frame) = Frame::take(&mut self.buffer) {
                    self.on_frame(frame).await;
                }
            }
            Some(Ok(Message::Text(text))) => {
                self.controls
                    .push_back(serde_json::from_str(&text).unwrap());
            }
            Some(Ok(Message::Close(frame))) => {
                self.closed = Some(frame.map(|frame| frame.code.into()));
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => {
                self.closed.get_or_insert(None);
            }
        }
        self.closed.is_none()
    }

    async fn on_frame(&mut self, frame: Frame) {
        let Frame {
            kind,
            flags,
            stream,
            length,
            body,
        } = frame;
        if kind == PING && flags & SYN != 0 {
            self.send_bytes(Frame::bare(PING, ACK, stream, length).bytes())
                .await;
        }
        if stream == 0 {
            return;
        }
        let new = !self.streams.contains_key(&stream);
        let state = self.streams.entry(stream).or_insert_with(|| Stream {
            received: BytesMut::new(),
            may_send: INITIAL_WINDOW,
            is_reset: false,
        });
        state.received.extend_from_slice(&body);
        state.is_reset |= flags & (RST | FIN) != 0;
        if kind == WINDOW {
            state.may_send += length;
        }
        if new {
            // "Accepted", before anything else.
            state.may_send -= 1;
            self.send_bytes(Frame::data(ACK, stream, &[1]).bytes())
                .await;
        }
        if kind == DATA && length > 0 {
            self.send_bytes(Frame::bare(WINDOW, 0, stream, length).bytes())
                .await;
        }
    }
}
