//! The one table from what went wrong to the answer that the platform client gets.
//!
//! A [`Problem`] is created where something fails, at either end, and becomes a response in one place,
//! `tunnel-http`'s `answer`, for both programs. Between the ends it is sent as its reason (pseudo-field
//! `:problem`) and a detail (`:detail`); see `docs/protocol.md`. Status codes follow RFC 9110 section 15,
//! error types RFC 9209 section 2.3. The table of `docs/reference/problems-and-refusals.md` is generated from
//! this one.

use std::{borrow::Cow, fmt, time::Duration};

use http::{HeaderValue, StatusCode};
use serde::Serialize;

/// Which program of the tunnel met the problem. Its name stands in `Proxy-Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Hop {
    /// The tunnel server.
    #[serde(rename = "tunnel-server")]
    Server,
    /// The tunnel client.
    #[serde(rename = "tunnel-client")]
    Client,
}

impl Hop {
    /// The hop's name, a token of RFC 9209.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "tunnel-server",
            Self::Client => "tunnel-client",
        }
    }
}

/// The party at fault, which decides the level of the log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The platform client sent something that cannot be served.
    PlatformClient,
    /// The tunnel is missing, full, or has failed.
    Tunnel,
    /// The local service behind the tunnel client.
    Upstream,
}

macro_rules! reasons {
    ($($variant:ident = $name:literal, $status:ident, $error:literal, $fault:ident, $when:literal;)*) => {
        /// What went wrong. The name is stable: it stands in answers, metrics and logs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $when] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name on the wire, in the answer's body, in metrics and logs.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The status of the answer.
            #[must_use]
            pub fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// The error type of `Proxy-Status` (RFC 9209 section 2.3).
            #[must_use]
            pub fn proxy_error(self) -> &'static str {
                match self { $(Self::$variant => $error,)* }
            }

            /// The party at fault.
            #[must_use]
            pub fn fault(self) -> Fault {
                match self { $(Self::$variant => Fault::$fault,)* }
            }

            /// When it is given, in one clause.
            #[must_use]
            pub fn when(self) -> &'static str {
                match self { $(Self::$variant => $when,)* }
            }
        }
    };
}

