//! Frames of yamux: writes headers, and parses a received byte stream.
//!
//! In: bytes as they arrive, cut anywhere. Out: checked headers, and bodies as slices of the input. Only
//! the start of an incomplete header is buffered.

use bytes::{Buf, Bytes};

use super::MuxError;

/// Length of a header (yamux specification, "framing").
pub(super) const HEADER_BYTES: usize = 12;

/// Opens a stream.
pub(super) const SYN: u16 = 1;
/// Accepts a stream, or answers a ping.
pub(super) const ACK: u16 = 2;
/// Ends the sender's direction of a stream.
pub(super) const FIN: u16 = 4;
/// Ends a stream at once, in both directions.
pub(super) const RST: u16 = 8;

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Data,
    WindowUpdate,
    Ping,
    GoAway,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: FrameKind,
    pub(super) flags: u16,
    /// The stream's id; zero for the session as a whole.
    pub(super) stream: u32,
    /// Length of the body of a data frame; in other frames a value, and no body follows.
    pub(super) value: u32,
}

impl Header {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[1] = match self.kind {
            FrameKind::Data => 0,
            FrameKind::WindowUpdate => 1,
            FrameKind::Ping => 2,
            FrameKind::GoAway => 3,
        };
        bytes[2..4].copy_from_slice(&self.flags.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.value.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, MuxError> {
        let [version, kind, flags @ .., s1, s2, s3, s4, v1, v2, v3, v4] = *bytes;
        if version != 0 {
            return Err(MuxError::Protocol("a version other than 0"));
        }
        let kind = match kind {
            0 => FrameKind::Data,
            1 => FrameKind::WindowUpdate,
            2 => FrameKind::Ping,
            3 => FrameKind::GoAway,
            _ => return Err(MuxError::Protocol("a frame of unknown type")),
        };
        Ok(Self {
            kind,
            flags: u16::from_be_bytes(flags),
            stream: u32::from_be_bytes([s1, s2, s3, s4]),
            value: u32::from_be_bytes([v1, v2, v3, v4]),
        })
    }
}

/// A parsed part of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FramePart {
    /// A frame begins.
    Header(Header),
    /// A piece of the body of the last frame, with its header, and whether it is the last piece.
    Body(Header, Bytes, bool),
}

/// The incremental parser of frames.
#[derive(Default)]
pub(super) struct Frames {
    /// The start of an incomplete header.
    cut: [u8; HEADER_BYTES],
    cut_bytes: usize,
    /// The frame whose body is being received, and how much of it is still to come.
    body: Option<(Header, usize)>,
}

impl Frames {
    /// Takes the next part off the front of `bytes`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// When a header is invalid.
    pub(super) fn next(&mut self, bytes: &mut Bytes) -> Result<Option<FramePart>, MuxError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if let Some((header, left)) = self.body {
            let piece = bytes.split_to(left.min(bytes.len()));
            let left = left - piece.len();
            self.body = (left > 0).then_some((header, left));
            return Ok(Some(FramePart::Body(header, piece, left == 0)));
        }
        let header = if self.cut_bytes == 0
            && let Some(whole) = bytes.first_chunk::<HEADER_BYTES>()
        {
            let header = Header::decode(whole)?;
            bytes.advance(HEADER_BYTES);
            header
        } else {
            let piece = bytes.split_to(bytes.len().min(HEADER_BYTES - self.cut_bytes));
            let end = self.cut_bytes + piece.len();
            self.cut[self.cut_bytes..end].copy_from_slice(&piece);
            if end < HEADER_BYTES {
                self.cut_bytes = end;
                return Ok(None);
            }
            self.cut_bytes = 0;
            Header::decode(&self.cut)?
        };
        if header.kind == FrameKind::Data && header.value > 0 {
            self.body = Some((header, header.value as usize));
        }
        Ok(Some(FramePart::Header(header)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(value: u32) -> Header {
        Header {
            kind: FrameKind::Data,
            flags: FIN,
            stream: 7,
            value,
        }
    }

    #[test]
    fn frames_are_parsed_alike_wherever_the_input_is_cut() {
        let ping = Header {
            kind: FrameKind::Ping,
            flags: SYN,
            stream: 0,
            value: 0x0102_0304,
        };
        let received = [
            &data(5).encode()[..],
            b"abcde",
            &ping.encode(),
            &data(0).encode(),
            &data(1).encode(),
            b"x",
        ]
        .concat();
        for piece in 1..=received.len() {
            let mut frames = Frames::default();
            let (mut headers, mut body, mut ends) = (Vec::new(), Vec::new(), 0);
            for piece in received.chunks(piece) {
                let mut piece = Bytes::copy_from_slice(piece);
                while let Some(part) = frames.next(&mut piece).unwrap() {
                    match part {
                        FramePart::Header(header) => headers.push(header),
                        FramePart::Body(_, bytes, is_last) => {
                            body.extend_from_slice(&bytes);
                            ends += usize::from(is_last);
                        }
                    }
                }
                assert!(piece.is_empty());
            }
            assert_eq!(
                headers,
                [data(5), ping, data(0), data(1)],
                "cut into {piece}"
            );
            assert_eq!((&body[..], ends), (&b"abcdex"[..], 2), "cut into {piece}");
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        for bytes in [[1; HEADER_BYTES], [0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            let mut bytes = Bytes::copy_from_slice(&bytes);
            assert!(Frames::default().next(&mut bytes).is_err());
        }
    }
}
