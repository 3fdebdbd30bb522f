//! Sends one message: an encoded head, then the content as the body yields it.
//!
//! Head, first content and end are sent in one write if they are available together, so a small message
//! costs a single write. Large chunks are written without being copied.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::task::noop_waker_ref;
use http_body::Body;

use super::{SharedStream, encode_problem};
use crate::{bhttp::encode, fields, problem::Problem, session::mux::StreamCut};

/// Content up to this length is appended to the output buffer; longer content is written by itself.
const COPY_BYTES: usize = 8 * 1024;

/// Why a message was not sent completely.
#[derive(Debug)]
pub(super) enum SendError<E> {
    /// The body failed.
    Body(E),
    /// The stream takes no more bytes.
    Cut,
}

/// One message that is being sent.
pub(super) struct Sender<B> {
    stream: SharedStream,
    /// `None` once the body has ended.
    body: Option<Pin<Box<B>>>,
    /// Encoded and not yet written.
    out: BytesMut,
    /// Whether `out` has room for a large head.
    is_out_large: bool,
    /// A large piece of content that follows `out`.
    content: Bytes,
    /// The end of the message, once it is known; follows `content`.
    tail: BytesMut,
}

impl<B: Body<Data = Bytes>> Sender<B> {
    /// A message with this encoded head.
    pub(super) fn new(stream: SharedStream, mut head: BytesMut, body: B) -> Self {
        let body = if body.is_end_stream() {
            encode::end_content(&mut head);
            encode::end_fields(&mut head);
            None
        } else {
            Some(Box::pin(body))
        };
        Self {
            stream,
            body,
            is_out_large: head.len() > COPY_BYTES,
            out: head,
            content: Bytes::new(),
            tail: BytesMut::new(),
        }
    }

    /// A whole encoded message without content. Writes at once as much as the stream takes.
    pub(super) fn whole(stream: SharedStream, mut message: &[u8]) -> Self {
        // The first poll reports a cut or the completion.
        let mut no_wakeup = Context::from_waker(noop_waker_ref());
        let _ = stream.lock().poll_write(&mut no_wakeup, &mut message);
        Self {
            stream,
            body: None,
            is_out_large: message.len() > COPY_BYTES,
            out: message.into(),
            content: Bytes::new(),
            tail: BytesMut::new(),
        }
    }

    /// Sends as much as possible; ready when the end of the message is written.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<B::Error>>> {
        loop {
            if self.content.has_remaining() || self.out.len() >= COPY_BYTES || self.body.is_none() {
                match self.poll_write(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(StreamCut)) => return Poll::Ready(Err(SendError::Cut)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            let Some(body) = &mut self.body else {
                self.stream.lock().sent = true;
                return Poll::Ready(Ok(()));
            };
            match body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.take_frame(frame),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(SendError::Body(error))),
                Poll::Ready(None) => self.end(|_| {}),
                Poll::Pending => {
                    return match self.poll_write(cx) {
                        Poll::Ready(Err(StreamCut)) => Poll::Ready(Err(SendError::Cut)),
                        _ => Poll::Pending,
                    };
                }
            }
        }
    }

    fn take_frame(&mut self, frame: http_body::Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => {
                if data.len() > COPY_BYTES {
                    encode::chunk_header(&mut self.out, data.len());
                    self.content = data;
                } else if !data.is_empty() {
                    encode::chunk(&mut self.out, &data);
                }
                // If the end is already known, it is sent with the last piece.
                if self.body.as_ref().is_some_and(|body| body.is_end_stream()) {
                    self.end(|_| {});
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    self.end(|out| encode::fields(out, &fields::clean_trailers(trailers)));
                }
            }
        }
    }

    /// Ends the content; `trailers` encodes the fields of the trailer section.
    fn end(&mut self, trailers: impl FnOnce(&mut BytesMut)) {
        let out = if self.content.is_empty() {
            &mut self.out
        } else {
            &mut self.tail
        };
        encode::end_content(out);
        trailers(out);
        encode::end_fields(out);
        self.body = None;
    }

    /// Ends the message with a trailer section that names the problem.
    pub(super) fn abort(&mut self, problem: &Problem) {
        self.end(|out| encode_problem(out, problem));
    }

    /// Whether all of the message is written.
    pub(super) fn is_done(&self) -> bool {
        let is_written = self.out.is_empty() && self.content.is_empty() && self.tail.is_empty();
        self.body.is_none() && is_written
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamCut>> {
        let mut stream = self.stream.lock();
        ready!(stream.poll_write(cx, &mut self.out))?;
        if std::mem::take(&mut self.is_out_large) {
            // A large head leaves no empty buffer behind.
            self.out = BytesMut::new();
        }
        ready!(stream.poll_write(cx, &mut self.content))?;
        stream.poll_write(cx, &mut self.tail)
    }
}
