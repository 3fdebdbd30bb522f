//! What a check has observed up to where it ended, as plain values: what verdicts are made of.
//!
//! Holds no secrets: of a token only what is public, of a proxy no password.

use std::time::{Duration, SystemTime};

use http::header::{
    AGE, CONTENT_TYPE, DATE, LOCATION, PROXY_AUTHENTICATE, SERVER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tunnel_proto::handshake::Refusal;
use tunnel_proto::problem::Reason;
use tunnel_proto::refusal::RefusalReason;

use super::certificate::CertificateEvidence;
use super::text::printable;
use super::token::TokenEvidence;
use crate::dial::page_text::plain_page_text;

/// Clocks that differ by more fail the check: tokens are valid for minutes.
pub(super) const CLOCK_BROKEN: Duration = Duration::from_secs(5 * 60);

/// Clocks may differ by this much: a `Date` has whole seconds, a response takes its time, and servers tolerate the same
/// in a token's times.
pub(super) const CLOCK_TOLERANCE: Duration = Duration::from_secs(30);

/// Reasons that a refusal of a session shares with problems of requests.
const SHARED_REASONS: [RefusalReason; 2] = [
    RefusalReason::MethodNotAllowed,
    RefusalReason::VersionUnsupported,
];

/// Everything that was observed.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    /// This machine's clock when the check began.
    pub(super) now: SystemTime,
    /// The host that is dialled, and its port.
    pub(super) host: String,
    pub(super) port: u16,
    /// The name that the server's certificate has to be valid for.
    pub(super) name: String,
    /// The proxy's URL without a login, and its host.
    pub(super) proxy: Option<String>,
    pub(super) proxy_host: String,
    /// The flag, file or variable that names the proxy.
    pub(super) proxy_from: String,
    /// The content of the token file.
    pub(super) token: Option<TokenEvidence>,
    /// The certificates that the peer showed last, its own first.
    pub(super) chain: Vec<CertificateEvidence>,
    /// The response to the request for a session.
    pub(super) response: Option<ResponseEvidence>,
    /// The response to a request without a credential and for no session, if one was sent.
    pub(super) probe: Option<ResponseEvidence>,
    /// This clock beside another one.
    pub(super) clock: Option<ClockEvidence>,
}

impl Evidence {
    /// Nothing was observed yet.
    pub(super) fn new(host: &str, port: u16, now: SystemTime) -> Self {
        Self {
            now,
            host: host.to_owned(),
            port,
            name: host.to_owned(),
            proxy: None,
            proxy_host: String::new(),
            proxy_from: String::new(),
            token: None,
            chain: Vec::new(),
            response: None,
            probe: None,
            clock: None,
        }
    }

    /// Whether the token is valid now by its own claims and this machine's clock, within [`CLOCK_TOLERANCE`].
    pub(super) fn is_token_in_time(&self) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let earlier = self.now.checked_sub(CLOCK_TOLERANCE);
        let later = self.now.checked_add(CLOCK_TOLERANCE);
        !token.is_expired(earlier.unwrap_or(self.now)) && !token.is_early(later.unwrap_or(self.now))
    }

    /// Whether the response to the request for a session is not the tunnel server's.
    pub(super) fn is_response_of_another(&self) -> bool {
        let response = self.response.as_ref();
        response.is_some_and(|response| response.refusal.is_none())
    }
}

/// An HTTP response, as far as it tells what sent it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ResponseEvidence {
    pub(super) status: u16,
    /// The target of a redirect.
    pub(super) location: Option<String>,
    /// The program, as it calls itself.
    pub(super) server: Option<String>,
    /// Whether the content is a page for people.
    pub(super) is_html: bool,
    /// The content on one line; empty if the request had a credential, which the content may repeat.
    pub(super) words: String,
    /// Whether the content says that the request is too large.
    pub(super) is_too_large: bool,
    /// The refusal of a tunnel server; no other response has one.
    pub(super) refusal: Option<Refusal>,
    /// Whether the refusal is that of its listener for platform clients.
    pub(super) is_public: bool,
    /// The login schemes that are demanded.
    pub(super) challenges: Vec<String>,
}

