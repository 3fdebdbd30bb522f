//! The one table of reasons for which a tunnel server refuses a session, or a newer token.
//!
//! A [`RefusalReason`] is sent by its name: in the body of the response that refuses a session
//! ([`crate::handshake::Refusal`]), in [`crate::control::Control::Checked`] and in
//! [`crate::control::Control::RefreshRefused`]. Both ends derive status and [`Finality`] from it.
//! The table of
//! `docs/reference/problems-and-refusals.md` is generated from this one.

use http::StatusCode;

/// Whether the cause of a refusal can pass, which decides what the tunnel client does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finality {
    /// It passes by itself, or the server's operator ends it: the client dials again with the growing
    /// delay.
    Passing,
    /// The credential is not valid now but may be soon: the server may not have read the new list yet, or a
    /// newer credential is about to be deployed. The client logs an error and dials again with longer
    /// delays.
    Pending,
    /// A person has to change the client's settings or credential: the client exits, or dials again with
    /// longer delays.
    Final,
}

impl Finality {
    /// The name in `docs/reference/problems-and-refusals.md`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Pending => "pending",
            Self::Final => "final",
        }
    }
}

macro_rules! refusal_reasons {
    ($($variant:ident = $name:literal, $status:ident, $finality:ident, $when:literal;)*) => {
        /// Why a tunnel server refuses. The name is stable: it stands in answers, metrics and logs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RefusalReason {
            $(#[doc = $when] $variant,)*
        }

        impl RefusalReason {
            /// Every reason, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name on the wire, in metrics and logs.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The status of the response that refuses a session for this reason.
            #[must_use]
            pub fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// Whether its cause can pass.
            #[must_use]
            pub fn finality(self) -> Finality {
                match self { $(Self::$variant => Finality::$finality,)* }
            }

            /// When it applies, in one clause.
            #[must_use]
            pub fn when(self) -> &'static str {
                match self { $(Self::$variant => $when,)* }
            }
        }
    };
}

refusal_reasons! {
    PathUnknown = "path_unknown", NOT_FOUND, Final, "the path is not `/connect`";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, Final, "the method is not `GET`";
    OriginNotAllowed = "origin_not_allowed", FORBIDDEN, Final, "the request has an `Origin` field";
    UpgradeRequired = "upgrade_required", UPGRADE_REQUIRED, Passing, "the request is no WebSocket handshake: often a proxy on the way has removed it";
    VersionUnsupported = "version_unsupported", UPGRADE_REQUIRED, Final, "the subprotocol is unknown";
    GreetingMalformed = "greeting_malformed", BAD_REQUEST, Final, "a `Tunnel-` field is missing or malformed";
    TlsRequired = "tls_required", FORBIDDEN, Passing, "the request has come unencrypted: from a peer that is no trusted proxy, or, by what the proxy says, from its client";
    HandshakeQueue = "handshake_queue", SERVICE_UNAVAILABLE, Passing, "more clients dial than the server takes in at once, or this client has waited for too long";
    ServerDraining = "server_draining", SERVICE_UNAVAILABLE, Passing, "the server stops";
    AllowFromMalformed = "allow_from_malformed", BAD_REQUEST, Final, "`Tunnel-Allow-From` is no list of networks";
    CredentialMissing = "credential_missing", UNAUTHORIZED, Final, "the client shows neither token nor certificate";
    TokenRefused = "token_refused", UNAUTHORIZED, Pending, "the token is unknown, or the platform says no; which part is wrong is not disclosed";
    TokenExpired = "token_expired", UNAUTHORIZED, Pending, "the token has expired; the detail has its expiry and the server's clock";
    TokenNotYetValid = "token_not_yet_valid", UNAUTHORIZED, Passing, "the token is not valid yet; the detail has the start of its validity and the server's clock";
    TokenAudience = "token_audience", UNAUTHORIZED, Final, "a JSON Web Token for another audience";
    TokenIssuer = "token_issuer", UNAUTHORIZED, Final, "a JSON Web Token of another issuer";
    TokenMalformed = "token_malformed", UNAUTHORIZED, Final, "the token has none of the forms that the server accepts, or is a JSON Web Token that lacks a claim";
    TokenAlgorithm = "token_algorithm", UNAUTHORIZED, Final, "a JSON Web Token signed by an algorithm that is not accepted";
    TokenSignature = "token_signature", UNAUTHORIZED, Final, "a JSON Web Token whose signature is wrong";
    TokenKeyUnknown = "token_key_unknown", UNAUTHORIZED, Passing, "a JSON Web Token signed by a key that is not published";
    CertificateExpired = "certificate_expired", UNAUTHORIZED, Pending, "the client certificate has expired, and the TLS session was resumed (a full TLS handshake refuses it)";
    CertificateNotYetValid = "certificate_not_yet_valid", UNAUTHORIZED, Passing, "the client certificate is not valid yet";
    CertificateWithoutRuntime = "certificate_without_runtime", UNAUTHORIZED, Final, "the client certificate names no runtime";
    CertificateUntrusted = "certificate_untrusted", UNAUTHORIZED, Pending, "the issuer of the client certificate is no longer trusted (TLS refuses one that never was)";
    CredentialRevoked = "credential_revoked", FORBIDDEN, Final, "the credential was revoked";
    CredentialsDisagree = "credentials_disagree", FORBIDDEN, Final, "token and certificate are for different runtimes";
    RuntimeLabelTaken = "runtime_label_taken", FORBIDDEN, Final, "another runtime has the label";
    AuthUnavailable = "auth_unavailable", SERVICE_UNAVAILABLE, Passing, "the platform, or the keys of JSON Web Tokens, cannot be reached";
    AuthUnclear = "auth_unclear", SERVICE_UNAVAILABLE, Passing, "the platform's answer about the token says neither yes nor no";
    AuthBusy = "auth_busy", SERVICE_UNAVAILABLE, Passing, "too many credentials are being checked";
    CheckLimit = "check_limit", SERVICE_UNAVAILABLE, Passing, "8 checks of the runtime, 32 of the account, or 256 in all, are under way";
    Superseded = "superseded", CONFLICT, Passing, "a newer instance holds the runtime that this one held";
    RuntimeHeld = "runtime_held", CONFLICT, Passing, "another instance holds the runtime, and the server keeps the older";
    RuntimeContested = "runtime_contested", CONFLICT, Passing, "instances take the runtime from each other";
    DirectoryUnavailable = "directory_unavailable", SERVICE_UNAVAILABLE, Passing, "another instance holds the runtime, and the directory of the server nodes cannot be reached";
    Elsewhere = "elsewhere", SERVICE_UNAVAILABLE, Passing, "the client has a session on this server node, or the node stops, and another node serves: the client dials again at once";
    RuntimeDiffers = "runtime_differs", FORBIDDEN, Final, "only in `refresh-refused`: the newer token is for another runtime";
    RefreshTooOften = "refresh_too_often", TOO_MANY_REQUESTS, Passing, "only in `refresh-refused`: newer tokens come too often";
}

impl RefusalReason {
    /// The reason with this name; `None` for one that is unknown to this version.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|reason| reason.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for reason in RefusalReason::ALL {
            assert_eq!(RefusalReason::from_name(reason.name()), Some(*reason));
        }
        assert_eq!(RefusalReason::from_name("handshake_limit"), None);
    }
}
