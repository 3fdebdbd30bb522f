//! The content of a request that came in at the listener, and the way back for heads ahead of its
//! response.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::answer::http1_head;
use crate::content::{Gate, Silence};
use crate::http1::GuardHandle;
use crate::received::{ReceiveError, ReceivedBody};
use crate::trailers::clean_frame;
use crate::upgraded::{UpgradeSender, UpgradedBytes};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tunnel_proto::exchange::BodyError;
use tunnel_proto::limits;
use tunnel_proto::problem::{Hop, Problem, Reason};

/// How long a platform client that waits for a 100 is left waiting when the upstream says nothing.
const EXPECT_WAIT: Duration = Duration::from_secs(1);

/// The content of a request.
pub struct ListenerBody(Kind);

enum Kind {
    /// Boxed, since a request without content has none of it.
    Received(Box<Received>),
    /// An upgrade's bytes, once there is an upgraded connection.
    Awaited(oneshot::Receiver<UpgradedBytes>),
    Upgraded(UpgradedBytes),
    Empty,
}

struct Received {
    incoming: ReceivedBody,
    /// Closed until the upstream asks for the content, of a request whose client waits for that.
    gate: Option<Gate>,
    /// Bounds the silence of a platform client that was not answered.
    silence: Option<Silence>,
    /// Knows what was wrong with a content over HTTP/1.
    guard: Option<GuardHandle>,
}

/// Takes the heads that go ahead of a response, and is dropped when that comes.
pub struct ListenerInformational {
    /// Opens the gate of a content that is waited for.
    gate: Mutex<Option<oneshot::Sender<()>>>,
    /// Over HTTP/1.1, where such heads can be written.
    guard: Option<GuardHandle>,
    count: AtomicUsize,
    /// Tells the content's timer that there is no response yet.
    _unanswered: Option<Arc<()>>,
}

/// How a content comes in.
pub struct Way<'a> {
    /// `None` over HTTP/2.
    pub guard: Option<&'a GuardHandle>,
    /// The version of the request.
    pub version: Version,
    /// The platform client waits for a 100 before it sends the content.
    pub expects_continue: bool,
    /// For each piece of the content, until there is a response. `None` over HTTP/1, where the guard keeps the
    /// time, and for gRPC calls, which are answered when there is something to tell.
    pub idle: Option<Duration>,
}

impl ListenerBody {
    /// The content of a request, and the way back for heads ahead of its response.
    pub fn received(incoming: ReceivedBody, way: &Way<'_>) -> (Self, ListenerInformational) {
        let mut informational = ListenerInformational::new(way);
        if incoming.is_end_stream() {
            return (Self(Kind::Empty), informational);
        }
        let gate = way.expects_continue.then(|| {
            let (gate, open) = Gate::new(EXPECT_WAIT);
            informational.gate = Mutex::new(Some(open));
            gate
        });
        let silence = way.idle.map(|limit| {
            let (silence, unanswered) = Silence::until_answered(limit);
            informational._unanswered = Some(unanswered);
            silence
        });
        let received = Received {
            incoming,
            gate,
            silence,
            guard: way.guard.cloned(),
        };
        (Self(Kind::Received(Box::new(received))), informational)
    }

    /// The bytes of an upgraded connection that does not exist yet.
    pub fn upgrade(way: &Way<'_>) -> (Self, UpgradeSender, ListenerInformational) {
        let (sender, receiver) = oneshot::channel();
        let body = Self(Kind::Awaited(receiver));
        (body, sender, ListenerInformational::new(way))
    }
}

impl Body for ListenerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            match &mut self.0 {
                Kind::Received(received) => return received.poll_frame(cx),
                Kind::Awaited(receiver) => {
                    self.0 = match ready!(Pin::new(receiver).poll(cx)) {
                        Ok(bytes) => Kind::Upgraded(bytes),
                        Err(_) => Kind::Empty,
                    };
                }
                Kind::Upgraded(bytes) => {
                    let frame = ready!(Pin::new(bytes).poll_frame(cx));
                    let cut = |error: io::Error| {
                        incomplete(format!("the upgraded connection failed: {error}"))
                    };
                    return Poll::Ready(frame.map(|frame| frame.map_err(cut)));
                }
                Kind::Empty => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Received(received) => received.incoming.is_end_stream(),
            Kind::Awaited(_) | Kind::Upgraded(_) => false,
            Kind::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Received(received) => received.incoming.size_hint(),
            Kind::Awaited(_) | Kind::Upgraded(_) => SizeHint::default(),
            Kind::Empty => SizeHint::with_exact(0),
        }
    }
}

impl Received {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(gate) = &mut self.gate {
            ready!(gate.poll(cx));
            self.gate = None;
        }
        let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) else {
            let Some(silence) = &mut self.silence else {
                return Poll::Pending;
            };
            ready!(silence.poll(cx));
            return Poll::Ready(Some(Err(stopped())));
        };
        if let Some(silence) = &mut self.silence {
            silence.end();
        }
        Poll::Ready(match frame {
            // Routes and upstreams rely on it, as on what comes through a session.
            Some(Ok(frame)) => clean_frame(frame).map(Ok),
            Some(Err(error)) => Some(Err(self.failed(&error))),
            None => None,
        })
    }

    fn failed(&self, error: &ReceiveError) -> BodyError {
        let violation = self.guard.as_ref().and_then(GuardHandle::body_violation);
        if let Some(violation) = violation {
            return aborted(Reason::RequestMalformed, violation.reason());
        }
        if error.is_timed_out() {
            return stopped();
        }
        incomplete("the body did not arrive whole")
    }
}

fn stopped() -> BodyError {
    incomplete("the body stopped arriving")
}

fn incomplete(detail: impl Into<std::borrow::Cow<'static, str>>) -> BodyError {
    aborted(Reason::RequestIncomplete, detail)
}

fn aborted(reason: Reason, detail: impl Into<std::borrow::Cow<'static, str>>) -> BodyError {
    BodyError::Aborted(Problem::new(Hop::Client, reason, detail))
}

impl ListenerInformational {
    fn new(way: &Way<'_>) -> Self {
        let is_known = way.version == Version::HTTP_11;
        Self {
            gate: Mutex::default(),
            guard: way.guard.filter(|_| is_known).cloned(),
            count: AtomicUsize::new(0),
            _unanswered: None,
        }
    }

    /// Sends one ahead, where that can be done; false when there were too many, or the status is none
    /// that can be sent on.
    pub fn push(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        if count >= limits::INFORMATIONAL
            || !status.is_informational()
            || status == StatusCode::SWITCHING_PROTOCOLS
        {
            return false;
        }
        if status == StatusCode::CONTINUE {
            if let Some(gate) = self.gate.lock().take() {
                let _ = gate.send(());
            }
        } else if let Some(guard) = &self.guard {
            let mut head = http1_head(status, headers);
            head.extend_from_slice(b"\r\n");
            let _ = guard.informational(head.freeze());
        }
        true
    }
}
