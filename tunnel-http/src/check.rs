//! The strict check: a received request becomes a [`CheckedRequest`], once, or is refused.
//!
//! The request has passed hyper and, for HTTP/1, the guard. Routing and all later code use the checked request and never
//! the received head, so that they cannot disagree about where a request goes or where it ends.

use std::borrow::Cow;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header,
    uri::{Authority, Scheme},
};

use tunnel_proto::{
    exchange::Protocol,
    fields,
    handshake::has_token,
    limits,
    problem::{Hop, Problem, Reason},
};

use crate::connection::{ExpandedHead, MAX_FIELDS};
use crate::http1::host_length;

/// Most field lines in one head, including those of cookies. With the added fields, fewer than the other side of a session
/// accepts.
const MAX_LINES: usize = limits::FIELDS / 2;

/// Fields that may occur once in a request: those whose grammar in RFC 9110 is not a list. Of several, two programs could
/// use different ones. `Host`, `Content-Length` and `Expect` are checked separately.
const SINGLETONS: [HeaderName; 14] = [
    header::AUTHORIZATION,
    header::CONTENT_LOCATION,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::DATE,
    header::FROM,
    header::IF_MODIFIED_SINCE,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::MAX_FORWARDS,
    header::PROXY_AUTHORIZATION,
    header::RANGE,
    header::REFERER,
    header::USER_AGENT,
];

/// A request that is well-formed, unambiguous, and for one host.
#[derive(Debug)]
pub struct CheckedRequest<'a> {
    /// The program that has checked it.
    pub(super) hop: Hop,
    /// The method; `CONNECT` for an upgrade and for nothing else.
    pub method: Method,
    /// The authority as it was sent: host and, if there was one, port. Empty if there was none, which a
    /// [`Checker`] may let through.
    pub authority: &'a str,
    /// The host for routing: lower case, without port and final dot. Empty if there is none.
    pub host: Cow<'a, str>,
    /// Path and query, byte for byte.
    pub path: Cow<'a, str>,
    /// The version of the request.
    pub version: Version,
    /// The requested upgrade.
    pub upgrade: Option<Protocol>,
    /// Whether the platform client waits for a 100 before it sends the body.
    pub expects_continue: bool,
    /// Whether the platform client accepts trailers.
    pub wants_trailers: bool,
    /// Length of the body, if declared.
    pub content_length: Option<u64>,
    /// `Max-Forwards` of an OPTIONS request (RFC 9110 section 7.6.2).
    pub max_forwards: Option<u32>,
    /// The received fields.
    pub headers: &'a HeaderMap,
    /// Which of the fields below the request has.
    pub present: PresentFields,
}

/// Which of the fields that are read here a request has. Found in one pass over the names, since each lookup in the map
/// costs a hash.
#[derive(Debug, Clone, Copy, Default)]
pub struct PresentFields {
    /// `Connection`.
    pub connection: bool,
    upgrade: bool,
    te: bool,
    content_length: bool,
    expect: bool,
    max_forwards: bool,
    /// `Cookie`.
    pub cookie: bool,
    /// `Tunnel-Via`.
    pub tunnel_via: bool,
    /// `X-Request-Id`.
    pub request_id: bool,
    /// `Origin`.
    pub origin: bool,
}

/// The rules by which requests are checked.
#[derive(Debug, Clone, Copy)]
pub struct Checker {
    /// The program, as its refusals name it.
    pub hop: Hop,
    /// Whether a request needs a host. HTTP/1.0 allows requests without one, such as those of many health checks.
    pub needs_host: bool,
}

/// Why a program does not forward a request.
#[derive(Debug)]
pub enum NotForwarded {
    /// Its `Max-Forwards` is 0, so that the program responds itself (RFC 9110 section 7.6.2).
    LastHop,
    /// It is refused.
    Problem(Problem),
}

