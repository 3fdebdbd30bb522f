//! The message that goes to the upstream, built from the routed request.
//!
//! In: a request that the front door has checked. Out: the message for the next hop. Path, query and host pass byte
//! for byte (a request without a host names the upstream). Framing follows the body, never a field; fields that belong
//! to one connection are dropped (RFC 9110 section 7.6.1).

use std::io::Write as _;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, TE, TRAILER};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body::Body;
use tunnel_proto::fields;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::destination::Destination;
use super::http1::{Framing, field};
use super::outgoing_body::OutgoingBody;

/// Sizes from which on a field, or a head, may be too large for an upstream.
const HAZARDOUS_FIELD_BYTES: usize = 4 * 1024;
const HAZARDOUS_HEAD_BYTES: usize = 8 * 1024;

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// What `TE` and `Content-Length` contain, which are not forwarded as they are.
#[derive(Default)]
pub(super) struct ReplacedFields {
    accepts_trailers: bool,
    has_length: bool,
}

/// Writes the head of a request for an upstream that speaks HTTP/1.1.
pub(super) fn write_http1(
    out: &mut Vec<u8>,
    head: &Parts,
    to: &Destination,
    body: &OutgoingBody,
) -> Framing {
    let target = head.uri.path_and_query();
    let target = target.map_or("/", PathAndQuery::as_str);
    start_http1(out, &head.method, target);
    if !names_host(head) {
        field(out, "host", to.authority().as_bytes());
    }
    let mut announced = Vec::new();
    let found = for_each_field(head, |name, value| {
        if name == TRAILER {
            announced.extend(members(value));
        }
        field(out, name.as_str(), value.as_bytes());
    });
    if found.accepts_trailers {
        // `TE` is for the next hop alone and has to be named in `Connection` (RFC 9110 section 10.1.4).
        out.extend_from_slice(b"te: trailers\r\nconnection: te\r\n");
    }
    let mut framing = Framing::Length;
    match body.size_hint().exact() {
        // For most methods no length means no content; for these some servers refuse a request without a length (RFC
        // 9110 section 8.6).
        Some(0) if !found.has_length && !expects_content(&head.method) => {}
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

/// The request for an upstream that speaks HTTP/2, whose content is `body`.
pub(super) fn http2(
    head: &Parts,
    to: &Destination,
    body: &OutgoingBody,
) -> Result<Request<()>, Problem> {
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    let found = for_each_field(head, |name, value| {
        if name != HOST {
            headers.append(name.clone(), value.clone());
        }
    });
    // Many servers send no 100 over HTTP/2; it is made here.
    headers.remove(EXPECT);
    match body.size_hint().exact() {
        Some(0) if !found.has_length && !expects_content(&head.method) => {}
        Some(length) => {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        None => {}
    }
    if found.accepts_trailers {
        headers.insert(TE, TRAILERS);
    }
    // `:authority` takes the place of `Host`.
    let host = head.headers.get(HOST).map(HeaderValue::as_bytes);
    let authority = host.unwrap_or_else(|| to.authority().as_bytes());
    let authority = Authority::try_from(authority).map_err(|error| malformed(&error))?;
    let mut request = Request::new(());
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = Uri::builder()
        .scheme(to.uri_scheme())
        .authority(authority)
        .path_and_query(target(head))
        .build()
        .map_err(|error| malformed(&error))?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Whether an upstream might end a connection of HTTP/2 for this request, and not only its stream: it has trailers, which
/// nginx takes for a protocol error, or a head above what servers accept by default (nginx 8 KiB in all, Netty 8 KiB).
/// `most` is the limit that the upstream has set (RFC 9113 section 6.5.2).
pub(super) fn is_hazardous(head: &Parts, most: u32) -> bool {
    if announces_trailers(head) {
        return true;
    }
    let target = head.uri.path_and_query().map_or("", PathAndQuery::as_str);
    let lengths = (head.headers.iter()).map(|(name, value)| name.as_str().len() + value.len());
    let bytes = target.len() + lengths.sum::<usize>();
    let list = bytes + 32 * (head.headers.len() + PSEUDO_FIELDS);
    if usize::try_from(most).is_ok_and(|most| list > most) {
        return true;
    }
    // Most heads are so small that no coding makes them large.
    bytes * LONGEST_CODE / 8 > HAZARDOUS_FIELD_BYTES && is_large(head, target)
}

/// Whether a field or the whole head is above what servers accept, as HPACK writes it at most.
fn is_large(head: &Parts, target: &str) -> bool {
    let mut all = encoded_bytes(target.as_bytes());
    let mut largest = all;
    for (name, value) in &head.headers {
        let bytes = name.as_str().len() + encoded_bytes(value.as_bytes());
        largest = largest.max(bytes);
        all += bytes;
    }
    largest > HAZARDOUS_FIELD_BYTES || all > HAZARDOUS_HEAD_BYTES
}

/// Whether the request says that trailers follow its content.
pub(super) fn announces_trailers(head: &Parts) -> bool {
    head.headers.contains_key(TRAILER)
}

/// Fields of a head that are no header fields: method, scheme, authority, path.
const PSEUDO_FIELDS: usize = 4;

/// The longest code of a character, in bits (RFC 7541 appendix B).
const LONGEST_CODE: usize = 30;

/// The most bytes that HPACK writes for a text: one for each of the usual characters, [`LONGEST_CODE`] for others.
fn encoded_bytes(text: &[u8]) -> usize {
    let is_usual = |byte: &&u8| {
        byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b' ' | b'%' | b'-' | b'.' | b'/' | b'=' | b'_' | b':' | b'&' | b'*' | b',' | b';'
            )
    };
    let usual = text.iter().filter(is_usual).count();
    usual + (text.len() - usual) * LONGEST_CODE / 8
}

/// A protocol above HTTP whose messages come one by one in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Streaming {
    /// gRPC, which is defined over HTTP/2 alone.
    Grpc,
    /// A stream of the Connect protocol, of which only those in both directions at once need HTTP/2.
    Connect,
}

/// The streaming protocol of a request, by its media type. gRPC-Web is none: it was made for HTTP/1.1.
pub(super) fn streaming(head: &Parts) -> Option<Streaming> {
    let media_type = head.headers.get(CONTENT_TYPE)?.as_bytes();
    let begins = |prefix: &str| {
        let start = media_type.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    if begins("application/grpc") && !begins("application/grpc-web") {
        Some(Streaming::Grpc)
    } else if begins("application/connect+") {
        Some(Streaming::Connect)
    } else {
        None
    }
}

/// Whether the platform client waits for a 100 before it sends its content.
pub(super) fn expects_continue(head: &Parts) -> bool {
    let is_it = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    head.headers.get(EXPECT).is_some_and(is_it)
}

/// Calls `show` with each field that is forwarded as it is.
pub(super) fn for_each_field(
    head: &Parts,
    mut show: impl FnMut(&HeaderName, &HeaderValue),
) -> ReplacedFields {
    let nominated = fields::nominated(&head.headers);
    let mut found = ReplacedFields::default();
    for (name, value) in &head.headers {
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

/// Whether the request has a `Host`, which is its first field then.
pub(super) fn names_host(head: &Parts) -> bool {
    head.headers.keys().next() == Some(&HOST)
}

pub(super) fn target(head: &Parts) -> PathAndQuery {
    let target = head.uri.path_and_query().cloned();
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

    use super::super::progress::Progress;
    use super::*;

    fn destination(url: &str) -> Destination {
        Destination::new(url.parse().unwrap())
    }

    /// As the tunnel brings it: the host is the first field.
    fn head(request: http::request::Builder) -> Parts {
        let mut head = request.body(()).unwrap().into_parts().0;
        let Some(host) = head.uri.authority() else {
            return head;
        };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.as_str().parse().unwrap());
        headers.extend(std::mem::take(&mut head.headers));
        head.headers = headers;
        head.uri = target(&head).into();
        head
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
        write_http1(&mut out, &head(request), &to, &empty());
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
            let head = || {
                let request = Request::builder().method(method.clone());
                request.uri("http://a.test/")
            };
            let said = over_http1(head().header(CONTENT_LENGTH, "0"));
            assert_eq!(said.headers()[CONTENT_LENGTH], "0", "{method}");
            let unsaid = over_http1(head());
            let length = unsaid.headers().get(CONTENT_LENGTH);
            let expected = is_said.then_some(HeaderValue::from_static("0"));
            assert_eq!(length, expected.as_ref(), "{method}");
        }
    }

    #[test]
    fn http2_names_the_same_host_and_the_upstreams_own_scheme() {
        let request = head(
            Request::get("https://a-b.tunnels.test/x?y")
                .header(EXPECT, "100-continue")
                .header(TE, "trailers"),
        );
        assert!(expects_continue(&request));
        let request = http2(&request, &destination("h2c://127.0.0.1:3000"), &empty()).unwrap();
        assert_eq!(request.uri().to_string(), "http://a-b.tunnels.test/x?y");
        let fields: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(fields, ["te"]);
    }

    #[test]
    fn a_request_that_may_cost_its_connection_is_known_by_its_head() {
        let request =
            |name: &str, value: String| head(Request::get("http://a.test/").header(name, value));
        let most = u32::MAX;
        for (value, expected) in [
            ("a".repeat(4_000), false),
            ("a".repeat(4_100), true),
            // A rare character takes 30 bits.
            ("~".repeat(1_000), false),
            ("~".repeat(1_100), true),
        ] {
            let request = request("cookie", value);
            assert_eq!(is_hazardous(&request, most), expected);
        }
        let small = request("x", "a".repeat(1_000));
        assert!(!is_hazardous(&small, 1_300));
        assert!(is_hazardous(&small, 1_000), "the upstream's own limit");
        let many = (0..3).fold(Request::get("/"), |request, _| {
            request.header("x", "a".repeat(3_000))
        });
        assert!(is_hazardous(&head(many), most), "in all");
        let long = Request::get(format!("/{}", "a".repeat(4_100)));
        assert!(is_hazardous(&head(long), most));
        assert!(is_hazardous(&request("trailer", "x".to_owned()), most));
    }

    #[test]
    fn a_request_without_a_host_names_the_upstream() {
        let (mut out, to) = (Vec::new(), destination("http://app:81"));
        write_http1(&mut out, &head(Request::get("/")), &to, &empty());
        assert_eq!(read(&out).headers()[HOST], "app:81");
        let request = http2(
            &head(Request::get("/")),
            &destination("h2c://app:81"),
            &empty(),
        );
        assert_eq!(request.unwrap().uri().to_string(), "http://app:81/");
    }
}
