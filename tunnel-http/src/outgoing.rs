//! The head of the forwarded request, built from the checked one.
//!
//! Connection-specific fields are left out first; then the program's own are added, so that a received `Connection`
//! field cannot remove them. Forwarding fields are used only from trusted proxies.

use std::{collections::HashSet, net::IpAddr};

use http::{HeaderMap, HeaderName, HeaderValue, Version, header};

use super::check::CheckedRequest;
use tunnel_ops::telemetry::{RequestId, TRACE_PARENT, TRACE_STATE, tracer::Trace};
use tunnel_proto::{
    exchange::HeadEncoder,
    fields::{
        self, TUNNEL_VIA, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, X_REQUEST_ID,
    },
    problem::{Problem, Reason},
};

/// Longest request id that is accepted from a platform client.
const REQUEST_ID_BYTES: usize = 128;

/// A writer of the fields of an outgoing head, in order.
pub trait FieldSink {
    /// Takes a field line.
    fn field(&mut self, name: &HeaderName, value: &[u8]);

    /// Takes a field line as it was received.
    fn received(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.field(name, value.as_bytes());
    }

    /// Takes a field line whose value is the concatenation of these parts.
    fn field_from_parts(&mut self, name: &HeaderName, parts: &[&[u8]]);
}

impl FieldSink for HeadEncoder {
    fn field(&mut self, name: &HeaderName, value: &[u8]) {
        Self::field(self, name, value);
    }

    fn field_from_parts(&mut self, name: &HeaderName, parts: &[&[u8]]) {
        Self::field_from_parts(self, name, parts);
    }
}

/// All values are valid: they were received as values, or are the program's own.
impl FieldSink for HeaderMap {
    fn field(&mut self, name: &HeaderName, value: &[u8]) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            self.append(name.clone(), value);
        }
    }

    fn received(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.append(name.clone(), value.clone());
    }

    fn field_from_parts(&mut self, name: &HeaderName, parts: &[&[u8]]) {
        FieldSink::field(self, name, parts.concat().trim_ascii());
    }
}

/// The client of a connection, for the forwarding fields.
#[derive(Debug, Clone)]
pub struct ForwardedClient {
    /// The platform client's address, or that of the last proxy that is not trusted.
    pub address: IpAddr,
    /// Whether its forwarding fields are forwarded.
    pub is_trusted: bool,
    /// Whether the connection to this program is encrypted.
    pub is_tls: bool,
    /// The address as text, which is the value of `X-Forwarded-For`.
    address_text: Box<str>,
    /// The address as the `for` of `Forwarded` (RFC 7239 section 6).
    forwarded_for: Box<str>,
}

impl ForwardedClient {
    /// A connection from `address`.
    #[must_use]
    pub fn new(address: IpAddr, is_trusted: bool, is_tls: bool) -> Self {
        let address = address.to_canonical();
        let forwarded_for = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("\"[{address}]\""),
        };
        Self {
            address,
            is_trusted,
            is_tls,
            address_text: address.to_string().into(),
            forwarded_for: forwarded_for.into(),
        }
    }

    /// The address as text.
    #[must_use]
    pub fn address_text(&self) -> &str {
        &self.address_text
    }

    /// The scheme of the request.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

/// The name that this program adds to [`TUNNEL_VIA`], and to `Via` if that is configured, and by which it detects loops.
#[derive(Debug, Clone)]
pub struct ViaName {
    name: Box<str>,
    http1: Box<str>,
    http2: Box<str>,
}

impl ViaName {
    /// A name with a part that is unique to this program.
    #[must_use]
    pub fn new(unique: &str) -> Self {
        let name = format!("tunnel-{unique}");
        Self {
            http1: format!("1.1 {name}").into(),
            http2: format!("2 {name}").into(),
            name: name.into(),
        }
    }

    fn value(&self, version: Version) -> &str {
        if version == Version::HTTP_2 {
            &self.http2
        } else {
            &self.http1
        }
    }

    /// Whether a received [`TUNNEL_VIA`] has the name.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.get_all(TUNNEL_VIA).iter().any(|value| {
            // A proxy in between may have combined field lines.
            let mut names = value.as_bytes().split(|byte| *byte == b',');
            names.any(|name| name.trim_ascii() == self.name.as_bytes())
        })
    }
}

