//! Bytes that were read from an upstream and not used yet.
//!
//! Reads grow with what the connection has to offer. The growth counts in the client's memory account; while that is
//! half full, connections read little at once.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tunnel_proto::limits;
use tunnel_proto::memory::MemoryAccount;

/// Largest head of a response, in bytes. Its form in the tunnel is no larger, but for a few lengths of up to four
/// bytes.
pub(super) const HEAD_BYTES: usize = limits::HEAD_BYTES - 64;

/// Bytes to read at once, which is what waits when the tunnel takes nothing more: little for a connection that was
/// idle, more for a busy one.
const READ_BYTES: (usize, usize) = (8 * 1024, 128 * 1024);
/// Least free space for a read.
const LEAST_ROOM: usize = 1024;

/// What was read.
pub(super) struct Input {
    bytes: BytesMut,
    /// Bytes to read at once. The part above the least counts in `memory`.
    room: usize,
    memory: Arc<MemoryAccount>,
    /// Up to here no empty line ends.
    scanned: usize,
}

impl Input {
    pub(super) fn new(memory: &Arc<MemoryAccount>) -> Self {
        Self {
            bytes: BytesMut::new(),
            room: READ_BYTES.0,
            memory: Arc::clone(memory),
            scanned: 0,
        }
    }

    /// The bytes.
    pub(super) fn bytes(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads more; `false` at the end of the connection.
    pub(super) fn poll_fill(
        &mut self,
        connection: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        if self.room > READ_BYTES.0 && self.memory.is_scarce() {
            self.shrink();
        }
        if self.bytes.capacity() - self.bytes.len() < LEAST_ROOM.max(self.room / 4) {
            self.bytes.reserve(self.room);
        }
        // The future has no state between polls, so a new one for each poll will do.
        let read = ready!(pin!(connection.read_buf(&mut self.bytes)).poll(cx))?;
        if self.bytes.len() == self.bytes.capacity() {
            self.grow();
        }
        Poll::Ready(Ok(read > 0))
    }

    fn grow(&mut self) {
        let room = (self.room * 2).min(READ_BYTES.1);
        if room > self.room && !self.memory.is_scarce() {
            self.memory.hold(room - self.room);
            self.room = room;
        }
    }

    /// Reads little from now on, and releases memory.
    fn shrink(&mut self) {
        self.memory.release(self.room - READ_BYTES.0);
        self.room = READ_BYTES.0;
        self.bytes = BytesMut::from(&self.bytes[..]);
    }

    /// Takes this many bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Bytes {
        self.scanned = 0;
        self.bytes.split_to(bytes).freeze()
    }

    /// Takes a head of this many bytes. A long one leaves no buffer of its length behind, which nothing counts and which would
    /// be kept for as long as the content lasts.
    pub(super) fn take_head(&mut self, bytes: usize) -> Bytes {
        let head = self.take(bytes);
        if bytes > READ_BYTES.0 {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        head
    }

    /// Whether the bytes were searched for an empty line already.
    pub(super) fn is_scanned(&self) -> bool {
        self.scanned > 0
    }

    /// The end of the first empty line, if there is one. No byte is searched twice.
    pub(super) fn empty_line(&mut self) -> Option<usize> {
        let unseen = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n');
        while let Some(at) = unseen(&self.bytes[self.scanned..]) {
            self.scanned += at;
            match self.bytes[self.scanned + 1..] {
                [b'\n', ..] => return Some(self.scanned + 2),
                [b'\r', b'\n', ..] => return Some(self.scanned + 3),
                [] | [b'\r'] => return None,
                _ => self.scanned += 1,
            }
        }
        self.scanned = self.bytes.len();
        None
    }

    /// Releases memory that only a busy connection needs.
    pub(super) fn release_memory(&mut self) {
        if self.room > READ_BYTES.0 {
            self.shrink();
            self.scanned = 0;
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if self.room > READ_BYTES.0 {
            self.memory.release(self.room - READ_BYTES.0);
        }
    }
}

#[cfg(test)]
impl Input {
    /// An input with these bytes.
    pub(super) fn of_test(bytes: &[u8]) -> Self {
        let mut input = Self::new(&MemoryAccount::new(usize::MAX));
        input.bytes.extend_from_slice(bytes);
        input
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_long_head_leaves_no_buffer_of_its_length_behind() {
        const HEAD: usize = 100_000;
        for (length, is_left) in [(HEAD, false), (4_000, true)] {
            let mut input = Input::of_test(&[b'v'; HEAD]);
            input.take(HEAD - length);
            input.bytes.extend_from_slice(b"content");
            drop(input.take_head(length));
            assert_eq!(&input.bytes[..], b"content");
            assert_eq!(input.bytes.try_reclaim(HEAD / 2), is_left, "{length}");
        }
    }

    fn fill(input: &mut Input, upstream: &mut &[u8]) -> usize {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(
            input.poll_fill(upstream, &mut cx),
            Poll::Ready(Ok(true))
        ));
        let read = input.bytes.len();
        input.take(read);
        read
    }

    #[test]
    fn busy_connections_read_much_at_once_only_while_there_is_memory() {
        let content = vec![7; 4 * READ_BYTES.1];
        let memory = MemoryAccount::new(1024 * 1024);
        let mut inputs = Vec::new();
        for _ in 0..100 {
            let (mut input, mut upstream) = (Input::new(&memory), &content[..]);
            for _ in 0..6 {
                fill(&mut input, &mut upstream);
            }
            inputs.push(input);
        }
        assert_eq!(inputs[0].room, READ_BYTES.1);
        assert_eq!(inputs[99].room, READ_BYTES.0);
        assert!(memory.held() <= memory.limit(), "{}", memory.held());
        // Those that read much read little with the next read.
        assert!(fill(&mut inputs[0], &mut &content[..]) <= 2 * READ_BYTES.0);
        drop(inputs);
        assert_eq!(memory.held(), 0);
    }
}
