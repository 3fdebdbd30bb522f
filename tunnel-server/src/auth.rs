//! From a presented credential to the runtime that it lets in, or a refusal by name.
//!
//! Fails closed: what is not known is refused. A credential names its runtime; nothing else that a
//! tunnel client says of itself decides which runtime it is.

pub mod static_token;

use std::sync::Arc;

use http::{HeaderMap, StatusCode, header};
use tunnel_proto::handshake::Refusal;

use self::static_token::TokenRefusal;
use crate::runtimes::{RuntimeEntry, Runtimes};

/// Why nobody is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthRefusal {
    /// No `Authorization: Bearer`.
    #[error("no credential: send `Authorization: Bearer` with the runtime's token")]
    Missing,
    /// A token that lets nobody in.
    #[error(transparent)]
    Token(TokenRefusal),
}

impl AuthRefusal {
    /// The status of the answer.
    #[must_use]
    pub fn status(self) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }

    /// The reason's name, in the answer and in the metric.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "credential_missing",
            Self::Token(_) => "token_refused",
        }
    }

    /// The answer's body.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        Refusal {
            reason: self.name().into(),
            detail: self.to_string(),
            fatal: true,
        }
    }
}

/// The runtime that the request's credential lets in.
///
/// # Errors
/// When there is none, or it lets nobody in.
pub fn authenticate(
    runtimes: &Runtimes,
    headers: &HeaderMap,
) -> Result<Arc<RuntimeEntry>, AuthRefusal> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(AuthRefusal::Missing);
    };
    let token = value
        .to_str()
        .ok()
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token)
        .ok_or(AuthRefusal::Missing)?;
    static_token::verify(runtimes, token)
        .cloned()
        .map_err(AuthRefusal::Token)
}
