//! Frames that wait to be written to the socket.
//!
//! In: payloads. Out: vectored writes of as much as the socket takes. Long payloads that need no masking
//! are not copied.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncWrite;
use tokio_tungstenite::tungstenite::protocol::frame::{FrameHeader, coding::OpCode};

use super::{
    WebSocketError,
    mask::{self, Masks},
};

/// Payloads from this length on are not copied.
const LONG_BYTES: usize = 4 * 1024;

/// Most slices of one write, and most bytes of each. Slices are short because TLS copies them one by one,
/// and copies of more than 2 KiB are slow on some processors (AMD's, where glibc before 2.39 uses string
/// instructions): 16 % of the CPU time of a download.
const SLICES: usize = 64;
const SLICE_BYTES: usize = 2 * 1024;

/// Bytes copied and masked at once. A multiple of the mask's length.
const MASKED_BYTES: usize = 1024;

/// Frames that wait for the socket.
pub(super) struct Outgoing {
    /// `None` for the server, which masks nothing.
    masks: Option<Box<Masks>>,
    pieces: VecDeque<Bytes>,
    /// Frames that follow `pieces`.
    tail: BytesMut,
    /// Total bytes that the socket has taken.
    written: u64,
}

impl Outgoing {
    pub(super) fn new(is_masked: bool) -> Self {
        Self {
            masks: is_masked.then(|| Box::new(Masks::new())),
            pieces: VecDeque::new(),
            tail: BytesMut::new(),
            written: 0,
        }
    }

    /// Queues a whole message as one frame.
    pub(super) fn push(&mut self, opcode: OpCode, payload: Bytes) -> Result<(), WebSocketError> {
        let mask = self.masks.as_mut().map(|masks| masks.next()).transpose();
        let mask = mask.map_err(|error| WebSocketError::Io(error.into()))?;
        let header = FrameHeader {
            opcode,
            mask,
            ..FrameHeader::default()
        };
        header.format(payload.len() as u64, &mut (&mut self.tail).writer())?;
        match mask {
            None if payload.len() >= LONG_BYTES => {
                self.pieces.push_back(self.tail.split().freeze());
                self.pieces.push_back(payload);
            }
            None => self.tail.extend_from_slice(&payload),
            Some(mask) => {
                self.tail.reserve(payload.len());
                let mut masked = [0; MASKED_BYTES];
                for piece in payload.chunks(MASKED_BYTES) {
                    let masked = &mut masked[..piece.len()];
                    masked.copy_from_slice(piece);
                    mask::apply(masked, mask);
                    self.tail.extend_from_slice(masked);
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.tail.is_empty()
    }

    /// Writes what is queued. Ready when the socket has taken all of it.
    pub(super) fn poll_write(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let written = if self.pieces.is_empty() && self.tail.len() <= SLICE_BYTES {
                ready!(Pin::new(&mut *io).poll_write(cx, &self.tail))?
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let waiting = self.pieces.iter().map(|piece| &piece[..]);
                let waiting = waiting.chain([&self.tail[..]]);
                let waiting = waiting.flat_map(|bytes| bytes.chunks(SLICE_BYTES));
                let mut count = 0;
                for (slice, bytes) in slices.iter_mut().zip(waiting) {
                    *slice = IoSlice::new(bytes);
                    count += 1;
                }
                ready!(Pin::new(&mut *io).poll_write_vectored(cx, &slices[..count]))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Total bytes that the socket has taken.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    fn advance(&mut self, mut written: usize) {
        self.written += written as u64;
        while let Some(front) = self.pieces.front_mut() {
            if written < front.len() {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.pieces.pop_front();
        }
        if written == self.tail.len() {
            // Keeps the capacity, which advancing would give up piece by piece.
            self.tail.clear();
        } else {
            self.tail.advance(written);
        }
    }

    /// Gives back memory that a burst has left.
    pub(super) fn trim(&mut self) {
        if self.is_empty() {
            self.pieces = VecDeque::new();
            self.tail = BytesMut::new();
        }
    }
}
