//! The body of a request at the listener, and the sender of informational responses to its platform client.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tunnel_proto::limits;
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::answer::{http1_head, keep_end_to_end};
use crate::content::{Gate, Passage, Silence};
use crate::http1::GuardHandle;
use crate::http2::Reply;
use crate::received::{ReceiveError, ReceivedBody};
use crate::trailers::clean_frame;
use crate::upgraded::{UpgradeSender, UpgradedBytes};

/// The body of a request, or the bytes of an upgraded connection. `R` is what holds a [`ReceivedContent`]. Fails with
/// the problem that the platform client gets.
pub struct ListenerBody<R> {
    hop: Hop,
    source: BodySource<R>,
}

enum BodySource<R> {
    Received(R),
    /// An upgrade's bytes, once there is an upgraded connection.
    Awaited(oneshot::Receiver<UpgradedBytes>),
    Upgraded(UpgradedBytes),
    /// No content; or there will be no upgraded connection.
    Empty,
}

/// The content of a request, as it is received.
pub struct ReceivedContent {
    hop: Hop,
    incoming: ReceivedBody,
    /// Closed until the upstream asks for the content of a request that expects 100, or answers without it.
    gate: Option<Gate>,
    /// Bounds the wait for each piece of the content.
    silence: Option<Silence>,
    /// Knows which rule content over HTTP/1 broke.
    guard: Option<GuardHandle>,
}

/// Sends informational responses. It is dropped when the response's head is received; after that the body may be silent.
pub struct ListenerInformational {
    /// Opens the gate of a request that expects 100.
    gate: Option<oneshot::Sender<()>>,
    /// Where informational heads are written; `None` over HTTP/1.0, which has none.
    sink: Option<InformationalSink>,
    count: usize,
    /// Limits the silence of the body while it exists.
    _unanswered: Option<Arc<()>>,
}

enum InformationalSink {
    Http1(GuardHandle),
    Http2(Reply),
}

/// The options for the body of a request.
pub struct BodyOptions<'a> {
    /// The program's name in problems.
    pub hop: Hop,
    /// The guard of the request's connection; `None` over HTTP/2.
    pub guard: Option<&'a GuardHandle>,
    /// The reply to the request; `None` over HTTP/1.
    pub reply: Option<&'a Reply>,
    /// The version of the request.
    pub version: Version,
    /// For a request that expects 100: after this time its content is read without a 100 of the upstream.
    pub expect_wait: Option<Duration>,
    /// The longest wait for each piece of the content, until there is a response. `None` over HTTP/1, where the guard
    /// keeps the time, and for gRPC calls, whose response may begin at any time.
    pub idle: Option<Duration>,
}

impl<R> ListenerBody<R> {
    /// The content of a request, wrapped by `hold`, and the sender of informational responses.
    pub fn received(
        incoming: ReceivedBody,
        options: &BodyOptions<'_>,
        hold: impl FnOnce(ReceivedContent) -> R,
    ) -> (Self, ListenerInformational) {
        let mut informational = ListenerInformational::new(options);
        if incoming.is_end_stream() {
            return (Self::new(options, BodySource::Empty), informational);
        }
        let gate = options.expect_wait.map(|limit| {
            let (gate, open) = Gate::new(limit);
            informational.gate = Some(open);
            gate
        });
        let silence = options.idle.map(|limit| {
            let (silence, unanswered) = Silence::until_answered(limit);
            informational._unanswered = Some(unanswered);
            silence
        });
        let received = ReceivedContent {
            hop: options.hop,
            incoming,
            gate,
            silence,
            guard: options.guard.cloned(),
        };
        let source = BodySource::Received(hold(received));
        (Self::new(options, source), informational)
    }

    /// The body of a request without content.
    pub fn empty(options: &BodyOptions<'_>) -> (Self, ListenerInformational) {
        let informational = ListenerInformational::new(options);
        (Self::new(options, BodySource::Empty), informational)
    }

    /// The bytes of an upgraded connection that does not exist yet.
    pub fn upgrade(options: &BodyOptions<'_>) -> (Self, UpgradeSender, ListenerInformational) {
        let (sender, receiver) = oneshot::channel();
        let body = Self::new(options, BodySource::Awaited(receiver));
        (body, sender, ListenerInformational::new(options))
    }

