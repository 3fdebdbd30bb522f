//! What HTTP/2 needs beside the `h2` crate, at either end of a connection.
//!
//! ```text
//!   socket ─▶ reader (frames: what `h2` does not show) ─▶ h2 ─▶ content of each stream ─▶ its exchange
//!                  └─ small DATA frames ─▶ driver ─▶ joins what an exchange leaves unread
//! ```
//!
//! `h2` keeps each DATA frame that it has read until the exchange takes it, and ends the whole connection when small ones
//! cost it too much. So the driver of a connection reads such a stream ahead, into one buffer. The flow-control window is
//! given back only for what the exchange has taken, so that a buffer never holds more than the window of its stream.
//!
//! At the end of a server there are also the heads of an answer ([`Reply`]), a stream that becomes an upgraded connection
//! ([`UpgradedStream`]), and the count of what `h2` holds of answers (`unsent`).

mod content;
mod frames;
mod reader;
mod reply;
pub(crate) mod unsent;
mod upgraded;

use std::future::poll_fn;
use std::task::{Context, Poll};

pub use self::content::{ContentEnd, ContentRegistry, StreamContent};
pub use self::frames::{EmptyFrameFlood, FrameParser, GoAway, PeerNotes, PeerSettings};
pub use self::reader::{FrameReader, ReadFrames};
pub use self::reply::Reply;
pub(crate) use self::reply::poll_window;
pub use self::upgraded::{OnUpgrade, UpgradedStream};

/// What `h2` may be charged for small DATA frames of a connection (`data_frame_budget`): as good as everything. It charges
/// 256 bytes for each, less their content, until it is taken, and for good where a stream was reset. What waits is bounded
/// by the windows of the streams and is joined; what comes for a reset stream holds nothing.
pub const DATA_FRAME_BUDGET: usize = u32::MAX as usize;

/// Drives a connection: polls it by `poll` until that is ready, and reads ahead what its exchanges leave unread. `frames` is
/// what its [`FrameReader`] reads.
pub async fn drive<T>(
    frames: &ReadFrames,
    contents: &ContentRegistry,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> T {
    poll_fn(|cx| {
        let polled = poll(cx);
        let (small, was_paused) = frames.take_small();
        contents.read_ahead(&small, cx);
        if was_paused {
            // The exchanges first: what they take need not be joined.
            cx.waker().wake_by_ref();
        }
        polled
    })
    .await
}
