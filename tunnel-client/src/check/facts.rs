//! What was seen on the way, as plain values: what a verdict is made of.
//!
//! Whoever walks the way puts in what he sees; nothing here knows sockets, files or the clock. Nothing here
//! holds a secret either: of a token only what is public, of a proxy no password.

use std::io;
use std::time::{Duration, SystemTime};

use rustls::CertificateError;
use tunnel_proto::close::CloseReason;
use tunnel_proto::handshake::Refusal;

use super::certificate::CertificateFacts;
use super::token::{TokenFacts, TokenTrouble};

/// All that was seen up to where the way ended.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// This machine's clock when the check began.
    pub(super) now: SystemTime,
    /// The host that is dialled.
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
    /// The name that the server's certificate has to be for.
    pub(super) name: String,
    /// By which proxy, as people may see it.
    pub(super) proxy: Option<String>,
    /// Where that was named: a flag, a file or a variable.
    pub(super) proxy_from: String,
    /// What is in the token file.
    pub(super) token: Option<TokenFacts>,
    /// What the peer has shown of itself under TLS, its own certificate first.
    pub(super) chain: Vec<CertificateFacts>,
    /// The answer to the request for a session.
    pub(super) answer: Option<AnswerFacts>,
    /// The answer to a request that asks for no session and shows no credential, when there was cause to
    /// send one.
    pub(super) plain: Option<AnswerFacts>,
    /// How far this clock is off.
    pub(super) clock: Option<ClockFacts>,
}

/// This clock beside the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClockFacts {
    /// This machine's, when the answer came.
    pub(super) here: SystemTime,
    /// What the answer's `Date` said.
    pub(super) there: SystemTime,
    /// Whether the tunnel server gave it. Pages of anybody else may have been kept for days.
    pub(super) is_servers: bool,
}

/// An HTTP answer, as far as it tells who gave it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AnswerFacts {
    pub(super) status: u16,
    /// Where a redirect points.
    pub(super) location: Option<String>,
    /// The program that says it answered.
    pub(super) server: Option<String>,
    /// Whether the content is a page for people.
    pub(super) is_html: bool,
    /// What its content says, on one line; of one to a request with a credential nothing, since it may repeat
    /// that.
    pub(super) words: String,
    /// Whether it says that the request is too large.
    pub(super) is_too_large: bool,
    /// What a tunnel server said; nobody else's answer has this.
    pub(super) refusal: Option<Refusal>,
    /// Whether that is the word of its listener for platform clients.
    pub(super) is_public: bool,
    /// Which logins are wanted, and where.
    pub(super) challenges: Vec<String>,
}

/// Whose part of the way it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leg {
    /// Up to the proxy.
    Proxy,
    /// From here, or from the proxy, up to the server.
    Server,
}

/// What was being done on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// The name was looked up.
    Resolve,
    /// A connection was made.
    Connect,
    /// The proxy was asked for the server.
    AskProxy,
    /// TLS was agreed on.
    Tls,
    /// The server was asked for a session.
    Ask,
}

/// An address that was tried in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) address: String,
    pub(super) kind: io::ErrorKind,
    pub(super) text: String,
}

/// What ended the way.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// What is configured cannot be.
    Config(Vec<String>),
    /// A CA file, or the system's store.
    Trust(String),
    /// The token file.
    Token(TokenTrouble),
    /// The token says itself that it is not good now.
    TokenTime,
    /// The clock.
    Clock,
    /// The client's certificate, or its key.
    Identity(String),
    /// Nothing happened for so long.
    TimedOut(Leg, Act, Duration),
    /// The name has no address.
    Unresolved {
        leg: Leg,
        host: String,
        text: String,
    },
    /// No address was reached.
    Unreached { leg: Leg, tried: Vec<Tried> },
    /// The proxy did not let through.
    Proxy(ProxyTrouble),
    /// The certificate is not good.
    Certificate(Leg, CertificateError),
    /// TLS failed for anything else.
    Tls(Leg, TlsTrouble),
    /// The connection ended, or no HTTP came, before the answer.
    NoAnswer(String),
    /// The answer is no session; [`Facts::answer`] has it.
    Refused,
    /// Something else than a tunnel was opened.
    NotATunnel,
    /// The session gave no echo for so long.
    NoEcho(Duration),
    /// The session ended before the echo.
    Ended(CloseReason),
    /// Another instance has the runtime and keeps it.
    Conflict(Refusal),
    /// An upstream.
    Upstream(UpstreamTrouble),
}

