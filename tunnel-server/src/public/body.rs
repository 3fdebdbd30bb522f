//! The body of a request on its way to the session.

use std::{
    error::Error,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use prometheus::IntCounter;
use tokio::{
    sync::oneshot,
    time::{Sleep, sleep},
};

/// Why a request's body failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestBodyError {
    /// The platform client's connection failed, or what it sent broke HTTP.
    #[error("the request's body did not arrive whole: {0}")]
    Received(#[source] hyper::Error),
    /// No byte came for too long.
    #[error("the request's body stopped arriving")]
    Idle,
    /// An upgraded connection failed.
    #[error("the upgraded connection failed: {0}")]
    Upgraded(#[source] io::Error),
}

/// The bytes that a platform client sends to the runtime.
pub(super) struct RequestBody {
    kind: Kind,
    /// Counts them, if any can come.
    bytes: Option<IntCounter>,
}

/// Bytes of an upgraded connection.
type UpgradedBytes = Pin<Box<dyn Body<Data = Bytes, Error = io::Error> + Send>>;

enum Kind {
    /// Content of a request.
    Received {
        incoming: Incoming,
        gate: Option<ContinueGate>,
        idle: Option<IdleTimer>,
    },
    /// An upgrade's bytes, once there is an upgraded connection.
    Awaited(oneshot::Receiver<UpgradedBytes>),
    Upgraded(UpgradedBytes),
    /// No content; or there will be no upgraded connection.
    Empty,
}

/// Lets the body through when the upstream asks for it, or did not answer for a while.
struct ContinueGate {
    asked: oneshot::Receiver<()>,
    patience: Pin<Box<Sleep>>,
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

/// Bounds the silence of a platform client that was not answered. After that it may be silent: what
/// it sends and what it gets are two streams then, as with gRPC, and either may rest.
struct IdleTimer {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    unanswered: Weak<()>,
}

impl Unanswered {
    /// The upstream asks for the body.
    pub(super) fn proceed(&mut self) {
        if let Some(gate) = self.gate.take() {
            let _ = gate.send(());
        }
    }
}

impl RequestBody {
    /// The content of a request. `idle` bounds the wait for each piece of it, if nothing else does.
    pub(super) fn received(
        incoming: Incoming,
        idle: Option<Duration>,
        bytes: IntCounter,
    ) -> (Self, Unanswered) {
        let mut unanswered = Unanswered::default();
        let idle = idle.map(|limit| IdleTimer {
            limit,
            timer: None,
            unanswered: Arc::downgrade(unanswered.mark.insert(Arc::default())),
        });
        let kind = Kind::Received {
            incoming,
            gate: None,
            idle,
        };
        let bytes = Some(bytes);
        (Self { kind, bytes }, unanswered)
    }

    /// For a request that expects 100: nothing is read, and so the platform client not asked to go
    /// on, before the upstream asks or `patience` has passed.
    pub(super) fn expect(&mut self, unanswered: &mut Unanswered, patience: Duration) {
        let (sender, asked) = oneshot::channel();
        if let Kind::Received { gate, .. } = &mut self.kind {
            unanswered.gate = Some(sender);
            *gate = Some(ContinueGate {
                asked,
                patience: Box::pin(sleep(patience)),
            });
        }
    }

    /// No content.
    pub(super) fn empty() -> Self {
        Self {
            kind: Kind::Empty,
            bytes: None,
        }
    }

    /// The bytes of an upgraded connection that does not exist yet.
    pub(super) fn upgrade(bytes: IntCounter) -> (Self, UpgradeSender) {
        let (sender, receiver) = oneshot::channel();
        (
            Self {
                kind: Kind::Awaited(receiver),
                bytes: Some(bytes),
            },
            sender,
        )
    }

    fn poll_kind(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        loop {
            match &mut self.kind {
                Kind::Received {
                    incoming,
                    gate,
                    idle,
                } => {
                    if gate.as_mut().is_some_and(|gate| gate.poll(cx).is_pending()) {
                        return Poll::Pending;
                    }
                    *gate = None;
                    return poll_received(incoming, idle.as_mut(), cx);
                }
                Kind::Awaited(receiver) => match Pin::new(receiver).poll(cx) {
                    Poll::Ready(Ok(bytes)) => self.kind = Kind::Upgraded(bytes),
                    Poll::Ready(Err(_)) => self.kind = Kind::Empty,
                    Poll::Pending => return Poll::Pending,
                },
                Kind::Upgraded(bytes) => {
                    return bytes
                        .as_mut()
                        .poll_frame(cx)
                        .map(|frame| frame.map(|frame| frame.map_err(RequestBodyError::Upgraded)));
                }
                Kind::Empty => return Poll::Ready(None),
            }
        }
    }
}

fn poll_received(
    incoming: &mut Incoming,
    idle: Option<&mut IdleTimer>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
    match Pin::new(incoming).poll_frame(cx) {
        Poll::Ready(frame) => {
            if let Some(idle) = idle {
                idle.timer = None;
            }
            Poll::Ready(frame.map(|frame| frame.map_err(failed)))
        }
        Poll::Pending => {
            let Some(idle) = idle else {
                return Poll::Pending;
            };
            idle.poll(cx).map(|()| Some(Err(RequestBodyError::Idle)))
        }
    }
}

/// Over HTTP/1 the connection's guard keeps the time, and says so by the kind of its error.
fn failed(error: hyper::Error) -> RequestBodyError {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    if cause.is_some_and(|cause: &io::Error| cause.kind() == io::ErrorKind::TimedOut) {
        RequestBodyError::Idle
    } else {
        RequestBodyError::Received(error)
    }
}

impl ContinueGate {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A sender that is gone has seen the final response: the body is not wanted any more, but
        // neither is anybody waiting for it.
        match Pin::new(&mut self.asked).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Ready(Err(_)) => Poll::Pending,
            Poll::Pending => self.patience.as_mut().poll(cx),
        }
    }
}

impl IdleTimer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unanswered.strong_count() == 0 {
            return Poll::Pending;
        }
        let limit = self.limit;
        self.timer
            .get_or_insert_with(|| Box::pin(sleep(limit)))
            .as_mut()
            .poll(cx)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let frame = self.poll_kind(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let (Some(data), Some(bytes)) = (frame.data_ref(), &self.bytes)
        {
            bytes.inc_by(data.len() as u64);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Received { incoming, .. } => incoming.is_end_stream(),
            Kind::Empty => true,
            Kind::Awaited(_) | Kind::Upgraded(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Received { incoming, .. } => incoming.size_hint(),
            _ => SizeHint::default(),
        }
    }
}
