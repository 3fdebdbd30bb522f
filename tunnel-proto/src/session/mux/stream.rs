//! The state of one stream: its windows, its unread bytes, and the wakers of the tasks that wait for it.

use std::task::Waker;

use tokio::time::Instant;

use super::{
    frame::{ACK, FrameKind, Header, SYN},
    incoming::Unread,
    window::Window,
};
use crate::limits;

/// One stream.
pub(super) struct Stream {
    pub(super) unread: Unread,
    pub(super) receive: Window,
    /// The send window: bytes that the other end still accepts.
    pub(super) send: usize,
    /// Flags that the next frame carries: `SYN` for a new stream, `ACK` for an accepted one.
    pub(super) first: u16,
    /// Whether the other end has acknowledged the stream.
    pub(super) is_acknowledged: bool,
    /// When this end opened the stream; `None` once the other end has sent anything on it.
    pub(super) unanswered_since: Option<Instant>,
    /// Whether nothing more can be received.
    pub(super) has_ended: bool,
    /// Whether nothing more can be sent: the stream was reset, or the session has ended.
    pub(super) is_reset: bool,
    /// Whether this end has reset the stream because it held too much memory. Bytes that the other end
    /// sends before it receives the reset are discarded.
    pub(super) is_shed: bool,
    /// When the reader fell behind: since then bytes are unread and none was read.
    pub(super) unread_since: Option<Instant>,
    pub(super) turn: WriteTurn,
    pub(super) read_waker: Option<Waker>,
    pub(super) write_waker: Option<Waker>,
    /// The task that waits for a reset without reading or writing.
    pub(super) reset_waker: Option<Waker>,
}

/// The place of a stream in the queue for the WebSocket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteTurn {
    /// Not queued.
    None,
    /// Queued.
    Waits,
    /// May write one frame.
    Granted,
}

impl Stream {
    pub(super) fn new(first: u16) -> Self {
        Self {
            unread: Unread::default(),
            receive: Window::new(),
            send: limits::STREAM_WINDOW_BYTES,
            first,
            is_acknowledged: first == ACK,
            unanswered_since: (first == SYN).then(Instant::now),
            has_ended: false,
            is_reset: false,
            is_shed: false,
            unread_since: None,
            turn: WriteTurn::None,
            read_waker: None,
            write_waker: None,
            reset_waker: None,
        }
    }

    pub(super) fn header(
        &mut self,
        kind: FrameKind,
        flags: u16,
        stream: u32,
        value: usize,
    ) -> Header {
        Header {
            kind,
            flags: flags | std::mem::take(&mut self.first),
            stream,
            // Windows and frames are far smaller than the type allows.
            value: u32::try_from(value).unwrap_or(u32::MAX),
        }
    }

    /// Ends the stream in both directions and collects its wakers.
    pub(super) fn reset(&mut self, woken: &mut Vec<Waker>) {
        self.has_ended = true;
        self.is_reset = true;
        self.unanswered_since = None;
        woken.extend(self.read_waker.take());
        woken.extend(self.write_waker.take());
        woken.extend(self.reset_waker.take());
    }
}