impl ResponseEvidence {
    /// Reads a response with the beginning of its content.
    pub(super) fn read(status: StatusCode, fields: &HeaderMap, content: &[u8]) -> Self {
        let field = |name: HeaderName| {
            let value = fields.get(name)?;
            Some(printable(&String::from_utf8_lossy(value.as_bytes())))
        };
        let challenges = [WWW_AUTHENTICATE, PROXY_AUTHENTICATE].into_iter();
        let challenges = challenges.flat_map(|name| fields.get_all(name));
        let begin = content.trim_ascii_start().to_ascii_lowercase();
        let looks_like_html = begin.starts_with(b"<!doctype html") || begin.starts_with(b"<html");
        let media_type = field(CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
        let refusal: Option<Refusal> = serde_json::from_slice(content).ok();
        let words = plain_page_text(content).to_ascii_lowercase();
        Self {
            status: status.as_u16(),
            location: field(LOCATION),
            server: field(SERVER).filter(|server| !server.is_empty()),
            is_html: looks_like_html || media_type.starts_with("text/html"),
            words: String::new(),
            is_too_large: words.contains("too large") || words.contains("too long"),
            is_public: (refusal.as_ref()).is_some_and(|refusal| is_public(refusal, content)),
            refusal,
            challenges: challenges
                .map(|value| printable(&String::from_utf8_lossy(value.as_bytes())))
                .collect(),
        }
    }

    /// Reads the response to a request without a credential, whose content may be shown.
    pub(super) fn read_probe(status: StatusCode, fields: &HeaderMap, content: &[u8]) -> Self {
        Self {
            words: plain_page_text(content),
            ..Self::read(status, fields, content)
        }
    }

    pub(super) fn is_successful(&self) -> bool {
        (200..=299).contains(&self.status)
    }
}

/// What a problem of a request has, and a refusal of a session has not.
#[derive(Deserialize)]
struct WithHop {
    #[serde(rename = "hop")]
    _hop: IgnoredAny,
}

/// Whether a refusal is that of a request, and not of a session.
fn is_public(refusal: &Refusal, content: &[u8]) -> bool {
    let reason = refusal.reason.as_str();
    let is_problem = Reason::from_name(reason.as_bytes()).is_some();
    let is_shared = (refusal.known()).is_some_and(|reason| SHARED_REASONS.contains(&reason));
    is_problem && !is_shared || serde_json::from_slice::<WithHop>(content).is_ok()
}

/// This clock beside that of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClockEvidence {
    /// This machine's clock when the response came.
    pub(super) here: SystemTime,
    /// The response's `Date`.
    pub(super) there: SystemTime,
    /// Whether the tunnel server sent it. Other pages may come from a cache.
    pub(super) is_servers: bool,
}

impl ClockEvidence {
    /// Reads the clocks from a response that came now; `None` if it has no time of its own.
    pub(super) fn read(
        response: &ResponseEvidence,
        fields: &HeaderMap,
        here: SystemTime,
    ) -> Option<Self> {
        let is_servers =
            response.status == StatusCode::SWITCHING_PROTOCOLS || response.refusal.is_some();
        // A response from a cache has the time of its origin (RFC 9111 section 5.1).
        if !is_servers && fields.contains_key(AGE) {
            return None;
        }
        let date = fields.get(DATE)?.to_str().ok()?;
        let there = httpdate::parse_http_date(date).ok()?;
        Some(Self {
            here,
            there,
            is_servers,
        })
    }

    /// How far the clocks are apart.
    pub(super) fn difference(self) -> Duration {
        let ahead = self.here.duration_since(self.there);
        ahead.unwrap_or_else(|behind| behind.duration())
    }

    /// Whether this machine's clock is the one ahead.
    pub(super) fn is_ahead(self) -> bool {
        self.here > self.there
    }

    /// Whether the clocks differ by more than [`CLOCK_TOLERANCE`].
    pub(super) fn is_off(self) -> bool {
        self.difference() > CLOCK_TOLERANCE
    }

