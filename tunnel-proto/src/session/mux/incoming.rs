//! Received bytes of one stream that were not read yet.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::session::websocket;

/// Pieces shorter than this are copied, and gathered while the reader is behind: each would keep its whole read buffer
/// alive, for as long as the exchange holds a field of its head. Most heads are shorter than this.
const SHORT_BYTES: usize = 4 * 1024;

/// Largest read buffer. A slice of it keeps all of it alive.
const BUFFER_BYTES: usize = websocket::READ_BYTES.1;

/// While this much is unread, pieces that fill less than three quarters of a read buffer are copied, so
/// that a long backlog takes little more memory than it has bytes.
const BACKLOG_BYTES: usize = 2 * BUFFER_BYTES;

/// The received bytes of a stream that were not read yet.
#[derive(Default)]
pub(super) struct Unread {
    chunks: VecDeque<Bytes>,
    /// Copies of short pieces that came after `chunks`.
    tail: BytesMut,
    bytes: usize,
    held: usize,
}

impl Unread {
    pub(super) fn push(&mut self, piece: Bytes) {
        let has_backlog = self.bytes >= BACKLOG_BYTES;
        self.bytes += piece.len();
        let is_copied = match has_backlog {
            true => piece.len() < BUFFER_BYTES / 4 * 3,
            false => piece.len() < SHORT_BYTES,
        };
        if is_copied {
            if self.tail.len() + piece.len() > BUFFER_BYTES {
                self.end_tail();
            }
            if has_backlog && self.tail.is_empty() {
                // Reserved at once: growing by doubling could take twice the memory.
                self.tail.reserve(BUFFER_BYTES);
            }
            self.tail.extend_from_slice(&piece);
            self.held += piece.len();
            return;
        }
        self.end_tail();
        self.held += held(piece.len());
        self.chunks.push_back(piece);
    }

    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            let tail = std::mem::take(&mut self.tail).freeze();
            self.held += held(tail.len()) - tail.len();
            self.chunks.push_back(tail);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let chunk = match self.chunks.pop_front() {
            Some(chunk) => {
                self.held -= held(chunk.len());
                chunk
            }
            None if self.tail.is_empty() => return None,
            // Its capacity goes with it, so that an idle stream holds none.
            None => {
                self.held -= self.tail.len();
                std::mem::take(&mut self.tail).freeze()
            }
        };
        self.bytes -= chunk.len();
        Some(chunk)
    }

    /// Bytes of memory that the unread bytes keep alive, approximately.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// Memory that a piece of this length keeps alive: the read buffer that it is a slice of. A short piece is a copy.
fn held(bytes: usize) -> usize {
    match bytes {
        ..SHORT_BYTES => bytes,
        _ => bytes.max(BUFFER_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_in_the_order_in_which_they_came() {
        let mut unread = Unread::default();
        let (mut pushed, mut read) = (Vec::new(), Vec::new());
        for length in [3, 1, SHORT_BYTES, 2, 5, SHORT_BYTES + 1, SHORT_BYTES, 1] {
            let piece = vec![length as u8; length];
            pushed.extend_from_slice(&piece);
            unread.push(piece.into());
        }
        let mut chunks = 0;
        while let Some(chunk) = unread.pop() {
            read.extend_from_slice(&chunk);
            chunks += 1;
        }
        assert_eq!(read, pushed);
        assert_eq!(chunks, 6, "3 and 1 came as one, 2 and 5 too");
        assert!(unread.is_empty());
    }

    #[test]
    fn a_short_piece_keeps_no_read_buffer_alive() {
        let mut unread = Unread::default();
        let buffer = Bytes::from(vec![7; BUFFER_BYTES]);
        unread.push(buffer.slice(..300));
        assert_eq!(unread.held(), 300);
        assert!(buffer.is_unique());
        assert_eq!(unread.pop(), Some(buffer.slice(..300)));
        assert_eq!(unread.held(), 0);
    }

    #[test]
    fn a_flood_of_short_pieces_costs_little_more_than_its_bytes() {
        let mut unread = Unread::default();
        let message = Bytes::from(vec![0; 10_000]);
        for at in 0..10_000 {
            unread.push(message.slice(at..=at));
        }
        assert!(unread.chunks.len() <= 1);
        assert!(unread.tail.capacity() < 32 * 1024);
    }

    #[test]
    fn a_backlog_of_slices_is_copied_and_counted_as_the_memory_it_keeps_alive() {
        let mut unread = Unread::default();
        let mut buffers = Vec::new();
        for _ in 0..60 {
            let buffer = Bytes::from(vec![7; BUFFER_BYTES]);
            unread.push(buffer.slice(..SHORT_BYTES));
            buffers.push(buffer);
        }
        let kept = buffers.iter().filter(|buffer| !buffer.is_unique()).count();
        assert!(kept * BUFFER_BYTES <= 8 * BUFFER_BYTES, "{kept} buffers");
        let others: usize = unread.bytes - kept * SHORT_BYTES;
        assert!(unread.held() >= kept * BUFFER_BYTES + others);
        assert!(unread.held() < 2 * unread.bytes);
        while unread.pop().is_some() {}
        assert_eq!((unread.held(), unread.len()), (0, 0));
    }
}
