//! A raw connection of HTTP/1.1, HTTP/2 or WebSocket, from either end, that keeps the rules of flow control and no others.
//!
//! What is written is exactly what a shape says; nothing of the answers is kept.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;
use testkit::http2::{Frame, PREFACE};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, mpsc},
};
use tunnel_ops::task::Owned;

use super::{
    Protocol,
    encode::{head_frames, literal, message, take_frame},
    line::Line,
};

/// Bytes of a window that HTTP/2 begins with.
const INITIAL_WINDOW: i64 = 65_535;

/// The largest window of HTTP/2.
pub const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// How much is written at once where pieces are small.
const BATCH: usize = 64;

/// Field lines of a head.
pub type Fields<'a> = &'a [(&'a str, &'a str)];

/// What an end of a connection reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Everything, and gives windows back.
    All,
    /// Frames, without giving windows back.
    Frames,
    /// Nothing.
    Nothing,
}

/// What the other end of HTTP/2 sent on a stream.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// The stream.
    pub stream: u32,
    /// The first byte of content; `None` for a head, or for empty content.
    pub first: Option<u8>,
    /// Length of the frame.
    pub length: usize,
    /// Whether it ends the message.
    pub is_last: bool,
}

/// One end of a connection.
pub struct Peer {
    protocol: Protocol,
    path: String,
    authority: String,
    is_server: bool,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    reader: Mutex<Option<OwnedReadHalf>>,
    reading: Mutex<Option<Owned<()>>>,
    /// What was read before this had the connection.
    behind: Mutex<Vec<u8>>,
    windows: Mutex<Windows>,
    changed: Notify,
    next_stream: AtomicU32,
    line: Arc<Line>,
}

#[derive(Default)]
struct Windows {
    connection: i64,
    initial: i64,
    streams: HashMap<u32, i64>,
    is_over: bool,
}

impl Peer {
    fn new(
        socket: TcpStream,
        protocol: Protocol,
        (authority, path): (&str, &str),
        is_server: bool,
        line: Arc<Line>,
    ) -> Arc<Self> {
        let (reader, writer) = socket.into_split();
        Arc::new(Self {
            protocol,
            path: path.to_owned(),
            authority: authority.to_owned(),
            is_server,
            writer: writer.into(),
            reader: Some(reader).into(),
            reading: None.into(),
            behind: Mutex::default(),
            windows: Windows {
                connection: INITIAL_WINDOW,
                initial: INITIAL_WINDOW,
                ..Windows::default()
            }
            .into(),
            changed: Notify::new(),
            next_stream: 1.into(),
            line,
        })
    }

    /// A platform client's end, which asks this authority for this path. Over HTTP/2 each stream has this window, and the connection one without end.
    pub async fn client(
        socket: TcpStream,
        protocol: Protocol,
        (authority, path): (&str, &str),
        (reads, window): (Reads, u32),
        line: Arc<Line>,
    ) -> Arc<Self> {
        let peer = Self::new(socket, protocol, (authority, path), false, line);
        if protocol.is_http2() {
            let settings = [&[0, 4], &window.to_be_bytes()[..]].concat();
            let more = LARGEST_WINDOW - INITIAL_WINDOW as u32;
            let start = [
                PREFACE.as_bytes(),
                &Frame::new(Frame::SETTINGS, 0, 0, &settings).bytes(),
                &Frame::new(Frame::WINDOW_UPDATE, 0, 0, &more.to_be_bytes()).bytes(),
            ];
            peer.send(start.concat()).await;
        }
        if protocol != Protocol::WebSocket {
            peer.read(reads, None);
        }
        peer
    }

    /// An upstream's end of HTTP/2, of which the preface is read, and `rest` behind it. It gives no stream more than the first
    /// window, and the connection one without end.
    pub async fn http2_server(
        socket: TcpStream,
        rest: Vec<u8>,
        line: Arc<Line>,
    ) -> (Arc<Self>, mpsc::Receiver<Received>) {
        let peer = Self::new(socket, Protocol::Http2, ("", ""), true, line);
        let streams = [0, 3, 0, 0, 3, 232];
        let more = LARGEST_WINDOW - INITIAL_WINDOW as u32;
        let start = [
            Frame::new(Frame::SETTINGS, 0, 0, &streams).bytes(),
            Frame::new(Frame::WINDOW_UPDATE, 0, 0, &more.to_be_bytes()).bytes(),
        ];
        peer.write(&start.concat()).await;
        let (received, events) = mpsc::channel(1_024);
        *peer.behind.lock() = rest;
        peer.read(Reads::Frames, Some(received));
        (peer, events)
    }