/// Writes the fields of the forwarded request, except the host. Returns the id that the request has in all logs: its
/// own, if that has visible ASCII characters only, or a new one. `Via` (RFC 9110 section 7.6.3) is added only if
/// `sends_via`; a received one is sent on in any case. With a `trace`, its first attempt takes the place of the sender's
/// `traceparent`, which passes unchanged otherwise.
///
/// # Errors
/// When the request has passed this program before.
pub fn write_fields(
    checked: &CheckedRequest<'_>,
    client: &ForwardedClient,
    via: &ViaName,
    sends_via: bool,
    trace: Option<&Trace>,
    head: &mut impl FieldSink,
) -> Result<HeaderValue, Problem> {
    if checked.present.tunnel_via && via.is_in(checked.headers) {
        let what = "the request has passed this program before";
        return Err(Problem::new(checked.hop, Reason::LoopDetected, what));
    }
    let trusted = copy_end_to_end(checked, client, trace, head);
    // The bytes of an upgraded connection are not counted.
    if let Some(length) = checked.content_length.filter(|_| checked.upgrade.is_none()) {
        let length = HeaderValue::from(length);
        head.field(&header::CONTENT_LENGTH, length.as_bytes());
    }
    if checked.wants_trailers {
        head.field(&header::TE, b"trailers");
    }
    if checked.expects_continue {
        head.field(&header::EXPECT, b"100-continue");
    }
    if let Some(left) = checked.max_forwards {
        let left = HeaderValue::from(left.saturating_sub(1));
        head.field(&header::MAX_FORWARDS, left.as_bytes());
    }
    add_forwarded(checked, client, trusted, head);
    head.field(&TUNNEL_VIA, via.name.as_bytes());
    if sends_via {
        head.field(&header::VIA, via.value(checked.version).as_bytes());
    }
    if let Some(trace) = trace {
        head.field(&TRACE_PARENT, trace.first_attempt().as_str().as_bytes());
    }
    let id = given_id(checked).unwrap_or_else(new_id);
    head.field(&X_REQUEST_ID, id.as_bytes());
    Ok(id)
}

/// The forwarding fields of a trusted proxy that are forwarded.
#[derive(Clone, Copy, Default)]
struct TrustedFields {
    proto: bool,
    host: bool,
    /// Of `X-Forwarded-For`, which is continued.
    addresses: bool,
}

/// Copies the fields that are not for this hop alone, and returns which forwarding fields are among them. Cookies that
/// HTTP/2 has split into crumbs are joined (RFC 9113 section 8.2.3).
fn copy_end_to_end(
    checked: &CheckedRequest<'_>,
    client: &ForwardedClient,
    trace: Option<&Trace>,
    head: &mut impl FieldSink,
) -> TrustedFields {
    let mut trusted = TrustedFields::default();
    let nominated = if checked.present.connection {
        fields::nominated(checked.headers)
    } else {
        HashSet::new()
    };
    trusted.addresses = client.is_trusted && !nominated.contains(&X_FORWARDED_FOR);
    for (name, value) in checked.headers {
        if *name == header::COOKIE || ends_here(name, client, trace) || nominated.contains(name) {
            continue;
        }
        trusted.proto |= *name == X_FORWARDED_PROTO;
        trusted.host |= *name == X_FORWARDED_HOST;
        head.received(name, value);
    }
    if checked.present.cookie && !nominated.contains(&header::COOKIE) {
        let mut parts: Vec<&[u8]> = Vec::new();
        let crumbs = checked.headers.get_all(header::COOKIE).iter();
        for crumb in crumbs.map(|crumb| crumb.as_bytes().trim_ascii()) {
            // An empty one would leave white space at the end of the value, which the tunnel client refuses.
            if !crumb.is_empty() {
                if !parts.is_empty() {
                    parts.push(b"; ");
                }
                parts.push(crumb);
            }
        }
        head.field_from_parts(&header::COOKIE, &parts);
    }
    trusted
}