impl From<Problem> for NotForwarded {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl PresentFields {
    /// Looks for the names above in one pass.
    ///
    /// # Errors
    /// When a name has a character for which an upstream could read another name.
    fn of(headers: &HeaderMap) -> Result<Self, Refused> {
        let mut present = Self::default();
        for name in headers.keys() {
            let name = name.as_str();
            match name {
                "connection" => present.connection = true,
                "upgrade" => present.upgrade = true,
                "te" => present.te = true,
                "content-length" => present.content_length = true,
                "expect" => present.expect = true,
                "max-forwards" => present.max_forwards = true,
                "cookie" => present.cookie = true,
                "tunnel-via" => present.tunnel_via = true,
                "x-request-id" => present.request_id = true,
                "origin" => present.origin = true,
                // `_` is read as `-` by many upstreams; `"` is let through by the HTTP/2 library.
                _ if name.bytes().any(|byte| matches!(byte, b'_' | b'"')) => {
                    return Err(malformed("a field name with an underscore or a quote"));
                }
                _ => {}
            }
        }
        Ok(present)
    }
}

/// Why a request is refused.
type Refused = (Reason, &'static str);

fn malformed(what: &'static str) -> Refused {
    (Reason::RequestMalformed, what)
}

impl Checker {
    /// Checks a request that was received and that is to be forwarded.
    ///
    /// # Errors
    /// As [`Checker::check`], and for a request that may not be forwarded once more, or whose head is far larger than what
    /// its connection has sent.
    pub fn to_forward<'a>(
        &self,
        request: &'a http::request::Parts,
    ) -> Result<CheckedRequest<'a>, NotForwarded> {
        if request.extensions.get::<ExpandedHead>().is_some() {
            let what = "the head repeats its fields: it is far larger than what was received of it";
            return Err(Problem::new(self.hop, Reason::HeadTooLarge, what).into());
        }
        let protocol = request.extensions.get::<h2::ext::Protocol>();
        let checked = self.check(request, protocol.map(AsRef::as_ref))?;
        match checked.max_forwards {
            Some(0) => Err(NotForwarded::LastHop),
            _ => Ok(checked),
        }
    }

    /// Checks a request. `protocol` is that of an extended CONNECT (RFC 8441).
    ///
    /// # Errors
    /// The problem of a request that breaks a rule, is ambiguous, or needs a feature that a gateway does not have.
    pub fn check<'a>(
        &self,
        request: &'a http::request::Parts,
        protocol: Option<&[u8]>,
    ) -> Result<CheckedRequest<'a>, Problem> {
        check(*self, request, protocol)
            .map_err(|(reason, what)| Problem::new(self.hop, reason, what))
    }
}

fn check<'a>(
    checker: Checker,
    request: &'a http::request::Parts,
    protocol: Option<&[u8]>,
) -> Result<CheckedRequest<'a>, Refused> {
    let http::request::Parts {
        method,
        uri,
        version,
        headers,
        ..
    } = request;
    let version = *version;
    let present = PresentFields::of(headers)?;
    // The guard has counted those of HTTP/1.
    if headers.len() > MAX_FIELDS && has_too_many(headers) {
        return Err((Reason::HeadTooLarge, "too many field lines"));
    }
    if present.connection && fields::connection_options(headers) > fields::CONNECTION_OPTIONS {
        return Err((Reason::HeadTooLarge, "too many options in connection"));
    }
    // Most requests repeat no field, which a comparison of two numbers shows.
    if headers.len() > headers.keys_len() && SINGLETONS.iter().any(|name| repeats(headers, name)) {
        return Err(malformed("a field more than once that may occur only once"));
    }
    let upgrade = upgrade(method, version, headers, present, protocol)?;
    // Methods are case-sensitive, but many upstreams read `trace` as `TRACE`.
    let is_refused = |refused: &str| method.as_str().eq_ignore_ascii_case(refused);
    if upgrade.is_none() && ["CONNECT", "TRACE"].into_iter().any(is_refused) {
        let what = "connect and trace are not served";
        return Err((Reason::MethodNotAllowed, what));
    }
    let path = path(method, version, uri)?;
    let (authority, length) = match authority(version, uri, headers)? {
        Some(authority) => {
            let length = host_length(authority.as_bytes()).ok_or_else(bad_host)?;
            (authority, length)
        }
        None if version == Version::HTTP_10 && !checker.needs_host => ("", 0),
        None => return Err(malformed("no host field")),
    };
    let content_length = if present.content_length {
        fields::content_length(headers).map_err(|_| malformed("content-length is not a length"))?
    } else {
        None
    };
    let expects_continue = present.expect && expectation(version, headers)?;
    let wants_trailers = present.te && has_token(headers, header::TE, "trailers");
    if version == Version::HTTP_2 {
        check_http2(headers)?;
    }
    let max_forwards = if present.max_forwards {
        max_forwards(method, headers)?
    } else {
        None
    };
    Ok(CheckedRequest {
        hop: checker.hop,
        max_forwards,
        method: if upgrade.is_some() {
            Method::CONNECT
        } else {
            method.clone()
        },
        host: normalise(&authority[..length]),
        authority,
        path,
        version,
        upgrade,
        expects_continue,
        wants_trailers,
        content_length,
        headers,
        present,
    })
}

