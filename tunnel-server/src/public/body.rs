//! The body of a request on its way to the session.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tunnel_http::{
    content::{Gate, Silence},
    http1::{GuardHandle, Violation},
    received::{ReceiveError, ReceivedBody},
    trailers::clean_frame,
};
use tunnel_proto::{
    exchange::AsProblem,
    problem::{Hop, Problem, Reason},
};

use super::{
    observe::Upload,
    pace::{Pace, Source},
};

/// Why a request's body failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestBodyError {
    /// Its framing breaks HTTP/1.
    #[error("the request's body is malformed: {}", .0.reason())]
    Malformed(Violation),
    /// The platform client's connection failed, or what it sent broke HTTP.
    #[error("the request's body did not arrive whole: {0}")]
    Received(#[source] ReceiveError),
    /// No byte came for too long.
    #[error("the request's body stopped arriving")]
    Idle,
    /// An upgraded connection failed.
    #[error("the upgraded connection failed: {0}")]
    Upgraded(#[source] io::Error),
}

impl AsProblem for RequestBodyError {
    fn as_problem(&self) -> Problem {
        let (reason, detail) = match self {
            Self::Malformed(violation) => (Reason::RequestMalformed, violation.reason()),
            Self::Idle => (Reason::RequestIncomplete, "the body stopped arriving"),
            Self::Received(_) => (Reason::RequestIncomplete, "the body did not arrive whole"),
            Self::Upgraded(_) => (Reason::RequestIncomplete, "the upgraded connection failed"),
        };
        Problem::new(Hop::Server, reason, detail)
    }
}

/// The bytes that a platform client sends to the runtime.
pub(super) struct RequestBody {
    kind: Kind,
    /// Is told of them, if any can come.
    upload: Option<Arc<Upload>>,
    pace: Pace,
}

/// Bytes of an upgraded connection.
type UpgradedBytes = Box<dyn Source<Error = io::Error> + Send>;

enum Kind {
    /// Content of a request.
    Received {
        incoming: ReceivedBody,
        gate: Option<Gate>,
        silence: Option<Silence>,
        /// Knows what was wrong with it over HTTP/1.
        guard: Option<GuardHandle>,
    },
    /// An upgrade's bytes, once there is an upgraded connection.
    Awaited(oneshot::Receiver<UpgradedBytes>),
    Upgraded(UpgradedBytes),
    /// No content; or there will be no upgraded connection.
    Empty,
}

/// Kept until the final answer to a request has come.
#[derive(Default)]
pub(super) struct Unanswered {
    /// Opens the gate of a request that expects 100.
    gate: Option<oneshot::Sender<()>>,
    /// Tells the body's timer that this is still held.
    mark: Option<Arc<()>>,
}

/// Hands an upgraded connection's bytes to the request that asked for it.
pub(super) type UpgradeSender = oneshot::Sender<UpgradedBytes>;

impl Unanswered {
    /// The upstream asks for the body.
    pub(super) fn proceed(&mut self) {
        if let Some(gate) = self.gate.take() {
            let _ = gate.send(());
        }
    }
}

impl RequestBody {
    /// The content of a request. `guard` is that of its connection over HTTP/1; `idle` bounds the wait for each
    /// piece of it, until there is an answer.
    pub(super) fn received(
        incoming: ReceivedBody,
        guard: Option<GuardHandle>,
        idle: Option<Duration>,
        upload: Arc<Upload>,
    ) -> (Self, Unanswered) {
        let mut unanswered = Unanswered::default();
        let silence = idle.map(|limit| {
            let (silence, mark) = Silence::until_answered(limit);
            unanswered.mark = Some(mark);
            silence
        });
        let kind = Kind::Received {
            incoming,
            gate: None,
            silence,
            guard,
        };
        (Self::new(kind, Some(upload)), unanswered)
    }

    /// For a request that expects 100: nothing is read, and so the platform client not asked to go
    /// on, before the upstream asks or `patience` has passed.
    pub(super) fn expect(&mut self, unanswered: &mut Unanswered, patience: Duration) {
        if let Kind::Received { gate, .. } = &mut self.kind {
            let (closed, open) = Gate::new(patience);
            unanswered.gate = Some(open);
            *gate = Some(closed);
        }
    }

    /// No content.
    pub(super) fn empty() -> Self {
        Self::new(Kind::Empty, None)
    }

    fn new(kind: Kind, upload: Option<Arc<Upload>>) -> Self {
        Self {
            kind,
            upload,
            pace: Pace::default(),
        }
    }

    /// The bytes of an upgraded connection that does not exist yet.
    pub(super) fn upgrade(upload: Arc<Upload>) -> (Self, UpgradeSender) {
        let (sender, receiver) = oneshot::channel();
        (Self::new(Kind::Awaited(receiver), Some(upload)), sender)
    }
}

impl Source for Kind {
    type Error = RequestBodyError;

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        loop {
            match self {
                Self::Received {
                    incoming,
                    gate,
                    silence,
                    guard,
                } => {
                    if gate.as_mut().is_some_and(|gate| gate.poll(cx).is_pending()) {
                        return Poll::Pending;
                    }
                    *gate = None;
                    let frame = ready!(poll_received(incoming, silence.as_mut(), cx));
                    return Poll::Ready(frame.map(|frame| {
                        frame.map_err(|error| {
                            let violation = guard.as_ref().and_then(GuardHandle::body_violation);
                            violation.map_or(error, RequestBodyError::Malformed)
                        })
                    }));
                }
                Self::Awaited(receiver) => match Pin::new(receiver).poll(cx) {
                    Poll::Ready(Ok(bytes)) => *self = Self::Upgraded(bytes),
                    Poll::Ready(Err(_)) => *self = Self::Empty,
                    Poll::Pending => return Poll::Pending,
                },
                Self::Upgraded(bytes) => {
                    return bytes
                        .poll_next(cx)
                        .map(|frame| frame.map(|frame| frame.map_err(RequestBodyError::Upgraded)));
                }
                Self::Empty => return Poll::Ready(None),
            }
        }
    }

    fn poll_haste(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Upgraded(bytes) => bytes.poll_haste(cx),
            Self::Received { .. } | Self::Awaited(_) | Self::Empty => Poll::Pending,
        }
    }
}

