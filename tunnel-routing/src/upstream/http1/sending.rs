//! Sends one request: its head, then its content as it comes.
//!
//! Head, content that is ready, and end go out in one write. Large pieces of content are written in place instead of being
//! copied.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;
use tunnel_proto::exchange::BodyError;

use crate::upstream::outgoing_body::OutgoingBody;

/// Content up to this many bytes is copied behind the bytes that wait.
const COPY_BYTES: usize = 8 * 1024;

/// Bytes from which on they are written although more content is ready: three pieces of the usual 16 KiB, which together
/// cost little more than one. As many wait for an upstream that takes nothing more.
const WRITE_BYTES: usize = 48 * 1024;

/// Most slices of one write.
const SLICES: usize = 16;

/// The end of a chunk's data, and of all chunks.
const CHUNK_END: &[u8] = b"\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Why a request was not sent completely.
#[derive(Debug)]
pub(in crate::upstream) enum SendError {
    Content(BodyError),
    Write(io::Error),
}

/// How a request's content is framed.
#[derive(Debug, Default)]
pub(in crate::upstream) enum Framing {
    /// By a length in the head, or no content.
    #[default]
    Length,
    /// Chunked. Only these trailers were announced, and no others are sent.
    Chunked(Vec<HeaderName>),
}

/// A request that is being sent.
pub(super) struct Sending<B = OutgoingBody> {
    /// `None` once its end is among the bytes that wait.
    body: Option<B>,
    framing: Framing,
    /// Bytes that wait, before those in `out`: large pieces of content, and what stands between them.
    pieces: VecDeque<Bytes>,
    /// Bytes that wait, from `written` on.
    out: Vec<u8>,
    written: usize,
    /// Whether the connection has not taken all that it was given.
    is_blocked: bool,
    /// Whether written bytes may still be buffered below.
    is_unflushed: bool,
    /// Whether any byte may have reached the upstream.
    has_begun: bool,
}