reasons! {
    // What the platform client sent.
    RequestMalformed = "request_malformed", BAD_REQUEST, "http_request_error", PlatformClient, "the request violates the grammar of HTTP, or is ambiguous; nothing of it was sent on";
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT, "http_request_error", PlatformClient, "the request's head did not arrive in time";
    RequestIncomplete = "request_incomplete", BAD_REQUEST, "http_request_error", PlatformClient, "the request's body stopped arriving, or ended early";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "http_request_denied", PlatformClient, "the method is `CONNECT` or `TRACE`";
    MethodUnsupported = "method_unsupported", NOT_IMPLEMENTED, "http_request_error", PlatformClient, "over HTTP/1, the method is longer than any that is known";
    UriTooLong = "uri_too_long", URI_TOO_LONG, "http_request_error", PlatformClient, "the request target is too long";
    HeadTooLarge = "head_too_large", REQUEST_HEADER_FIELDS_TOO_LARGE, "http_request_error", PlatformClient, "the head, or the trailer section, is too large or has too many fields";
    CodingUnsupported = "coding_unsupported", NOT_IMPLEMENTED, "http_request_error", PlatformClient, "the request has a transfer coding other than `chunked`";
    VersionUnsupported = "version_unsupported", HTTP_VERSION_NOT_SUPPORTED, "http_request_error", PlatformClient, "the request has an HTTP version that is not served";
    ExpectationFailed = "expectation_failed", EXPECTATION_FAILED, "http_request_error", PlatformClient, "the request expects something other than `100-continue`";
    AddressDenied = "address_denied", FORBIDDEN, "http_request_denied", PlatformClient, "`allow_from` does not let this address reach the runtime";
    BodyTooLarge = "body_too_large", PAYLOAD_TOO_LARGE, "http_request_error", PlatformClient, "the content is larger than the route's `max_body`";
    NotTaken = "not_taken", REQUEST_TIMEOUT, "http_request_error", PlatformClient, "the platform client read nothing of the answer for `--body-idle-timeout`; in logs and metrics only";
    LoopDetected = "loop_detected", LOOP_DETECTED, "proxy_loop_detected", PlatformClient, "the request has passed this server before";

    // The tunnel.
    RuntimeUnknown = "runtime_unknown", NOT_FOUND, "destination_not_found", PlatformClient, "no runtime has this host";
    RuntimeOffline = "runtime_offline", SERVICE_UNAVAILABLE, "destination_unavailable", Tunnel, "the runtime has no live session, and none came within `--offline-wait`";
    WaitingLimit = "waiting_limit", SERVICE_UNAVAILABLE, "connection_limit_reached", Tunnel, "as many requests as allowed wait for the runtime's client to come back";
    ExchangeLimit = "exchange_limit", SERVICE_UNAVAILABLE, "connection_limit_reached", Tunnel, "the runtime, or its session, has as many exchanges open as it may";
    ExchangeRateLimit = "exchange_rate_limit", TOO_MANY_REQUESTS, "connection_limit_reached", Tunnel, "the runtime has begun as many exchanges in this second as it may";
    AddressLimit = "address_limit", TOO_MANY_REQUESTS, "connection_limit_reached", Tunnel, "the platform client's address or network has its share of a limit open";
    WebsocketLimit = "websocket_limit", SERVICE_UNAVAILABLE, "connection_limit_reached", Tunnel, "the runtime has as many upgraded connections open as it may";
    ServerLimit = "server_limit", SERVICE_UNAVAILABLE, "connection_limit_reached", Tunnel, "a limit of the whole server is reached";
    MemoryLimit = "memory_limit", SERVICE_UNAVAILABLE, "connection_limit_reached", Tunnel, "more received bytes are unread than the runtime, or the whole program, may hold, and this exchange held the most; or its head is long, and the heads of open requests hold as much as they may";
    SessionLost = "session_lost", BAD_GATEWAY, "connection_terminated", Tunnel, "the session ended before the answer's head, and the request must not be sent again";
    NotHeld = "not_held", SERVICE_UNAVAILABLE, "destination_unavailable", Tunnel, "the server node that the request was forwarded to has no session of the runtime any more; only between nodes";
    PeerLost = "peer_lost", BAD_GATEWAY, "connection_terminated", Tunnel, "the server node that the request was forwarded to was lost before the answer's head, and the request must not be sent again";
    DescriptorLimit = "descriptor_limit", SERVICE_UNAVAILABLE, "connection_limit_reached", Tunnel, "the client has as many files and sockets open as its process may, and an exchange over HTTP/1.1 needs one";
    WireMalformed = "wire_malformed", BAD_GATEWAY, "http_protocol_error", Tunnel, "the other end of the session sent a message that cannot be read";
    InternalError = "internal_error", INTERNAL_SERVER_ERROR, "proxy_internal_error", Tunnel, "an internal error of the server or the client";

    // The local service.
    RouteUnknown = "route_unknown", NOT_FOUND, "destination_not_found", Upstream, "no route matches, or the path has an odd part that the route does not allow";
    RouteDenied = "route_denied", FORBIDDEN, "http_request_denied", Upstream, "a `deny` route matches";
    SegmentRefused = "segment_refused", NOT_FOUND, "destination_not_found", Upstream, "a segment of the path may not be inserted into the upstream's host";
    UpstreamsDown = "upstreams_down", SERVICE_UNAVAILABLE, "destination_unavailable", Upstream, "none of the route's upstreams can be reached";
    DestinationDenied = "destination_denied", BAD_GATEWAY, "destination_ip_prohibited", Upstream, "the upstream's name resolves only to addresses that are not allowed for names";
    DnsError = "dns_error", BAD_GATEWAY, "dns_error", Upstream, "the upstream's name does not resolve";
    DnsTimeout = "dns_timeout", GATEWAY_TIMEOUT, "dns_timeout", Upstream, "the upstream's name did not resolve in time";
    ConnectionRefused = "connection_refused", BAD_GATEWAY, "connection_refused", Upstream, "the upstream refused the connection";
    ConnectionFailed = "connection_failed", BAD_GATEWAY, "destination_ip_unroutable", Upstream, "the upstream cannot be connected to for another reason";
    ConnectionTimeout = "connection_timeout", GATEWAY_TIMEOUT, "connection_timeout", Upstream, "TCP or TLS with the upstream took longer than `connect_timeout`";
    ConnectionTerminated = "connection_terminated", BAD_GATEWAY, "connection_terminated", Upstream, "the upstream closed the connection before it answered";
    TlsCertificateError = "tls_certificate_error", BAD_GATEWAY, "tls_certificate_error", Upstream, "the upstream's certificate is not trusted";
    TlsProtocolError = "tls_protocol_error", BAD_GATEWAY, "tls_protocol_error", Upstream, "TLS with the upstream failed for another reason";
    ProtocolRefused = "protocol_refused", BAD_GATEWAY, "tls_alert_received", Upstream, "the upstream does not offer the version of HTTP that the request needs (HTTP/2 for gRPC), or that `http` of the route or `--upstream-http` demands";
    ResponseTimeout = "response_timeout", GATEWAY_TIMEOUT, "http_response_timeout", Upstream, "no head of the upstream's answer came within `head_timeout`";
    IdleTimeout = "idle_timeout", GATEWAY_TIMEOUT, "http_response_timeout", Upstream, "no byte was received or sent for the route's `idle_timeout`";
    ResponseInvalid = "response_invalid", BAD_GATEWAY, "http_protocol_error", Upstream, "the upstream's answer violates HTTP";
    ResponseIncomplete = "response_incomplete", BAD_GATEWAY, "http_response_incomplete", Upstream, "the upstream's answer ended before it was complete";
    UpgradeFailed = "upgrade_failed", BAD_GATEWAY, "http_upgrade_failed", Upstream, "the upstream switched protocols unasked, or to another protocol than requested, or answered a request for an upgrade with 2xx";
}