fn poll_received(
    incoming: &mut ReceivedBody,
    silence: Option<&mut Silence>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
    match Pin::new(incoming).poll_frame(cx) {
        Poll::Ready(frame) => {
            if let Some(silence) = silence {
                silence.end();
            }
            Poll::Ready(match frame {
                Some(Ok(frame)) => clean_frame(frame).map(Ok),
                Some(Err(error)) => Some(Err(failed(error))),
                None => None,
            })
        }
        Poll::Pending => {
            let Some(silence) = silence else {
                return Poll::Pending;
            };
            silence.poll(cx).map(|()| Some(Err(RequestBodyError::Idle)))
        }
    }
}

fn failed(error: ReceiveError) -> RequestBodyError {
    if error.is_timed_out() {
        RequestBodyError::Idle
    } else {
        RequestBodyError::Received(error)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let Self { kind, upload, pace } = &mut *self;
        let shaper = upload.as_ref().and_then(|upload| upload.shaper());
        let frame = pace.poll(cx, shaper, kind);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let (Some(data), Some(upload)) = (frame.data_ref(), upload)
        {
            upload.on_sent(data.len());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let is_over = match &self.kind {
            Kind::Received { incoming, .. } => incoming.is_end_stream(),
            Kind::Empty => true,
            Kind::Awaited(_) | Kind::Upgraded(_) => false,
        };
        is_over && self.pace.length() == 0
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Received { incoming, .. } => self.pace.size_hint(incoming.size_hint()),
            _ => SizeHint::default(),
        }
    }
}
