//! The receive window of one stream: how much the other end may send, and when it may send more.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits;

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
    /// least half a window. `growth_left` is the number of bytes by which all windows of the session together
    /// may still grow. While `is_memory_short`, the window does not grow, and shrinks to its initial size.
    pub(super) fn update(
        &mut self,
        unread: usize,
        round_trip: Duration,
        growth_left: &mut usize,
        is_memory_short: impl FnOnce() -> bool,
    ) -> usize {
        let used = self.left + unread;
        if self.size.saturating_sub(used) < self.size / 2 {
            return 0;
        }
        if is_memory_short() {
            *growth_left += self.growth();
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
        if is_limiting && *growth_left >= self.size && self.size < limits::STREAM_WINDOW_MAX_BYTES {
            *growth_left -= self.size;
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
    fn windows_are_updated_by_halves_and_never_exceeded() {
        let (mut window, mut growth_left) = (Window::new(), 0);
        let half = limits::STREAM_WINDOW_BYTES / 2;
        window.take(half - 1);
        assert_eq!(
            window.update(0, Duration::ZERO, &mut growth_left, || false),
            0
        );
        assert!(window.allows(half + 1) && !window.allows(half + 2));
        let mut window = Window::new();
        window.take(2 * half);
        assert_eq!(
            window.update(half + 1, Duration::ZERO, &mut growth_left, || false),
            0
        );
        assert_eq!(
            window.update(half, Duration::ZERO, &mut growth_left, || false),
            half
        );
        assert_eq!(
            window.update(0, Duration::ZERO, &mut growth_left, || false),
            half
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_that_limits_the_sender_grows_up_to_the_bound() {
        let round_trip = Duration::from_millis(100);
        let mut growth_left = limits::WINDOW_GROWTH_BYTES;
        let (mut slow, mut fast) = (Window::new(), Window::new());
        for _ in 0..20 {
            for (window, pause) in [(&mut slow, 250), (&mut fast, 100)] {
                tokio::time::advance(Duration::from_millis(pause)).await;
                let left = window.left;
                window.take(left);
                window.update(0, round_trip, &mut growth_left, || false);
            }
        }
        // Time passes for both: each sees 350 ms between two updates.
        assert_eq!(slow.growth(), 0);
        assert_eq!(fast.growth(), 0);
        for _ in 0..20 {
            tokio::time::advance(round_trip).await;
            let left = fast.left;
            fast.take(left);
            fast.update(0, round_trip, &mut growth_left, || false);
        }
        assert_eq!(fast.size, limits::STREAM_WINDOW_MAX_BYTES);
        assert_eq!(growth_left + fast.growth(), limits::WINDOW_GROWTH_BYTES);
    }
}
