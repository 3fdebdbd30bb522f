//! Why a credential is refused: each cause with its [`RefusalReason`] and a sentence of advice. No text here
//! holds a credential.

use std::time::{Duration, SystemTime};

use tunnel_proto::refusal::{Finality, RefusalReason};

use super::credential::CredentialId;
use crate::runtimes::{Moment, RuntimeLabel};

/// When a client is to come back while the platform or the keys cannot be reached.
const RETRY_AWAY: Duration = Duration::from_secs(5);

/// When a client is to come back while too many are being checked.
const RETRY_BUSY: Duration = Duration::from_secs(2);

/// Why a credential is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthRefusal {
    /// Neither a token nor a certificate.
    #[error("no credential: send `Authorization: Bearer` with the runtime's token")]
    CredentialMissing,
    /// It does not have the form of any token that is accepted here.
    #[error("the credential is {}", crate::token::NotAToken)]
    NotAToken,
    /// It has the form, and is not one of those listed. Whether the id is known is not revealed.
    #[error("the token is not known or no longer good: ask for a new one")]
    TokenRefused,
    /// The platform says no. What it said of why is fit to be shown; empty or beginning with `: `.
    #[error("the platform refused the token{0}")]
    PlatformRefused(String),
    /// The platform answers with another 4xx than 401 and 403, which may be about the token (404) or about a
    /// platform that is being changed. What it said is fit to be shown.
    #[error("the platform refused the token: {0}")]
    PlatformRejected(String),
    /// The platform says neither yes nor no, or yes to what cannot be.
    #[error("the platform's answer about the token cannot be used: {0}")]
    PlatformUnclear(String),
    /// It was good once.
    #[error("the token ran out at {}; this server's clock says {}", Moment::from(*.expired), Moment::from(*.now))]
    TokenExpired {
        /// Until when it was good.
        expired: SystemTime,
        /// This server's clock.
        now: SystemTime,
    },
    /// It will be good.
    #[error("the token is good from {} on; this server's clock says {}: compare the clocks", Moment::from(*.valid_from), Moment::from(*.now))]
    TokenNotYetValid {
        /// From when on it is good.
        valid_from: SystemTime,
        /// This server's clock.
        now: SystemTime,
    },
    /// A JSON Web Token for another audience.
    #[error("the token is not for this server: its audience (`aud`) must name `{expected}`")]
    TokenAudience {
        /// The audience that this server is.
        expected: String,
    },
    /// A JSON Web Token of another issuer.
    #[error("the token is not of the issuer that is trusted here: its `iss` must be `{expected}`")]
    TokenIssuer {
        /// The issuer that is trusted.
        expected: String,
    },
    /// A JSON Web Token that cannot be understood, or lacks what it must have.
    #[error("the token is malformed: {0}")]
    TokenMalformed(String),
    /// A JSON Web Token signed in a way that is not taken, or not the way its key is for.
    #[error(
        "the token's algorithm is not taken: `{0}`; sign with RS, PS, ES or EdDSA, as the key says"
    )]
    TokenAlgorithm(String),
    /// A JSON Web Token with a signature by another key, or that was changed.
    #[error("the token's signature does not fit its content and key")]
    TokenSignature,
    /// A JSON Web Token signed with a key that is not among those published.
    #[error("the token's key is not known: `kid` {0} is not among the issuer's keys")]
    TokenKeyUnknown(String),
    /// It was revoked.
    #[error("the credential has been revoked ({0}): ask for a new one")]
    CredentialRevoked(CredentialId),
    /// Its runtime has a label that is another's.
    #[error(
        "the label `{0}` belongs to another runtime: the two names must differ by more than where the \
         hyphen is"
    )]
    RuntimeLabelTaken(RuntimeLabel),
    /// A client certificate that was good once. TLS refuses most of them before; not those that come
    /// back with a session that it resumes.
    #[error("the client certificate ran out at {}; this server's clock says {}: take a new one", Moment::from(*.expired), Moment::from(*.now))]
    CertificateExpired {
        /// Until when it was good.
        expired: SystemTime,
        /// This server's clock.
        now: SystemTime,
    },
    /// A client certificate that will be good.
    #[error("the client certificate is good from {} on; this server's clock says {}: compare the clocks", Moment::from(*.valid_from), Moment::from(*.now))]
    CertificateNotYetValid {
        /// From when on it is good.
        valid_from: SystemTime,
        /// This server's clock.
        now: SystemTime,
    },
    /// A client certificate that names no runtime, or not one.
    #[error("the client certificate names no runtime: {0}")]
    CertificateWithoutRuntime(String),
    /// A client certificate whose issuer is not, or no longer, trusted here.
    #[error("the client certificate is not of an issuer that is trusted here")]
    CertificateUntrusted,
    /// A token and a certificate of different runtimes, or a renewed credential of another one.
    #[error("the credentials are for different runtimes: `{0}` and `{1}`")]
    CredentialsDisagree(RuntimeLabel, RuntimeLabel),
    /// The platform, or the issuer of keys, cannot be reached.
    #[error("nobody can say now whether the token is good: {0}")]
    AuthUnavailable(&'static str),
    /// Too many are being checked.
    #[error("too many credentials are being checked: try again")]
    AuthBusy,
}

impl AuthRefusal {
    /// The reason in the answer, the log and the metric.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::CredentialMissing => RefusalReason::CredentialMissing,
            Self::NotAToken
            | Self::TokenRefused
            | Self::PlatformRefused(_)
            | Self::PlatformRejected(_) => RefusalReason::TokenRefused,
            Self::PlatformUnclear(_) => RefusalReason::AuthUnclear,
            Self::TokenExpired { .. } => RefusalReason::TokenExpired,
            Self::TokenNotYetValid { .. } => RefusalReason::TokenNotYetValid,
            Self::TokenAudience { .. } => RefusalReason::TokenAudience,
            Self::TokenIssuer { .. } => RefusalReason::TokenIssuer,
            Self::TokenMalformed(_) => RefusalReason::TokenMalformed,
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

    /// Whether it is a decision against the credential. Otherwise there is no decision now, or the credential will
    /// be good by itself.
    #[must_use]
    pub fn is_no(&self) -> bool {
        !matches!(self, Self::PlatformRejected(_)) && self.reason().finality() != Finality::Passing
    }

    /// Whether a credential ran out that was good.
    #[must_use]
    pub fn is_expiry(&self) -> bool {
        matches!(
            self,
            Self::TokenExpired { .. } | Self::CertificateExpired { .. }
        )
    }

    /// Whether the credential was revoked, or its label given to another runtime. What is only gone, as when a
    /// file was cut short, a key changed or a platform said no once, may be good again soon: the client is to
    /// dial again.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        matches!(
            self,
            Self::CredentialRevoked(_) | Self::RuntimeLabelTaken(_)
        )
    }

    /// When to come back, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::AuthUnavailable(_) | Self::PlatformUnclear(_) => Some(RETRY_AWAY),
            Self::AuthBusy => Some(RETRY_BUSY),
            _ => None,
        }
    }
}
