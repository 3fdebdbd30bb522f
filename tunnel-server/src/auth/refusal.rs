//! The causes of a refused credential, each with its [`RefusalReason`] and a sentence of advice. No text contains a
//! credential.

use std::time::{Duration, SystemTime};

use tunnel_directory::RuntimeLabel;
use tunnel_proto::refusal::{Finality, RefusalReason};

use super::credential::CredentialId;
use crate::runtimes::Moment;

/// Time after which a client should retry while the platform is unreachable or the keys cannot be fetched.
const RETRY_UNREACHABLE: Duration = Duration::from_secs(5);

/// Time after which a client should retry while too many credentials are being checked.
const RETRY_BUSY: Duration = Duration::from_secs(2);

/// Why a credential is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthRefusal {
    /// The client presented neither a token nor a certificate.
    #[error("no credential: send `Authorization: Bearer` with the runtime's token")]
    CredentialMissing,
    /// The token has none of the accepted forms.
    #[error("the credential is {}", crate::token::NotAToken)]
    NotAToken,
    /// The token is not listed in the runtimes file. Does not reveal whether its id is.
    #[error("the token is unknown or no longer valid: request a new one")]
    TokenRefused,
    /// The platform denied the token. Its reason is safe to log: empty, or beginning with `: `.
    #[error("the platform refused the token{0}")]
    PlatformRefused(String),
    /// The platform answered with a 4xx other than 401 and 403, which may concern the token (404) or a platform that is
    /// being deployed. The text is safe to log.
    #[error("the platform refused the token: {0}")]
    PlatformRejected(String),
    /// The platform's answer is malformed, or neither an approval nor a denial.
    #[error("the platform's answer about the token cannot be used: {0}")]
    PlatformUnclear(String),
    /// The token has expired.
    #[error("the token expired at {}; this server's clock says {}", Moment::from(*.expired), Moment::from(*.now))]
    TokenExpired {
        /// When it expired.
        expired: SystemTime,
        /// This server's clock.
        now: SystemTime,
    },
    /// The token is not valid yet.
    #[error("the token is not valid before {}; this server's clock says {}: compare the clocks", Moment::from(*.valid_from), Moment::from(*.now))]
    TokenNotYetValid {
        /// When it becomes valid.
        valid_from: SystemTime,
        /// This server's clock.
        now: SystemTime,
    },
    /// A JSON Web Token for another audience.
    #[error("the token is not for this server: its audience (`aud`) must name `{expected}`")]
    TokenAudience {
        /// The audience of this server.
        expected: String,
    },
    /// A JSON Web Token from another issuer.
    #[error("the token is from another issuer: its `iss` must be `{expected}`")]
    TokenIssuer {
        /// The trusted issuer.
        expected: String,
    },
    /// A JSON Web Token that cannot be parsed or lacks a required claim.
    #[error("the token is malformed: {0}")]
    TokenMalformed(String),
    /// A JSON Web Token signed with an algorithm that is not accepted, or not the one of its key.
    #[error(
        "the token's algorithm is not accepted: `{0}`; sign with RS, PS, ES or EdDSA, according to the key"
    )]
    TokenAlgorithm(String),
    /// A JSON Web Token that was modified or signed with another key.
    #[error("the token's signature does not match its content and key")]
    TokenSignature,
    /// A JSON Web Token signed with a key that is not among the issuer's keys.
    #[error("the token's key is not known: `kid` {0} is not among the issuer's keys")]
    TokenKeyUnknown(String),
    /// The credential is revoked.
    #[error("the credential has been revoked ({0}): request a new one")]
    CredentialRevoked(CredentialId),
    /// The label of the credential's runtime belongs to another runtime.
    #[error(
        "the label `{0}` belongs to another runtime: the two names must differ by more than where the \
         hyphen is"
    )]
    RuntimeLabelTaken(RuntimeLabel),
    /// The client certificate has expired. TLS refuses an expired certificate itself, except in a resumed session.
    #[error("the client certificate expired at {}; this server's clock says {}: use a new one", Moment::from(*.expired), Moment::from(*.now))]
    CertificateExpired {
        /// When it expired.
        expired: SystemTime,
        /// This server's clock.
        now: SystemTime,
    },
    /// The client certificate is not valid yet.
    #[error("the client certificate is not valid before {}; this server's clock says {}: compare the clocks", Moment::from(*.valid_from), Moment::from(*.now))]
    CertificateNotYetValid {
        /// When it becomes valid.
        valid_from: SystemTime,
        /// This server's clock.
        now: SystemTime,
    },
    /// The client certificate does not name exactly one runtime.
    #[error("the client certificate names no runtime: {0}")]
    CertificateWithoutRuntime(String),
    /// The client certificate's issuer is not, or no longer, trusted.
    #[error("the client certificate is not from a trusted issuer")]
    CertificateUntrusted,
    /// A token and a certificate, or a credential and its renewal, name different runtimes.
    #[error("the credentials are for different runtimes: `{0}` and `{1}`")]
    CredentialsDisagree(RuntimeLabel, RuntimeLabel),
    /// The platform is unreachable, or the issuer's keys could not be fetched yet.
    #[error("the token cannot be verified now: {0}")]
    AuthUnavailable(&'static str),
    /// Too many credentials are being checked.
    #[error("too many credentials are being checked: try again")]
    AuthBusy,
}