/// Whether there are more field lines than the guard of HTTP/1 takes, so that the version makes no difference. All
/// lines of `Cookie` count as one, since a client of HTTP/2 may send each cookie in a line of its own (RFC 9113
/// section 8.2.3).
fn has_too_many(headers: &HeaderMap) -> bool {
    let cookies = headers.get_all(header::COOKIE).iter().count();
    headers.len() > MAX_LINES || headers.len() - cookies.saturating_sub(1) > MAX_FIELDS
}

fn repeats(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(name).iter().nth(1).is_some()
}

/// The upgrade to a protocol that is carried, in either of its forms (RFC 9110 section 7.8, RFC 8441).
/// A request to upgrade to another protocol, or one without what RFC 6455 section 4.1 demands, is answered as a request
/// without an upgrade.
fn upgrade(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    present: PresentFields,
    protocol: Option<&[u8]>,
) -> Result<Option<Protocol>, Refused> {
    if let Some(protocol) = protocol {
        return Protocol::from_wire(protocol)
            .map(Some)
            .map_err(|_| malformed("extended connect to a protocol other than websocket"));
    }
    let asks = (present.connection && present.upgrade)
        && version == Version::HTTP_11
        && method == Method::GET
        && has_token(headers, header::CONNECTION, "upgrade")
        && has_token(headers, header::UPGRADE, Protocol::WEBSOCKET.as_str())
        && headers.contains_key(header::SEC_WEBSOCKET_KEY)
        && headers.contains_key(header::SEC_WEBSOCKET_VERSION);
    Ok(asks.then_some(Protocol::WEBSOCKET))
}

/// Path and query, byte for byte, except that an empty path of HTTP/1 becomes `/`. With OPTIONS it should become `*` (RFC
/// 9112 section 3.2.4), but hyper does not report that it was empty.
fn path<'a>(method: &Method, version: Version, uri: &'a Uri) -> Result<Cow<'a, str>, Refused> {
    const NO_PATH: &str = "a target that is not a path";
    let Some(path) = uri.path_and_query() else {
        return Err(malformed(NO_PATH));
    };
    let scheme = uri.scheme();
    if scheme.is_some_and(|scheme| *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS) {
        return Err(malformed(
            "a target with a scheme other than http and https",
        ));
    }
    // Not `path.path()`, which returns `/` for an empty path.
    let path = path.as_str();
    match path.as_bytes() {
        text if !text.iter().all(u8::is_ascii_graphic) => {
            Err(malformed("a target with bytes that are not visible ascii"))
        }
        b"*" if method == Method::OPTIONS => Ok(path.into()),
        [b'/', ..] => Ok(path.into()),
        [b'?', ..] if version != Version::HTTP_2 => Ok(format!("/{path}").into()),
        _ => Err(malformed(NO_PATH)),
    }
}