    /// An upstream's end of HTTP/1.1 or WebSocket, of which the request's head is read.
    pub fn http1_server(socket: TcpStream, protocol: Protocol, line: Arc<Line>) -> Arc<Self> {
        Self::new(socket, protocol, ("", ""), true, line)
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// `Host` of the requests.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Whether this is a server's end.
    pub fn is_server(&self) -> bool {
        self.is_server
    }

    /// Whether the other end is known to have gone.
    pub fn is_over(&self) -> bool {
        self.windows.lock().is_over
    }

    /// The open streams of HTTP/2.
    pub fn streams(&self) -> Vec<u32> {
        self.windows.lock().streams.keys().copied().collect()
    }

    /// Begins to read.
    pub fn read(self: &Arc<Self>, reads: Reads, received: Option<mpsc::Sender<Received>>) {
        let reader = self.reader.lock().take();
        let (Some(reader), true) = (reader, reads != Reads::Nothing) else {
            return;
        };
        // It ends with the connection, which the peer's own end would otherwise wait for.
        let peer = Arc::downgrade(self);
        let is_http2 = self.protocol.is_http2();
        let behind = std::mem::take(&mut *self.behind.lock());
        let reading = Owned::spawn("peer", async move {
            if is_http2 {
                read_frames((reader, behind), reads, &peer, received).await;
            } else {
                discard(reader).await;
            }
            if let Some(peer) = peer.upgrade() {
                peer.windows.lock().is_over = true;
                peer.changed.notify_waiters();
            }
        });
        *self.reading.lock() = Some(reading);
    }

    /// Reads one byte of a connection that is not read otherwise; `false` at its end.
    pub async fn read_byte(&self) -> bool {
        let reader = self.reader.lock().take();
        let Some(mut reader) = reader else {
            return false;
        };
        let is_more = reader.read_u8().await.is_ok();
        *self.reader.lock() = Some(reader);
        is_more
    }

    /// Writes bytes; `false` when the connection is over.
    pub async fn send(&self, bytes: impl AsRef<[u8]>) -> bool {
        self.send_pieces(1, bytes.as_ref()).await
    }

    /// Writes so many frames, chunks or messages; `false` when the connection is over.
    pub async fn send_pieces(&self, count: usize, bytes: &[u8]) -> bool {
        self.line.take(count, bytes.len()).await;
        let is_sent = self.write(bytes).await;
        if is_sent && !self.is_server {
            self.line.count(bytes.len());
        }
        is_sent
    }

    /// Writes a piece of content past the line, once windows have room for it; `false` when the connection is over.
    pub async fn write_piece(&self, stream: u32, piece: &[u8]) -> bool {
        if self.room(stream, piece.len()).await.is_none() {
            return false;
        }
        self.take_room(stream, piece.len());
        self.write(&self.piece(stream, piece)).await
    }

    /// Writes bytes past the line, as those who are honest do; `false` when the connection is over.
    pub async fn write(&self, bytes: &[u8]) -> bool {
        let is_sent = self.writer.lock().await.write_all(bytes).await.is_ok();
        if !is_sent {
            self.windows.lock().is_over = true;
            self.changed.notify_waiters();
        }
        is_sent
    }

    /// Writes a frame of HTTP/2; `false` when the connection is over.
    pub async fn frame(&self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.send(Frame::new(kind, flags, stream, payload).bytes())
            .await
    }

    /// Asks for the hostile path, and returns the stream, which is 0 where the protocol has none.
    ///
    /// Without `is_last` content follows: over HTTP/1.1 in chunks, unless the fields have a length. A WebSocket is open
    /// when this returns.
    pub async fn ask(self: &Arc<Self>, method: &str, fields: Fields<'_>, is_last: bool) -> u32 {
        match self.protocol {
            Protocol::Http1 | Protocol::WebSocket => {
                self.send(self.text_head(method, fields, is_last)).await;
                if self.protocol == Protocol::WebSocket {
                    self.wait_head().await;
                }
                0
            }
            Protocol::Http2 | Protocol::Grpc => {
                let block = self.block(method, fields);
                self.ask_block(&block, is_last).await
            }
        }
    }

    /// Asks by a field block as it stands.
    pub async fn ask_block(&self, block: &[u8], is_last: bool) -> u32 {
        let stream = self.next();
        self.send(head_frames(stream, block, is_last)).await;
        stream
    }

    /// A stream that nothing was sent on.
    pub fn next(&self) -> u32 {
        let stream = self.next_stream.fetch_add(2, Ordering::Relaxed);
        let mut windows = self.windows.lock();
        let initial = windows.initial;
        windows.streams.insert(stream, initial);
        stream
    }

    /// The field block of a request for the hostile path.
    pub fn block(&self, method: &str, fields: Fields<'_>) -> Vec<u8> {
        let mut block = Vec::new();
        let method = if self.protocol == Protocol::Grpc {
            "POST"
        } else {
            method
        };
        for (name, value) in [
            (":method", method),
            (":scheme", "http"),
            (":path", &self.path),
            (":authority", &self.authority),
        ] {
            literal(&mut block, name, value);
        }
        if self.protocol == Protocol::Grpc {
            literal(&mut block, "content-type", "application/grpc");
            literal(&mut block, "te", "trailers");
        }
        for (name, value) in fields {
            literal(&mut block, name, value);
        }
        block
    }

    /// The head of a request for the hostile path over HTTP/1.1, or of a WebSocket.
    pub fn text_head(&self, method: &str, fields: Fields<'_>, is_last: bool) -> Vec<u8> {
        let is_websocket = self.protocol == Protocol::WebSocket;
        let method = if is_websocket { "GET" } else { method };
        let mut head = format!(
            "{method} {} HTTP/1.1\r\nHost: {}\r\n",
            self.path, self.authority
        );
        if is_websocket {
            head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        } else if !is_last && fields.iter().all(|(name, _)| *name != "content-length") {
            head += "Transfer-Encoding: chunked\r\n";
        }
        for (name, value) in fields {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        head.into_bytes()
    }

    /// Answers 200 (101 for a WebSocket) on a stream, which over HTTP/1.1 is its connection's last answer. Without `is_last` content follows.
    pub async fn answer(&self, stream: u32, fields: Fields<'_>, is_last: bool) -> bool {
        match self.protocol {
            Protocol::Http2 | Protocol::Grpc => {
                // `:status: 200` of the static table (RFC 7541 appendix A).
                let mut block = vec![0x88];
                for (name, value) in fields {
                    literal(&mut block, name, value);
                }
                self.send(head_frames(stream, &block, is_last)).await
            }
            Protocol::Http1 | Protocol::WebSocket => {
                let mut head = match self.protocol {
                    Protocol::WebSocket => {
                        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                         Upgrade: websocket\r\nSec-WebSocket-Accept: \
                         s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
                    }
                    _ if is_last => "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n",
                    _ => "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n",
                }
                .to_owned();
                for (name, value) in fields {
                    head += &format!("{name}: {value}\r\n");
                }
                head += "\r\n";
                self.send(head).await
            }
        }
    }

    /// Sends content in pieces, each a chunk, a frame or a message, as far as windows go. Ends early with the stream.
    pub async fn pieces(&self, stream: u32, piece: &[u8], count: usize) -> bool {
        let one = self.piece(stream, piece);
        let mut left = count;
        while left > 0 {
            let room = if self.protocol.is_http2() && !piece.is_empty() {
                match self.room(stream, piece.len()).await {
                    Some(room) => room / piece.len(),
                    None => return false,
                }
            } else {
                left
            };
            let batch = left.min(room).min(BATCH.max(16_384 / one.len()));
            self.take_room(stream, batch * piece.len());
            if !self.send_pieces(batch, &one.repeat(batch)).await {
                return false;
            }
            left -= batch;
        }
        true
    }

    /// A chunk, a frame of data or a message.
    fn piece(&self, stream: u32, piece: &[u8]) -> Vec<u8> {
        match self.protocol {
            Protocol::Http2 | Protocol::Grpc => Frame::new(Frame::DATA, 0, stream, piece).bytes(),
            Protocol::Http1 => {
                let size = format!("{:x}\r\n", piece.len());
                [size.as_bytes(), piece, b"\r\n"].concat()
            }
            Protocol::WebSocket => message(0x82, piece, !self.is_server),
        }
    }

    /// Waits until the windows have room for so many bytes on a stream; how much they have. `None` when it is over.
    pub async fn room(&self, stream: u32, least: usize) -> Option<usize> {
        loop {
            let changed = self.changed.notified();
            {
                let windows = self.windows.lock();
                if windows.is_over {
                    return None;
                }
                let room = windows.connection.min(*windows.streams.get(&stream)?);
                if let Ok(room) = usize::try_from(room)
                    && room >= least
                {
                    return Some(room);
                }
            }
            changed.await;
        }
    }

    fn take_room(&self, stream: u32, bytes: usize) {
        let mut windows = self.windows.lock();
        windows.connection -= bytes as i64;
        if let Some(window) = windows.streams.get_mut(&stream) {
            *window -= bytes as i64;
        }
    }

    /// Reads the head of an answer, byte by byte, and nothing behind it.
    async fn wait_head(&self) {
        let reader = self.reader.lock().take();
        let Some(mut reader) = reader else { return };
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match reader.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        *self.reader.lock() = Some(reader);
    }
}

async fn discard(mut reader: OwnedReadHalf) {
    let mut buffer = vec![0; 64 * 1024];
    while reader
        .read(&mut buffer)
        .await
        .is_ok_and(|length| length > 0)
    {}
}

/// Reads frames until the connection is over or nobody has the peer.
async fn read_frames(
    (mut reader, behind): (OwnedReadHalf, Vec<u8>),
    reads: Reads,
    peer: &std::sync::Weak<Peer>,
    received: Option<mpsc::Sender<Received>>,
) {
    let mut buffer = bytes::BytesMut::from(&behind[..]);
    loop {
        while let Some(frame) = take_frame(&mut buffer) {
            let Some(peer) = peer.upgrade() else { return };
            let reply = peer.on_frame(&frame, reads);
            if !reply.is_empty() && !peer.write(&reply).await {
                return;
            }
            drop(peer);
            let carries = matches!(frame.kind, Frame::HEADERS | Frame::DATA);
            if let (Some(received), true) = (&received, carries) {
                let is_data = frame.kind == Frame::DATA;
                let event = Received {
                    stream: frame.stream,
                    first: frame.payload.first().copied().filter(|_| is_data),
                    length: frame.payload.len() + 9,
                    is_last: frame.flags & Frame::END_STREAM != 0,
                };
                if received.send(event).await.is_err() {
                    return;
                }
            }
        }
        let read = reader.read_buf(&mut buffer).await;
        if !read.is_ok_and(|length| length > 0) {
            return;
        }
    }
}

impl Peer {
    /// Keeps the windows, and returns what is to be replied.
    fn on_frame(&self, frame: &Frame, reads: Reads) -> Vec<u8> {
        let number = |bytes: Option<&[u8]>| {
            let bytes = bytes.and_then(|bytes| bytes.first_chunk::<4>());
            i64::from(bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes)))
        };
        let mut reply = Vec::new();
        let mut windows = self.windows.lock();
        match frame.kind {
            Frame::SETTINGS if frame.flags & Frame::ACK == 0 => {
                for setting in frame.payload.chunks_exact(6) {
                    if setting[1] == 4 {
                        let initial = number(setting.get(2..));
                        let more = initial - windows.initial;
                        windows.initial = initial;
                        windows
                            .streams
                            .values_mut()
                            .for_each(|window| *window += more);
                    }
                }
                reply = Frame::new(Frame::SETTINGS, Frame::ACK, 0, &[]).bytes();
            }
            Frame::PING if frame.flags & Frame::ACK == 0 => {
                reply = Frame::new(Frame::PING, Frame::ACK, 0, &frame.payload).bytes();
            }
            Frame::WINDOW_UPDATE if frame.stream == 0 => {
                windows.connection += number(Some(&frame.payload));
            }
            Frame::WINDOW_UPDATE => {
                if let Some(window) = windows.streams.get_mut(&frame.stream) {
                    *window += number(Some(&frame.payload));
                }
            }
            Frame::HEADERS if self.is_server => {
                let initial = windows.initial;
                windows.streams.insert(frame.stream, initial);
            }
            Frame::RST_STREAM => drop(windows.streams.remove(&frame.stream)),
            Frame::DATA if reads == Reads::All && !frame.payload.is_empty() => {
                let length = u32::try_from(frame.payload.len()).unwrap_or_default();
                for stream in [0, frame.stream] {
                    let update = Frame::new(Frame::WINDOW_UPDATE, 0, stream, &length.to_be_bytes());
                    reply.extend(update.bytes());
                }
            }
            _ => return reply,
        }
        drop(windows);
        self.changed.notify_waiters();
        reply
    }
}
