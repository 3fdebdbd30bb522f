//! What has come on one stream and was not read yet, and what may still come.

use std::{collections::VecDeque, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use crate::limits;

/// Pieces shorter than this are put together while nobody reads: each alone would cost more than it
/// holds, and keep the whole message alive that it came in.
const SHORT_BYTES: usize = 4 * 1024;

/// The bytes of a stream that were not read yet.
#[derive(Default)]
pub(super) struct Unread {
    chunks: VecDeque<Bytes>,
    /// Short pieces that came after `chunks`.
    tail: BytesMut,
    bytes: usize,
}

impl Unread {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        let is_read = self.bytes == piece.len();
        if piece.len() < SHORT_BYTES && !is_read {
            self.tail.extend_from_slice(&piece);
            return;
        }
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        self.chunks.push_back(piece);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let chunk = match self.chunks.pop_front() {
            Some(chunk) => chunk,
            None if self.tail.is_empty() => return None,
            // Its space goes with it, so that a stream at rest holds none.
            None => std::mem::take(&mut self.tail).freeze(),
        };
        self.bytes -= chunk.len();
        Some(chunk)
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// The window of one stream: what the other end may send. It grows while it, and not the reader, is
/// what the other end waits for.
pub(super) struct Window {
    /// Most bytes on their way or unread.
    size: usize,
    /// What the other end may still send.
    left: usize,
    /// When it was allowed to send more.
    last_update: Option<Instant>,
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            size: limits::STREAM_WINDOW_BYTES,
            left: limits::STREAM_WINDOW_BYTES,
            last_update: None,
        }
    }

    /// Whether the other end may send this much.
    pub(super) fn allows(&self, bytes: usize) -> bool {
        bytes <= self.left
    }

    /// The other end has sent this much of what it may.
    pub(super) fn take(&mut self, bytes: usize) {
        self.left -= bytes;
    }

    /// How much more the other end may send, now that only `unread` bytes wait. Zero until it is worth
    /// telling. `growth` is what all windows of the session may still grow by.
    pub(super) fn update(
        &mut self,
        unread: usize,
        round_trip: Duration,
        growth: &mut usize,
    ) -> usize {
        let used = self.left + unread;
        if self.size - used < self.size / 2 {
            return 0;
        }
        let now = Instant::now();
        // Half a window in less than two round trips: more would have come if it had been allowed.
        let is_short = self
            .last_update
            .is_some_and(|last| now - last < 2 * round_trip);
        if is_short && *growth >= self.size && self.size < limits::STREAM_WINDOW_MAX_BYTES {
            *growth -= self.size;
            self.size *= 2;
        }
        self.last_update = Some(now);
        let more = self.size - used;
        self.left += more;
        more
    }

    /// What it has grown by, to be given back when the stream ends.
    pub(super) fn growth(&self) -> usize {
        self.size - limits::STREAM_WINDOW_BYTES
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
        assert_eq!(chunks, 7, "2 and 5 came as one");
        assert!(unread.is_empty());
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
    fn a_window_is_told_in_halves_and_never_passed() {
        let (mut window, mut growth) = (Window::new(), 0);
        let half = limits::STREAM_WINDOW_BYTES / 2;
        window.take(half - 1);
        assert_eq!(window.update(0, Duration::ZERO, &mut growth), 0);
        assert!(window.allows(half + 1) && !window.allows(half + 2));
        let mut window = Window::new();
        window.take(2 * half);
        assert_eq!(window.update(half + 1, Duration::ZERO, &mut growth), 0);
        assert_eq!(window.update(half, Duration::ZERO, &mut growth), half);
        assert_eq!(window.update(0, Duration::ZERO, &mut growth), half);
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_grows_while_it_is_what_is_waited_for_and_only_so_far() {
        let round_trip = Duration::from_millis(100);
        let mut growth = limits::WINDOW_GROWTH_BYTES;
        let (mut slow, mut fast) = (Window::new(), Window::new());
        for _ in 0..20 {
            for (window, pause) in [(&mut slow, 250), (&mut fast, 100)] {
                tokio::time::advance(Duration::from_millis(pause)).await;
                let left = window.left;
                window.take(left);
                window.update(0, round_trip, &mut growth);
            }
        }
        // The pauses of both count for either.
        assert_eq!(slow.growth(), 0);
        assert_eq!(fast.growth(), 0);
        for _ in 0..20 {
            tokio::time::advance(round_trip).await;
            let left = fast.left;
            fast.take(left);
            fast.update(0, round_trip, &mut growth);
        }
        assert_eq!(fast.size, limits::STREAM_WINDOW_MAX_BYTES);
        assert_eq!(growth + fast.growth(), limits::WINDOW_GROWTH_BYTES);
    }
}
