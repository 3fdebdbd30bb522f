//! A tunnel client that is refused: the response that it gets, and what the operator sees of it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use rustls_pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use tunnel_directory::{ClaimRefusal, RuntimeLabel};
use tunnel_proto::{
    handshake::{self, Greeting, NotASession},
    refusal::RefusalReason,
};

use super::TunnelListener;
use crate::{
    auth::{
        AuthRefusal, Authenticator, CredentialId, CredentialKind, Grant, RefusedIdentity, bearer,
    },
    client_address::ClientAddress,
    events::{Event, EventKind},
    history::RefusedDial,
    metrics::Metrics,
    timestamp::Timestamp,
};

/// `Retry-After` of an instance whose runtime another instance holds.
const HELD_RETRY: Duration = Duration::from_secs(10);

/// Longest `Retry-After` of an instance that has to wait since instances take the runtime from each other: the one that has it
/// may leave.
const CONTESTED_RETRY: Duration = Duration::from_secs(1);

/// `Retry-After` while the shared directory cannot be written: longer than an election of etcd.
const DIRECTORY_RETRY: Duration = Duration::from_secs(2);

/// `Retry-After` of a client for which there is no permit for a connection.
const CONNECTIONS_RETRY: Duration = Duration::from_secs(30);

/// Why a request is refused, and when the client may try again, if that is known.
pub(super) struct Refusal {
    reason: RefusalReason,
    detail: String,
    retry_after: Option<Duration>,
    /// Whose client it is, if it was authenticated before it was refused.
    identity: Option<RefusedIdentity>,
}

/// A tunnel client that is refused, as far as it has said who it is.
pub(crate) struct RefusedClient {
    refusal: Refusal,
    greeting: Option<Greeting>,
    bearer: Option<SecretString>,
}

impl Refusal {
    pub(super) fn new(reason: RefusalReason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            retry_after: None,
            identity: None,
        }
    }

    /// A refusal of a request that may be accepted after this time.
    pub(super) fn for_now(reason: RefusalReason, detail: &str, after: Duration) -> Self {
        Self {
            retry_after: Some(after),
            ..Self::new(reason, detail)
        }
    }

    /// A refusal of a client for which there is no permit for a connection.
    pub(super) fn too_many_connections() -> Self {
        let detail = "this server, or the address of the tunnel client, has too many connections: dial again later";
        Self::for_now(RefusalReason::HandshakeQueue, detail, CONNECTIONS_RETRY)
    }

    /// A refusal of a client that was authenticated.
    pub(super) fn of(self, grant: &Grant) -> Self {
        let identity = RefusedIdentity {
            runtime: grant.runtime.label.clone(),
            credential: grant.credential.clone(),
            is_proven: true,
        };
        Self {
            identity: Some(identity),
            ..self
        }
    }

    /// The detail for the operator, who may learn that the token's id is listed: a stranger with a wrong secret may not.
    fn detail_for_operator(&self, credential: Option<&CredentialId>) -> &str {
        let is_listed = credential.is_some_and(|known| known.kind() == CredentialKind::Token);
        match self.reason {
            RefusalReason::TokenRefused if is_listed => {
                "the id of the token is listed, but its secret is wrong: the client's token file was cut or mixed up, or \
                 holds a token made before this one"
            }
            _ => &self.detail,
        }
    }

    /// Whether the server only sends the client to another server, or to a later time.
    fn is_deferral(&self) -> bool {
        matches!(
            self.reason,
            RefusalReason::Elsewhere
                | RefusalReason::ServerDraining
                | RefusalReason::HandshakeQueue
        )
    }
}

impl RefusedClient {
    pub(super) fn new<B>(refusal: Refusal, request: &Request<B>) -> Self {
        let bearer = bearer(request.headers()).map(SecretString::from);
        Self {
            refusal,
            greeting: handshake::check_request(request).ok(),
            bearer,
        }
    }