impl AuthRefusal {
    /// The reason in the answer, the log and the metric.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::CredentialMissing => RefusalReason::CredentialMissing,
            Self::TokenRefused | Self::PlatformRefused(_) | Self::PlatformRejected(_) => {
                RefusalReason::TokenRefused
            }
            Self::PlatformUnclear(_) => RefusalReason::AuthUnclear,
            Self::TokenExpired { .. } => RefusalReason::TokenExpired,
            Self::TokenNotYetValid { .. } => RefusalReason::TokenNotYetValid,
            Self::TokenAudience { .. } => RefusalReason::TokenAudience,
            Self::TokenIssuer { .. } => RefusalReason::TokenIssuer,
            Self::NotAToken | Self::TokenMalformed(_) => RefusalReason::TokenMalformed,
            Self::TokenAlgorithm(_) => RefusalReason::TokenAlgorithm,
            Self::TokenSignature => RefusalReason::TokenSignature,
            Self::TokenKeyUnknown(_) => RefusalReason::TokenKeyUnknown,
            Self::CredentialRevoked(_) => RefusalReason::CredentialRevoked,
            Self::RuntimeLabelTaken(_) => RefusalReason::RuntimeLabelTaken,
            Self::CertificateExpired { .. } => RefusalReason::CertificateExpired,
            Self::CertificateNotYetValid { .. } => RefusalReason::CertificateNotYetValid,
            Self::CertificateWithoutRuntime(_) => RefusalReason::CertificateWithoutRuntime,
            Self::CertificateUntrusted => RefusalReason::CertificateUntrusted,
            Self::CredentialsDisagree(..) => RefusalReason::CredentialsDisagree,
            Self::AuthUnavailable(_) => RefusalReason::AuthUnavailable,
            Self::AuthBusy => RefusalReason::AuthBusy,
        }
    }

    /// The reason's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.reason().name()
    }

    /// Whether this is a decision against the credential. Otherwise there is no decision yet, or the credential becomes
    /// valid later.
    #[must_use]
    pub fn is_denial(&self) -> bool {
        !matches!(self, Self::PlatformRejected(_)) && self.reason().finality() != Finality::Passing
    }

    /// Whether a credential has expired.
    #[must_use]
    pub fn is_expiry(&self) -> bool {
        matches!(
            self,
            Self::TokenExpired { .. } | Self::CertificateExpired { .. }
        )
    }

    /// Whether the credential was revoked, or its label belongs to another runtime. Any other refusal may be temporary, as
    /// when a file was truncated, a key changed or the platform denied once: the client should dial again.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        matches!(
            self,
            Self::CredentialRevoked(_) | Self::RuntimeLabelTaken(_)
        )
    }

    /// Time after which the client should retry, if it is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::AuthUnavailable(_) | Self::PlatformUnclear(_) => Some(RETRY_UNREACHABLE),
            Self::AuthBusy => Some(RETRY_BUSY),
            _ => None,
        }
    }
}
