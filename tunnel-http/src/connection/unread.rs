//! Responses over HTTP/2 that the peer does not read.
//!
//! ```text
//!   content ─▶ Delivery ─▶ window of the stream ─▶ peer
//!                 └── notes who is to act next ──▶ watched: the task of the stream, reset after a while
//! ```
//!
//! A peer that gives a stream no window, and answers pings, keeps its connection; and the task of the stream, which
//! waits for the window, does not poll the content meanwhile, so that no limit of the content's own ends it.
//! In: which of content and peer has to act next. Out: a stream that is reset when the peer read nothing for too long.
//!
//! The stream of a peer that reads slowly is not reset: the next piece is polled for when the window has room for
//! the first byte of the one before, so that 16 KiB in the limit are enough, and nothing less is. Over HTTP/1 nothing is
//! noted: there the kernel limits how long a peer may read nothing.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Instant;

use tunnel_ops::alarm::Alarm;

tokio::task_local! {
    /// State shared by the task of an HTTP/2 stream and the content of its response.
    static STREAM: Stream;
}

#[derive(Default)]
struct Stream {
    next: Cell<NextActor>,
    /// Whether the stream is about to be reset, since its peer reads nothing.
    is_given_up: Cell<bool>,
}

/// Which side has to act next.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum NextActor {
    /// Not set since the last poll.
    #[default]
    Unchanged,
    /// The source of the content.
    Content,
    /// The peer: there are bytes that it has not read.
    Peer,
}

/// Sets, for the stream whose task calls this, that its peer has to read next: within the whole time-out from now on if
/// it `has_progressed`, and otherwise within what is left of it, whatever the content has done meanwhile.
pub(super) fn set_peers_turn(has_progressed: bool) {
    let next = match has_progressed {
        true => NextActor::Peer,
        false => NextActor::Unchanged,
    };
    let _ = STREAM.try_with(|stream| stream.next.set(next));
}

/// Sets, for the stream whose task calls this, that its content has to come next: the peer has all time.
pub(super) fn set_contents_turn() {
    let _ = STREAM.try_with(|stream| stream.next.set(NextActor::Content));
}

/// Has the stream whose task calls this reset, as if its peer had read nothing for too long.
pub(super) fn give_up() {
    let _ = STREAM.try_with(|stream| stream.is_given_up.set(true));
}

/// Whether the stream whose response is being dropped is reset because its peer read nothing, for the record of the
/// exchange.
#[must_use]
pub fn is_given_up() -> bool {
    STREAM
        .try_with(|stream| stream.is_given_up.get())
        .unwrap_or(false)
}

/// The task of a stream. It ends, which resets the stream, when the peer has read nothing for `limit`.
pub(super) fn watched<F: Future<Output = ()>>(
    future: F,
    limit: Duration,
) -> impl Future<Output = ()> {
    let watched = Watched {
        future,
        alarm: Alarm::default(),
        since: None,
        limit,
    };
    STREAM.scope(Stream::default(), watched)
}

pin_project! {
    /// No `async` block, which would have room for the future twice.
    struct Watched<F> {
        #[pin]
        future: F,
        alarm: Alarm,
        // The time since which the peer has to act.
        since: Option<Instant>,
        limit: Duration,
    }
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.future.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if STREAM.with(|stream| stream.is_given_up.get()) {
            return Poll::Ready(());
        }
        match STREAM.with(|stream| stream.next.take()) {
            NextActor::Unchanged => {}
            NextActor::Content => *this.since = None,
            NextActor::Peer => *this.since = Some(Instant::now()),
        }
        let Some(since) = *this.since else {
            return Poll::Pending;
        };
        let given_up = this.alarm.poll(cx, since + *this.limit);
        if given_up.is_ready() {
            // The future is dropped next, and with it the record of the exchange.
            STREAM.with(|stream| stream.is_given_up.set(true));
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn to_be_watched_costs_a_stream_little() {
        let large = async {
            let bytes = [7_u8; 4096];
            tokio::task::yield_now().await;
            assert_eq!(bytes[1], 7);
        };
        let size = size_of_val(&large);
        let watched = watched(large, Duration::from_secs(1));
        assert!(size_of_val(&watched) < size + 256);
        watched.await;
    }
}
