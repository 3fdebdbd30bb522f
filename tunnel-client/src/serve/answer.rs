//! What a platform client gets: the upstream's response, or a problem as an answer of our own.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Method, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::MapErr;
use tunnel_http::answer;
use tunnel_http::answer::Content;
use tunnel_http::connection::Outlet;
use tunnel_http::ends::{Early, Form, LongStream};
use tunnel_http::http1::InFlight;
use tunnel_http::permits::Permit;
use tunnel_ops::signals::Shutdown;
use tunnel_proto::fields::clean_frame;
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::exchange::ObservedBody;

/// Why a content ends before it is whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("{0}")]
    Upstream(<ObservedBody as Body>::Error),
    #[error("the client has stopped")]
    Stopped,
}

/// The content of an answer.
pub(super) struct AnswerBody {
    kind: Kind,
    outlet: Outlet<AnswerError>,
    /// Until its end.
    _held: Option<Held>,
}

/// What an exchange holds until its answer has ended.
pub(super) struct Held {
    /// Its permit; `None` for a refusal.
    pub(super) permit: Option<Permit>,
    /// Tells the connection's guard that it is over.
    pub(super) _in_flight: Option<InFlight>,
}

/// What comes from the upstream.
pub(super) type Received = MapErr<ObservedBody, fn(<ObservedBody as Body>::Error) -> AnswerError>;

enum Kind {
    Received(Received),
    /// The same, of a content that can end in order when the client stops.
    Long(Box<LongStream<Received>>),
    Own(Option<Bytes>),
    /// No content, but a field that tells its length.
    LengthOnly,
}

/// What comes from the upstream, with the errors of an answer.
pub(super) fn received(body: ObservedBody) -> Received {
    body.map_err(AnswerError::Upstream as fn(_) -> _)
}

/// Follows what comes from an upstream.
pub(super) fn followed(body: Received, form: Form, stage: &Shutdown) -> LongStream<Received> {
    LongStream::new(body, form, stage, Early::cut(|| AnswerError::Stopped))
}

/// What the form of an answer depends on in its request.
pub(super) struct RequestTraits<'a> {
    pub(super) method: &'a Method,
    pub(super) is_http2: bool,
    /// Whether the platform client requests an event stream again after its end.
    pub(super) reconnects: bool,
}

/// The upstream's response as it is sent on. Its content ends in order, if it can, once `stage` is
/// asked for.
///
/// # Errors
/// When the upstream sent a status or a length that no response can have.
pub(super) fn response(
    answered: Response<ObservedBody>,
    request: &RequestTraits<'_>,
    stage: &Shutdown,
) -> Result<Response<AnswerBody>, Problem> {
    let RequestTraits {
        method,
        is_http2,
        reconnects,
    } = *request;
    let (mut parts, body) = answered.into_parts();
    let content = answer::make_response(&mut parts, method, !is_http2).map_err(|what| {
        let detail = format!("the upstream's answer has {what}");
        Problem::new(Hop::Client, Reason::ResponseInvalid, detail)
    })?;
    let kind = match content {
        Content::None => Kind::Own(None),
        Content::LengthOnly => Kind::LengthOnly,
        Content::Received => match Form::of_response(&parts.headers, is_http2, reconnects) {
            Some(form) => Kind::Long(Box::new(followed(received(body), form, stage))),
            None => Kind::Received(received(body)),
        },
    };
    Ok(Response::from_parts(parts, AnswerBody::new(kind)))
}

/// A problem as an answer.
pub(super) fn problem(problem: &Problem, is_http2: bool, is_grpc: bool) -> Response<AnswerBody> {
    let head = if is_grpc {
        answer::grpc_problem(problem)
    } else {
        answer::problem(problem, !is_http2)
    };
    let mut answer = Response::new(AnswerBody::own(head.content));
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    answer
}

impl AnswerBody {
    /// A content of our own.
    pub(super) fn own(content: impl Into<Bytes>) -> Self {
        let content = content.into();
        Self::new(Kind::Own((!content.is_empty()).then_some(content)))
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            outlet: Outlet::default(),
            _held: None,
        }
    }

    /// Keeps this until the content has ended.
    pub(super) fn hold(&mut self, held: Held) {
        self._held = Some(held);
    }
}

impl Kind {
    /// The next frame, without what may not travel in trailers.
    fn poll_content(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        let frame = match self {
            Self::Received(body) => ready!(Pin::new(body).poll_frame(cx)),
            Self::Long(body) => ready!(Pin::new(&mut **body).poll_frame(cx)),
            Self::Own(content) => content.take().map(|own| Ok(Frame::data(own))),
            Self::LengthOnly => None,
        };
        Poll::Ready(frame.and_then(|frame| frame.map(clean_frame).transpose()))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        let Self { kind, outlet, .. } = &mut *self;
        outlet.poll(cx, |cx| kind.poll_content(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.outlet.is_empty()
            && match &self.kind {
                Kind::Received(body) => body.is_end_stream(),
                Kind::Long(body) => body.is_end_stream(),
                Kind::Own(content) => content.is_none(),
                Kind::LengthOnly => false,
            }
    }

    fn size_hint(&self) -> SizeHint {
        self.outlet.size_hint(match &self.kind {
            Kind::Own(content) => {
                SizeHint::with_exact(content.as_ref().map_or(0, Bytes::len) as u64)
            }
            Kind::Received(_) | Kind::Long(_) | Kind::LengthOnly => SizeHint::default(),
        })
    }
}
