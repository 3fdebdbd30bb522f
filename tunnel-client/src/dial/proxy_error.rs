//! What a proxy answers, and why it does not lead to the server.

use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;

use super::page_text::one_line;
use crate::config::LoginError;

/// What a proxy said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyAnswer {
    /// The status; none when it speaks SOCKS.
    pub(crate) status: Option<StatusCode>,
    /// Its own text, on one line: the status with its reason, and what its page says.
    pub(crate) text: String,
    /// The login schemes that it offers in a 407.
    pub(crate) schemes: Vec<String>,
    /// What was shown to it: `Basic`, `Digest` or `password`.
    pub(crate) login: Option<&'static str>,
}

/// Why a proxy does not lead to the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// It wants a login, and there is none.
    #[error("the proxy wants a login{}: name one with --proxy-auth-file; it says: {}", Schemes(.0), .0.text)]
    LoginWanted(ProxyAnswer),
    /// It wants a login by schemes that are not spoken here.
    #[error("the proxy wants a login{}, and this client speaks only {}; it says: {}", Schemes(.0), Spoken(.0), .0.text)]
    LoginUnknown(ProxyAnswer),
    /// The login is not taken.
    #[error("the proxy does not take the login: check user and password; it says: {}", .0.text)]
    LoginRefused(ProxyAnswer),
    /// The login was not taken a while ago, and is not shown again so soon: who shows a wrong one too often
    /// is locked out.
    #[error(
        "the proxy has not taken this login: check user and password, it is shown again when it has changed, or in {1:?}; \
         it said: {text}", text = .0.text
    )]
    LoginHeld(ProxyAnswer, Duration),
    /// It refuses for another reason.
    #[error("the proxy refuses: {}", .0.text)]
    Refused(ProxyAnswer),
    /// Its answer is none of such a proxy.
    #[error("this is no such proxy: {0}")]
    NotAProxy(String),
    /// It says nothing in time.
    #[error("the proxy says nothing")]
    Silent,
    /// The login cannot be read.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// It asks for the way to be asked for again and again.
    #[error("the proxy closes one connection after the other")]
    TooOften,
    /// Something that SOCKS cannot carry.
    #[error("the {0} is too long for SOCKS5: at most 255 bytes")]
    TooLong(&'static str),
    /// The system.
    #[error("the system gives no random numbers")]
    NoRandom,
}

/// The schemes that a proxy offers, for a sentence.
struct Schemes<'a>(&'a ProxyAnswer);

/// The schemes that are spoken with such a proxy, for a sentence.
struct Spoken<'a>(&'a ProxyAnswer);

impl ProxyError {
    /// What the proxy said, where it said something.
    pub(crate) fn answer(&self) -> Option<&ProxyAnswer> {
        match self {
            Self::LoginWanted(answer)
            | Self::LoginUnknown(answer)
            | Self::LoginRefused(answer)
            | Self::LoginHeld(answer, _)
            | Self::Refused(answer) => Some(answer),
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

impl fmt::Display for Schemes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.schemes.as_slice() {
            [] => Ok(()),
            schemes => write!(f, " by {}", one_line(&schemes.join(", "))),
        }
    }
}

impl fmt::Display for Spoken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.status {
            Some(_) => "Basic and Digest (MD5, SHA-256)",
            None => "user and password (RFC 1929)",
        })
    }
}
