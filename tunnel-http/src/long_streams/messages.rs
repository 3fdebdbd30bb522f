//! Finds the positions between two messages of a gRPC stream.
//!
//! Each message has a prefix of five bytes: a flag and its length ("Length-Prefixed-Message" of the
//! protocol over HTTP/2). The content of a message is not read.

use super::Units;

const PREFIX_BYTES: u8 = 5;

/// The position in a stream of messages.
#[derive(Debug, Default)]
pub struct Messages {
    /// Bytes of an incomplete prefix.
    prefix: u8,
    /// The length in the prefix, as far as it is read; after the prefix, the remaining bytes of the message.
    left: u32,
}

impl Units for Messages {
    fn step(&mut self, bytes: &[u8]) -> usize {
        if self.prefix == 0 && self.left > 0 {
            let taken = bytes.len().min(self.left as usize);
            // At most `bytes.len()`.
            self.left -= taken as u32;
            return taken;
        }
        if self.prefix > 0 {
            self.left = self.left << 8 | u32::from(bytes[0]);
        }
        self.prefix = (self.prefix + 1) % PREFIX_BYTES;
        1
    }

    fn is_between(&self) -> bool {
        self.prefix == 0 && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let mut message = vec![u8::from(length % 2 == 1)];
        message.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
        message.resize(message.len() + length, 0xff);
        message
    }

    proptest! {
        #[test]
        fn messages_end_where_their_lengths_say(
            lengths in prop::collection::vec(prop_oneof![0_usize..5, 250_usize..600], 0..12),
            cut in 1_usize..300,
        ) {
            let mut ends = vec![0];
            let mut bytes = Vec::new();
            for length in lengths {
                bytes.extend(message(length));
                ends.push(bytes.len());
            }
            let mut messages = Messages::default();
            for (index, byte) in bytes.iter().enumerate() {
                prop_assert_eq!(messages.is_between(), ends.contains(&index));
                messages.advance(&[*byte]);
            }
            prop_assert!(messages.is_between());
            let mut in_pieces = Messages::default();
            let mut at = 0;
            for piece in bytes.chunks(cut) {
                in_pieces.advance(piece);
                at += piece.len();
                prop_assert_eq!(in_pieces.is_between(), ends.contains(&at));
            }
        }
    }

    #[test]
    fn a_stream_that_is_to_end_does_so_behind_the_first_whole_message() {
        let bytes = [message(300), message(2)].concat();
        let mut messages = Messages::default();
        messages.advance(&bytes[..100]);
        assert_eq!(messages.advance_to_end(&bytes[100..]), Some(205));
        assert_eq!(messages.advance_to_end(&bytes[305..310]), None);
    }
}