/// The authority of a request, if it has one. `Host` and the target's authority must be equal if there are both.
fn authority<'a>(
    version: Version,
    uri: &'a Uri,
    headers: &'a HeaderMap,
) -> Result<Option<&'a str>, Refused> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(malformed("more than one host field"));
    }
    let target = uri.authority().map(Authority::as_str);
    match (target, host) {
        (Some(target), Some(host)) => {
            if !host.as_bytes().eq_ignore_ascii_case(target.as_bytes()) {
                return Err(malformed(
                    "a host field that differs from the target's authority",
                ));
            }
            Ok(Some(target))
        }
        (Some(target), None) if version == Version::HTTP_2 => Ok(Some(target)),
        (None, Some(host)) => host.to_str().map(Some).map_err(|_| bad_host()),
        (Some(_), None) => Err(malformed("no host field")),
        (None, None) => Ok(None),
    }
}

fn bad_host() -> Refused {
    malformed("a host that is not a name or address with an optional port")
}

/// The host in lower case and without final dot. Borrowed if it is already, which is the usual case.
fn normalise(host: &str) -> Cow<'_, str> {
    let trimmed = host.strip_suffix('.').unwrap_or(host);
    // Without a branch in the loop, so that the compiler compares many bytes at once.
    let is_upper = |found, byte: &u8| found | byte.is_ascii_uppercase();
    if trimmed.as_bytes().iter().fold(false, is_upper) {
        trimmed.to_ascii_lowercase().into()
    } else {
        trimmed.into()
    }
}

fn expectation(version: Version, headers: &HeaderMap) -> Result<bool, Refused> {
    let mut values = headers.get_all(header::EXPECT).iter();
    let Some(value) = values.next() else {
        return Ok(false);
    };
    // RFC 9110 section 10.1.1: ignored from an HTTP/1.0 client.
    if version == Version::HTTP_10 {
        return Ok(false);
    }
    if values.next().is_some() || !value.as_bytes().eq_ignore_ascii_case(b"100-continue") {
        let what = "an expectation other than 100-continue";
        return Err((Reason::ExpectationFailed, what));
    }
    Ok(true)
}

fn max_forwards(method: &Method, headers: &HeaderMap) -> Result<Option<u32>, Refused> {
    match headers.get(header::MAX_FORWARDS) {
        Some(value) if method == Method::OPTIONS => value
            .to_str()
            .ok()
            .and_then(|digits| digits.parse().ok())
            .map(Some)
            .ok_or_else(|| malformed("max-forwards is not a number")),
        _ => Ok(None),
    }
}

