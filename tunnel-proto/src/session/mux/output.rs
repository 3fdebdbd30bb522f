//! Frames that wait to be sent: short ones are gathered in one buffer, long bodies are kept as they are.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use super::frame::{HEADER_BYTES, Header};
use crate::limits;

/// Bodies from this length on are not copied.
const LONG_BYTES: usize = 4 * 1024;

/// The queue of outgoing frames of a session.
#[derive(Default)]
pub(super) struct Output {
    pieces: VecDeque<Bytes>,
    /// Frames that follow `pieces`.
    tail: BytesMut,
    bytes: usize,
}

impl Output {
    /// Queues a frame without a body.
    pub(super) fn push(&mut self, header: Header) {
        self.tail.extend_from_slice(&header.encode());
        self.bytes += HEADER_BYTES;
    }

    /// Queues a frame whose body is the first `header.value` bytes of `body`.
    pub(super) fn push_body(&mut self, header: Header, body: &mut impl Buf) {
        let length = header.value as usize;
        self.push(header);
        self.bytes += length;
        if length >= LONG_BYTES {
            self.pieces.push_back(self.tail.split().freeze());
            self.pieces.push_back(body.copy_to_bytes(length));
            return;
        }
        let mut left = length;
        while left > 0 {
            let chunk = body.chunk();
            let piece = &chunk[..left.min(chunk.len())];
            self.tail.extend_from_slice(piece);
            let copied = piece.len();
            body.advance(copied);
            left -= copied;
        }
    }

    /// The next bytes to send, at most a batch.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let piece = match self.pieces.front_mut() {
            Some(piece) if piece.len() > limits::BATCH_BYTES => piece.split_to(limits::BATCH_BYTES),
            Some(_) => self.pieces.pop_front()?,
            None if self.tail.is_empty() => return None,
            None => {
                let length = self.tail.len().min(limits::BATCH_BYTES);
                self.tail.split_to(length).freeze()
            }
        };
        self.bytes -= piece.len();
        Some(piece)
    }

    /// Bytes in the queue.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Gives back memory that a burst has left.
    pub(super) fn trim(&mut self) {
        if self.bytes == 0 {
            *self = Self::default();
        }
    }
}
