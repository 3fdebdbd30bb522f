//! The one table of reasons for which a tunnel server refuses a session, or a newer token.
//!
//! A [`RefusalReason`] is sent by its name: in the body of the response that refuses a session
//! ([`crate::handshake::Refusal`]), in [`crate::control::Control::Checked`] and in
//! [`crate::control::Control::RefreshRefused`]. Both ends derive status and [`Finality`] from it.
//! `docs/protocol.md` has this table too; a test compares the two.

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
    /// The name in `docs/protocol.md`.
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
    PathUnknown = "path_unknown", NOT_FOUND, Final, "another path than `/connect`";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, Final, "another method than `GET`";
    OriginNotAllowed = "origin_not_allowed", FORBIDDEN, Final, "an `Origin` field";
    UpgradeRequired = "upgrade_required", UPGRADE_REQUIRED, Passing, "no WebSocket handshake: often a proxy on the way has removed it";
    VersionUnsupported = "version_unsupported", UPGRADE_REQUIRED, Final, "another subprotocol";
    GreetingMalformed = "greeting_malformed", BAD_REQUEST, Final, "a `Tunnel-` field is missing or malformed";
    HandshakeQueue = "handshake_queue", SERVICE_UNAVAILABLE, Passing, "more clients dial than the server takes in at once, or this one has waited for too long";
    ServerDraining = "server_draining", SERVICE_UNAVAILABLE, Passing, "the server goes away";
    AllowFromMalformed = "allow_from_malformed", BAD_REQUEST, Final, "`Tunnel-Allow-From` is no list of networks";
    CredentialMissing = "credential_missing", UNAUTHORIZED, Final, "neither token nor certificate";
    TokenRefused = "token_refused", UNAUTHORIZED, Pending, "no known token, or the platform says no: which part of it is wrong is not told";
    TokenExpired = "token_expired", UNAUTHORIZED, Pending, "the token ran out; the detail has its end, and the server's clock";
    TokenNotYetValid = "token_not_yet_valid", UNAUTHORIZED, Passing, "the token is good later; the detail has its beginning, and the server's clock";
    TokenAudience = "token_audience", UNAUTHORIZED, Final, "a JSON Web Token for another audience";
    TokenIssuer = "token_issuer", UNAUTHORIZED, Final, "a JSON Web Token of another issuer";
    TokenMalformed = "token_malformed", UNAUTHORIZED, Final, "a JSON Web Token that cannot be read, or lacks a claim";
    TokenAlgorithm = "token_algorithm", UNAUTHORIZED, Final, "a JSON Web Token signed by an algorithm that is not taken";
    TokenSignature = "token_signature", UNAUTHORIZED, Final, "a JSON Web Token whose signature is wrong";
    TokenKeyUnknown = "token_key_unknown", UNAUTHORIZED, Passing, "a JSON Web Token by a key that is not published";
    CertificateExpired = "certificate_expired", UNAUTHORIZED, Pending, "the client certificate ran out: TLS refuses most of them before, but not those of a session that it resumes";
    CertificateNotYetValid = "certificate_not_yet_valid", UNAUTHORIZED, Passing, "the client certificate is good later";
    CertificateWithoutRuntime = "certificate_without_runtime", UNAUTHORIZED, Final, "the client certificate names no runtime";
    CertificateUntrusted = "certificate_untrusted", UNAUTHORIZED, Pending, "the issuer of the client certificate is trusted no longer; one that never was is refused by TLS";
    CredentialRevoked = "credential_revoked", FORBIDDEN, Final, "the credential was revoked";
    CredentialsDisagree = "credentials_disagree", FORBIDDEN, Final, "token and certificate are for different runtimes";
    RuntimeLabelTaken = "runtime_label_taken", FORBIDDEN, Final, "the runtime's label is another's";
    AuthUnavailable = "auth_unavailable", SERVICE_UNAVAILABLE, Passing, "who could say whether the token is good cannot be reached";
    AuthUnclear = "auth_unclear", SERVICE_UNAVAILABLE, Passing, "the platform's answer about the token says neither yes nor no";
    AuthBusy = "auth_busy", SERVICE_UNAVAILABLE, Passing, "too many credentials are being checked";
    CheckLimit = "check_limit", SERVICE_UNAVAILABLE, Passing, "a check (below): 8 of the runtime, 32 of the account, or 256 in all, are under way";
    Superseded = "superseded", CONFLICT, Passing, "a newer instance holds the runtime that this one held";
    RuntimeHeld = "runtime_held", CONFLICT, Passing, "another instance holds the runtime, and the server keeps the older";
    RuntimeContested = "runtime_contested", CONFLICT, Passing, "instances take the runtime from each other";
    RuntimeDiffers = "runtime_differs", FORBIDDEN, Final, "in `refresh-refused` alone: the newer token is for another runtime";
    RefreshTooOften = "refresh_too_often", TOO_MANY_REQUESTS, Passing, "in `refresh-refused` alone: newer tokens come too often";
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

    /// Columns of the table: status, reason, finality, `Retry-After`, when.
    #[test]
    fn the_table_in_the_document_is_equal() {
        let document = include_str!("../../docs/protocol.md");
        let is_row = |line: &&str| line.starts_with("| 4") || line.starts_with("| 5");
        let table = document.split("| status | `reason`").nth(1).unwrap();
        let rows: Vec<String> = (table
            .lines()
            .skip(1)
            .take_while(|line| line.starts_with('|')))
        .filter(is_row)
        .map(|row| {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            format!("{} {} {} {}", cells[0], cells[1], cells[2], cells[4])
        })
        .collect();
        let known: Vec<String> = (RefusalReason::ALL.iter())
            .map(|reason| {
                let (status, finality) = (reason.status().as_u16(), reason.finality().name());
                format!("{status} `{}` {finality} {}", reason.name(), reason.when())
            })
            .collect();
        assert_eq!(rows, known);
    }
}
