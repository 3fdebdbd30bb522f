//! Bytes that were read from an upstream and are not used yet.
//!
//! In: a connection. Out: its bytes, as much at once as it turns out to have.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Room for what is read at once: little for a connection that rests, more for one that is busy.
const READ_BYTES: (usize, usize) = (8 * 1024, 128 * 1024);
/// Less room than this is not worth a read.
const LEAST_ROOM: usize = 1024;

/// What was read.
pub(super) struct Input {
    bytes: BytesMut,
    room: usize,
    /// Up to where no empty line ends.
    scanned: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            bytes: BytesMut::new(),
            room: READ_BYTES.0,
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
        if self.bytes.capacity() - self.bytes.len() < LEAST_ROOM.max(self.room / 4) {
            self.bytes.reserve(self.room);
        }
        // The future keeps nothing between two polls, so it may be made anew for each.
        let read = ready!(pin!(connection.read_buf(&mut self.bytes)).poll(cx))?;
        if self.bytes.len() == self.bytes.capacity() {
            self.room = (self.room * 2).min(READ_BYTES.1);
        }
        Poll::Ready(Ok(read > 0))
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
            *self = Self::new();
        }
    }
}

#[cfg(test)]
impl Input {
    /// One into which these bytes were read.
    pub(super) fn of_test(bytes: &[u8]) -> Self {
        let mut input = Self::new();
        input.bytes.extend_from_slice(bytes);
        input
    }
}
