//! Frames of the multiplexer (yamux), written and read by hand, so that a test can break every rule.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Content of a stream.
pub const DATA: u8 = 0;
/// Makes a window larger.
pub const WINDOW: u8 = 1;
/// Asks whether the other end is there.
pub const PING: u8 = 2;
/// Ends the session.
pub const GO_AWAY: u8 = 3;

/// The first frame of a stream from the end that opens it.
pub const SYN: u16 = 1;
/// The first frame of a stream from the end that accepts it.
pub const ACK: u16 = 2;
/// The last frame of a stream from this end.
pub const FIN: u16 = 4;
/// The stream is broken.
pub const RST: u16 = 8;

/// Length of a frame's head.
const HEAD: usize = 12;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// [`DATA`] and so on.
    pub kind: u8,
    /// [`SYN`] and so on.
    pub flags: u16,
    /// The stream, 0 for the session.
    pub stream: u32,
    /// Length of the body, or the value that the type has instead.
    pub length: u32,
    /// The content; only [`DATA`] has one.
    pub body: Bytes,
}

impl Frame {
    /// A data frame.
    pub fn data(flags: u16, stream: u32, body: &[u8]) -> Self {
        let length = u32::try_from(body.len()).unwrap();
        Self {
            body: Bytes::copy_from_slice(body),
            ..Self::bare(DATA, flags, stream, length)
        }
    }

    /// A frame without a body, whatever its length says.
    pub fn bare(kind: u8, flags: u16, stream: u32, length: u32) -> Self {
        Self {
            kind,
            flags,
            stream,
            length,
            body: Bytes::new(),
        }
    }

    /// The frame as it is sent.
    pub fn bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEAD + self.body.len());
        self.write(&mut out);
        out.freeze()
    }

    /// Appends the frame to `out`.
    pub fn write(&self, out: &mut BytesMut) {
        out.put_u8(0);
        out.put_u8(self.kind);
        out.put_u16(self.flags);
        out.put_u32(self.stream);
        out.put_u32(self.length);
        out.put_slice(&self.body);
    }

    /// Takes a frame from the front of `buffer`, once all of it is there.
    pub fn take(buffer: &mut BytesMut) -> Option<Self> {
        let mut head = buffer.get(..HEAD)?;
        assert_eq!(head.get_u8(), 0, "a frame of another version");
        let (kind, flags) = (head.get_u8(), head.get_u16());
        let (stream, length) = (head.get_u32(), head.get_u32());
        let body_length = if kind == DATA { length as usize } else { 0 };
        if buffer.len() < HEAD + body_length {
            return None;
        }
        buffer.advance(HEAD);
        Some(Self {
            kind,
            flags,
            stream,
            length,
            body: buffer.split_to(body_length).freeze(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_once_it_is_whole() {
        let frame = Frame::data(SYN, 7, b"abc");
        let bytes = frame.bytes();
        let mut buffer = BytesMut::new();
        for byte in &bytes[..bytes.len() - 1] {
            buffer.put_u8(*byte);
            assert!(Frame::take(&mut buffer).is_none());
        }
        buffer.put_u8(bytes[bytes.len() - 1]);
        assert_eq!(Frame::take(&mut buffer), Some(frame));
        assert!(buffer.is_empty());
    }
}
