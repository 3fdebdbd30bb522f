//! The bounded memory pipe under the multiplexer.
//!
//! The multiplexer writes header and body of each frame apart and flushes after each. Over a
//! socket that would be a system call and a TLS record for every frame; over this pipe both cost a
//! copy, and the session's driver carries on whatever one poll produced as one message. No wakers:
//! the driver alone fills and empties the pipe, and polls the multiplexer after either.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::io::{AsyncRead, AsyncWrite};
use parking_lot::Mutex;

use crate::limits;

/// Length of a frame's header (yamux specification, "framing").
const HEADER_BYTES: usize = 12;
/// Frame types that matter here.
const TYPE_DATA: u8 = 0;
const TYPE_GO_AWAY: u8 = 3;

#[derive(Default)]
struct State {
    /// From the WebSocket to the multiplexer.
    inbound: VecDeque<Bytes>,
    inbound_bytes: usize,
    /// From the multiplexer to the WebSocket.
    outbound: BytesMut,
    /// Bytes still to come of the outgoing frame's body.
    body_left: usize,
    /// The multiplexer has refused what the other end sent, and goes away.
    refused: bool,
}

/// The end that the multiplexer reads and writes.
pub(super) struct MuxEnd(Arc<Mutex<State>>);

/// The end that the driver fills and empties.
pub(super) struct DriverEnd(Arc<Mutex<State>>);

/// A new pipe.
pub(super) fn pipe() -> (MuxEnd, DriverEnd) {
    let state = Arc::new(Mutex::new(State::default()));
    (MuxEnd(state.clone()), DriverEnd(state))
}

impl DriverEnd {
    /// Hands received bytes to the multiplexer.
    pub(super) fn fill(&self, bytes: Bytes) {
        let mut state = self.0.lock();
        state.inbound_bytes += bytes.len();
        if !bytes.is_empty() {
            state.inbound.push_back(bytes);
        }
    }

    /// Whether the multiplexer should read before more is received.
    pub(super) fn is_full(&self) -> bool {
        self.0.lock().inbound_bytes >= limits::PIPE_BYTES
    }

    /// The bytes to send next, at most a batch; empty when there are none.
    pub(super) fn take(&self) -> Bytes {
        let mut state = self.0.lock();
        let length = state.outbound.len().min(limits::BATCH_BYTES);
        state.outbound.split_to(length).freeze()
    }

    /// Whether the multiplexer found that the other end broke its protocol.
    pub(super) fn is_refused(&self) -> bool {
        self.0.lock().refused
    }
}

impl State {
    /// Follows the frames that go out, to see a go-away: the crate tells it to nobody else.
    fn follow(&mut self, written: &[u8]) {
        if self.body_left > 0 {
            self.body_left = self.body_left.saturating_sub(written.len());
        } else if let Ok(header) = <[u8; HEADER_BYTES]>::try_from(written) {
            match header[1] {
                TYPE_DATA => {
                    let length = [header[8], header[9], header[10], header[11]];
                    self.body_left = u32::from_be_bytes(length) as usize;
                }
                TYPE_GO_AWAY => self.refused = true,
                _ => {}
            }
        }
    }
}

impl AsyncRead for MuxEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        let mut read = 0;
        while read < buffer.len() {
            let Some(front) = state.inbound.front_mut() else { break };
            let length = front.len().min(buffer.len() - read);
            buffer[read..read + length].copy_from_slice(&front[..length]);
            front.advance(length);
            read += length;
            if front.is_empty() {
                state.inbound.pop_front();
            }
        }
        state.inbound_bytes -= read;
        if read == 0 { Poll::Pending } else { Poll::Ready(Ok(read)) }
    }
}

impl AsyncWrite for MuxEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        // Never splits a frame: the bound is passed by one frame at most.
        if state.outbound.len() >= limits::PIPE_BYTES {
            return Poll::Pending;
        }
        state.follow(bytes);
        state.outbound.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn read(end: &mut MuxEnd, length: usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; length];
        let mut cx = Context::from_waker(noop_waker_ref());
        match Pin::new(end).poll_read(&mut cx, &mut buffer) {
            Poll::Ready(Ok(read)) => Some(buffer[..read].to_vec()),
            _ => None,
        }
    }

    fn write(end: &mut MuxEnd, bytes: &[u8]) -> bool {
        let mut cx = Context::from_waker(noop_waker_ref());
        Pin::new(end).poll_write(&mut cx, bytes).is_ready()
    }

    #[test]
    fn reads_cross_the_borders_of_messages() {
        let (mut mux, driver) = pipe();
        assert_eq!(read(&mut mux, 4), None);
        driver.fill(Bytes::from_static(b"abc"));
        driver.fill(Bytes::from_static(b"de"));
        assert_eq!(read(&mut mux, 4).unwrap(), b"abcd");
        assert_eq!(read(&mut mux, 4).unwrap(), b"e");
        assert_eq!(read(&mut mux, 4), None);
    }

    #[test]
    fn a_full_pipe_holds_the_writer_back_until_it_is_emptied() {
        let (mut mux, driver) = pipe();
        let chunk = vec![0; limits::BATCH_BYTES];
        assert!(write(&mut mux, &chunk));
        assert!(write(&mut mux, &chunk));
        assert!(!write(&mut mux, &chunk));
        assert_eq!(driver.take().len(), limits::BATCH_BYTES);
        assert!(write(&mut mux, &chunk));
    }

    #[test]
    fn a_go_away_is_seen_but_not_inside_a_body() {
        let (mut mux, driver) = pipe();
        let data = [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 12];
        let go_away = [0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        write(&mut mux, &data);
        write(&mut mux, &go_away);
        assert!(!driver.is_refused(), "those bytes were the body");
        write(&mut mux, &go_away);
        assert!(driver.is_refused());
    }
}
