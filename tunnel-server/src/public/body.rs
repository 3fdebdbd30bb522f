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
    upgraded::{UpgradeSender, UpgradedBytes},
};
use tunnel_proto::{
    exchange::AsProblem,
    problem::{Hop, Problem, Reason},
};

use super::{observe::Upload, pace::Paced};
use crate::budget::shaper::Shaper;

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
    /// Counts them, if any can come.
    upload: Option<Arc<Upload>>,
}

enum Kind {
    /// Content of a request.
    Received(Paced<Received>),
    /// An upgrade's bytes, once there is an upgraded connection.
    Awaited(oneshot::Receiver<UpgradedBytes>),
    Upgraded(UpgradedBytes),
    /// No content; or there will be no upgraded connection.
    Empty,
}

/// The content of a request, as hyper receives it.
struct Received {
    incoming: ReceivedBody,
    gate: Option<Gate>,
    silence: Option<Silence>,
    /// Knows what was wrong with it over HTTP/1.
    guard: Option<GuardHandle>,
}

/// Kept until the final answer to a request has come.
#[derive(Default)]
pub(super) struct AwaitingResponse {
    /// Opens the gate of a request that expects 100.
    gate: Option<oneshot::Sender<()>>,
    /// Tells the body's timer that this is still held.
    mark: Option<Arc<()>>,
}

impl AwaitingResponse {
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
        shaper: Option<Arc<Shaper>>,
    ) -> (Self, AwaitingResponse) {
        let mut awaiting = AwaitingResponse::default();
        let silence = idle.map(|limit| {
            let (silence, mark) = Silence::until_answered(limit);
            awaiting.mark = Some(mark);
            silence
        });
        let received = Received {
            incoming,
            gate: None,
            silence,
            guard,
        };
        let kind = Kind::Received(Paced::new(received, shaper));
        (Self::new(kind, Some(upload)), awaiting)
    }

    /// For a request that expects 100: nothing is read, and so the platform client not asked to go
    /// on, before the upstream asks or `limit` has passed.
    pub(super) fn expect(&mut self, awaiting: &mut AwaitingResponse, limit: Duration) {
        if let Kind::Received(received) = &mut self.kind {
            let (closed, open) = Gate::new(limit);
            awaiting.gate = Some(open);
            received.body_mut().gate = Some(closed);
        }
    }

    /// No content.
    pub(super) fn empty() -> Self {
        Self::new(Kind::Empty, None)
    }

    fn new(kind: Kind, upload: Option<Arc<Upload>>) -> Self {
        Self { kind, upload }
    }

    /// The bytes of an upgraded connection that does not exist yet.
    pub(super) fn upgrade(upload: Arc<Upload>) -> (Self, UpgradeSender) {
        let (sender, receiver) = oneshot::channel();
        (Self::new(Kind::Awaited(receiver), Some(upload)), sender)
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let this = &mut *self;
        if let Some(gate) = &mut this.gate {
            ready!(gate.poll(cx));
            this.gate = None;
        }
        let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(cx) else {
            let Some(silence) = &mut this.silence else {
                return Poll::Pending;
            };
            ready!(silence.poll(cx));
            return Poll::Ready(Some(Err(RequestBodyError::Idle)));
        };
        if let Some(silence) = &mut this.silence {
            silence.end();
        }
        Poll::Ready(match frame {
            Some(Ok(frame)) => clean_frame(frame).map(Ok),
            Some(Err(error)) => Some(Err(this.failed(error))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Received {
    fn failed(&self, error: ReceiveError) -> RequestBodyError {
        let violation = self.guard.as_ref().and_then(GuardHandle::body_violation);
        match violation {
            Some(violation) => RequestBodyError::Malformed(violation),
            None if error.is_timed_out() => RequestBodyError::Idle,
            None => RequestBodyError::Received(error),
        }
    }
}

impl Kind {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        loop {
            match self {
                Self::Received(received) => return Pin::new(received).poll_frame(cx),
                Self::Awaited(receiver) => {
                    *self = ready!(Pin::new(receiver).poll(cx)).map_or(Self::Empty, Self::Upgraded);
                }
                Self::Upgraded(bytes) => {
                    let frame = ready!(Pin::new(bytes).poll_frame(cx));
                    return Poll::Ready(
                        frame.map(|frame| frame.map_err(RequestBodyError::Upgraded)),
                    );
                }
                Self::Empty => return Poll::Ready(None),
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let Self { kind, upload } = &mut *self;
        let frame = kind.poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let (Some(data), Some(upload)) = (frame.data_ref(), upload)
        {
            upload.on_sent(data.len());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Received(received) => received.is_end_stream(),
            Kind::Empty => true,
            Kind::Awaited(_) | Kind::Upgraded(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Received(received) => received.size_hint(),
            Kind::Awaited(_) | Kind::Upgraded(_) | Kind::Empty => SizeHint::default(),
        }
    }
}
