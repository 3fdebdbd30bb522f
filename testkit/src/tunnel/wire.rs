//! An end of a tunnel that writes the wire by hand, so that it can break every rule of it.

use std::collections::HashSet;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel_proto::handshake::InstanceSecret;
pub use tunnel_proto::session::Side;

use super::client::{ServerUnderTest, dial, random_instance, session_request};
use crate::{
    deadline::soon,
    http1::Duplex,
    yamux::{ACK, Frame, SYN},
};

/// First byte of a WebSocket frame that is a whole message of text.
pub const TEXT: u8 = 0x81;
/// First byte of a WebSocket frame that is a whole message of bytes.
pub const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// In the second byte of a frame: it is masked, as those of clients are.
const MASKED: u8 = 0x80;

/// First byte on a stream.
const ACCEPTED: u8 = 1;

/// A session without anything behind it.
pub struct Wire {
    io: Box<dyn Duplex>,
    side: Side,
    read: BytesMut,
    /// Bytes of the multiplexer.
    muxed: BytesMut,
    /// Streams that were opened, and on which nothing was answered.
    new: HashSet<u32>,
    /// Whether pings are answered.
    pub is_alive: bool,
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
    /// An end on an upgraded connection, of which `read` was read already.
    pub fn new(io: Box<dyn Duplex>, read: &[u8], side: Side) -> Self {
        Self {
            io,
            side,
            read: read.into(),
            muxed: BytesMut::new(),
            new: HashSet::new(),
            is_alive: true,
        }
    }

    /// A client of `runtime` that is welcome.
    pub async fn connect(server: &impl ServerUnderTest, runtime: &str) -> Self {
        Self::of_instance(server, runtime, random_instance()).await
    }

    /// A client of `runtime` that is this instance, and is welcome.
    pub async fn of_instance(
        server: &impl ServerUnderTest,
        runtime: &str,
        instance: InstanceSecret,
    ) -> Self {
        let mut wire = Self::mute(server, runtime, instance).await;
        wire.be_ready().await;
        wire
    }

    /// A client that was accepted, and has not returned the server's echo.
    pub async fn mute(
        server: &impl ServerUnderTest,
        runtime: &str,
        instance: InstanceSecret,
    ) -> Self {
        let request = session_request(server.token(runtime), instance);
        let connected = dial(server, &request).await;
        assert_eq!(connected.status, 101);
        Self::new(connected.io, &connected.behind, Side::Client)
    }

    /// Accepts the stream by which the server probes the session, and waits for its welcome.
    async fn be_ready(&mut self) {
        let stream = self.next_frame().await.stream;
        self.new.insert(stream);
        self.data(stream, &[ACCEPTED]).await;
        while self.message().await != Some(Message::Text) {}
    }

    /// Writes bytes as they are. That the server has gone shows when something is read.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = soon("writing", async {
            self.io.write_all(bytes).await?;
            self.io.flush().await
        })
        .await;
    }

    /// Writes a frame of WebSocket.
    pub async fn frame(&mut self, first: u8, payload: &[u8]) {
        let mask = match self.side {
            Side::Client => MASKED,
            Side::Server => 0,
        };
        let mut frame = vec![first];
        match payload.len() {
            short @ ..126 => frame.push(mask | short as u8),
            long @ 126..65_536 => {
                frame.push(mask | 126);
                frame.extend((long as u16).to_be_bytes());
            }
            huge => {
                frame.push(mask | 127);
                frame.extend((huge as u64).to_be_bytes());
            }
        }
        if self.side == Side::Client {
            // A mask of zeros changes nothing.
            frame.extend([0; 4]);
        }
        frame.extend_from_slice(payload);
        self.send(&frame).await;
    }

    /// Writes bytes on a stream of the multiplexer.
    pub async fn data(&mut self, stream: u32, bytes: &[u8]) {
        for piece in bytes.chunks(16 * 1024) {
            let flags = if self.new.remove(&stream) { ACK } else { 0 };
            let frame = Frame::data(flags, stream, piece).bytes();
            self.frame(BINARY, &frame).await;
        }
    }

    /// Answers a request with a message; a stream that is new is accepted before.
    pub async fn answer(&mut self, stream: u32, message: &[u8]) {
        if self.new.contains(&stream) {
            self.data(stream, &[ACCEPTED]).await;
        }
        self.data(stream, message).await;
    }

    /// Waits for a request that fits into one frame; the stream that it has come on.
    pub async fn request(&mut self) -> u32 {
        self.next_data().await.stream
    }

    /// The next frame of the multiplexer that has content.
    pub async fn next_data(&mut self) -> Frame {
        loop {
            let frame = self.next_frame().await;
            if frame.flags & SYN != 0 {
                self.new.insert(frame.stream);
            }
            if !frame.body.is_empty() {
                return frame;
            }
        }
    }

    async fn next_frame(&mut self) -> Frame {
        let frame = self.try_frame().await;
        frame.unwrap_or_else(|end| panic!("the session has ended: {end:?}"))
    }

    /// The next frame of the multiplexer.
    ///
    /// # Errors
    /// The code by which the session ended, if the other end gave one.
    pub async fn try_frame(&mut self) -> Result<Frame, Option<u16>> {
        loop {
            if let Some(frame) = Frame::take(&mut self.muxed) {
                return Ok(frame);
            }
            match self.message().await {
                Some(Message::Data(data)) => self.muxed.extend_from_slice(&data),
                Some(Message::Other | Message::Pong | Message::Text) => {}
                Some(Message::Close(code)) => return Err(Some(code)),
                None => return Err(None),
            }
        }
    }

    /// Pings, and waits for the pong: what was sent before was read by then.
    ///
    /// # Panics
    /// When the session ends first.
    pub async fn round_trip(&mut self) {
        assert!(self.try_round_trip().await, "the session has ended");
    }

    /// As [`Wire::round_trip`]; `false` when the session ends first.
    pub async fn try_round_trip(&mut self) -> bool {
        self.frame(PING, b"round trip").await;
        loop {
            match self.message().await {
                Some(Message::Pong) => return true,
                Some(Message::Close(_)) | None => return false,
                Some(_) => {}
            }
        }
    }

    /// Waits for the end of the session; the code that the server gave, if it gave one.
    pub async fn end(&mut self) -> Option<u16> {
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
        let first = self.read[0];
        let mut length = usize::from(self.read[1] & !MASKED);
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
        let masked_from = head;
        if self.side == Side::Server {
            head += 4;
        }
        self.fill(head + length).await?;
        let start = self.read.split_to(head);
        let mut payload = self.read.split_to(length).to_vec();
        let mask = start[masked_from..].iter().cycle();
        payload
            .iter_mut()
            .zip(mask)
            .for_each(|(byte, mask)| *byte ^= mask);
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
