//! Watches a dial: each of its steps becomes a line, and what it sees a fact.
//!
//! In: what the dial tells of itself, step by step. Out: reports of the steps that held, and of the one that
//! did not what a verdict needs. The dial is that of `run`; nothing is tried here that a client would not do.

use std::io;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{
    AGE, CONTENT_TYPE, DATE, LOCATION, PROXY_AUTHENTICATE, SERVER, WWW_AUTHENTICATE,
};
use http::{HeaderName, StatusCode};
use rustls::{AlertDescription, Error as TlsError, ProtocolVersion};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tunnel_ops::connect::Attempt;
use tunnel_proto::handshake::Refusal;
use tunnel_proto::problem::Reason;

use super::certificate::CertificateFacts;
use super::facts::{
    Act, AnswerFacts, ClockFacts, Facts, Leg, ProxyRefusal, ProxyTrouble, TlsTrouble, Tried,
    Trouble,
};
use super::step::{StepName, StepReport, StepResult};
use super::told::Told;
use super::words::{listed, printable};
use crate::credential::CredentialError;
use crate::dial::observe::{Observer, Seen};
use crate::dial::proxy::{ProxyAnswer, ProxyError, page_words};
use crate::dial::{DialError, Step, StepError, is_not_a_tunnel, proxy_error};

/// What watches one dial.
pub(super) struct Watch<'a, 't> {
    pub(super) facts: Facts,
    /// Where steps go; nowhere on a way that was told of before.
    told: Option<&'a mut Told<'t>>,
    /// Of the step that is under way.
    words: String,
    chain: Vec<CertificateFacts>,
    /// The proxy's name.
    proxy_host: String,
    /// Whether a session is asked for at the end of the way.
    asks: bool,
    /// The step that did not hold, what was seen of it, and its time.
    pub(super) failed: Option<StepReport>,
}

impl<'a, 't> Watch<'a, 't> {
    /// Watches, and tells of steps where they are to be told.
    pub(super) fn new(facts: Facts, told: Option<&'a mut Told<'t>>) -> Self {
        Self {
            facts,
            told,
            words: String::new(),
            chain: Vec::new(),
            proxy_host: String::new(),
            asks: true,
            failed: None,
        }
    }

    /// The same for a dial that asks for no session: what is answered at its end is no step.
    pub(super) fn without_session(facts: Facts, told: &'a mut Told<'t>) -> Self {
        Self {
            asks: false,
            ..Self::new(facts, Some(told))
        }
    }

    /// What ended the dial, as a verdict needs it.
    pub(super) fn ended(&self, error: &DialError) -> Trouble {
        match error {
            DialError::Step { error, .. } => self.trouble(error),
            DialError::Refused { .. } => Trouble::Refused,
            DialError::Credential(CredentialError::Token(error)) => Trouble::Token(error.into()),
            DialError::Credential(CredentialError::Certificate(error)) => {
                Trouble::Identity(error.to_string())
            }
        }
    }

    /// What the step's failure is.
    pub(super) fn trouble(&self, error: &StepError) -> Trouble {
        let (leg, act) = part(error.step());
        let source = match error {
            StepError::TimedOut(_, limit) => return Trouble::TimedOut(leg, act, *limit),
            StepError::Failed(_, source) => source,
        };
        let text = printable(&source.to_string());
        match act {
            Act::Resolve => Trouble::Unresolved {
                leg,
                host: match leg {
                    Leg::Proxy => self.proxy_host.clone(),
                    Leg::Server => self.facts.host.clone(),
                },
                text,
            },
            Act::Connect => Trouble::Unreached {
                leg,
                tried: tried(error.attempts(), source),
            },
            Act::AskProxy => Trouble::Proxy(match proxy_error(error) {
                Some(refusal) => proxy_trouble(refusal),
                None => ProxyTrouble {
                    kind: ProxyRefusal::NotAProxy,
                    status: None,
                    words: text,
                    schemes: Vec::new(),
                },
            }),
            Act::Tls => match error.certificate() {
                Some(certificate) => Trouble::Certificate(leg, certificate.clone()),
                None => Trouble::Tls(leg, tls_trouble(source)),
            },
            Act::Ask if is_not_a_tunnel(error) => Trouble::NotATunnel,
            Act::Ask => Trouble::NoAnswer(text),
        }
    }

    fn see_answer(&mut self, status: StatusCode, fields: &HeaderMap, text: &[u8]) {
        let answer = answer(status, fields, text);
        self.words = match &answer.refusal {
            Some(refusal) => format!("{}: {}", status.as_u16(), printable(&refusal.detail)),
            None => status.to_string(),
        };
        self.facts.clock =
            clock(&answer, fields, SystemTime::now()).filter(|clock| clock.is_servers);
        self.facts.answer = Some(answer);
    }
}

