//! The request that is sent on, built anew from the checked one.
//!
//! Fields that end here are left out first; only then our own are added, so that no `Connection`
//! line can nominate them away. What platform clients say of their own address counts only when
//! they are trusted proxies.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Uri, Version, header,
    uri::{Parts, Scheme},
};
use tunnel_ops::telemetry::RequestId;
use tunnel_proto::{
    fields,
    problem::{Hop, Problem, Reason},
};

use super::check::CheckedRequest;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Names the request in the logs of every program on its way.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id that is taken over from a platform client.
const REQUEST_ID_BYTES: usize = 128;

/// Where a connection comes from, as it is told to the upstreams.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The platform client's address, or that of the last proxy that is not trusted.
    pub address: IpAddr,
    /// Whether what it says of who asked before it is believed.
    pub is_trusted: bool,
    /// Whether the connection to us is encrypted.
    pub is_tls: bool,
    /// The address as a value of `X-Forwarded-For`.
    forwarded_for: HeaderValue,
    /// The address as the `for` of `Forwarded` (RFC 7239 section 6).
    node: Box<str>,
}

impl Origin {
    /// A connection from `address`.
    #[must_use]
    pub fn new(address: IpAddr, is_trusted: bool, is_tls: bool) -> Self {
        let address = address.to_canonical();
        let node = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("\"[{address}]\""),
        };
        Self {
            address,
            is_trusted,
            is_tls,
            // An address is plain ASCII.
            forwarded_for: HeaderValue::from_str(&address.to_string())
                .unwrap_or(HeaderValue::from_static("unknown")),
            node: node.into(),
        }
    }

    fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

/// The name by which this server adds itself to `Via`, and knows that a request was here before.
#[derive(Debug, Clone)]
pub struct ViaName {
    name: Box<str>,
    http1: HeaderValue,
    http2: HeaderValue,
}

impl ViaName {
    /// A name with a part that no other server has.
    #[must_use]
    pub fn new(unique: &str) -> Self {
        let name = format!("tunnel-{unique}");
        let value = |version: &str| {
            HeaderValue::from_str(&format!("{version} {name}"))
                .unwrap_or(HeaderValue::from_static("1.1 tunnel"))
        };
        Self {
            http1: value("1.1"),
            http2: value("2"),
            name: name.into(),
        }
    }

    fn value(&self, version: Version) -> &HeaderValue {
        if version == Version::HTTP_2 {
            &self.http2
        } else {
            &self.http1
        }
    }

    /// Whether the name stands in a received `Via`.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.get_all(header::VIA).iter().any(|value| {
            value
                .as_bytes()
                .windows(self.name.len())
                .any(|part| part == self.name.as_bytes())
        })
    }
}

/// The request to send on, without its body, and the id that it has in all logs.
///
/// # Errors
/// When the request was here before.
pub fn outgoing<B>(
    checked: &CheckedRequest,
    origin: &Origin,
    via: &ViaName,
    body: B,
) -> Result<(Request<B>, HeaderValue), Problem> {
    if via.is_in(&checked.headers) {
        return Err(Problem::new(
            Hop::Server,
            Reason::LoopDetected,
            "the request has passed this server before",
        ));
    }
    let mut headers = HeaderMap::with_capacity(checked.headers.len() + 8);
    copy_end_to_end(&checked.headers, origin, &mut headers);
    // The bytes of an upgraded connection are not counted.
    if let Some(length) = checked.content_length.filter(|_| checked.upgrade.is_none()) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if checked.wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if checked.expects_continue {
        headers.insert(header::EXPECT, HeaderValue::from_static("100-continue"));
    }
    if let Some(left) = checked.max_forwards {
        headers.insert(
            header::MAX_FORWARDS,
            HeaderValue::from(left.saturating_sub(1)),
        );
    }
    add_forwarded(checked, origin, &mut headers);
    headers.append(header::VIA, via.value(checked.version).clone());
    let id = request_id(&checked.headers);
    headers.insert(X_REQUEST_ID, id.clone());

    let mut request = Request::new(body);
    *request.method_mut() = checked.method.clone();
    *request.uri_mut() = uri(checked, origin);
    *request.headers_mut() = headers;
    if let Some(protocol) = checked.upgrade {
        request.extensions_mut().insert(protocol);
    }
    Ok((request, id))
}

fn uri(checked: &CheckedRequest, origin: &Origin) -> Uri {
    let mut parts = Parts::default();
    parts.scheme = Some(if origin.is_tls {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    });
    parts.authority = Some(checked.authority.clone());
    parts.path_and_query = Some(checked.path.clone());
    // All three are there and valid, so this is always `Ok`.
    Uri::from_parts(parts).unwrap_or_default()
}

/// Copies what is meant for the upstream. Cookies that HTTP/2 has split into crumbs are joined
/// (RFC 9113 section 8.2.3).
fn copy_end_to_end(received: &HeaderMap, origin: &Origin, headers: &mut HeaderMap) {
    let nominated = fields::nominated(received);
    for (name, value) in received {
        if ends_here(name, origin) || nominated.contains(name) {
            continue;
        }
        if *name == header::COOKIE
            && let Some(before) = headers.get(header::COOKIE)
        {
            let joined = [before.as_bytes(), b"; ", value.as_bytes()].concat();
            if let Ok(joined) = HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)) {
                headers.insert(header::COOKIE, joined);
            }
            continue;
        }
        headers.append(name.clone(), value.clone());
    }
}

