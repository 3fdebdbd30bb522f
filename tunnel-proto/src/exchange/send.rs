//! Sends one message: a head that is already encoded, then the content as the body yields it.
//!
//! Head, first content and end go out as one write when they are there together, which is what a
//! small exchange costs. Large chunks are not copied together; they are written from where they lie.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;

use super::{SharedWire, encode_problem};
use crate::{bhttp::encode, fields, problem::Problem, session::mux::Cut};

/// Content up to this many bytes is copied behind what is waiting, instead of written by itself.
const COPY_BYTES: usize = 8 * 1024;

/// Why a message was not sent to its end.
#[derive(Debug)]
pub(super) enum SendError<E> {
    /// The body failed.
    Body(E),
    /// The stream takes no more bytes.
    Cut,
}

/// One message on its way out.
pub(super) struct Sender<B> {
    wire: SharedWire,
    /// `None` once it has ended.
    body: Option<Pin<Box<B>>>,
    /// Encoded and not yet written.
    out: BytesMut,
    /// A large piece of content that follows `out`.
    content: Bytes,
}

impl<B: Body<Data = Bytes>> Sender<B> {
    /// A message whose head is in `head`.
    pub(super) fn new(wire: SharedWire, mut head: BytesMut, body: B) -> Self {
        let body = if body.is_end_stream() {
            encode::end_content(&mut head);
            encode::end_fields(&mut head);
            None
        } else {
            Some(Box::pin(body))
        };
        Self { wire, body, out: head, content: Bytes::new() }
    }

    /// Moves the message on; ready when its end is written.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<B::Error>>> {
        loop {
            if self.content.has_remaining() || self.out.len() >= COPY_BYTES || self.body.is_none() {
                match self.poll_write(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(Cut)) => return Poll::Ready(Err(SendError::Cut)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            let Some(body) = &mut self.body else {
                self.wire.lock().sent = true;
                return Poll::Ready(Ok(()));
            };
            match body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.take_frame(frame),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(SendError::Body(error))),
                Poll::Ready(None) => self.end(),
                Poll::Pending => {
                    return match self.poll_write(cx) {
                        Poll::Ready(Err(Cut)) => Poll::Ready(Err(SendError::Cut)),
                        _ => Poll::Pending,
                    };
                }
            }
        }
    }

    fn take_frame(&mut self, frame: http_body::Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) if data.len() <= COPY_BYTES => encode::chunk(&mut self.out, &data),
            Ok(data) => {
                encode::chunk_header(&mut self.out, data.len());
                self.content = data;
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    encode::end_content(&mut self.out);
                    encode::fields(&mut self.out, &fields::clean_trailers(trailers));
                    encode::end_fields(&mut self.out);
                    self.body = None;
                }
            }
        }
    }

    fn end(&mut self) {
        encode::end_content(&mut self.out);
        encode::end_fields(&mut self.out);
        self.body = None;
    }

    /// Ends the message as broken: a trailer section that names the problem.
    pub(super) fn abort(&mut self, problem: &Problem) {
        // A large piece that is half written has to be whole first; it is, before the body is
        // asked for more.
        encode::end_content(&mut self.out);
        encode_problem(&mut self.out, problem);
        encode::end_fields(&mut self.out);
        self.body = None;
    }

    /// The body that is not sent to its end, if there is more of it.
    pub(super) fn is_done(&self) -> bool {
        self.body.is_none() && self.out.is_empty() && self.content.is_empty()
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        let mut wire = self.wire.lock();
        match wire.poll_write(cx, &mut self.out) {
            Poll::Ready(Ok(())) => wire.poll_write(cx, &mut self.content),
            other => other,
        }
    }
}