impl Observer for Watch<'_, '_> {
    fn begins(&mut self, _step: Step) {
        self.words.clear();
        self.chain.clear();
    }

    fn sees(&mut self, seen: Seen<'_>) {
        match seen {
            Seen::Way { host, port, proxy } => {
                self.facts.host = host.to_owned();
                self.facts.port = port;
                self.facts.proxy = proxy.map(ToString::to_string);
                self.proxy_host = proxy
                    .map(|proxy| proxy.host().to_owned())
                    .unwrap_or_default();
            }
            Seen::Addresses { host, addresses } => {
                let addresses: Vec<_> = addresses.iter().map(|address| address.ip()).collect();
                self.words = format!("{host}: {}", listed(&addresses));
            }
            Seen::Connected { address, failed } => {
                self.words = address.to_string();
                for Attempt { address, error } in failed {
                    self.words += &format!("; in vain {address} ({error})");
                }
            }
            Seen::Chain(chain) => {
                self.chain = CertificateFacts::read_chain(chain);
                self.facts.chain.clone_from(&self.chain);
            }
            Seen::Tls { version } => self.words = tls_words(version, &self.chain),
            Seen::ProxyAnswer(answer) => {
                let proxy = self.facts.proxy.as_deref().unwrap_or("the proxy");
                let from = &self.facts.proxy_from;
                self.words = format!("{proxy}, named by {from}: {}", proxy_words(answer));
                if let Some(login) = answer.login {
                    self.words += &format!(", login {login}");
                }
            }
            Seen::UpgradeAnswer {
                status,
                fields,
                text,
            } => self.see_answer(status, fields, text),
        }
    }

    fn ends(&mut self, step: Step, took: Duration, error: Option<&StepError>) {
        if step == Step::Upgrade && !self.asks {
            return;
        }
        let is_refusal = step == Step::Upgrade
            && (self.facts.answer.as_ref())
                .is_some_and(|answer| answer.status != StatusCode::SWITCHING_PROTOCOLS);
        let words = match error {
            Some(error) if self.words.is_empty() => match error {
                StepError::TimedOut(..) => "nothing came".to_owned(),
                StepError::Failed(_, error) => printable(&error.to_string()),
            },
            None if self.words.is_empty() && step == Step::ProxyAsk => {
                "it wants to be asked once more, on another connection".to_owned()
            }
            _ => std::mem::take(&mut self.words),
        };
        let report = StepReport::new(name(step), StepResult::Held, words)
            .took(took)
            .with_chain(std::mem::take(&mut self.chain));
        match error.is_some() || is_refusal {
            // Told when it is known what it means.
            true => self.failed = Some(report),
            false => {
                if let Some(told) = &mut self.told {
                    told.step(report);
                }
            }
        }
    }

    fn wants_chains(&self) -> bool {
        true
    }
}

/// What a step of the dial is called in a check.
pub(super) fn name(step: Step) -> StepName {
    match step {
        Step::ProxyResolve => StepName::ProxyDns,
        Step::ProxyConnect => StepName::ProxyTcp,
        Step::ProxyTls => StepName::ProxyTls,
        Step::ProxyAsk => StepName::Proxy,
        Step::Resolve => StepName::Dns,
        Step::Connect => StepName::Tcp,
        Step::Tls => StepName::Tls,
        Step::Upgrade => StepName::Upgrade,
    }
}

fn part(step: Step) -> (Leg, Act) {
    match step {
        Step::ProxyResolve => (Leg::Proxy, Act::Resolve),
        Step::ProxyConnect => (Leg::Proxy, Act::Connect),
        Step::ProxyTls => (Leg::Proxy, Act::Tls),
        Step::ProxyAsk => (Leg::Proxy, Act::AskProxy),
        Step::Resolve => (Leg::Server, Act::Resolve),
        Step::Connect => (Leg::Server, Act::Connect),
        Step::Tls => (Leg::Server, Act::Tls),
        Step::Upgrade => (Leg::Server, Act::Ask),
    }
}

/// Reasons that a refusal of a session has as well.
const SHARED_REASONS: [&str; 2] = ["method_not_allowed", "version_unsupported"];

/// What a problem has, and a refusal of a session has not.
#[derive(Deserialize)]
struct WithHop {
    #[serde(rename = "hop")]
    _hop: IgnoredAny,
}

/// Whether it is said of a request, and not of a session.
fn is_public(refusal: &Refusal, text: &[u8]) -> bool {
    let reason = refusal.reason.as_str();
    let is_problem = Reason::from_name(reason.as_bytes()).is_some();
    is_problem && !SHARED_REASONS.contains(&reason)
        || serde_json::from_slice::<WithHop>(text).is_ok()
}