fn ends_here(name: &HeaderName, origin: &Origin) -> bool {
    // Most names are none of these, and a look at the first letter tells.
    match name.as_str().as_bytes().first() {
        Some(b'c' | b'k' | b'p' | b't' | b'u' | b'h' | b'e' | b'm') => {
            fields::is_connection_specific(name)
                || *name == header::HOST
                || *name == header::CONTENT_LENGTH
                || *name == header::EXPECT
                || *name == header::MAX_FORWARDS
        }
        Some(b'x') => {
            *name == X_REQUEST_ID
                || (!origin.is_trusted
                    && [
                        X_FORWARDED_FOR,
                        X_FORWARDED_HOST,
                        X_FORWARDED_PORT,
                        X_FORWARDED_PROTO,
                        X_REAL_IP,
                    ]
                    .contains(name))
        }
        Some(b'f') => !origin.is_trusted && *name == header::FORWARDED,
        _ => false,
    }
}

/// Says where the request came from (RFC 7239 and its older forms): behind what trusted proxies
/// have said, or alone.
fn add_forwarded(checked: &CheckedRequest, origin: &Origin, headers: &mut HeaderMap) {
    headers.append(X_FORWARDED_FOR, origin.forwarded_for.clone());
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(origin.scheme()));
    }
    let authority = checked.authority.as_str();
    if !headers.contains_key(X_FORWARDED_HOST)
        && let Ok(host) = HeaderValue::from_str(authority)
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
    let (node, scheme) = (&origin.node, origin.scheme());
    let element = format!("for={node};host=\"{authority}\";proto={scheme}");
    if let Ok(element) = HeaderValue::from_maybe_shared(bytes::Bytes::from(element)) {
        headers.append(header::FORWARDED, element);
    }
}

/// The id that the platform client gave, if it is a plain one, or a new one.
fn request_id(received: &HeaderMap) -> HeaderValue {
    let given = received.get(X_REQUEST_ID).filter(|id| {
        !id.is_empty()
            && id.len() <= REQUEST_ID_BYTES
            && id.as_bytes().iter().all(|byte| matches!(byte, b'!'..=b'~'))
    });
    given.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(RequestId::new().as_str()).unwrap_or(HeaderValue::from_static("-"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::public::check::check;

    fn sent(fields: &[(&str, &str)], is_trusted: bool) -> HeaderMap {
        let mut request = Request::builder()
            .uri("/p?q")
            .header("host", "a-b.test:8080");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let checked = check(request.body(()).unwrap().into_parts().0).unwrap();
        let origin = Origin::new("192.0.2.7".parse().unwrap(), is_trusted, false);
        let (request, _) = outgoing(&checked, &origin, &ViaName::new("x1"), ()).unwrap();
        assert_eq!(request.uri(), "http://a-b.test:8080/p?q");
        request.into_parts().0.headers
    }

    fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect()
    }

    #[test]
    fn a_stranger_cannot_say_who_asked() {
        let headers = sent(
            &[
                ("x-forwarded-for", "10.0.0.1"),
                ("forwarded", "for=10.0.0.1"),
                ("x-real-ip", "1.1.1.1"),
            ],
            false,
        );
        assert_eq!(values(&headers, "x-forwarded-for"), ["192.0.2.7"]);
        let forwarded = "for=192.0.2.7;host=\"a-b.test:8080\";proto=http";
        assert_eq!(values(&headers, "forwarded"), [forwarded]);
        assert!(!headers.contains_key("x-real-ip"));
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_added_to() {
        let headers = sent(
            &[
                ("x-forwarded-for", "10.0.0.1"),
                ("x-forwarded-proto", "https"),
            ],
            true,
        );
        assert_eq!(
            values(&headers, "x-forwarded-for"),
            ["10.0.0.1", "192.0.2.7"]
        );
        assert_eq!(values(&headers, "x-forwarded-proto"), ["https"]);
    }

    #[test]
    fn no_connection_line_takes_our_own_fields_away() {
        let headers = sent(
            &[
                ("connection", "x-forwarded-for, host, via, x-mine"),
                ("connection", "x-request-id, close"),
                ("x-mine", "1"),
                ("x-other", "2"),
                ("te", "gzip, trailers"),
                ("proxy-authorization", "secret"),
            ],
            false,
        );
        assert_eq!(values(&headers, "x-forwarded-for"), ["192.0.2.7"]);
        assert_eq!(values(&headers, "via"), ["1.1 tunnel-x1"]);
        assert_eq!(values(&headers, "te"), ["trailers"]);
        assert_eq!(values(&headers, "x-other"), ["2"]);
        assert!(headers.contains_key("x-request-id"));
        for gone in ["connection", "x-mine", "proxy-authorization", "host"] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn order_and_number_of_fields_are_kept_and_crumbs_joined() {
        let headers = sent(
            &[
                ("accept", "a"),
                ("cookie", "a=1"),
                ("accept", "b"),
                ("cookie", "b=2"),
                ("accept", "a"),
            ],
            false,
        );
        assert_eq!(values(&headers, "accept"), ["a", "b", "a"]);
        assert_eq!(values(&headers, "cookie"), ["a=1; b=2"]);
    }

    #[test]
    fn a_loop_is_found() {
        let request = Request::builder()
            .uri("/")
            .header("host", "a")
            .header("via", "1.0 fred, 1.1 tunnel-x1")
            .body(())
            .unwrap();
        let checked = check(request.into_parts().0).unwrap();
        let origin = Origin::new("::1".parse().unwrap(), false, true);
        let problem = outgoing(&checked, &origin, &ViaName::new("x1"), ()).unwrap_err();
        assert_eq!(problem.reason(), Reason::LoopDetected);
        assert!(outgoing(&checked, &origin, &ViaName::new("x2"), ()).is_ok());
    }
}