fn ends_here(name: &HeaderName, client: &ForwardedClient, trace: Option<&Trace>) -> bool {
    // The first letter excludes most names.
    match name.as_str().as_bytes().first() {
        Some(b'c' | b'k' | b'p' | b't' | b'u' | b'h' | b'e' | b'm') => {
            *name == header::HOST
                || *name == header::CONTENT_LENGTH
                || *name == header::EXPECT
                || *name == header::MAX_FORWARDS
                || fields::is_connection_specific(name)
                || trace.is_some_and(|trace| is_replaced(name, trace))
        }
        Some(b'x') => {
            *name == X_REQUEST_ID
                || *name == X_FORWARDED_FOR
                || (!client.is_trusted && fields::is_forwarded(name))
        }
        Some(b'f') => !client.is_trusted && fields::is_forwarded(name),
        _ => false,
    }
}

/// Whether a field about traces gives way to that of this program's own trace.
fn is_replaced(name: &HeaderName, trace: &Trace) -> bool {
    *name == TRACE_PARENT || *name == TRACE_STATE && trace.is_root()
}

/// Adds the forwarding fields (RFC 7239 and its older forms), after those of trusted proxies.
fn add_forwarded(
    checked: &CheckedRequest<'_>,
    client: &ForwardedClient,
    trusted: TrustedFields,
    head: &mut impl FieldSink,
) {
    let (authority, scheme) = (checked.authority.as_bytes(), client.scheme().as_bytes());
    add_address(checked, client, trusted, head);
    if !trusted.proto {
        head.field(&X_FORWARDED_PROTO, scheme);
    }
    let forwarded_for = client.forwarded_for.as_bytes();
    if authority.is_empty() {
        head.field_from_parts(
            &header::FORWARDED,
            &[b"for=", forwarded_for, b";proto=", scheme],
        );
        return;
    }
    if !trusted.host {
        head.field(&X_FORWARDED_HOST, authority);
    }
    let element: [&[u8]; 6] = [
        b"for=",
        forwarded_for,
        b";host=\"",
        authority,
        b"\";proto=",
        scheme,
    ];
    head.field_from_parts(&header::FORWARDED, &element);
}

/// Adds `X-Forwarded-For` in one line, since many readers take only one.
fn add_address(
    checked: &CheckedRequest<'_>,
    client: &ForwardedClient,
    trusted: TrustedFields,
    head: &mut impl FieldSink,
) {
    let own = client.address_text.as_bytes();
    let mut parts: Vec<&[u8]> = Vec::new();
    if trusted.addresses {
        let lines = checked.headers.get_all(X_FORWARDED_FOR).iter();
        let lines = lines.map(|line| line.as_bytes().trim_ascii());
        parts.extend(
            lines
                .filter(|line| !line.is_empty())
                .flat_map(|line| [line, b", "]),
        );
    }
    if parts.is_empty() {
        return head.field(&X_FORWARDED_FOR, own);
    }
    parts.push(own);
    head.field_from_parts(&X_FORWARDED_FOR, &parts);
}

/// The platform client's request id, if it is short and has only visible ASCII characters.
fn given_id(checked: &CheckedRequest<'_>) -> Option<HeaderValue> {
    if !checked.present.request_id {
        return None;
    }
    let given = checked.headers.get(X_REQUEST_ID).filter(|id| {
        !id.is_empty()
            && id.len() <= REQUEST_ID_BYTES
            && id.as_bytes().iter().all(|byte| matches!(byte, b'!'..=b'~'))
    });
    given.cloned()
}