/// An answer to a request that shows no credential: what it says can be shown too.
pub(super) fn plain_answer(status: StatusCode, fields: &HeaderMap, text: &[u8]) -> AnswerFacts {
    AnswerFacts {
        words: page_words(text),
        ..answer(status, fields, text)
    }
}

/// An answer, as far as it tells who gave it.
pub(super) fn answer(status: StatusCode, fields: &HeaderMap, text: &[u8]) -> AnswerFacts {
    let field = |name: HeaderName| fields.get(name).map(|value| value.as_bytes());
    let words = |name| field(name).map(|value| printable(&String::from_utf8_lossy(value)));
    let challenges = [WWW_AUTHENTICATE, PROXY_AUTHENTICATE].into_iter();
    let challenges = challenges.flat_map(|name| fields.get_all(name));
    let begin = text.trim_ascii_start().to_ascii_lowercase();
    let looks_like_html = begin.starts_with(b"<!doctype html") || begin.starts_with(b"<html");
    let kind = words(CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
    let refusal: Option<Refusal> = serde_json::from_slice(text).ok();
    let said = page_words(text).to_ascii_lowercase();
    AnswerFacts {
        status: status.as_u16(),
        location: words(LOCATION),
        server: words(SERVER).filter(|server| !server.is_empty()),
        is_html: looks_like_html || kind.starts_with("text/html"),
        words: String::new(),
        is_too_large: said.contains("too large") || said.contains("too long"),
        is_public: (refusal.as_ref()).is_some_and(|refusal| is_public(refusal, text)),
        refusal,
        challenges: challenges
            .map(|value| printable(&String::from_utf8_lossy(value.as_bytes())))
            .collect(),
    }
}

/// The clocks, where the answer has the other one, as it was when the answer came.
pub(super) fn clock(
    answer: &AnswerFacts,
    fields: &HeaderMap,
    here: SystemTime,
) -> Option<ClockFacts> {
    let is_servers = answer.status == StatusCode::SWITCHING_PROTOCOLS || answer.refusal.is_some();
    // What was kept by somebody has the time of when it was made (RFC 9111 section 5.1).
    if !is_servers && fields.contains_key(AGE) {
        return None;
    }
    let date = fields.get(DATE)?.to_str().ok()?;
    let there = httpdate::parse_http_date(date).ok()?;
    Some(ClockFacts {
        here,
        there,
        is_servers,
    })
}

fn tls_words(version: Option<ProtocolVersion>, chain: &[CertificateFacts]) -> String {
    let version = match version {
        Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
        Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
        _ => "TLS",
    };
    match chain.last() {
        Some(last) => format!("{version}, signed by {}", last.issuer_name),
        None => version.to_owned(),
    }
}

fn proxy_words(answer: &ProxyAnswer) -> String {
    match answer.status {
        Some(status) if answer.words.is_empty() => status.as_u16().to_string(),
        _ => printable(&answer.words),
    }
}

fn proxy_trouble(refusal: &ProxyError) -> ProxyTrouble {
    let (kind, answer) = match refusal {
        ProxyError::LoginWanted(answer) => (ProxyRefusal::LoginWanted, Some(answer)),
        ProxyError::LoginUnknown(answer) => (ProxyRefusal::LoginUnknown, Some(answer)),
        ProxyError::LoginRefused(answer) | ProxyError::LoginHeld(answer, _) => {
            (ProxyRefusal::LoginRefused, Some(answer))
        }
        ProxyError::Refused(answer) => (ProxyRefusal::Other, Some(answer)),
        ProxyError::Login(_) => (ProxyRefusal::LoginUnreadable, None),
        _ => (ProxyRefusal::NotAProxy, None),
    };
    ProxyTrouble {
        kind,
        status: answer
            .and_then(|answer| answer.status)
            .map(|status| status.as_u16()),
        words: answer.map_or_else(|| printable(&refusal.to_string()), proxy_words),
        schemes: answer
            .map(|answer| answer.schemes.clone())
            .unwrap_or_default(),
    }
}

fn tried(attempts: &[Attempt], error: &io::Error) -> Vec<Tried> {
    if attempts.is_empty() {
        return vec![Tried {
            address: "no address".to_owned(),
            kind: error.kind(),
            text: printable(&error.to_string()),
        }];
    }
    let tried = attempts.iter().map(|Attempt { address, error }| Tried {
        address: address.to_string(),
        kind: error.kind(),
        text: match error.kind() {
            io::ErrorKind::TimedOut => "no answer".to_owned(),
            _ => printable(&error.to_string()),
        },
    });
    tried.collect()
}

fn tls_trouble(error: &io::Error) -> TlsTrouble {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<TlsError>());
    let text = || printable(&error.to_string());
    match inner {
        Some(TlsError::InvalidMessage(_)) => TlsTrouble::NotTls,
        Some(TlsError::PeerIncompatible(_)) => TlsTrouble::Version(text()),
        Some(TlsError::NoApplicationProtocol) => TlsTrouble::NoHttp1,
        Some(TlsError::AlertReceived(alert)) => match alert {
            AlertDescription::HandshakeFailure => TlsTrouble::Handshake(text()),
            AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity => {
                TlsTrouble::Version(text())
            }
            AlertDescription::UnrecognisedName => TlsTrouble::NameUnknown,
            AlertDescription::NoApplicationProtocol => TlsTrouble::NoHttp1,
            AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied => TlsTrouble::Identity(text()),
            _ => TlsTrouble::Other(text()),
        },
        Some(_) => TlsTrouble::Other(text()),
        None => match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => TlsTrouble::Cut,
            _ => TlsTrouble::Other(text()),
        },
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
        let ours = answer(
            StatusCode::UNAUTHORIZED,
            &fields(&[("www-authenticate", "Bearer")]),
            own,
        );
        assert_eq!(ours.refusal.unwrap().reason, "token_refused");
        assert_eq!(
            (ours.challenges, ours.is_html),
            (vec!["Bearer".to_owned()], false)
        );
        let page = answer(
            StatusCode::FOUND,
            &fields(&[("location", "http://portal.test/"), ("server", "nginx")]),
            b"  <!DOCTYPE HTML><p>sign in",
        );
        assert!(page.is_html && page.refusal.is_none());
        assert_eq!(page.location.as_deref(), Some("http://portal.test/"));
        assert_eq!(page.server.as_deref(), Some("nginx"));
        let other_json = answer(StatusCode::OK, &HeaderMap::new(), br#"{"status":"ok"}"#);
        assert!(other_json.refusal.is_none());
    }

    #[test]
    fn a_listener_for_platform_clients_speaks_of_hops() {
        let said = |json: &str| {
            answer(
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
        let given = answer(StatusCode::BAD_REQUEST, &HeaderMap::new(), page);
        assert!(given.is_too_large && given.words.is_empty(), "{given:?}");
        let plain = plain_answer(StatusCode::BAD_REQUEST, &HeaderMap::new(), page);
        assert!(
            plain.words.starts_with("400 Bad Request Request Header"),
            "{plain:?}"
        );
        assert!(!plain_answer(StatusCode::OK, &HeaderMap::new(), b"fine").is_too_large);
    }

    #[test]
    fn the_server_s_clock_is_in_its_answer() {
        let date = "Sun, 22 Nov 2026 06:00:00 GMT";
        let there = httpdate::parse_http_date(date).unwrap();
        let minute = Duration::from_secs(60);
        let switched = answer(StatusCode::SWITCHING_PROTOCOLS, &HeaderMap::new(), b"");
        let dated = fields(&[("date", date)]);
        let clock = clock(&switched, &dated, there - minute).unwrap();
        assert_eq!(
            (clock.difference(), clock.is_ahead(), clock.is_off()),
            (minute, false, true)
        );
        assert_eq!(clock.there_at(there), there + minute);
        assert!(clock.is_servers);
        assert!(super::clock(&switched, &fields(&[("date", "soon")]), there).is_none());
        // A page has the time of whoever gives it, and one that was kept that of another day.
        let page = answer(StatusCode::OK, &HeaderMap::new(), b"<html>");
        assert!(!super::clock(&page, &dated, there).unwrap().is_servers);
        let kept = fields(&[("date", date), ("age", "86400")]);
        assert!(super::clock(&page, &kept, there).is_none());
        assert!(super::clock(&switched, &kept, there).is_some());
    }

    #[test]
    fn tls_that_fails_says_how() {
        let of = |error| tls_trouble(&io::Error::new(io::ErrorKind::InvalidData, error));
        let alert = |alert| of(TlsError::AlertReceived(alert));
        assert!(matches!(
            alert(AlertDescription::ProtocolVersion),
            TlsTrouble::Version(_)
        ));
        assert!(matches!(
            alert(AlertDescription::HandshakeFailure),
            TlsTrouble::Handshake(_)
        ));
        assert!(matches!(
            alert(AlertDescription::CertificateRequired),
            TlsTrouble::Identity(_)
        ));
        assert_eq!(
            alert(AlertDescription::UnrecognisedName),
            TlsTrouble::NameUnknown
        );
        assert_eq!(
            alert(AlertDescription::NoApplicationProtocol),
            TlsTrouble::NoHttp1
        );
        let message = TlsError::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        assert_eq!(of(message), TlsTrouble::NotTls);
        let cut = tls_trouble(&io::ErrorKind::UnexpectedEof.into());
        assert_eq!(cut, TlsTrouble::Cut);
    }
}
