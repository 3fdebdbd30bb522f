//! Received bytes of one stream that were not read yet, and the stream's receive window.

use std::{collections::VecDeque, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use crate::{limits, session::websocket};

/// Pieces shorter than this are gathered while the reader is behind: each alone would cost more than it
/// holds, and would keep its whole read buffer alive.
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
    /// Copies of pieces that came after `chunks`.
    tail: BytesMut,
    bytes: usize,
    held: usize,
}

impl Unread {
    pub(super) fn push(&mut self, piece: Bytes) {
        let is_read = self.bytes == 0;
        let has_backlog = self.bytes >= BACKLOG_BYTES;
        self.bytes += piece.len();
        let is_copied = match has_backlog {
            true => piece.len() < BUFFER_BYTES / 4 * 3,
            false => piece.len() < SHORT_BYTES && !is_read,
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

/// Memory that a piece of this length keeps alive: the read buffer that it is a slice of. A short piece
/// shares its buffer with many others and counts by its length.
fn held(bytes: usize) -> usize {
    match bytes {
        ..SHORT_BYTES => bytes,
        _ => bytes.max(BUFFER_BYTES),
    }
}

/// The receive window of one stream. It grows while the window, and not the reader, is what limits the
/// sender.
pub(super) struct Window {
    /// Most bytes that may be in flight or unread.
    size: usize,
    /// Bytes that the other end may still send.
    left: usize,
    /// When the last window update was sent.
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

    /// Whether the window allows this many bytes.
    pub(super) fn allows(&self, bytes: usize) -> bool {
        bytes <= self.left
    }

    /// Counts received bytes, which [`Self::allows`] has to allow.
    pub(super) fn take(&mut self, bytes: usize) {
        self.left -= bytes;
    }

    /// Computes the window update to send after a read that has left `unread` bytes; zero until it is at
    /// least half a window. `growth` is the number of bytes by which all windows of the session may still
    /// grow. While `is_pressed`, because memory is short, the window does not grow, and shrinks to its
    /// initial size.
    pub(super) fn update(
        &mut self,
        unread: usize,
        round_trip: Duration,
        growth: &mut usize,
        is_pressed: impl FnOnce() -> bool,
    ) -> usize {
        let used = self.left + unread;
        if self.size.saturating_sub(used) < self.size / 2 {
            return 0;
        }
        if is_pressed() {
            *growth += self.growth();
            self.size = limits::STREAM_WINDOW_BYTES;
            // As above: no update of less than half a window.
            let more = self.size.saturating_sub(used);
            let more = if more < self.size / 2 { 0 } else { more };
            self.left += more;
            return more;
        }
        let now = Instant::now();
        // Half a window was used in less than two round trips: the window limits the sender.
        let is_limiting = self
            .last_update
            .is_some_and(|last| now - last < 2 * round_trip);
        if is_limiting && *growth >= self.size && self.size < limits::STREAM_WINDOW_MAX_BYTES {
            *growth -= self.size;
            self.size *= 2;
        }
        self.last_update = Some(now);
        let more = self.size - used;
        self.left += more;
        more
    }

    /// Bytes that the other end may still send.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Bytes by which the window has grown, to be given back when the stream ends.
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

    #[test]
    fn windows_are_updated_by_halves_and_never_exceeded() {
        let (mut window, mut growth) = (Window::new(), 0);
        let half = limits::STREAM_WINDOW_BYTES / 2;
        window.take(half - 1);
        assert_eq!(window.update(0, Duration::ZERO, &mut growth, || false), 0);
        assert!(window.allows(half + 1) && !window.allows(half + 2));
        let mut window = Window::new();
        window.take(2 * half);
        assert_eq!(
            window.update(half + 1, Duration::ZERO, &mut growth, || false),
            0
        );
        assert_eq!(
            window.update(half, Duration::ZERO, &mut growth, || false),
            half
        );
        assert_eq!(
            window.update(0, Duration::ZERO, &mut growth, || false),
            half
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_that_limits_the_sender_grows_up_to_the_bound() {
        let round_trip = Duration::from_millis(100);
        let mut growth = limits::WINDOW_GROWTH_BYTES;
        let (mut slow, mut fast) = (Window::new(), Window::new());
        for _ in 0..20 {
            for (window, pause) in [(&mut slow, 250), (&mut fast, 100)] {
                tokio::time::advance(Duration::from_millis(pause)).await;
                let left = window.left;
                window.take(left);
                window.update(0, round_trip, &mut growth, || false);
            }
        }
        // The pauses of both windows count for either.
        assert_eq!(slow.growth(), 0);
        assert_eq!(fast.growth(), 0);
        for _ in 0..20 {
            tokio::time::advance(round_trip).await;
            let left = fast.left;
            fast.take(left);
            fast.update(0, round_trip, &mut growth, || false);
        }
        assert_eq!(fast.size, limits::STREAM_WINDOW_MAX_BYTES);
        assert_eq!(growth + fast.growth(), limits::WINDOW_GROWTH_BYTES);
    }
}
