//! A tunnel client that writes the wire by hand, so that it can break every rule of it.

use std::collections::HashSet;

use bytes::BytesMut;
use testkit::{
    deadline::soon,
    http1::Duplex,
    yamux::{ACK, Frame, SYN},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel_proto::handshake::InstanceSecret;

use crate::{
    fake::{dial, random_instance, session_request},
    rig::Rig,
};

/// First bytes of WebSocket frames that are whole messages.
pub(crate) const TEXT: u8 = 0x81;
pub(crate) const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// First byte on a stream.
const ACCEPTED: u8 = 1;

/// A session without anything behind it.
pub(crate) struct Wire {
    io: Box<dyn Duplex>,
    read: BytesMut,
    /// Bytes of the multiplexer.
    muxed: BytesMut,
    /// Streams that were opened, and on which nothing was answered.
    new: HashSet<u32>,
    /// Whether pings are answered.
    pub(crate) is_alive: bool,
}

/// What the server did next.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Data(Vec<u8>),
    Text,
    Pong,
    Other,
    Close(u16),
}

impl Wire {
    pub(crate) async fn connect(rig: &Rig, runtime: &str) -> Self {
        Self::of_instance(rig, runtime, random_instance()).await
    }

    pub(crate) async fn of_instance(rig: &Rig, runtime: &str, instance: InstanceSecret) -> Self {
        let mut wire = Self::mute(rig, runtime, instance).await;
        wire.be_ready().await;
        wire
    }

    /// One that was accepted, and has not returned the server's echo.
    pub(crate) async fn mute(rig: &Rig, runtime: &str, instance: InstanceSecret) -> Self {
        let request = session_request(rig.token(runtime), instance);
        let connected = dial(rig, &request).await;
        assert_eq!(connected.status, 101);
        Self {
            io: connected.io,
            read: connected.behind[..].into(),
            muxed: BytesMut::new(),
            new: HashSet::new(),
            is_alive: true,
        }
    }

    /// Accepts the stream by which the server probes the session, and waits for its welcome.
    async fn be_ready(&mut self) {
        let stream = self.next_frame().await.stream;
        self.new.insert(stream);
        self.data(stream, &[ACCEPTED]).await;
        while self.message().await != Some(Message::Text) {}
    }

    /// Writes bytes as they are. That the server has gone shows when something is read.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = soon("writing", async {
            self.io.write_all(bytes).await?;
            self.io.flush().await
        })
        .await;
    }

    /// Writes a frame of WebSocket, masked as those of clients are.
    pub(crate) async fn frame(&mut self, first: u8, payload: &[u8]) {
        let mut frame = vec![first];
        match payload.len() {
            short @ ..126 => frame.push(0x80 | short as u8),
            long @ 126..65_536 => {
                frame.push(0x80 | 126);
                frame.extend((long as u16).to_be_bytes());
            }
            huge => {
                frame.push(0x80 | 127);
                frame.extend((huge as u64).to_be_bytes());
            }
        }
        // A mask of zeros changes nothing.
        frame.extend([0; 4]);
        frame.extend_from_slice(payload);
        self.send(&frame).await;
    }

    /// Writes bytes on a stream of the multiplexer.
    pub(crate) async fn data(&mut self, stream: u32, bytes: &[u8]) {
        for piece in bytes.chunks(16 * 1024) {
            let flags = if self.new.remove(&stream) { ACK } else { 0 };
            let frame = Frame::data(flags, stream, piece).bytes();
            self.frame(BINARY, &frame).await;
        }
    }

    /// Answers a request with a message; a stream that is new is accepted before.
    pub(crate) async fn answer(&mut self, stream: u32, message: &[u8]) {
        if self.new.contains(&stream) {
            self.data(stream, &[ACCEPTED]).await;
        }
        self.data(stream, message).await;
    }

    /// Waits for a request that fits into one frame; the stream that it has come on.
    pub(crate) async fn request(&mut self) -> u32 {
        loop {
            let frame = self.next_frame().await;
            if frame.flags & SYN != 0 {
                self.new.insert(frame.stream);
            }
            if !frame.body.is_empty() {
                return frame.stream;
            }
        }
    }

    async fn next_frame(&mut self) -> Frame {
        loop {
            if let Some(frame) = Frame::take(&mut self.muxed) {
                return frame;
            }
            self.more_muxed().await;
        }
    }

    async fn more_muxed(&mut self) {
        match self.message().await {
            Some(Message::Data(data)) => self.muxed.extend_from_slice(&data),
            Some(Message::Other | Message::Pong | Message::Text) => {}
            end => panic!("the session has ended: {end:?}"),
        }
    }

    /// Pings, and waits for the pong: what was sent before was read by then.
    pub(crate) async fn round_trip(&mut self) {
        self.frame(PING, b"round trip").await;
        while self.message().await != Some(Message::Pong) {}
    }

    /// Waits for the end of the session; the code that the server gave, if it gave one.
    pub(crate) async fn end(&mut self) -> Option<u16> {
        loop {
            match self.message().await {
                Some(Message::Close(code)) => return Some(code),
                Some(_) => {}
                None => return None,
            }
        }
    }

    /// The next message; `None` at the connection's end.
    async fn message(&mut self) -> Option<Message> {
        self.fill(2).await?;
        let (first, mut length) = (self.read[0], usize::from(self.read[1]));
        let mut head = 2;
        if length == 126 {
            self.fill(4).await?;
            length = usize::from(u16::from_be_bytes([self.read[2], self.read[3]]));
            head = 4;
        } else if length == 127 {
            self.fill(10).await?;
            length = u64::from_be_bytes(self.read[2..10].try_into().unwrap()) as usize;
            head = 10;
        }
        self.fill(head + length).await?;
        let _ = self.read.split_to(head);
        let payload = self.read.split_to(length).to_vec();
        Some(match first {
            BINARY => Message::Data(payload),
            CLOSE => Message::Close(u16::from_be_bytes([payload[0], payload[1]])),
            PING => {
                if self.is_alive {
                    self.frame(PONG, &payload).await;
                }
                Message::Other
            }
            PONG => Message::Pong,
            TEXT => Message::Text,
            _ => Message::Other,
        })
    }

    async fn fill(&mut self, length: usize) -> Option<()> {
        while self.read.len() < length {
            match soon("a message", self.io.read_buf(&mut self.read)).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
        Some(())
    }
}

/// A binary response: its framing, and then what the test wants.
pub(crate) fn response(parts: &[&[u8]]) -> Vec<u8> {
    [&[3][..], &parts.concat()].concat()
}

/// A variable-length integer (RFC 9000 section 16).
pub(crate) fn integer(value: u64) -> Vec<u8> {
    match value {
        0..64 => vec![value as u8],
        64..16_384 => (0x4000 | value as u16).to_be_bytes().to_vec(),
        _ => (0x8000_0000 | value as u32).to_be_bytes().to_vec(),
    }
}

/// A field line.
pub(crate) fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [
        &integer(name.len() as u64)[..],
        name,
        &integer(value.len() as u64),
        value,
    ]
    .concat()
}
