//! The bounded memory pipe under the multiplexer.
//!
//! The multiplexer writes header and body of each frame apart and flushes after each. Over a
//! socket that would be a system call and a TLS record for every frame; over this pipe both cost a
//! copy, and the session's driver carries on whatever one poll produced as one message. No wakers:
//! the driver alone fills and empties the pipe, and polls the multiplexer after either.
//!
//! Pings of the other end's multiplexer are answered here. The crate stops reading until its pong is
//! written, so that two ends with much to send could each wait for the other to read, for ever.

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
const TYPE_PING: u8 = 2;
const TYPE_GO_AWAY: u8 = 3;
/// The flag of an answer, in the low byte of a header's flags.
const FLAG_ACK: u8 = 2;

type Header = [u8; HEADER_BYTES];

#[derive(Default)]
struct State {
    /// From the WebSocket to the multiplexer.
    inbound: VecDeque<Bytes>,
    inbound_bytes: usize,
    /// Bytes still to come of the incoming frame's body.
    inbound_body_left: usize,
    /// The start of an incoming header that lies across two messages; not in `inbound` yet.
    cut_header: BytesMut,
    /// From the multiplexer to the WebSocket. Ends with a whole frame whenever the driver sees it.
    outbound: BytesMut,
    /// Bytes still to come of the outgoing frame's body.
    outbound_body_left: usize,
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
    pub(super) fn fill(&self, mut bytes: Bytes) {
        let mut state = self.0.lock();
        if !state.cut_header.is_empty() {
            let missing = (HEADER_BYTES - state.cut_header.len()).min(bytes.len());
            state.cut_header.extend_from_slice(&bytes.split_to(missing));
            if state.cut_header.len() < HEADER_BYTES {
                return;
            }
            let header = state.cut_header.split().freeze();
            state.take_in(header);
        }
        state.take_in(bytes);
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
    /// Takes received bytes in, from a frame's border or inside a body on, without the pings.
    fn take_in(&mut self, mut bytes: Bytes) {
        let mut at = 0;
        loop {
            let body = self.inbound_body_left.min(bytes.len() - at);
            self.inbound_body_left -= body;
            at += body;
            let Some(header) = bytes[at..].first_chunk::<HEADER_BYTES>() else {
                break;
            };
            if is_ping(header) {
                self.answer(*header);
                self.push(bytes.split_to(at));
                bytes.advance(HEADER_BYTES);
                at = 0;
            } else {
                self.inbound_body_left = body_length(header);
                at += HEADER_BYTES;
            }
        }
        self.cut_header.extend_from_slice(&bytes[at..]);
        bytes.truncate(at);
        self.push(bytes);
    }

    fn push(&mut self, bytes: Bytes) {
        self.inbound_bytes += bytes.len();
        if !bytes.is_empty() {
            self.inbound.push_back(bytes);
        }
    }

    /// Answers a ping, unless the other end takes nothing: then it can wait for no answer.
    fn answer(&mut self, mut header: Header) {
        if self.outbound.len() < 2 * limits::PIPE_BYTES {
            header[2..4].copy_from_slice(&[0, FLAG_ACK]);
            self.outbound.extend_from_slice(&header);
        }
    }

    /// Follows the frames that go out, to see a go-away: the crate tells it to nobody else.
    fn follow(&mut self, written: &[u8]) {
        if self.outbound_body_left > 0 {
            self.outbound_body_left = self.outbound_body_left.saturating_sub(written.len());
        } else if let Ok(header) = Header::try_from(written) {
            self.outbound_body_left = body_length(&header);
            self.refused |= header[1] == TYPE_GO_AWAY;
        }
    }
}

fn is_ping(header: &Header) -> bool {
    let [version, kind, _, flags, stream @ .., _, _, _, _] = header;
    *version == 0 && *kind == TYPE_PING && flags & FLAG_ACK == 0 && *stream == [0; 4]
}

fn body_length(header: &Header) -> usize {
    let [_, kind, _, _, _, _, _, _, length @ ..] = header;
    if *kind == TYPE_DATA {
        u32::from_be_bytes(*length) as usize
    } else {
        0
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
            let Some(front) = state.inbound.front_mut() else {
                break;
            };
            let length = front.len().min(buffer.len() - read);
            buffer[read..read + length].copy_from_slice(&front[..length]);
            front.advance(length);
            read += length;
            if front.is_empty() {
                state.inbound.pop_front();
            }
        }
        state.inbound_bytes -= read;
        if read == 0 {
            Poll::Pending
        } else {
            Poll::Ready(Ok(read))
        }
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
        if state.outbound_body_left == 0 && state.outbound.len() >= limits::PIPE_BYTES {
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

    /// The header of a data frame.
    fn data(length: u8) -> Header {
        [0, TYPE_DATA, 0, 0, 0, 0, 0, 2, 0, 0, 0, length]
    }

    fn write(end: &mut MuxEnd, bytes: &[u8]) -> bool {
        let mut cx = Context::from_waker(noop_waker_ref());
        Pin::new(end).poll_write(&mut cx, bytes).is_ready()
    }

    #[test]
    fn reads_cross_the_borders_of_messages() {
        let (mut mux, driver) = pipe();
        assert_eq!(read(&mut mux, 4), None);
        let frame = [&data(5)[..], b"abcde"].concat();
        driver.fill(Bytes::copy_from_slice(&frame[..15]));
        driver.fill(Bytes::copy_from_slice(&frame[15..]));
        assert_eq!(read(&mut mux, 16).unwrap(), frame[..16]);
        assert_eq!(read(&mut mux, 4).unwrap(), b"e");
        assert_eq!(read(&mut mux, 4), None);
    }

    #[test]
    fn pings_are_answered_wherever_they_are_cut_and_nothing_else_is_touched() {
        let ping = [0, TYPE_PING, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4];
        let pong = [0, TYPE_PING, 0, FLAG_ACK, 0, 0, 0, 0, 1, 2, 3, 4];
        let frames = [&data(12)[..], &ping, &pong, &data(0), &data(1), b"x"].concat();
        let received = [&ping[..], &ping, &frames, &ping].concat();
        for piece in 1..received.len() {
            let (mut mux, driver) = pipe();
            received
                .chunks(piece)
                .for_each(|piece| driver.fill(Bytes::copy_from_slice(piece)));
            assert_eq!(read(&mut mux, 100).unwrap(), frames, "cut into {piece}");
            assert_eq!(driver.take(), [pong; 3].concat());
        }
    }

    #[test]
    fn a_flood_of_pings_that_takes_no_answers_is_not_kept() {
        let (mux, driver) = pipe();
        let pings = [0, TYPE_PING, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7].repeat(1_000);
        for _ in 0..1_000 {
            driver.fill(Bytes::copy_from_slice(&pings));
        }
        assert!(mux.0.lock().outbound.len() <= 2 * limits::PIPE_BYTES + HEADER_BYTES);
        assert!(!driver.is_full());
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
        let go_away = [0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        write(&mut mux, &data(12));
        write(&mut mux, &go_away);
        assert!(!driver.is_refused(), "those bytes were the body");
        write(&mut mux, &go_away);
        assert!(driver.is_refused());
    }
}
