//! What the platform client gets: the upstream's response, or a problem as an answer of our own.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use tunnel_http::answer;
use tunnel_http::answer::Content;
use tunnel_http::{
    connection::{Outlet, is_given_up},
    http1::InFlight,
};
use tunnel_proto::{
    exchange::{BodyError, RecvBody},
    problem::{Hop, Problem, Reason},
};

use super::{ends::SessionStream, observe::Observation, pace::Pace};
use crate::config::Origin;

/// The body of an answer.
pub struct AnswerBody {
    kind: Kind,
    pace: Pace,
    outlet: Outlet<BodyError>,
    /// Records the exchange when its answer has ended.
    observation: Option<Observation>,
    /// Tells the connection's guard that the exchange is over.
    _in_flight: Option<InFlight>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "most bodies are those of exchanges; a box would cost each of them an allocation"
)]
enum Kind {
    Exchange(RecvBody),
    /// The same, of a content that can end in order when the tunnel leaves.
    Long(Box<SessionStream>),
    Own(Option<Bytes>),
    /// No content, but a field that tells its length: of an answer to HTTP/1 hyper keeps such a
    /// field only if the body does not say that it is at its end.
    LengthOnly,
}

impl AnswerBody {
    /// A body of our own.
    pub(super) fn own(content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let content = (!content.is_empty()).then_some(content);
        Self::new(Kind::Own(content))
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            pace: Pace::default(),
            outlet: Outlet::default(),
            observation: None,
            _in_flight: None,
        }
    }

    fn is_over(&self) -> bool {
        match &self.kind {
            Kind::Exchange(body) => body.is_end_stream() && !self.has_more(),
            Kind::Long(body) => body.is_end_stream() && !self.has_more(),
            Kind::Own(content) => content.is_none() && !self.has_more(),
            Kind::LengthOnly => true,
        }
    }

    /// Whether something is still to be told of what was taken from the exchange.
    fn has_more(&self) -> bool {
        !self.outlet.is_empty() || self.pace.length() > 0
    }

    /// Has the content followed, if it is one that can end in order when the tunnel leaves.
    pub(super) fn follow(&mut self, long: impl FnOnce(RecvBody) -> SessionStream) {
        self.kind = match std::mem::replace(&mut self.kind, Kind::LengthOnly) {
            Kind::Exchange(body) => Kind::Long(Box::new(long(body))),
            other => other,
        };
    }

    fn poll_content(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self {
            kind, pace, outlet, ..
        } = self;
        let shaper = self.observation.as_ref().and_then(Observation::download);
        outlet.poll(cx, |cx| match kind {
            Kind::Exchange(body) => pace.poll(cx, shaper, body),
            Kind::Long(body) => pace.poll(cx, shaper, &mut **body),
            Kind::Own(content) => {
                Poll::Ready(content.take().map(|content| Ok(Frame::data(content))))
            }
            Kind::LengthOnly => Poll::Ready(None),
        })
    }

    /// Has the exchange recorded, and known as in flight, until the body's end.
    pub(super) fn watch(&mut self, observation: Option<Observation>, in_flight: Option<InFlight>) {
        self.observation = observation;
        self._in_flight = in_flight;
        if self.is_over() {
            self.observation.iter_mut().for_each(Observation::on_end);
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if let Some(observation) = &mut self.observation
            && is_given_up()
        {
            observation.on_not_taken();
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let frame = ready!(this.poll_content(cx));
        let is_over = this.is_over();
        if let Some(observation) = &mut this.observation {
            match &frame {
                Some(Ok(frame)) => observation.on_frame(frame),
                Some(Err(error)) => observation.on_error(error),
                None => {}
            }
            if matches!(&this.kind, Kind::Long(body) if body.has_left()) {
                observation.on_moved();
            } else if frame.is_none() {
                observation.on_end();
            }
            // Nobody asks again when the end is known.
            if is_over {
                observation.on_end();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over() && !matches!(self.kind, Kind::LengthOnly)
    }

    fn size_hint(&self) -> SizeHint {
        self.outlet.size_hint(match &self.kind {
            Kind::Exchange(body) => self.pace.size_hint(body.size_hint()),
            Kind::Long(_) => SizeHint::default(),
            Kind::Own(content) => {
                SizeHint::with_exact(content.as_ref().map_or(0, |content| content.len() as u64))
            }
            Kind::LengthOnly => SizeHint::default(),
        })
    }
}

/// The upstream's response as it is sent on: built anew, without what ends at a hop.
///
/// # Errors
/// When the tunnel client sent a status or a length that no response can have.
pub(super) fn response(
    received: Response<RecvBody>,
    method: &Method,
    is_http1: bool,
) -> Result<Response<AnswerBody>, Problem> {
    let (mut parts, body) = received.into_parts();
    let content = answer::make_response(&mut parts, method, is_http1)
        .map_err(|what| Problem::new(Hop::Server, Reason::WireMalformed, what))?;
    let kind = match content {
        Content::Received => Kind::Exchange(body),
        Content::None => Kind::Own(None),
        Content::LengthOnly => Kind::LengthOnly,
    };
    Ok(Response::from_parts(parts, AnswerBody::new(kind)))
}

/// A problem as an answer. After a request that was malformed the connection ends.
pub(super) fn problem(problem: &Problem, is_http1: bool) -> Response<AnswerBody> {
    own(answer::problem(problem, is_http1))
}

/// A problem as a gRPC client wants to hear it.
pub(super) fn grpc_problem(problem: &Problem) -> Response<AnswerBody> {
    own(answer::grpc_problem(problem))
}

fn own(head: answer::Head) -> Response<AnswerBody> {
    let mut answer = Response::new(AnswerBody::own(head.content));
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    answer
}

/// The origins whose pages may read why something failed.
#[derive(Debug, Clone, Default)]
pub struct Cors {
    origins: Arc<[HeaderValue]>,
}

impl Cors {
    /// Allows these serialised origins (RFC 6454 section 6.2).
    #[must_use]
    pub fn new(origins: impl IntoIterator<Item = HeaderValue>) -> Self {
        Self {
            origins: origins.into_iter().collect(),
        }
    }

    /// The same from the configuration.
    #[must_use]
    pub fn of(origins: &[Origin]) -> Self {
        // An origin that was checked is always a valid field value.
        Self::new(
            origins
                .iter()
                .filter_map(|origin| HeaderValue::from_str(origin.as_str()).ok()),
        )
    }

    /// Lets the page that asked read an answer of our own. A preflight that would fail only because
    /// the tunnel does is granted, so that the page sees the reason with its real request.
    pub(super) fn apply(
        &self,
        method: &Method,
        asked: &HeaderMap,
        answer: &mut Response<AnswerBody>,
    ) {
        let Some(origin) = asked
            .get(header::ORIGIN)
            .filter(|origin| self.origins.contains(origin))
        else {
            return;
        };
        let is_preflight =
            method == Method::OPTIONS && asked.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if is_preflight {
            *answer.status_mut() = StatusCode::NO_CONTENT;
            *answer.body_mut() = AnswerBody::own(Bytes::new());
            answer.headers_mut().remove(header::CONTENT_TYPE);
        }
        let headers = answer.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
            HeaderValue::from_static("true"),
        );
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        if is_preflight {
            let copies = [
                (
                    header::ACCESS_CONTROL_REQUEST_METHOD,
                    header::ACCESS_CONTROL_ALLOW_METHODS,
                ),
                (
                    header::ACCESS_CONTROL_REQUEST_HEADERS,
                    header::ACCESS_CONTROL_ALLOW_HEADERS,
                ),
            ];
            for (request, response) in copies {
                if let Some(value) = asked.get(request) {
                    headers.insert(response, value.clone());
                }
            }
        } else {
            let exposed = HeaderValue::from_static("proxy-status, retry-after, x-request-id");
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offline() -> Response<AnswerBody> {
        let offline = Problem::new(Hop::Server, Reason::RuntimeOffline, "gone")
            .retry_after(std::time::Duration::from_secs(5));
        problem(&offline, true)
    }

    fn asked(origin: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        headers
    }

    fn cors() -> Cors {
        Cors::new([HeaderValue::from_static("https://app.test")])
    }

    #[test]
    fn only_an_allowed_page_may_read_why() {
        let mut answer = offline();
        cors().apply(&Method::GET, &asked("https://evil.test"), &mut answer);
        assert!(!answer.headers().contains_key("access-control-allow-origin"));
        cors().apply(&Method::GET, &asked("https://app.test"), &mut answer);
        assert_eq!(
            answer.headers()["access-control-allow-origin"],
            "https://app.test"
        );
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn a_preflight_is_granted_so_that_the_request_shows_the_reason() {
        let mut answer = offline();
        let mut asked = asked("https://app.test");
        let method = HeaderValue::from_static("PUT");
        asked.insert(header::ACCESS_CONTROL_REQUEST_METHOD, method);
        cors().apply(&Method::OPTIONS, &asked, &mut answer);
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(answer.headers()["access-control-allow-methods"], "PUT");
    }
}