impl Reason {
    /// The reason with this name.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.name().as_bytes() == name)
    }

    /// Whether a detail may be shown to strangers: one about the request tells only what its sender knows, and that of a
    /// `deny` route was written for the sender.
    fn is_detail_public(self) -> bool {
        self.fault() == Fault::PlatformClient || self == Self::RouteDenied
    }
}

/// One failure: its reason, where it happened, and a detail for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    reason: Reason,
    hop: Hop,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
    /// The server node through which it came, if it came through another one.
    next_hop: Option<Box<str>>,
    /// Nothing was received for the exchange before.
    is_unheard: bool,
}

/// The detail of [`Reason::NotTaken`].
pub const NOT_TAKEN_DETAIL: &str = "the platform client took nothing of the answer for too long";

/// Longest detail that is accepted from the other end, in bytes.
const DETAIL_BYTES: usize = 512;

impl Problem {
    /// A problem met by `hop`, with a detail for a person: one clause.
    pub fn new(hop: Hop, reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            hop,
            detail: detail.into(),
            retry_after: None,
            next_hop: None,
            is_unheard: false,
        }
    }

    /// Names the server node that the request was forwarded to, for `Proxy-Status`.
    #[must_use]
    pub fn through(mut self, node: impl Into<Box<str>>) -> Self {
        self.next_hop = Some(node.into());
        self
    }

    /// States that nothing was received for the exchange before it failed. Sent from one server node to another, which may
    /// then repeat the request as RFC 9110 section 9.2.2 allows.
    #[must_use]
    pub fn unheard(mut self) -> Self {
        self.is_unheard = true;
        self
    }

    /// Whether nothing was received for the exchange.
    pub(crate) fn is_unheard(&self) -> bool {
        self.is_unheard
    }

    /// Sets the time after which a retry makes sense. The answer rounds it up to whole seconds.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Which program met it.
    #[must_use]
    pub fn hop(&self) -> Hop {
        self.hop
    }

    /// What happened, in one clause.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.reason.status()
    }

    /// Value of `Retry-After`, if the answer has one.
    #[must_use]
    pub fn retry_after_value(&self) -> Option<HeaderValue> {
        self.retry_after_seconds().map(HeaderValue::from)
    }

    /// The time after which a retry makes sense, in whole seconds.
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        let after = self.retry_after?;
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        Some(seconds.max(1))
    }

    /// The problem as another program has met it.
    #[must_use]
    pub(crate) fn met_by(mut self, hop: Hop) -> Self {
        self.hop = hop;
        self
    }

    /// Value of `Proxy-Status` (RFC 9209): the hop, the error type and the detail. If the request was forwarded to another
    /// server node, the forwarding server stands behind it, with that node as its next hop.
    #[must_use]
    pub fn proxy_status(&self) -> HeaderValue {
        let mut text = format!("{}; error={}", self.hop.name(), self.reason.proxy_error());
        if !self.detail.is_empty() {
            text.push_str("; details=\"");
            for letter in self.detail.chars() {
                match letter {
                    '"' | '\\' => text.extend(['\\', letter]),
                    ' '..='~' => text.push(letter),
                    _ => text.push('?'),
                }
            }
            text.push('"');
        }
        if let Some(node) = &self.next_hop {
            text.extend([", ", Hop::Server.name(), "; next-hop=\"", node, "\""]);
        }
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("tunnel-server"))
    }

    /// What a stranger may learn of the problem: the fixed sentence of the reason in place of a detail that tells of the
    /// inside, and no name of a server node. A detail that tells only of the request stays.
    #[must_use]
    pub fn without_inside(mut self) -> Self {
        if !self.reason.is_detail_public() {
            self.detail = self.reason.when().into();
        }
        self.next_hop = None;
        self
    }

    /// Body of the answer: a JSON object with `reason`, `hop` and `detail`, and the id of the request if it has one.
    #[must_use]
    pub fn json(&self, request_id: Option<&str>) -> String {
        #[derive(Serialize)]
        struct Body<'a> {
            reason: &'a str,
            hop: Hop,
            detail: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            request_id: Option<&'a str>,
        }
        let body = Body {
            reason: self.reason.name(),
            hop: self.hop,
            detail: &self.detail,
            request_id,
        };
        // Serialising strings into memory cannot fail.
        let mut text = serde_json::to_string(&body).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The problem that the tunnel client has sent. An unknown reason comes from a newer client and is read
    /// as [`Reason::ResponseInvalid`].
    pub(crate) fn from_wire(reason: &[u8], detail: Option<&[u8]>) -> Self {
        let reason = Reason::from_name(reason).unwrap_or(Reason::ResponseInvalid);
        let detail = detail.unwrap_or_default();
        let detail = String::from_utf8_lossy(&detail[..detail.len().min(DETAIL_BYTES)]);
        Self::new(Hop::Client, reason, detail.into_owned())
    }

    /// The detail as a field value: printable ASCII, bounded.
    pub(crate) fn wire_detail(&self) -> String {
        let printable = |letter: char| {
            if (' '..='~').contains(&letter) {
                letter
            } else {
                '?'
            }
        };
        let detail: String = self
            .detail
            .chars()
            .take(DETAIL_BYTES)
            .map(printable)
            .collect();
        detail.trim().to_owned()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at the {}", self.reason.name(), self.hop.name())?;
        if self.detail.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.detail)
        }
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_round_trip() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_name(reason.name().as_bytes()), Some(*reason));
        }
    }

    #[test]
    fn proxy_status_is_one_structured_field() {
        let problem = Problem::new(
            Hop::Client,
            Reason::DnsError,
            "no \"such\" host: b\u{fc}ro\nx",
        );
        assert_eq!(
            problem.proxy_status(),
            r#"tunnel-client; error=dns_error; details="no \"such\" host: b?ro?x""#
        );
        let problem = Problem::new(Hop::Client, Reason::DnsError, "").through("n2");
        assert_eq!(
            problem.proxy_status(),
            r#"tunnel-client; error=dns_error, tunnel-server; next-hop="n2""#
        );
    }

    #[test]
    fn a_stranger_learns_nothing_of_the_inside() {
        let inside = "http://10.0.0.7:80: connection refused";
        for &reason in Reason::ALL {
            let shown = Problem::new(Hop::Client, reason, inside)
                .through("n2")
                .without_inside();
            let is_own_fault = reason.fault() == Fault::PlatformClient;
            let expected = match is_own_fault || reason == Reason::RouteDenied {
                true => inside,
                false => reason.when(),
            };
            assert_eq!(shown.detail(), expected);
            let status = shown.proxy_status();
            assert!(!status.to_str().unwrap().contains("n2"), "{status:?}");
        }
    }

    #[test]
    fn retry_after_is_never_zero() {
        let problem = Problem::new(Hop::Server, Reason::RuntimeOffline, "")
            .retry_after(Duration::from_millis(1));
        assert_eq!(problem.retry_after_value().unwrap(), "1");
        let problem = problem.retry_after(Duration::from_millis(1_001));
        assert_eq!(problem.retry_after_value().unwrap(), "2");
    }

    #[test]
    fn an_unknown_received_reason_is_a_bad_gateway() {
        let problem = Problem::from_wire(b"moon_phase", Some(b"full"));
        assert_eq!(problem.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(problem.detail(), "full");
    }
}
