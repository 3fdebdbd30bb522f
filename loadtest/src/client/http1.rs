//! HTTP/1.1 over one connection. The task that waits for an answer drives the connection itself, so that a request costs
//! no task switch.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use http::{Request, Response};
use http_body::Body as _;
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{self, Parts, SendRequest},
};
use hyper_util::rt::TokioIo;

use crate::{
    client::{Stream, body::Outgoing},
    measure::errors::{Failure, Kind},
};

type Inner = http1::Connection<TokioIo<Stream>, Outgoing>;

/// The largest piece that is read at once: fewer and larger reads cost less for bulk, and small
/// answers do not fill it.
const READ_BUFFER: usize = 512 * 1024;

/// A connection that carries one request at a time.
#[derive(Debug)]
pub struct Http1 {
    sender: SendRequest<Outgoing>,
    connection: Inner,
    ended: bool,
}

impl Http1 {
    /// Starts HTTP/1.1 on an open connection.
    ///
    /// # Errors
    /// Those of hyper's handshake, which sends nothing.
    pub async fn new(stream: Stream) -> Result<Self, Failure> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(READ_BUFFER);
        let made = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|error| failure(&error))?;
        Ok(Self {
            sender,
            connection,
            ended: false,
        })
    }

    /// Sends a request and returns the head of its answer; [`Self::frame`] reads the content.
    ///
    /// # Errors
    /// The connection broke, or the answer is not HTTP.
    pub async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Failure> {
        if self.ended {
            return Err(Failure::fatal(Kind::ClosedEarly));
        }
        let mut sent = pin!(self.sender.send_request(request));
        let (connection, ended) = (&mut self.connection, &mut self.ended);
        std::future::poll_fn(|context| {
            drive(connection, ended, context)?;
            match sent.as_mut().poll(&mut without_waker()) {
                Poll::Ready(answer) => Poll::Ready(answer.map_err(|error| failure(&error))),
                Poll::Pending if *ended => Poll::Ready(Err(Failure::fatal(Kind::ClosedEarly))),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// The next piece of an answer's content; `None` at its complete end. Trailers are skipped.
    ///
    /// # Errors
    /// It ended before its announced end.
    pub async fn frame(&mut self, content: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        loop {
            let (connection, ended) = (&mut self.connection, &mut self.ended);
            let mut driven = false;
            let frame = std::future::poll_fn(|context| {
                loop {
                    // What has arrived already is taken before more is read.
                    match Pin::new(&mut *content).poll_frame(&mut without_waker()) {
                        Poll::Ready(frame) => return Poll::Ready(Ok(frame)),
                        Poll::Pending if *ended => return Poll::Ready(Err(CUT)),
                        Poll::Pending if driven => {
                            driven = false;
                            return Poll::Pending;
                        }
                        Poll::Pending => {}
                    }
                    driven = true;
                    drive(connection, ended, context)?;
                }
            });
            match frame.await? {
                None => return Ok(None),
                Some(Err(error)) => return Err(short(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Whether it may carry the next request: the peer has not closed it while it was idle.
    pub fn is_open(&mut self) -> bool {
        // After an error it has ended.
        let _ = drive(&mut self.connection, &mut self.ended, &mut without_waker());
        !self.ended && !self.sender.is_closed()
    }

    /// The stream of a connection that was upgraded, and what was read beyond the head.
    pub fn into_stream(self) -> (Stream, Bytes) {
        let Parts { io, read_buf, .. } = self.connection.into_parts();
        (io.into_inner(), read_buf)
    }
}

/// The content ended with the connection, before its announced end.
const CUT: Failure = Failure {
    kind: Kind::BodyShort,
    connection_good: false,
};

/// A context that wakes no task, for futures that only the connection makes ready: the task polls the connection first.
fn without_waker() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Polls the connection. Its orderly end is no error, and sets `ended`.
fn drive(
    connection: &mut Inner,
    ended: &mut bool,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    if *ended {
        return Ok(());
    }
    // Without shutdown, so that an upgraded connection's bytes stay usable.
    match connection.poll_without_shutdown(context) {
        Poll::Pending => Ok(()),
        Poll::Ready(Ok(())) => {
            *ended = true;
            Ok(())
        }
        Poll::Ready(Err(error)) => {
            *ended = true;
            Err(failure(&error))
        }
    }
}

fn failure(error: &hyper::Error) -> Failure {
    Failure::fatal(Kind::of_hyper(error))
}

/// A failure after the head: the content is incomplete, however the connection ended.
fn short(error: &hyper::Error) -> Failure {
    Failure::fatal(match Kind::of_hyper(error) {
        Kind::ClosedEarly => Kind::BodyShort,
        other => other,
    })
}
