//! Bytes that were read from an upstream and are not used yet.
//!
//! In: a connection. Out: its bytes, as much at once as it turns out to have. What a busy connection reads at
//! once counts in the client's account of memory; while that is half full, connections read little.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tunnel_proto::memory::MemoryAccount;

/// Room for what is read at once, which is as much as waits when the tunnel takes nothing more: little for a connection that rests, more for one that is busy.
const READ_BYTES: (usize, usize) = (8 * 1024, 128 * 1024);
/// Less room than this is not worth a read.
const LEAST_ROOM: usize = 1024;

/// What was read.
pub(super) struct Input {
    bytes: BytesMut,
    /// Bytes to read at once. What it is above the least counts in `memory`.
    room: usize,
    memory: Arc<MemoryAccount>,
    /// Up to where no empty line ends.
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

    /// What is there.
    pub(super) fn bytes(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads more; false when no more comes.
    pub(super) fn poll_fill(
        &mut self,
        connection: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        if self.room > READ_BYTES.0 && self.memory.is_pressed() {
            self.shrink();
        }
        if self.bytes.capacity() - self.bytes.len() < LEAST_ROOM.max(self.room / 4) {
            self.bytes.reserve(self.room);
        }
        // The future keeps nothing between two polls, so it may be made anew for each.
        let read = ready!(pin!(connection.read_buf(&mut self.bytes)).poll(cx))?;
        if self.bytes.len() == self.bytes.capacity() {
            self.grow();
        }
        Poll::Ready(Ok(read > 0))
    }

    fn grow(&mut self) {
        let room = (self.room * 2).min(READ_BYTES.1);
        if room > self.room && !self.memory.is_pressed() {
            self.memory.hold(room - self.room);
            self.room = room;
        }
    }

    /// Reads little from here on, and gives memory back.
    fn shrink(&mut self) {
        self.memory.release(self.room - READ_BYTES.0);
        self.room = READ_BYTES.0;
        self.bytes = BytesMut::from(&self.bytes[..]);
    }

    /// Takes this much out.
    pub(super) fn take(&mut self, bytes: usize) -> Bytes {
        self.scanned = 0;
        self.bytes.split_to(bytes).freeze()
    }

    /// Whether an empty line was looked for in vain.
    pub(super) fn is_scanned(&self) -> bool {
        self.scanned > 0
    }

    /// Where the first empty line ends, once it is there. No byte is looked at twice for it.
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

    /// Gives memory back that only a busy connection needs.
    pub(super) fn rest(&mut self) {
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
    /// One into which these bytes were read.
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