fn new_id() -> HeaderValue {
    HeaderValue::from_str(RequestId::new().as_str()).unwrap_or(HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::check::Checker;
    use tunnel_proto::{
        bhttp::{Decoder, Event, Limits, RequestHead},
        exchange::EncodedHead,
        problem::Hop,
    };

    const CHECKER: Checker = Checker {
        hop: Hop::Server,
        needs_host: true,
    };

    fn sent(fields: &[(&str, &str)], is_trusted: bool) -> HeaderMap {
        let mut request = Request::builder()
            .uri("/p?q")
            .header("host", "a-b.test:8080");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        let checked = CHECKER.check(&parts, None).unwrap();
        let client = ForwardedClient::new("192.0.2.7".parse().unwrap(), is_trusted, false);
        let (method, authority) = (&checked.method, checked.authority);
        let mut head = HeadEncoder::new(method, client.scheme(), authority, &checked.path, None);
        let via = ViaName::new("x1");
        let id = write_fields(&checked, &client, &via, false, None, &mut head).unwrap();
        let head = decoded(&head.finish());
        let mut map = HeaderMap::new();
        write_fields(&checked, &client, &via, false, None, &mut map).unwrap();
        // Each call makes another id.
        map.insert(X_REQUEST_ID, id);
        assert_eq!(map, head.fields.map, "both sinks get equal fields");
        assert_eq!((&*head.scheme, &*head.path), (&b"http"[..], &b"/p?q"[..]));
        assert_eq!(head.authority, "a-b.test:8080");
        head.fields.map
    }

    /// As the other end reads it.
    fn decoded(head: &EncodedHead) -> RequestHead {
        let mut decoder = Decoder::request(Limits::default());
        decoder.push(head.alone().to_vec().into());
        match decoder.next().unwrap() {
            Some(Event::Request(head)) => head,
            other => panic!("{other:?}"),
        }
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
                // What proxies that authenticate say of a user, and whatever else is called like this.
                ("x-forwarded-user", "admin"),
                ("x-forwarded-email", "admin@a.test"),
                ("x-forwarded-groups", "admins"),
                ("x-forwarded-prefix", "/admin"),
                ("x-forwarded-ssl", "on"),
                ("x-forwarded-", "1"),
                ("x-forward", "mine"),
            ],
            false,
        );
        assert_eq!(values(&headers, "x-forwarded-for"), ["192.0.2.7"]);
        let forwarded = "for=192.0.2.7;host=\"a-b.test:8080\";proto=http";
        assert_eq!(values(&headers, "forwarded"), [forwarded]);
        let names = headers.keys().map(HeaderName::as_str);
        let own = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];
        let more: Vec<_> = names
            .filter(|name| name.starts_with("x-") && !own.contains(name))
            .collect();
        assert_eq!(more, ["x-forward", "x-request-id"]);
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_added_to() {
        let headers = sent(
            &[
                ("x-forwarded-for", "10.0.0.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-user", "someone"),
            ],
            true,
        );
        assert_eq!(values(&headers, "x-forwarded-for"), ["10.0.0.1, 192.0.2.7"]);
        assert_eq!(values(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(values(&headers, "x-forwarded-user"), ["someone"]);
    }

    #[test]
    fn no_connection_line_takes_our_own_fields_away() {
        let headers = sent(
            &[
                ("connection", "x-forwarded-for, host, tunnel-via, x-mine"),
                ("connection", "x-request-id, close"),
                ("x-mine", "1"),
                ("x-other", "2"),
                ("te", "gzip, trailers"),
                ("proxy-authorization", "secret"),
            ],
            false,
        );
        assert_eq!(values(&headers, "x-forwarded-for"), ["192.0.2.7"]);
        assert_eq!(values(&headers, "tunnel-via"), ["tunnel-x1"]);
        assert!(!headers.contains_key("via"));
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
                ("cookie", " "),
                ("cookie", "b=2"),
                ("cookie", ""),
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
            .header("tunnel-via", "tunnel-fred, tunnel-x1")
            .body(())
            .unwrap();
        let parts = request.into_parts().0;
        let checked = CHECKER.check(&parts, None).unwrap();
        let client = ForwardedClient::new("::1".parse().unwrap(), false, true);
        let mut head = HeaderMap::new();
        let mut pass = |name, sends_via| {
            let via = ViaName::new(name);
            write_fields(&checked, &client, &via, sends_via, None, &mut head)
        };
        assert_eq!(pass("x1", true).unwrap_err().reason(), Reason::LoopDetected);
        assert!(pass("x", true).is_ok());
        assert_eq!(
            values(&head, "tunnel-via"),
            ["tunnel-fred, tunnel-x1", "tunnel-x"]
        );
        assert_eq!(values(&head, "via"), ["1.1 tunnel-x"]);
    }
}
