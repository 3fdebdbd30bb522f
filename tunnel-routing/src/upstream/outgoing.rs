//! The request that is sent to an upstream, built anew: nothing goes on that was not meant to.
//!
//! In: a request as the tunnel brought it, checked by the tunnel server. Out: the same for the next
//! hop. Path and query go on byte for byte, and so does the host, unless there is none. Framing is
//! decided from the body, never from a field; what belongs to one connection ends here (RFC 9110
//! section 7.6.1).

use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::MapErr;
use tunnel_proto::exchange::BodyError;
use tunnel_proto::fields;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::destination::Destination;
use super::failure;
use super::http1::{Framing, field};
use super::progress::Progress;
use crate::request::IncomingBody;

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// The content of a request on its way out.
pub(super) struct OutgoingBody {
    /// `None` for a request without content. Boxed, since hyper moves a request often.
    body: Option<Box<IncomingBody>>,
    /// Bytes that may still come, and how many that were in all.
    left: u64,
    limit: u64,
    /// Bytes that have to come yet, of a declared length.
    missing: Option<u64>,
    progress: Arc<Progress>,
}

/// The same over HTTP/2, where a content that fails is taken back: that is how it is reset. What failed
/// is known by its [`Progress`].
pub(super) type Http2Content = MapErr<OutgoingBody, fn(BodyError) -> h2::Error>;

/// What the fields say that do not go on as they are.
#[derive(Default)]
pub(super) struct Found {
    accepts_trailers: bool,
    has_length: bool,
}

impl OutgoingBody {
    /// The request's own content.
    pub(super) fn new(body: IncomingBody, progress: Arc<Progress>) -> Self {
        if body.is_end_stream() {
            return Self::empty(progress);
        }
        Self {
            missing: body.size_hint().exact(),
            body: Some(Box::new(body)),
            left: u64::MAX,
            limit: u64::MAX,
            progress,
        }
    }

    /// No content at all.
    pub(super) fn empty(progress: Arc<Progress>) -> Self {
        progress.on_end();
        Self {
            body: None,
            left: u64::MAX,
            limit: u64::MAX,
            missing: None,
            progress,
        }
    }

    /// Allows this many bytes. What says before that it is longer is refused at once; what turns out
    /// to be is ended there.
    pub(super) fn limit(&mut self, bytes: u64) -> Result<(), Problem> {
        (self.left, self.limit) = (bytes, bytes);
        if self.size_hint().lower() > bytes {
            return Err(too_large(bytes));
        }
        Ok(())
    }
}

/// What is left of a declared length after this frame, or after the end.
///
/// # Errors
/// When the content is shorter or longer than declared. As much goes out as the head of a request says,
/// or the request fails: its connection would take the next request for the rest of this one.
fn counted(missing: u64, frame: Option<&Frame<Bytes>>) -> Result<u64, BodyError> {
    match frame.map(Frame::data_ref) {
        Some(Some(data)) => missing.checked_sub(data.len() as u64),
        // Trailers, or the end.
        Some(None) | None => (missing == 0).then_some(0),
    }
    .ok_or(BodyError::Length)
}