    fn new(options: &BodyOptions<'_>, source: BodySource<R>) -> Self {
        let hop = options.hop;
        Self { hop, source }
    }
}

impl<R: Body<Data = Bytes, Error = Problem> + Unpin> Body for ListenerBody<R> {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        let hop = self.hop;
        loop {
            match &mut self.source {
                BodySource::Received(received) => return Pin::new(received).poll_frame(cx),
                BodySource::Awaited(receiver) => {
                    let bytes = ready!(Pin::new(receiver).poll(cx));
                    self.source = bytes.map_or(BodySource::Empty, BodySource::Upgraded);
                }
                BodySource::Upgraded(bytes) => {
                    let frame = ready!(Pin::new(bytes).poll_frame(cx));
                    return Poll::Ready(frame.map(|frame| {
                        frame.map_err(|error| {
                            let detail = format!("the upgraded connection failed: {error}");
                            incomplete(hop, detail)
                        })
                    }));
                }
                BodySource::Empty => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Received(received) => received.is_end_stream(),
            BodySource::Awaited(_) | BodySource::Upgraded(_) => false,
            BodySource::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Received(received) => received.size_hint(),
            BodySource::Awaited(_) | BodySource::Upgraded(_) => SizeHint::default(),
            BodySource::Empty => SizeHint::with_exact(0),
        }
    }
}

impl Body for ReceivedContent {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        let this = &mut *self;
        if let Some(gate) = &mut this.gate {
            match ready!(gate.poll(cx)) {
                Passage::Asked => this.incoming.send_continue(),
                Passage::Unasked => ready!(this.incoming.poll_answer_begun(cx)),
            }
            this.gate = None;
        }
        let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(cx) else {
            match &mut this.silence {
                Some(silence) => ready!(silence.poll(cx)),
                None => ready!(this.incoming.poll_given_up(cx)),
            }
            return Poll::Ready(Some(Err(this.stopped())));
        };
        if let Some(silence) = &mut this.silence {
            silence.end();
        }
        Poll::Ready(match frame {
            Some(Ok(frame)) => clean_frame(frame).map(Ok),
            Some(Err(error)) => Some(Err(this.failed(&error))),
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

impl ReceivedContent {
    fn failed(&self, error: &ReceiveError) -> Problem {
        let violation = self.guard.as_ref().and_then(GuardHandle::body_violation);
        match violation {
            Some(violation) => Problem::new(self.hop, violation.reason(), violation.detail()),
            None if error.is_timed_out() => self.stopped(),
            None => incomplete(self.hop, "the body did not arrive whole"),
        }
    }

    fn stopped(&self) -> Problem {
        incomplete(self.hop, "the body stopped arriving")
    }
}

fn incomplete(hop: Hop, detail: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(hop, Reason::RequestIncomplete, detail)
}

impl ListenerInformational {
    fn new(options: &BodyOptions<'_>) -> Self {
        let guard = options
            .guard
            .filter(|_| options.version == Version::HTTP_11);
        let http1 = guard.cloned().map(InformationalSink::Http1);
        let http2 = options.reply.cloned().map(InformationalSink::Http2);
        Self {
            gate: None,
            sink: http1.or(http2),
            count: 0,
            _unanswered: None,
        }
    }

    /// Sends an informational response; HTTP/1.0 drops it. A 100 starts reading the content, upon which another 100 is sent.
    /// Returns `false` if there were too many, or the status cannot be forwarded.
    pub fn push(&mut self, status: StatusCode, headers: &HeaderMap) -> bool {
        if self.count >= limits::INFORMATIONAL
            || !status.is_informational()
            || status == StatusCode::SWITCHING_PROTOCOLS
        {
            return false;
        }
        self.count += 1;
        if status == StatusCode::CONTINUE {
            if let Some(gate) = self.gate.take() {
                let _ = gate.send(());
            }
            return true;
        }
        match &self.sink {
            Some(InformationalSink::Http1(guard)) => {
                let mut head = http1_head(status, headers);
                head.extend_from_slice(b"\r\n");
                let _ = guard.informational(head.freeze());
            }
            Some(InformationalSink::Http2(reply)) => {
                let mut headers = headers.clone();
                keep_end_to_end(&mut headers);
                reply.send_informational(status, headers);
            }
            None => {}
        }
        true
    }
}
