//! Finds the positions between two frames of a WebSocket connection.
//!
//! Only the headers of frames are read (RFC 6455 section 5.2), and nothing is validated: the bytes pass unchanged. Control
//! frames are allowed between the frames of one message, so a close frame can follow any frame.

use super::Units;

/// The close frame of a server that goes away: 1001.
pub(super) const GOING_AWAY: &[u8] = &[0x88, 2, 0x03, 0xe9];

/// The close frame of a client that goes away: 1001. Frames of clients are masked, which protects proxies from what
/// pages write; this content is fixed, so the mask is zeros.
pub(super) const GOING_AWAY_MASKED: &[u8] = &[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];

const CLOSE: u8 = 8;

/// The position in one direction of a connection.
#[derive(Debug, Default)]
pub struct Frames {
    /// Bytes of an incomplete header.
    have: u8,
    /// The length of the header.
    need: u8,
    /// The position in the header at which the length ends.
    length_end: u8,
    opcode: u8,
    /// The length of the payload, as far as it is read; after the header, the remaining bytes of the frame.
    left: u64,
    is_closed: bool,
}

impl Frames {
    /// Whether a close frame has passed, which is the last frame.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn header(&mut self, byte: u8) {
        match self.have {
            0 => {
                self.opcode = byte & 0x0f;
                self.need = 2;
            }
            1 => {
                let (extended, left) = match byte & 0x7f {
                    126 => (2, 0),
                    127 => (8, 0),
                    length => (0, u64::from(length)),
                };
                self.left = left;
                self.length_end = 2 + extended;
                self.need = self.length_end + if byte & 0x80 == 0 { 0 } else { 4 };
            }
            have if have < self.length_end => self.left = self.left << 8 | u64::from(byte),
            _ => {}
        }
        self.have += 1;
        if self.have == self.need {
            self.have = 0;
        }
    }
}

impl Units for Frames {
    fn step(&mut self, bytes: &[u8]) -> usize {
        let taken = if self.have == 0 && self.left > 0 {
            let taken =
                usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            self.left -= taken as u64;
            taken
        } else {
            self.header(bytes[0]);
            1
        };
        self.is_closed |= self.is_between() && self.opcode == CLOSE;
        taken
    }

    fn is_between(&self) -> bool {
        self.have == 0 && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio_tungstenite::tungstenite::protocol::frame::{
        Frame, FrameHeader,
        coding::{Control, Data, OpCode},
    };

    use super::*;

    fn frame(opcode: OpCode, length: usize, is_masked: bool) -> Vec<u8> {
        let header = FrameHeader {
            opcode,
            mask: is_masked.then_some([1, 2, 3, 4]),
            ..FrameHeader::default()
        };
        let mut bytes = Vec::new();
        Frame::from_payload(header, vec![b'x'; length].into())
            .format(&mut bytes)
            .unwrap();
        bytes
    }

    fn opcode() -> impl Strategy<Value = OpCode> {
        prop::sample::select(vec![
            OpCode::Data(Data::Text),
            OpCode::Data(Data::Binary),
            OpCode::Data(Data::Continue),
            OpCode::Control(Control::Ping),
            OpCode::Control(Control::Pong),
        ])
    }

    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![0_usize..4, 120_usize..130, 65_530_usize..65_540]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn frames_end_where_those_of_tungstenite_do(
            frames in prop::collection::vec((opcode(), lengths(), any::<bool>()), 0..6),
            cut in prop_oneof![1_usize..10, 1_000_usize..70_000],
        ) {
            let mut ends = vec![0];
            let mut bytes = Vec::new();
            for (opcode, length, is_masked) in frames {
                bytes.extend(frame(opcode, length, is_masked));
                ends.push(bytes.len());
            }
            let mut tracker = Frames::default();
            let mut at = 0;
            for piece in bytes.chunks(cut) {
                prop_assert_eq!(tracker.is_between(), ends.contains(&at));
                tracker.advance(piece);
                at += piece.len();
            }
            prop_assert!(tracker.is_between() && !tracker.is_closed());
            // A connection that is to end does so at the next end of a frame, wherever it stands.
            let starts = ends.iter().flat_map(|end| [*end, end + 1]);
            for from in starts.filter(|from| *from < bytes.len()) {
                let mut tracker = Frames::default();
                tracker.advance(&bytes[..from]);
                let next = ends.iter().find(|end| **end > from).unwrap();
                prop_assert_eq!(tracker.advance_to_end(&bytes[from..]), Some(next - from));
            }
        }

        #[test]
        fn whatever_else_comes_is_followed_too(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Frames::default().advance(&bytes);
        }
    }

    #[test]
    fn a_close_frame_is_known_when_it_is_whole() {
        for is_masked in [false, true] {
            for length in [0, 2, 100] {
                let close = frame(OpCode::Control(Control::Close), length, is_masked);
                let mut tracker = Frames::default();
                tracker.advance(&frame(OpCode::Data(Data::Text), 10, is_masked));
                tracker.advance(&close[..close.len() - 1]);
                assert!(!tracker.is_closed());
                tracker.advance(&close[close.len() - 1..]);
                assert!(tracker.is_closed());
            }
        }
    }

    #[test]
    fn our_own_frames_are_those_of_tungstenite() {
        use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};
        let close = Frame::close(Some(CloseFrame {
            code: CloseCode::Away,
            reason: "".into(),
        }));
        let mut bytes = Vec::new();
        close.format(&mut bytes).unwrap();
        assert_eq!(bytes, GOING_AWAY);
        let mut masked = Frames::default();
        masked.advance(GOING_AWAY_MASKED);
        assert!(masked.is_closed());
    }
}