/// A request's content is larger than this.
fn too_large(limit: u64) -> Problem {
    let detail = format!("the request's content is larger than {limit} bytes");
    Problem::new(Hop::Client, Reason::BodyTooLarge, detail)
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
        let frame = Pin::new(&mut **body).poll_frame(cx);
        this.progress.on_content(frame.is_ready());
        let mut frame = ready!(frame);
        if let Some(Ok(next)) = &frame
            && let Some(data) = next.data_ref()
        {
            if let Some(left) = this.left.checked_sub(data.len() as u64) {
                this.left = left;
                this.progress.on_bytes(data.len());
            } else {
                frame = Some(Err(BodyError::Aborted(too_large(this.limit))));
            }
        }
        if let (Some(missing), Some(Ok(_)) | None) = (&mut this.missing, &frame) {
            let next = frame.as_ref().and_then(|frame| frame.as_ref().ok());
            match counted(*missing, next) {
                Ok(left) => *missing = left,
                Err(error) => frame = Some(Err(error)),
            }
        }
        if let Some(Err(error)) = &frame {
            this.progress.on_failed(failure::no_content(error));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        // One that ends too early has to be asked for its end, which is an error.
        self.missing.is_none_or(|missing| missing == 0)
            && self.body.as_ref().is_none_or(|body| body.is_end_stream())
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

/// Writes the head of a request for an upstream that speaks HTTP/1.1.
pub(super) fn write_http1(
    out: &mut Vec<u8>,
    asked: &Parts,
    to: &Destination,
    body: &OutgoingBody,
) -> Framing {
    let target = asked.uri.path_and_query();
    let target = target.map_or("/", PathAndQuery::as_str);
    start_http1(out, &asked.method, target);
    if !names_host(asked) {
        field(out, "host", to.authority().as_bytes());
    }
    let mut announced = Vec::new();
    let found = for_each_field(asked, |name, value| {
        if name == TRAILER {
            announced.extend(members(value));
        }
        field(out, name.as_str(), value.as_bytes());
    });
    if found.accepts_trailers {
        // RFC 9110 section 10.1.4: the field is for the next hop alone, and has to be named so.
        out.extend_from_slice(b"te: trailers\r\nconnection: te\r\n");
    }
    let mut framing = Framing::Length;
    match body.size_hint().exact() {
        // For most methods no length means no content. Where content is expected, some servers refuse a
        // request without a length (RFC 9110 section 8.6).
        Some(0) if !found.has_length && !expects_content(&asked.method) => {}
        Some(length) => {
            // Writing to memory does not fail.
            let _ = write!(out, "content-length: {length}\r\n");
        }
        None => {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n");
            framing = Framing::Chunked(announced);
        }
    }
    out.extend_from_slice(b"\r\n");
    framing
}

/// Whether requests of this method have content in general.
fn expects_content(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH].contains(method)
}

/// Writes the head of a request without content as it is.
pub(super) fn write_as_is(out: &mut Vec<u8>, request: &Request<()>) {
    start_http1(
        out,
        request.method(),
        request
            .uri()
            .path_and_query()
            .map_or("/", PathAndQuery::as_str),
    );
    for (name, value) in request.headers() {
        field(out, name.as_str(), value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

fn start_http1(out: &mut Vec<u8>, method: &Method, target: &str) {
    for part in [method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// The field names in a comma-separated list.
fn members(value: &HeaderValue) -> impl Iterator<Item = HeaderName> {
    let members = value.as_bytes().split(|byte| *byte == b',');
    members.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// The request for an upstream that speaks HTTP/2.
pub(super) fn http2(
    asked: &Parts,
    to: &Destination,
    body: OutgoingBody,
) -> Result<Request<Http2Content>, Problem> {
    let mut headers = HeaderMap::with_capacity(asked.headers.len());
    let found = for_each_field(asked, |name, value| {
        if name != HOST {
            headers.append(name.clone(), value.clone());
        }
    });
    // hyper shows no informational response of HTTP/2, so nobody could wait for one.
    headers.remove(EXPECT);
    if found.accepts_trailers {
        headers.insert(TE, TRAILERS);
    }
    // The host says the same, and HTTP/2 says it once.
    let host = asked.headers.get(HOST).map(HeaderValue::as_bytes);
    let authority = host.unwrap_or_else(|| to.authority().as_bytes());
    let authority = Authority::try_from(authority).map_err(|error| malformed(&error))?;
    let taken_back: fn(BodyError) -> h2::Error = |_| h2::Reason::CANCEL.into();
    let mut request = Request::new(body.map_err(taken_back));
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

/// Shows those of the request's fields that go on as they are.
pub(super) fn for_each_field(
    asked: &Parts,
    mut show: impl FnMut(&HeaderName, &HeaderValue),
) -> Found {
    let nominated = fields::nominated(&asked.headers);
    let mut found = Found::default();
    for (name, value) in &asked.headers {
        if name == TE {
            found.accepts_trailers |= value == TRAILERS;
        } else if name == CONTENT_LENGTH {
            found.has_length = true;
        } else if name == HOST || !fields::is_connection_specific(name) && !nominated.contains(name)
        {
            show(name, value);
        }
    }
    found
}

/// Whether the platform client named a host: it is the first of the fields then.
pub(super) fn names_host(asked: &Parts) -> bool {
    asked.headers.keys().next() == Some(&HOST)
}

pub(super) fn target(asked: &Parts) -> PathAndQuery {
    let target = asked.uri.path_and_query().cloned();
    target.unwrap_or_else(|| PathAndQuery::from_static("/"))
}

fn malformed(error: &dyn std::error::Error) -> Problem {
    Problem::new(Hop::Client, Reason::RequestMalformed, error.to_string())
}

#[cfg(test)]
mod tests {
    use http::Method;
    use http::header::{ACCEPT, COOKIE};

    use http::header::CONNECTION;

    use super::*;

    fn destination(url: &str) -> Destination {
        Destination::new(url.parse().unwrap())
    }

    /// As the tunnel brings it: the host is the first field.
    fn asked(request: http::request::Builder) -> Parts {
        let mut asked = request.body(()).unwrap().into_parts().0;
        let Some(host) = asked.uri.authority() else {
            return asked;
        };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.as_str().parse().unwrap());
        headers.extend(std::mem::take(&mut asked.headers));
        asked.headers = headers;
        asked.uri = target(&asked).into();
        asked
    }

    fn empty() -> OutgoingBody {
        OutgoingBody::empty(Progress::of_test())
    }

    /// What an upstream reads.
    fn read(written: &[u8]) -> Request<()> {
        let mut space = [httparse::EMPTY_HEADER; 32];
        let mut read = httparse::Request::new(&mut space);
        assert!(read.parse(written).unwrap().is_complete());
        let mut request = Request::builder()
            .method(read.method.unwrap())
            .uri(read.path.unwrap());
        for field in read.headers.iter() {
            request = request.header(field.name, field.value);
        }
        request.body(()).unwrap()
    }

    fn over_http1(request: http::request::Builder) -> Request<()> {
        let mut out = Vec::new();
        let to = destination("http://127.0.0.1:3000");
        write_http1(&mut out, &asked(request), &to, &empty());
        read(&out)
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
    fn content_is_as_long_as_declared_or_an_error() {
        let data = |length: usize| Frame::data(Bytes::from(vec![0; length]));
        assert_eq!(counted(7, Some(&data(4))).unwrap(), 3);
        assert_eq!(counted(3, Some(&data(3))).unwrap(), 0);
        assert!(counted(3, Some(&data(4))).is_err());
        assert_eq!(counted(0, None).unwrap(), 0);
        assert!(counted(1, None).is_err());
        assert!(counted(1, Some(&Frame::trailers(HeaderMap::new()))).is_err());
    }

    #[test]
    fn te_goes_on_as_trailers_only_and_is_named_for_the_next_hop() {
        let request = over_http1(Request::get("http://a.test/").header(TE, "trailers"));
        assert_eq!(request.headers()[TE], "trailers");
        assert_eq!(request.headers()[CONNECTION], "te");
    }

    #[test]
    fn no_content_is_said_where_content_is_expected_or_when_it_was_said_before() {
        for (method, is_said) in [
            (Method::POST, true),
            (Method::PUT, true),
            (Method::PATCH, true),
            (Method::DELETE, false),
            (Method::GET, false),
            (Method::OPTIONS, false),
        ] {
            let asked = || {
                let request = Request::builder().method(method.clone());
                request.uri("http://a.test/")
            };
            let said = over_http1(asked().header(CONTENT_LENGTH, "0"));
            assert_eq!(said.headers()[CONTENT_LENGTH], "0", "{method}");
            let unsaid = over_http1(asked());
            let length = unsaid.headers().get(CONTENT_LENGTH);
            let expected = is_said.then_some(HeaderValue::from_static("0"));
            assert_eq!(length, expected.as_ref(), "{method}");
        }
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
        let (mut out, to) = (Vec::new(), destination("http://app:81"));
        write_http1(&mut out, &asked(Request::get("/")), &to, &empty());
        assert_eq!(read(&out).headers()[HOST], "app:81");
        let request = http2(
            &asked(Request::get("/")),
            &destination("h2c://app:81"),
            empty(),
        );
        assert_eq!(request.unwrap().uri().to_string(), "http://app:81/");
    }
}