    /// The response, which is counted.
    pub(super) fn response(&self, metrics: &Metrics) -> Response<Full<Bytes>> {
        let Refusal {
            reason,
            detail,
            retry_after,
            ..
        } = &self.refusal;
        let refused = metrics.handshakes.with_label_values(&[reason.name()]);
        refused.inc();
        // Serialising strings into memory cannot fail.
        let body = handshake::Refusal::new(*reason, detail.as_str());
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = Response::new(Full::new(body.into()));
        *response.status_mut() = reason.status();
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        match reason.status() {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::UPGRADE_REQUIRED => {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            }
            _ => {}
        }
        if let Some(after) = retry_after {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// Logs the refusal, and keeps it for the runtime whose client this is, if that is known.
    pub(crate) fn report(
        self,
        shared: &TunnelListener,
        peer: ClientAddress,
        certificates: &[CertificateDer<'static>],
    ) {
        let (refusal, reason) = (&self.refusal, self.refusal.reason.name());
        if refusal.is_deferral() {
            return;
        }
        let bearer = self.bearer.as_ref().map(ExposeSecret::expose_secret);
        let identify = || {
            let identity = shared.authenticator.identify(bearer, certificates)?;
            // With the id alone anything could be said of the runtime, but that somebody has a wrong secret.
            let is_certain = identity.is_proven || refusal.reason == RefusalReason::TokenRefused;
            is_certain.then_some(identity)
        };
        let identity = refusal.identity.clone().or_else(identify);
        if identity.is_none() && self.greeting.is_none() {
            tracing::debug!(%peer, reason, detail = refusal.detail, "a request on the tunnel listener does not ask for a session");
            return;
        }
        let instance = self
            .greeting
            .as_ref()
            .map(|greeting| greeting.instance.id().to_string());
        let runtime = identity.as_ref().map(|identity| &identity.runtime);
        let credential = identity.as_ref().map(|identity| &identity.credential);
        // Of a token that is nobody's only the id in it is known, which may be made up.
        let unknown = match identity {
            Some(_) => None,
            None => Authenticator::presented_id(bearer),
        };
        let detail = refusal.detail_for_operator(credential);
        if let Some(left_out) = shared.refusal_lines.take() {
            tracing::warn!(
                runtime = runtime.map(tracing::field::display),
                credential = credential.map(tracing::field::display),
                unknown_token = unknown.map(tracing::field::display),
                %peer, instance, reason, detail, left_out, "a tunnel client was refused"
            );
        }
        let Some(identity) = identity else {
            return;
        };
        let refused = RefusedDial {
            at: Timestamp::now(),
            reason: reason.to_owned(),
            detail: detail.to_owned(),
            peer: peer.to_string(),
            credential: Some((&identity.credential).into()),
            instance,
            client_version: self.greeting.map(|greeting| greeting.version),
        };
        let reason = self.refusal.reason.name();
        shared.on_refused(&identity.runtime, reason, refused, identity.is_proven);
    }
}

impl TunnelListener {
    /// Keeps a refusal for its runtime, and reports it as an event if it is news. `is_proven` says whether the client has
    /// shown the secret of its credential.
    pub(super) fn on_refused(
        &self,
        runtime: &RuntimeLabel,
        reason: &'static str,
        refused: RefusedDial,
        is_proven: bool,
    ) {
        let Some(slot) = self.registry.slot(runtime.as_str()) else {
            return;
        };
        let detail = match &refused.credential {
            Some(credential) => format!(
                "{}; peer {}, {} {}",
                refused.detail, refused.peer, credential.kind, credential.id
            ),
            None => format!("{}; peer {}", refused.detail, refused.peer),
        };
        if let Some(left_out) = slot.history().on_refusal(refused, is_proven) {
            let detail = match left_out {
                0 => detail,
                more => format!("{detail}; {more} refusals before it are not shown"),
            };
            let event = Event::of(EventKind::Refused, runtime);
            self.events.report(event.reason(reason).detail(detail));
        }
    }
}

impl From<NotASession> for Refusal {
    fn from(error: NotASession) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

impl From<AuthRefusal> for Refusal {
    fn from(refusal: AuthRefusal) -> Self {
        Self {
            retry_after: refusal.retry_after(),
            ..Self::new(refusal.reason(), refusal.to_string())
        }
    }
}

/// 409, 403 if the label is another runtime's, or 503 while the directory is unavailable.
impl From<ClaimRefusal> for Refusal {
    fn from(refusal: ClaimRefusal) -> Self {
        let retry_after = match refusal {
            ClaimRefusal::LabelTaken(_) => None,
            ClaimRefusal::Superseded { .. } | ClaimRefusal::Held { .. } => Some(HELD_RETRY),
            ClaimRefusal::Contested { retry_after, .. } => Some(retry_after.min(CONTESTED_RETRY)),
            ClaimRefusal::Unavailable => Some(DIRECTORY_RETRY),
        };
        Self {
            retry_after,
            ..Self::new(refusal.reason(), refusal.to_string())
        }
    }
}
