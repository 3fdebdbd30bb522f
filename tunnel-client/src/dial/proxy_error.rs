//! The response of a proxy, and the errors of a connection through it.

use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;

use super::page_text::one_line;
use crate::config::LoginError;

/// The response of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyResponse {
    /// The status; `None` for SOCKS.
    pub(crate) status: Option<StatusCode>,
    /// Its text on one line: the status with its reason phrase, and the text of its page.
    pub(crate) text: String,
    /// The login schemes that it offers in a 407.
    pub(crate) schemes: Vec<String>,
    /// How the client logged in: `Basic`, `Digest` or `password`.
    pub(crate) login: Option<&'static str>,
}

/// Why there is no connection through a proxy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// It demands a login, and none is configured.
    #[error("the proxy demands a login{}: name one with --proxy-auth-file; it says: {}", OfferedSchemes(.0), .0.text)]
    LoginRequired(ProxyResponse),
    /// It demands a login by schemes that this client does not support.
    #[error("the proxy demands a login{}, and this client supports only {}; it says: {}", OfferedSchemes(.0), SupportedSchemes(.0), .0.text)]
    LoginSchemeUnsupported(ProxyResponse),
    /// It does not accept the login.
    #[error("the proxy does not accept the login: check user and password; it says: {}", .0.text)]
    LoginRefused(ProxyResponse),
    /// It refused this login before, which is not sent again for some time: many proxies lock an account out after a few
    /// refusals.
    #[error(
        "the proxy has not accepted this login: check user and password, it is sent again when it has changed, or in {1:?}; \
         it said: {text}", text = .0.text
    )]
    LoginSuppressed(ProxyResponse, Duration),
    /// It refuses for another reason.
    #[error("the proxy refuses: {}", .0.text)]
    Refused(ProxyResponse),
    /// Its response breaks the protocol of the proxy.
    #[error("not a proxy of the configured kind: {0}")]
    NotAProxy(String),
    /// It did not respond in time.
    #[error("the proxy does not respond")]
    Silent,
    /// The login cannot be read.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// A name or login that is too long for SOCKS.
    #[error("the {0} is too long for SOCKS5: at most 255 bytes")]
    TooLong(&'static str),
    /// The system has no random numbers.
    #[error("the system provides no random numbers")]
    NoRandom,
}

/// The words "by …" with the schemes that a proxy offers, or nothing.
struct OfferedSchemes<'a>(&'a ProxyResponse);

/// The schemes that this client supports with such a proxy.
struct SupportedSchemes<'a>(&'a ProxyResponse);

impl ProxyError {
    /// The proxy's response, if there is one.
    pub(crate) fn response(&self) -> Option<&ProxyResponse> {
        match self {
            Self::LoginRequired(response)
            | Self::LoginSchemeUnsupported(response)
            | Self::LoginRefused(response)
            | Self::LoginSuppressed(response, _)
            | Self::Refused(response) => Some(response),
            _ => None,
        }
    }
}

impl From<ProxyError> for io::Error {
    fn from(error: ProxyError) -> Self {
        match error {
            ProxyError::Silent => io::ErrorKind::TimedOut.into(),
            error => Self::other(error),
        }
    }
}

impl fmt::Display for OfferedSchemes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.schemes.as_slice() {
            [] => Ok(()),
            schemes => write!(f, " by {}", one_line(&schemes.join(", "))),
        }
    }
}

impl fmt::Display for SupportedSchemes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.status {
            Some(_) => "Basic and Digest (MD5, SHA-256)",
            None => "user and password (RFC 1929)",
        })
    }
}