/// How a proxy refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyTrouble {
    pub(super) kind: ProxyRefusal,
    /// Of an HTTP proxy.
    pub(super) status: Option<u16>,
    /// Its own words, on one line.
    pub(super) words: String,
    /// Logins that it offers, with their realms.
    pub(super) schemes: Vec<String>,
}

/// Why a proxy refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProxyRefusal {
    /// It wants a login, and none is configured.
    LoginWanted,
    /// It wants a login of a kind that is not spoken here.
    LoginUnknown,
    /// The login is wrong.
    LoginRefused,
    /// The login's file cannot be read.
    LoginUnreadable,
    /// Anything else.
    Other,
    /// It is no proxy of the kind that it is taken for.
    NotAProxy,
}

/// How TLS failed, but for the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TlsTrouble {
    /// What came is not TLS.
    NotTls,
    /// The two have no version, or no cipher, in common.
    Version(String),
    /// The peer does not go on, and does not say why.
    Handshake(String),
    /// The peer knows no server of that name.
    NameUnknown,
    /// The peer speaks no HTTP/1.1.
    NoHttp1,
    /// The peer did not take the client's certificate, or wants one.
    Identity(String),
    /// The connection ended.
    Cut,
    /// Anything else.
    Other(String),
}

/// Why an upstream cannot be asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UpstreamTrouble {
    pub(super) url: String,
    /// Whether that is a Unix socket.
    pub(super) is_socket: bool,
    pub(super) kind: UpstreamFailure,
    /// What the system, or TLS, or the upstream said.
    pub(super) text: String,
}

/// Where the way to it ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum UpstreamFailure {
    /// It cannot be asked as it is configured.
    Unusable,
    Unresolved,
    /// No name server answers.
    ResolveTimedOut,
    Refused,
    TimedOut,
    Unreached,
    Denied,
    Certificate(CertificateError),
    Tls,
    Unhealthy,
}

impl Facts {
    /// Nothing was seen yet.
    pub(super) fn new(host: &str, port: u16, now: SystemTime) -> Self {
        Self {
            now,
            host: host.to_owned(),
            port,
            name: host.to_owned(),
            proxy: None,
            proxy_from: String::new(),
            token: None,
            chain: Vec::new(),
            answer: None,
            plain: None,
            clock: None,
        }
    }

    /// Whether the token is good now, as it says itself and by this machine's clock; one whose time is just over
    /// may still be taken.
    pub(super) fn is_token_in_time(&self) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let earlier = self.now.checked_sub(CLOCK_TOLERANCE);
        let later = self.now.checked_add(CLOCK_TOLERANCE);
        !token.is_expired(earlier.unwrap_or(self.now)) && !token.is_early(later.unwrap_or(self.now))
    }
}

impl AnswerFacts {
    /// Whether it is a page, and points nowhere else.
    pub(super) fn is_page(&self) -> bool {
        (200..=299).contains(&self.status)
    }
}

impl ClockFacts {
    /// How far the clocks are apart.
    pub(super) fn difference(self) -> Duration {
        let ahead = self.here.duration_since(self.there);
        ahead.unwrap_or_else(|behind| behind.duration())
    }

    /// Whether this machine's is the one that is ahead.
    pub(super) fn is_ahead(self) -> bool {
        self.here > self.there
    }

    /// Whether they are further apart than the way and the clocks' seconds explain.
    pub(super) fn is_off(self) -> bool {
        self.difference() > CLOCK_TOLERANCE
    }

    /// What the server's clock says at a moment of this one.
    pub(super) fn there_at(self, here: SystemTime) -> SystemTime {
        match self.is_ahead() {
            true => here.checked_sub(self.difference()),
            false => here.checked_add(self.difference()),
        }
        .unwrap_or(here)
    }
}

/// How far apart clocks are whose owners should not rely on anything that has a time: tokens live for minutes.
pub(super) const CLOCK_BROKEN: Duration = Duration::from_secs(5 * 60);

/// What clocks may differ by: a `Date` has whole seconds, an answer takes its time, and servers bear as much
/// in a token's times.
pub(super) const CLOCK_TOLERANCE: Duration = Duration::from_secs(30);
