//! A hostile end of a tunnel: a client with a good token, or a server that a client was told to dial.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use testkit::{
    bhttp::{field, number, string},
    tunnel::wire::{BINARY, TEXT, Wire},
    yamux::{ACK, DATA, Frame, PING, RST, SYN, WINDOW},
};
use tokio::time::timeout;

use super::line::Line;

/// Bytes that a stream may carry before its window grows.
const INITIAL_WINDOW: usize = 256 * 1024;

/// The longest body of a frame here.
const FRAME: usize = 16 * 1024;

/// The longest message: below it as many frames are joined as fit.
const MESSAGE: usize = 64 * 1024;

/// How long nothing comes until something is sent again.
const LOOK: Duration = Duration::from_millis(1);

/// One end of a session.
pub struct TunnelEnd {
    wire: Wire,
    line: Arc<Line>,
    is_server: bool,
    /// The path that is asked for.
    path: String,
    next: u32,
    /// Open streams, and what the other end's requests have begun with: none, where one was asked for already.
    streams: BTreeMap<u32, Option<usize>>,
    /// Whether windows are given back.
    pub gives: bool,
    is_over: bool,
}

impl TunnelEnd {
    /// A client's end behind the 101.
    pub async fn client(mut wire: Wire, line: Arc<Line>) -> Self {
        let hello = r#"{"type":"hello","version":"stranger"}"#;
        wire.frame(TEXT, hello.as_bytes()).await;
        Self::new(wire, false, line, "")
    }

    /// A server's end behind the welcome, which asks for this path.
    pub fn server(wire: Wire, line: Arc<Line>, path: &str) -> Self {
        Self::new(wire, true, line, path)
    }

    fn new(wire: Wire, is_server: bool, line: Arc<Line>, path: &str) -> Self {
        Self {
            wire,
            line,
            path: path.to_owned(),
            is_server,
            next: 1,
            streams: BTreeMap::new(),
            gives: true,
            is_over: false,
        }
    }

    /// Whether this is a server's end.
    pub fn is_server(&self) -> bool {
        self.is_server
    }

    /// Whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Reads what has come. As a client's end, accepts streams; the next one with a request, whose content is not awaited.
    pub async fn look(&mut self) -> Option<u32> {
        while let Ok(frame) = timeout(LOOK, self.wire.try_frame()).await {
            let Ok(frame) = frame else {
                self.is_over = true;
                return None;
            };
            if let Some(stream) = self.on_frame(frame).await {
                return Some(stream);
            }
        }
        None
    }

    async fn on_frame(&mut self, frame: Frame) -> Option<u32> {
        let Frame {
            kind,
            flags,
            stream,
            length,
            ..
        } = frame;
        if kind == PING && flags & SYN != 0 {
            self.send(&Frame::bare(PING, ACK, 0, length).bytes()).await;
        }
        if stream == 0 {
            return None;
        }
        if flags & SYN != 0 {
            self.streams.insert(stream, Some(0));
            self.send(&Frame::data(ACK, stream, &[1]).bytes()).await;
        }
        if flags & RST != 0 {
            self.streams.remove(&stream);
            return None;
        }
        if kind != DATA || length == 0 {
            return None;
        }
        if self.gives {
            self.give(stream, length).await;
        }
        // Requests are told by their first bytes: heads here fit into a few frames, and their content is not looked at.
        let seen = self.streams.get_mut(&stream)?.take()?;
        (seen == 0).then_some(stream)
    }

    /// Gives so much window on a stream.
    pub async fn give(&mut self, stream: u32, bytes: u32) {
        self.send(&Frame::bare(WINDOW, 0, stream, bytes).bytes())
            .await;
    }

    /// The streams that are open.
    pub fn streams(&self) -> Vec<u32> {
        self.streams.keys().copied().collect()
    }

    /// Opens a stream with this message, in frames of this length, as a server's end.
    pub async fn open(&mut self, message: &[u8], frame: usize) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.streams.insert(stream, None);
        self.send(&Frame::bare(WINDOW, SYN, stream, 0).bytes())
            .await;
        self.write(stream, message, frame).await;
        stream
    }

    /// Sends a message on a stream, in frames of this length, as far as its first window goes.
    pub async fn write(&mut self, stream: u32, message: &[u8], frame: usize) {
        let mut joined = Vec::with_capacity(MESSAGE);
        let mut count = 0;
        for piece in message[..message.len().min(INITIAL_WINDOW - 1)].chunks(frame) {
            joined.extend_from_slice(&Frame::data(0, stream, piece).bytes());
            count += 1;
            if joined.len() > MESSAGE - FRAME - 64 {
                self.send_pieces(count, &joined).await;
                joined.clear();
                count = 0;
            }
        }
        self.send_pieces(count, &joined).await;
    }

    /// Resets a stream.
    pub async fn reset(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.send(&Frame::bare(DATA, RST, stream, 0).bytes()).await;
    }

    /// Sends a frame of the multiplexer.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.send_pieces(1, bytes).await;
    }

    /// Sends so many frames of the multiplexer.
    pub async fn send_pieces(&mut self, count: usize, bytes: &[u8]) {
        self.line.take(count, bytes.len()).await;
        self.wire.frame(BINARY, bytes).await;
    }

    /// The head of a request or, from a client's end, of an answer, up to where content begins.
    pub fn head(&self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut head = Vec::new();
        if self.is_server {
            head.push(2);
            for part in ["POST", "http", "a.test", &self.path] {
                head.extend(string(part.as_bytes()));
            }
            head.extend(field(b":content", b"unknown"));
        } else {
            head.push(3);
            head.extend(number(200));
        }
        for (name, value) in fields {
            head.extend(field(name.as_bytes(), value.as_bytes()));
        }
        head.push(0);
        head
    }

    /// Sends a frame of WebSocket.
    pub async fn websocket(&mut self, first: u8, payload: &[u8]) {
        self.wire.frame(first, payload).await;
    }
}

/// Content of so many bytes in chunks of this length.
pub fn chunks(length: usize, total: usize) -> Vec<u8> {
    string(&vec![b'x'; length]).repeat(total / length)
}