/// Checks for fields that are not allowed in an HTTP/2 request (RFC 9113 section 8.2.2).
fn check_http2(headers: &HeaderMap) -> Result<(), Refused> {
    const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
    const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
    for name in [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        KEEP_ALIVE,
        PROXY_CONNECTION,
    ] {
        if headers.contains_key(name) {
            return Err(malformed(
                "a connection-specific field in an http/2 request",
            ));
        }
    }
    // The h2 crate accepts white space around values.
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_padded = |value: &HeaderValue| {
        let bytes = value.as_bytes();
        is_space(bytes.first()) || is_space(bytes.last())
    };
    if headers.values().any(is_padded) {
        return Err(malformed("white space around a value in an http/2 request"));
    }
    if headers
        .get_all(header::TE)
        .iter()
        .any(|value| value != "trailers")
    {
        return Err(malformed(
            "te with anything but trailers in an http/2 request",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn checker() -> Checker {
        Checker {
            hop: Hop::Server,
            needs_host: true,
        }
    }

    fn parts(
        version: Version,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> http::request::Parts {
        let mut request = Request::builder()
            .version(version)
            .method(method)
            .uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn http1(
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Result<CheckedRequest<'static>, Reason> {
        check_leaked(parts(Version::HTTP_11, method, target, fields))
    }

    fn http2(
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Result<CheckedRequest<'static>, Reason> {
        check_leaked(parts(Version::HTTP_2, method, target, fields))
    }

    /// The request is leaked, so that a test can hold what is borrowed from it.
    fn check_leaked(parts: http::request::Parts) -> Result<CheckedRequest<'static>, Reason> {
        let checked = checker().check(Box::leak(Box::new(parts)), None);
        checked.map_err(|problem| problem.reason())
    }

    #[test]
    fn the_host_to_route_by_is_normalised_and_the_authority_is_kept() {
        let checked = http1("GET", "/", &[("host", "A-B.Tunnels.Test.:8080")]).unwrap();
        assert_eq!(checked.host, "a-b.tunnels.test");
        assert_eq!(checked.authority, "A-B.Tunnels.Test.:8080");
    }

    #[test]
    fn an_absolute_target_and_the_host_must_agree() {
        let same = http1("GET", "http://a.test/x", &[("host", "A.test")]).unwrap();
        assert_eq!((&*same.host, &*same.path), ("a.test", "/x"));
        let other = http1("GET", "http://evil.test/x", &[("host", "good.test")]);
        assert_eq!(other.unwrap_err(), Reason::RequestMalformed);
        let other = http2("GET", "http://evil.test/x", &[("host", "good.test")]);
        assert_eq!(other.unwrap_err(), Reason::RequestMalformed);
    }

    #[test]
    fn hosts_that_are_none_are_refused() {
        for host in [
            "a b",
            "a,b",
            "a@b",
            "a/b",
            "",
            "0.0.0.0=5000",
            "a:b",
            "[::1",
        ] {
            let reason = http1("GET", "/", &[("host", host)]).unwrap_err();
            assert_eq!(reason, Reason::RequestMalformed, "{host:?}");
        }
        assert!(http1("GET", "/", &[]).is_err());
        assert!(http1("GET", "/", &[("host", "a"), ("host", "a")]).is_err());
        assert!(http2("GET", "http://u@a.test/", &[]).is_err());
    }

    #[test]
    fn only_http10_may_name_no_host_and_only_where_that_is_enough() {
        let check = |version, target: &str, fields: &[_], needs_host| {
            let checker = Checker {
                needs_host,
                ..checker()
            };
            let parts = parts(version, "GET", target, fields);
            let checked = checker.check(&parts, None);
            checked.map(|checked| (checked.host.into_owned(), checked.authority.to_owned()))
        };
        let no_host = check(Version::HTTP_10, "/", &[], false).unwrap();
        assert_eq!(no_host, (String::new(), String::new()));
        assert!(check(Version::HTTP_10, "/", &[], true).is_err());
        assert!(check(Version::HTTP_11, "/", &[], false).is_err());
        assert!(check(Version::HTTP_2, "/", &[], false).is_err());
        // A name that is given must still be valid.
        assert!(check(Version::HTTP_10, "/", &[("host", "")], false).is_err());
        assert!(check(Version::HTTP_10, "http://a.test/", &[], false).is_err());
    }

    #[test]
    fn paths_are_kept_byte_for_byte() {
        for path in ["/a//b/%2e%2e/;x?y=%zz", "/", "/?", "//double", "/%00"] {
            assert_eq!(http1("GET", path, &[("host", "a")]).unwrap().path, path);
        }
    }

    #[test]
    fn connect_and_trace_are_not_served() {
        for method in ["CONNECT", "TRACE", "trace", "Connect"] {
            let reason = http2(method, "http://a.test/", &[]).unwrap_err();
            assert_eq!(reason, Reason::MethodNotAllowed, "{method}");
        }
    }

    #[test]
    fn only_a_websocket_is_an_upgrade() {
        let fields = |protocol| {
            [
                ("host", "a"),
                ("connection", "keep-alive, Upgrade"),
                ("upgrade", protocol),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ]
        };
        let without_key = &fields("websocket")[..4];
        assert!(http1("GET", "/", without_key).unwrap().upgrade.is_none());
        let websocket = http1("GET", "/", &fields("WebSocket")).unwrap();
        assert!(websocket.upgrade.is_some());
        assert_eq!(websocket.method, Method::CONNECT);
        assert!(http1("GET", "/", &fields("h2c")).unwrap().upgrade.is_none());
        assert!(
            http1("POST", "/", &fields("websocket"))
                .unwrap()
                .upgrade
                .is_none()
        );
    }

    #[test]
    fn http2_requests_carry_nothing_of_a_connection() {
        for field in [("connection", "close"), ("upgrade", "x"), ("te", "gzip")] {
            assert!(
                http2("GET", "http://a.test/", &[field]).is_err(),
                "{field:?}"
            );
        }
        assert!(
            http2("GET", "http://a.test/", &[("te", "trailers")])
                .unwrap()
                .wants_trailers
        );
    }

    /// Fields that may occur more than once: lists (RFC 9110 section 5.3), and one that no RFC defines.
    const LISTS: [&str; 12] = [
        "accept",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "content-encoding",
        "content-language",
        "cookie",
        "forwarded",
        "if-match",
        "if-none-match",
        "via",
        "x-anything",
    ];

    proptest! {
        #[test]
        fn a_request_is_refused_if_a_field_that_is_no_list_stands_twice(
            fields in prop::collection::vec(0..LISTS.len() + SINGLETONS.len() + 12, 0..12),
        ) {
            let name = |number: &usize| match number.checked_sub(LISTS.len()) {
                None => LISTS[*number],
                // The lists are more likely, so that about as many requests are good as bad.
                Some(number) => SINGLETONS.get(number).map_or("via", HeaderName::as_str),
            };
            let names: Vec<_> = fields.iter().map(name).collect();
            let is_repeated = |name: &str| names.iter().filter(|other| **other == name).count() > 1;
            let is_bad = SINGLETONS.iter().any(|field| is_repeated(field.as_str()));
            let fields: Vec<_> = names.iter().map(|name| (*name, "1")).collect();
            let expected = is_bad.then_some(Reason::RequestMalformed);
            let with_host = [&[("host", "a.test")], &fields[..]].concat();
            prop_assert_eq!(http1("OPTIONS", "/", &with_host).err(), expected);
            prop_assert_eq!(http2("OPTIONS", "http://a.test/", &fields).err(), expected);
        }
    }

    #[test]
    fn fields_are_counted_alike_in_both_versions_and_cookies_as_one() {
        let others = |count| vec![("x-field", "1"); count];
        let cookies = |count| vec![("cookie", "a=1"); count];
        let ask = |fields: &[_]| http2("GET", "http://a.test/", fields).err();
        let too_large = Some(Reason::HeadTooLarge);
        assert_eq!(ask(&others(100)), None);
        assert_eq!(ask(&others(101)), too_large);
        assert_eq!(ask(&[others(99), cookies(300)].concat()), None);
        assert_eq!(ask(&[others(100), cookies(2)].concat()), too_large);
        assert_eq!(ask(&cookies(MAX_LINES + 1)), too_large);
        let with_host = |count| [vec![("host", "a.test")], others(count)].concat();
        assert_eq!(http1("GET", "/", &with_host(99)).err(), None);
        assert_eq!(http1("GET", "/", &with_host(100)).err(), too_large);
    }

    #[test]
    fn a_request_lists_few_connection_options() {
        let with = |options: usize| {
            let listed = vec!["aa"; options].join(",");
            let fields = [
                ("host", "a"),
                ("connection", "close"),
                ("connection", &listed),
            ];
            http1("GET", "/", &fields).map(drop)
        };
        assert_eq!(with(fields::CONNECTION_OPTIONS - 1), Ok(()));
        let refused = with(fields::CONNECTION_OPTIONS);
        assert_eq!(refused, Err(Reason::HeadTooLarge));
    }

    #[test]
    fn only_100_continue_can_be_expected() {
        let expect = |value| http1("POST", "/", &[("host", "a"), ("expect", value)]);
        assert!(expect("100-Continue").unwrap().expects_continue);
        assert_eq!(expect("banana").unwrap_err(), Reason::ExpectationFailed);
    }
}