    /// The other clock's time at a moment of this one.
    pub(super) fn there_at(self, here: SystemTime) -> SystemTime {
        match self.is_ahead() {
            true => here.checked_sub(self.difference()),
            false => here.checked_add(self.difference()),
        }
        .unwrap_or(here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(given: &[(&'static str, &str)]) -> HeaderMap {
        let fields = given
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        fields.collect()
    }

    #[test]
    fn an_answer_tells_who_gave_it() {
        let own = br#"{"reason":"token_refused","detail":"no","fatal":true}"#;
        let ours = ResponseEvidence::read(
            StatusCode::UNAUTHORIZED,
            &fields(&[("www-authenticate", "Bearer")]),
            own,
        );
        assert_eq!(ours.refusal.unwrap().reason, "token_refused");
        assert_eq!(
            (ours.challenges, ours.is_html),
            (vec!["Bearer".to_owned()], false)
        );
        let page = ResponseEvidence::read(
            StatusCode::FOUND,
            &fields(&[("location", "http://portal.test/"), ("server", "nginx")]),
            b"  <!DOCTYPE HTML><p>sign in",
        );
        assert!(page.is_html && page.refusal.is_none());
        assert_eq!(page.location.as_deref(), Some("http://portal.test/"));
        assert_eq!(page.server.as_deref(), Some("nginx"));
        let other_json =
            ResponseEvidence::read(StatusCode::OK, &HeaderMap::new(), br#"{"status":"ok"}"#);
        assert!(other_json.refusal.is_none());
    }

    #[test]
    fn a_listener_for_platform_clients_speaks_of_hops() {
        let said = |json: &str| {
            ResponseEvidence::read(
                StatusCode::SERVICE_UNAVAILABLE,
                &HeaderMap::new(),
                json.as_bytes(),
            )
        };
        for reason in [
            "runtime_offline",
            "address_denied",
            "something_new",
            "method_not_allowed",
        ] {
            let json = format!(r#"{{"reason":"{reason}","hop":"tunnel-server","detail":"x"}}"#);
            assert!(said(&json).is_public, "{reason}");
        }
        assert!(said(r#"{"reason":"runtime_offline","detail":"x"}"#).is_public);
        for reason in [
            "method_not_allowed",
            "version_unsupported",
            "token_refused",
            "auth_busy",
        ] {
            let json = format!(r#"{{"reason":"{reason}","detail":"x","fatal":true}}"#);
            assert!(!said(&json).is_public, "{reason}");
        }
    }

    #[test]
    fn a_page_says_what_it_says_where_nothing_secret_was_told() {
        let page = b"<html><head><title>400</title></head><h1>400 Bad Request</h1>Request Header Or Cookie Too Large";
        let given = ResponseEvidence::read(StatusCode::BAD_REQUEST, &HeaderMap::new(), page);
        assert!(given.is_too_large && given.words.is_empty(), "{given:?}");
        let plain = ResponseEvidence::read_probe(StatusCode::BAD_REQUEST, &HeaderMap::new(), page);
        assert!(
            plain.words.starts_with("400 Bad Request Request Header"),
            "{plain:?}"
        );
        assert!(
            !ResponseEvidence::read_probe(StatusCode::OK, &HeaderMap::new(), b"fine").is_too_large
        );
    }

    #[test]
    fn the_server_s_clock_is_in_its_answer() {
        let date = "Sun, 22 Nov 2026 06:00:00 GMT";
        let there = httpdate::parse_http_date(date).unwrap();
        let minute = Duration::from_secs(60);
        let switched =
            ResponseEvidence::read(StatusCode::SWITCHING_PROTOCOLS, &HeaderMap::new(), b"");
        let dated = fields(&[("date", date)]);
        let clock = ClockEvidence::read(&switched, &dated, there - minute).unwrap();
        assert_eq!(
            (clock.difference(), clock.is_ahead(), clock.is_off()),
            (minute, false, true)
        );
        assert_eq!(clock.there_at(there), there + minute);
        assert!(clock.is_servers);
        assert!(ClockEvidence::read(&switched, &fields(&[("date", "soon")]), there).is_none());
        // The `Date` of a page is the clock of the program that made it; a cached page has an old one.
        let page = ResponseEvidence::read(StatusCode::OK, &HeaderMap::new(), b"<html>");
        assert!(
            !ClockEvidence::read(&page, &dated, there)
                .unwrap()
                .is_servers
        );
        let kept = fields(&[("date", date), ("age", "86400")]);
        assert!(ClockEvidence::read(&page, &kept, there).is_none());
        assert!(ClockEvidence::read(&switched, &kept, there).is_some());
    }
}
