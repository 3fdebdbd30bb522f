//! Frames of HTTP/2 (RFC 9113 section 4.1), written and read without any check, so that a test can break every rule.

use crate::http1::RawConnection;

/// The connection preface of a client (RFC 9113 section 3.4).
pub const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// [`Frame::DATA`] and so on.
    pub kind: u8,
    /// [`Frame::END_STREAM`] and so on.
    pub flags: u8,
    /// The stream, 0 for the connection.
    pub stream: u32,
    /// The bytes after the frame header of nine bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Content of a message.
    pub const DATA: u8 = 0;
    /// A field section: a head or trailers.
    pub const HEADERS: u8 = 1;
    /// How important a stream is, which nobody has to know.
    pub const PRIORITY: u8 = 2;
    /// The end of a stream before its message's end.
    pub const RST_STREAM: u8 = 3;
    /// Settings of the sender.
    pub const SETTINGS: u8 = 4;
    /// A request that the server makes up.
    pub const PUSH_PROMISE: u8 = 5;
    /// A ping, or with [`Frame::ACK`] its answer.
    pub const PING: u8 = 6;
    /// The end of the connection.
    pub const GOAWAY: u8 = 7;
    /// Room for more content.
    pub const WINDOW_UPDATE: u8 = 8;
    /// More of a field section.
    pub const CONTINUATION: u8 = 9;

    /// The last frame of its stream.
    pub const END_STREAM: u8 = 1;
    /// The last frame of its field section.
    pub const END_HEADERS: u8 = 4;
    /// The payload begins with the length of the padding at its end.
    pub const PADDED: u8 = 8;
    /// The field section comes after a priority of five bytes.
    pub const HAS_PRIORITY: u8 = 0x20;
    /// The acknowledgement of a `SETTINGS` or `PING` frame.
    pub const ACK: u8 = 1;

    /// A frame with this payload.
    pub fn new(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Self {
        Self {
            kind,
            flags,
            stream,
            payload: payload.to_vec(),
        }
    }

    /// The frame as it is sent.
    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let (kind, stream) = ([self.kind, self.flags], self.stream.to_be_bytes());
        [&length[1..], &kind, &stream, &self.payload].concat()
    }
}

impl RawConnection {
    /// Sends the preface of a client and empty settings.
    pub async fn begin_http2_client(&mut self) {
        let settings = Frame::new(Frame::SETTINGS, 0, 0, &[]);
        self.send([PREFACE.as_bytes(), &settings.bytes()].concat())
            .await;
    }

    /// Takes the preface of a client, and sends empty settings.
    pub async fn begin_http2_server(&mut self) {
        self.bytes(PREFACE.len()).await;
        self.send(Frame::new(Frame::SETTINGS, 0, 0, &[]).bytes())
            .await;
    }

    /// The next frame of HTTP/2; `None` at the end of the connection.
    pub async fn http2_frame(&mut self) -> Option<Frame> {
        let head = self.try_bytes(9).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = self.try_bytes(length as usize).await.ok()?;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        })
    }
}