impl<B> Default for Sending<B> {
    fn default() -> Self {
        Self {
            body: None,
            framing: Framing::default(),
            pieces: VecDeque::new(),
            out: Vec::new(),
            written: 0,
            is_blocked: false,
            is_unflushed: false,
            has_begun: false,
        }
    }
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Sending<B> {
    /// The buffer for the request's head.
    pub(super) fn head(&mut self) -> &mut Vec<u8> {
        self.out.clear();
        self.written = 0;
        &mut self.out
    }

    /// Starts the content that follows the head.
    pub(super) fn begin(&mut self, framing: Framing, body: B) {
        self.body = Some(body).filter(|body| !body.is_end_stream());
        self.framing = framing;
        self.is_unflushed = true;
        self.has_begun = false;
    }

    /// Whether everything is written.
    pub(super) fn is_done(&self) -> bool {
        self.body.is_none() && !self.is_unflushed
    }

    /// Takes the content back, if no byte was sent; the inner `None` means no content.
    pub(super) fn take_back(&mut self) -> Option<Option<B>> {
        (!self.has_begun).then(|| self.body.take())
    }

    /// Sends what it can; ready when the end is written.
    pub(super) fn poll(
        &mut self,
        connection: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        loop {
            if self.body.is_none() || self.is_blocked || self.waiting() >= WRITE_BYTES {
                ready!(self.poll_write(connection, cx)).map_err(SendError::Write)?;
            }
            let Some(body) = &mut self.body else {
                return Poll::Ready(Ok(()));
            };
            match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.take_frame(frame),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(SendError::Content(error)));
                }
                Poll::Ready(None) => self.end(None),
                Poll::Pending => {
                    if let Poll::Ready(Err(error)) = self.poll_write(connection, cx) {
                        return Poll::Ready(Err(SendError::Write(error)));
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    fn take_frame(&mut self, frame: Frame<Bytes>) {
        // Content of which a frame was taken cannot be given back.
        self.has_begun = true;
        self.is_unflushed = true;
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => return self.end(frame.into_trailers().ok()),
        };
        if data.is_empty() {
            return;
        }
        let is_chunked = matches!(self.framing, Framing::Chunked(_));
        if is_chunked {
            // Writing to memory does not fail.
            let _ = write!(self.out, "{:x}\r\n", data.len());
        }
        if data.len() > COPY_BYTES {
            if !self.out.is_empty() {
                self.pieces.push_back(std::mem::take(&mut self.out).into());
            }
            self.pieces.push_back(data);
        } else {
            self.out.extend_from_slice(&data);
        }
        if is_chunked {
            self.out.extend_from_slice(CHUNK_END);
        }
        // An end that is known goes out with the last piece.
        if self.body.as_ref().is_some_and(Body::is_end_stream) {
            self.end(None);
        }
    }

    /// Ends the content.
    fn end(&mut self, trailers: Option<HeaderMap>) {
        self.body = None;
        self.is_unflushed = true;
        let Framing::Chunked(announced) = &self.framing else {
            return;
        };
        let Some(trailers) = trailers else {
            return self.out.extend_from_slice(LAST_CHUNK);
        };
        self.out.extend_from_slice(b"0\r\n");
        for (name, value) in &trailers {
            if announced.contains(name) {
                field(&mut self.out, name.as_str(), value.as_bytes());
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes the bytes that wait.
    fn poll_write(
        &mut self,
        connection: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut connection = Pin::new(connection);
        self.is_blocked = true;
        loop {
            let out = &self.out[self.written..];
            let written = if self.pieces.is_empty() {
                if out.is_empty() {
                    break;
                }
                ready!(connection.as_mut().poll_write(cx, out))?
            } else {
                let mut slices = [IoSlice::new(b""); SLICES];
                let waiting = self.pieces.iter().map(|piece| &piece[..]).chain([out]);
                for (slice, bytes) in slices.iter_mut().zip(waiting) {
                    *slice = IoSlice::new(bytes);
                }
                let count = SLICES.min(self.pieces.len() + 1);
                ready!(
                    connection
                        .as_mut()
                        .poll_write_vectored(cx, &slices[..count])
                )?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.on_written(written);
        }
        self.is_blocked = false;
        self.on_all_written();
        if self.is_unflushed {
            ready!(connection.poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// The number of bytes that wait.
    fn waiting(&self) -> usize {
        let pieces = self.pieces.iter().map(Bytes::len).sum::<usize>();
        pieces + self.out.len() - self.written
    }

    fn on_written(&mut self, mut written: usize) {
        self.has_begun = true;
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                return piece.advance(written);
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
        self.written += written;
    }

    /// Empties the buffer. A long head leaves no memory behind while its response is awaited.
    fn on_all_written(&mut self) {
        self.written = 0;
        if self.out.capacity() > COPY_BYTES {
            self.out = Vec::new();
        } else {
            self.out.clear();
        }
    }

    /// Releases memory that an idle connection does not need.
    pub(super) fn release_memory(&mut self) {
        self.on_all_written();
        self.pieces = VecDeque::new();
    }
}

/// Writes one field line.
pub(in crate::upstream) fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    /// Pieces of content, one at each second poll.
    struct Pieces {
        left: VecDeque<Vec<u8>>,
        is_late: bool,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            self.is_late = !self.is_late;
            if self.is_late {
                return Poll::Pending;
            }
            Poll::Ready(
                self.left
                    .pop_front()
                    .map(|piece| Ok(Frame::data(piece.into()))),
            )
        }
    }

    /// Takes so many bytes at once, and none each second time.
    struct Narrow {
        bytes: usize,
        is_full: bool,
        taken: Vec<u8>,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.is_full = !self.is_full;
            if self.is_full {
                return Poll::Pending;
            }
            let taken = bytes.len().min(self.bytes);
            self.taken.extend_from_slice(&bytes[..taken]);
            Poll::Ready(Ok(taken))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all = slices.iter().flat_map(|slice| slice.iter().copied());
            let all: Vec<u8> = all.take(self.bytes).collect();
            self.poll_write(cx, &all)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// What the upstream gets of these pieces when its connection takes so many bytes at once.
    fn sent(pieces: &[Vec<u8>], bytes: usize) -> Vec<u8> {
        let body = Pieces {
            left: pieces.to_vec().into(),
            is_late: false,
        };
        let mut sending = Sending::default();
        sending.head().extend_from_slice(b"HEAD");
        sending.begin(Framing::Chunked(Vec::new()), body);
        let mut connection = Narrow {
            bytes,
            is_full: true,
            taken: Vec::new(),
        };
        let mut cx = Context::from_waker(Waker::noop());
        while sending.poll(&mut connection, &mut cx).is_pending() {}
        connection.taken
    }

    #[test]
    fn chunks_are_whole_wherever_a_write_ends() {
        let pieces: Vec<Vec<u8>> = [10, COPY_BYTES + 1, 3, COPY_BYTES + 2, COPY_BYTES + 3]
            .map(|length| vec![b'x'; length])
            .into();
        let mut expected = b"HEAD".to_vec();
        for piece in &pieces {
            expected.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            expected.extend_from_slice(piece);
            expected.extend_from_slice(CHUNK_END);
        }
        expected.extend_from_slice(LAST_CHUNK);
        // Around each length at which a write can end within what follows a piece.
        let around = [1, 7, 10, COPY_BYTES, COPY_BYTES + 30].map(|at| at..at + 40);
        for bytes in around.into_iter().flatten() {
            assert!(sent(&pieces, bytes) == expected, "{bytes} bytes at once");
        }
    }
}
