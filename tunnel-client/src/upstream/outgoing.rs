//! The request that is sent to an upstream, built anew: nothing goes on that was not meant to.
//!
//! In: a request as the tunnel brought it, checked by the tunnel server. Out: the same for the next
//! hop. Path and query go on byte for byte, and so does the host, unless there is none. Framing is
//! decided from the body, never from a field; what belongs to one connection ends here (RFC 9110
//! section 7.6.1).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Request, Uri};
use http_body::{Body, Frame, SizeHint};
use tunnel_proto::exchange::{BodyError, Informational, RecvBody};
use tunnel_proto::fields;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::destination::Destination;
use super::progress::Progress;

/// Room for the fields that are added to a request's own.
const ADDED_FIELDS: usize = 6;

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// The content of a request on its way out.
pub(super) struct OutgoingBody {
    /// `None` for a request without content.
    body: Option<RecvBody>,
    progress: Arc<Progress>,
}

impl OutgoingBody {
    /// The request's own content.
    pub(super) fn new(body: RecvBody, progress: Arc<Progress>) -> Self {
        if body.is_end_stream() {
            return Self::empty(progress);
        }
        Self {
            body: Some(body),
            progress,
        }
    }

    /// No content at all.
    pub(super) fn empty(progress: Arc<Progress>) -> Self {
        progress.on_end();
        Self {
            body: None,
            progress,
        }
    }
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.progress.on_bytes(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for OutgoingBody {
    /// Whoever sends the content lets it go when nothing more of it is needed. Its end is not always
    /// taken: a length says it too.
    fn drop(&mut self) {
        self.progress.on_end();
    }
}

/// The request for an upstream that speaks HTTP/1.1.
pub(super) fn http1(
    asked: &Parts,
    to: &Destination,
    body: OutgoingBody,
) -> Result<Request<OutgoingBody>, Problem> {
    let mut headers = HeaderMap::with_capacity(asked.headers.len() + ADDED_FIELDS);
    headers.insert(HOST, host(asked, to)?);
    copy_fields(asked, &mut headers);
    if accepts_trailers(asked) {
        headers.insert(TE, TRAILERS);
        // RFC 9110 section 10.1.4: the field is for the next hop alone, and has to be named so.
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if body.is_end_stream() {
        // Not on every request: for most methods no length means no content.
        if asked.headers.contains_key(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
    } else if body.size_hint().exact().is_none() {
        // hyper would do so itself, except for methods whose content it takes for a mistake.
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let mut request = Request::new(body);
    *request.method_mut() = asked.method.clone();
    *request.uri_mut() = Uri::from(target(asked));
    *request.headers_mut() = headers;
    Ok(request)
}

/// The request for an upstream that speaks HTTP/2.
pub(super) fn http2(
    asked: &Parts,
    to: &Destination,
    body: OutgoingBody,
) -> Result<Request<OutgoingBody>, Problem> {
    let mut headers = HeaderMap::with_capacity(asked.headers.len() + ADDED_FIELDS);
    copy_fields(asked, &mut headers);
    // hyper shows no informational response of HTTP/2, so nobody could wait for one.
    headers.remove(EXPECT);
    if accepts_trailers(asked) {
        headers.insert(TE, TRAILERS);
    }
    let authority = match asked.uri.authority() {
        Some(authority) => authority.clone(),
        None => Authority::try_from(to.authority()).map_err(|error| malformed(&error))?,
    };
    let mut request = Request::new(body);
    *request.method_mut() = asked.method.clone();
    *request.uri_mut() = Uri::builder()
        .scheme(to.uri_scheme())
        .authority(authority)
        .path_and_query(target(asked))
        .build()
        .map_err(|error| malformed(&error))?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Whether the platform client waits for a 100 before it sends its content.
pub(super) fn expects_continue(asked: &Parts) -> bool {
    let is_it = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    asked.headers.get(EXPECT).is_some_and(is_it)
}

/// Sends informational responses on as they come.
pub(super) fn pass_informational<B>(
    request: &mut Request<B>,
    informational: Informational,
    progress: Arc<Progress>,
) {
    hyper::ext::on_informational(request, move |response| {
        // A flood costs nothing more; the exchange fails as soon as hyper lets go of it.
        if progress.is_flooded() {
            return;
        }
        let headers = end_to_end(response.headers().clone());
        progress.on_informational(informational.push(response.status(), headers));
    });
}

/// A head's fields without those that belong to the connection they came on.
pub(super) fn end_to_end(headers: HeaderMap) -> HeaderMap {
    let nominated = fields::nominated(&headers);
    let ends_here = |name| fields::is_connection_specific(name) || nominated.contains(name);
    if !headers.keys().any(ends_here) {
        return headers;
    }
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in &headers {
        if !ends_here(name) {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
}

/// Adds those of the request's fields that go on as they are.
fn copy_fields(asked: &Parts, headers: &mut HeaderMap) {
    let nominated = fields::nominated(&asked.headers);
    for (name, value) in &asked.headers {
        let ends_here = fields::is_connection_specific(name)
            || name == HOST
            || name == CONTENT_LENGTH
            || nominated.contains(name);
        if !ends_here {
            headers.append(name.clone(), value.clone());
        }
    }
}

fn accepts_trailers(asked: &Parts) -> bool {
    asked
        .headers
        .get_all(TE)
        .iter()
        .any(|value| value == TRAILERS)
}

fn host(asked: &Parts, to: &Destination) -> Result<HeaderValue, Problem> {
    let host = asked
        .uri
        .authority()
        .map_or_else(|| to.authority(), Authority::as_str);
    HeaderValue::from_str(host).map_err(|error| malformed(&error))
}

fn target(asked: &Parts) -> PathAndQuery {
    asked
        .uri
        .path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
}

fn malformed(error: &dyn std::error::Error) -> Problem {
    Problem::new(Hop::Client, Reason::RequestMalformed, error.to_string())
}

#[cfg(test)]
mod tests {
    use http::Method;
    use http::header::{ACCEPT, COOKIE};

    use super::*;

    fn destination(url: &str) -> Destination {
        Destination::new(url.parse().unwrap())
    }

    fn asked(request: http::request::Builder) -> Parts {
        request.body(()).unwrap().into_parts().0
    }

    fn empty() -> OutgoingBody {
        OutgoingBody::empty(Progress::of_test())
    }

    fn over_http1(request: http::request::Builder) -> Request<OutgoingBody> {
        http1(
            &asked(request),
            &destination("http://127.0.0.1:3000"),
            empty(),
        )
        .unwrap()
    }

    #[test]
    fn what_belongs_to_a_connection_ends_here() {
        let request = over_http1(
            Request::get("http://a-b.tunnels.test/")
                .header("connection", "X-One, close")
                .header("x-one", "1")
                .header("keep-alive", "timeout=5")
                .header("proxy-connection", "keep-alive")
                .header("proxy-authorization", "Basic x")
                .header("transfer-encoding", "chunked")
                .header("upgrade", "h2c")
                .header("http2-settings", "x")
                .header("te", "gzip")
                .header("host", "other.test")
                .header("accept", "text/html"),
        );
        let fields: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(fields, ["host", "accept"]);
        assert_eq!(request.headers()[HOST], "a-b.tunnels.test");
    }

    #[test]
    fn path_query_and_repeated_fields_go_on_as_they_are() {
        let path = "/a//b/%2e%2e/;x?y=%zz&&";
        let request = over_http1(
            Request::get(format!("http://a.test{path}"))
                .header(COOKIE, "a=1")
                .header(ACCEPT, "x")
                .header(COOKIE, "b=2"),
        );
        assert_eq!(request.uri().to_string(), path);
        let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
        assert_eq!(over_http1(Request::options("*")).uri().to_string(), "*");
    }

    #[test]
    fn te_goes_on_as_trailers_only_and_is_named_for_the_next_hop() {
        let request = over_http1(Request::get("http://a.test/").header(TE, "trailers"));
        assert_eq!(request.headers()[TE], "trailers");
        assert_eq!(request.headers()[CONNECTION], "te");
    }

    #[test]
    fn no_content_is_said_only_when_it_was_said_before() {
        let post = || {
            Request::builder()
                .method(Method::POST)
                .uri("http://a.test/")
        };
        let request = over_http1(post().header(CONTENT_LENGTH, "0"));
        assert_eq!(request.headers()[CONTENT_LENGTH], "0");
        assert!(!over_http1(post()).headers().contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn http2_names_the_same_host_and_the_upstreams_own_scheme() {
        let request = asked(
            Request::get("https://a-b.tunnels.test/x?y")
                .header(EXPECT, "100-continue")
                .header(TE, "trailers"),
        );
        assert!(expects_continue(&request));
        let request = http2(&request, &destination("h2c://127.0.0.1:3000"), empty()).unwrap();
        assert_eq!(request.uri().to_string(), "http://a-b.tunnels.test/x?y");
        let fields: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(fields, ["te"]);
    }

    #[test]
    fn a_request_without_a_host_names_the_upstream() {
        let request = http1(
            &asked(Request::get("/")),
            &destination("http://app:81"),
            empty(),
        );
        assert_eq!(request.unwrap().headers()[HOST], "app:81");
        let request = http2(
            &asked(Request::get("/")),
            &destination("h2c://app:81"),
            empty(),
        );
        assert_eq!(request.unwrap().uri().to_string(), "http://app:81/");
    }
}
