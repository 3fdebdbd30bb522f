//! The request for a session: who sends it, and whether it is accepted.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use ipnet::IpNet;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use tunnel_directory::ClaimRefusal;
use tunnel_http::{forwarded, permits::Permit};
use tunnel_proto::{
    handshake::{self, CONNECT_PATH, Greeting},
    refusal::RefusalReason,
};

use super::{
    TunnelListener,
    checks::CheckPermit,
    gate::{HandshakePermit, Rejection},
    refused::{Refusal, RefusedClient},
};
use crate::{
    arrival::Arrival,
    auth::{Grant, Presented, bearer},
    budget::sources,
    client_address::ClientAddress,
    events::{Event, EventKind},
    metrics::OpenConnection,
};

/// `Retry-After` of a check for which there is no permit.
const CHECK_RETRY: Duration = Duration::from_secs(30);

/// A connection on which a session is requested.
pub(crate) struct Dial<'a> {
    /// Its client, as far as the connection says.
    pub(crate) client: ClientAddress,
    /// Whether the client is a trusted proxy, whose forwarding fields name the tunnel client.
    pub(crate) is_trusted: bool,
    /// Whether the connection may carry credentials: over TLS, or from a trusted proxy or this machine.
    pub(crate) is_protected: bool,
    /// Whether the request has to name a host of `--tunnel-host`.
    pub(crate) is_by_host: bool,
    /// The chain of the client's certificate, leaf first; empty without one.
    pub(crate) certificates: &'a [CertificateDer<'static>],
    /// The permit of the connection, which is counted by the address of the tunnel client once that is known.
    pub(crate) permit: &'a Mutex<Permit>,
    /// The gate's decision, if it was asked before TLS. It is asked at the request otherwise, since the tunnel client's
    /// address, or that it is one, is known only then.
    pub(crate) gate: Option<&'a GateOutcome>,
}

/// The gate's decision about a client; held until the client has its response.
pub(crate) struct GateOutcome {
    /// When the client may try again, if there is no handshake permit for it now.
    retry_after: Option<Duration>,
    // The count is dropped first, so that it never exceeds the number of permits.
    handshake: Option<(OpenConnection, HandshakePermit)>,
    _refusal: Option<Permit>,
}

/// A request that was accepted.
pub(crate) struct Admitted {
    pub(super) client: ClientAddress,
    pub(super) grant: Grant,
    /// Changes after which the grant must be checked again.
    pub(super) changed: watch::Receiver<u64>,
    pub(super) greeting: Greeting,
    /// The source networks that the instance itself allows for its runtime.
    pub(super) allow_from: Option<Vec<IpNet>>,
    /// The permit of a session that only checks the path.
    pub(super) check: Option<CheckPermit>,
}

/// What has become of the request of a connection.
pub(crate) enum Outcome {
    Admitted(Box<Admitted>),
    Refused(Box<RefusedClient>, ClientAddress),
}

impl<'a> Dial<'a> {
    /// The dial of a connection. `is_tls` says whether it is encrypted up to this server.
    pub(crate) fn new(
        arrival: &Arrival,
        is_tls: bool,
        permit: &'a Mutex<Permit>,
        is_by_host: bool,
    ) -> Self {
        Self {
            client: arrival.client.into(),
            is_trusted: arrival.is_trusted,
            is_protected: is_tls || arrival.is_private(),
            is_by_host,
            certificates: &[],
            permit,
            gate: None,
        }
    }

    /// The tunnel client that has sent this request.
    fn client<B>(&self, shared: &TunnelListener, request: &Request<B>) -> ClientAddress {
        if !self.is_trusted {
            return self.client;
        }
        let named = forwarded::client(request.headers(), |ip| shared.config.is_trusted(ip));
        named.map_or(self.client, ClientAddress::from)
    }
}

impl GateOutcome {
    pub(super) fn entered(handshake: (OpenConnection, HandshakePermit)) -> Self {
        Self {
            retry_after: None,
            handshake: Some(handshake),
            _refusal: None,
        }
    }

    pub(super) fn rejected(rejection: Rejection) -> Self {
        Self {
            retry_after: Some(rejection.retry_after),
            handshake: None,
            _refusal: rejection.permit,
        }
    }

    /// The client's request has been received.
    fn on_request(&self) {
        if let Some((_, permit)) = &self.handshake {
            permit.on_request();
        }
    }

    /// Resolves when the permit was given to another client, because this one was silent for too long.
    pub(super) async fn displaced(&self) {
        match &self.handshake {
            Some((_, permit)) => permit.displaced().await,
            None => std::future::pending().await,
        }
    }
}

/// The response to one request: 101, or a refusal with its reason.
pub(crate) async fn respond<B>(
    shared: &TunnelListener,
    request: &Request<B>,
    dial: &Dial<'_>,
) -> (Response<Full<Bytes>>, Outcome) {
    let client = dial.client(shared, request);
    match admit(shared, request, client, dial).await {
        Ok((response, admitted)) => (response, Outcome::Admitted(Box::new(admitted))),
        Err(refusal) => {
            let refused = RefusedClient::new(refusal, request);
            let response = refused.response(&shared.metrics);
            (response, Outcome::Refused(Box::new(refused), client))
        }
    }
}

/// Checks and authenticates a request. If it is accepted, returns the 101.
async fn admit<B>(
    shared: &TunnelListener,
    request: &Request<B>,
    client: ClientAddress,
    dial: &Dial<'_>,
) -> Result<(Response<Full<Bytes>>, Admitted), Refusal> {
    if let Some(gate) = dial.gate {
        gate.on_request();
    }
    let greeting = handshake::check_request(request)?;
    check_way(shared, request, dial)?;
    let entered;
    let gate = match dial.gate {
        Some(gate) => gate,
        None => {
            count(client, dial)?;
            entered = shared.enter_at_request(client).await;
            entered.on_request();
            &entered
        }
    };
    if let Some(after) = gate.retry_after {
        let detail = "this server has too many handshakes in progress: dial again later";
        return Err(Refusal::for_now(
            RefusalReason::HandshakeQueue,
            detail,
            after,
        ));
    }
    // A new process accepts already, unless there is none.
    let is_handed =
        shared.lifecycle.accepting_tunnels.is_paused() || shared.lifecycle.is_replaced();
    if is_handed || shared.lifecycle.is_draining() {
        go_elsewhere(shared, &greeting)?;
        let after = match is_handed {
            true => Duration::ZERO,
            false => Duration::from_secs(1),
        };
        let reason = RefusalReason::ServerDraining;
        return Err(Refusal::for_now(
            reason,
            "this server is shutting down: dial again",
            after,
        ));
    }
    let allow_from = allow_from(&greeting)?;
    let presented = Presented {
        bearer: bearer(request.headers()),
        certificates: dial.certificates,
        greeting: &greeting,
        peer: client,
    };
    let changed = shared.authenticator.changed();
    let grant = shared.authenticator.authenticate(&presented).await?;
    let check = may_begin(shared, &grant, &greeting).await;
    let check = check.map_err(|refusal| refusal.of(&grant))?;
    let result = match check {
        Some(_) => "checked",
        None => "accepted",
    };
    shared.metrics.handshakes.with_label_values(&[result]).inc();
    let response = switching_protocols(request, greeting.subprotocol());
    let admitted = Admitted {
        client,
        changed,
        grant,
        greeting,
        allow_from,
        check,
    };
    Ok((response, admitted))
}

/// Checks the way that a request has come: by which host, and whether it was encrypted where others could read it.
fn check_way<B>(
    shared: &TunnelListener,
    request: &Request<B>,
    dial: &Dial<'_>,
) -> Result<(), Refusal> {
    if dial.is_by_host && !shared.is_tunnel_host(host(request)) {
        let hosts = shared.hosts.iter().map(ToString::to_string);
        let hosts = hosts.collect::<Vec<_>>().join(", ");
        let detail = format!("tunnel clients connect to {CONNECT_PATH} at {hosts}");
        return Err(Refusal::new(RefusalReason::PathUnknown, detail));
    }
    let detail = if !dial.is_protected {
        "this listener is plain HTTP for trusted proxies, and this connection is not from one: name the proxy in \
         --trusted-proxies, or connect over TLS"
    } else if dial.is_trusted && forwarded::is_plain(request.headers()) {
        "the load balancer says that the client's connection is not encrypted (x-forwarded-proto, forwarded): \
         connect over TLS"
    } else {
        return Ok(());
    };
    Err(Refusal::new(RefusalReason::TlsRequired, detail))
}

/// The host that a request is for, without a port.
pub(super) fn host<B>(request: &Request<B>) -> &str {
    let field = request.headers().get(header::HOST);
    let field = field.and_then(|value| value.to_str().ok());
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    let authority = authority.or(field).unwrap_or_default();
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Counts a connection by the address of its tunnel client, if it is counted by none.
fn count(client: ClientAddress, dial: &Dial<'_>) -> Result<(), Refusal> {
    if dial.is_trusted && client != dial.client {
        let counted = dial.permit.lock().count_for(client.ip);
        counted.map_err(|_| Refusal::too_many_connections())?;
    }
    Ok(())
}

impl TunnelListener {
    /// Waits for a handshake permit for a client whose request has been received.
    async fn enter_at_request(&self, client: ClientAddress) -> GateOutcome {
        let entered = self.enter(client.ip).await;
        entered.unwrap_or_else(GateOutcome::rejected)
    }
}

/// Whether an authenticated session can begin: a check if there is a permit for it, which is returned; any other if its
/// instance would get the runtime.
async fn may_begin(
    shared: &TunnelListener,
    grant: &Grant,
    greeting: &Greeting,
) -> Result<Option<CheckPermit>, Refusal> {
    let runtime = &grant.runtime;
    let precheck = shared
        .registry
        .precheck(
            runtime,
            greeting.instance.id(),
            shared.on_conflict(greeting),
        )
        .await;
    if let Err(refusal @ ClaimRefusal::LabelTaken(_)) = precheck {
        return Err(refusal.into());
    }
    if greeting.is_check {
        let permit = shared.checks.enter(&runtime.account, &runtime.label);
        let detail = "too many checks are in progress: check again later";
        return match permit {
            Some(permit) => Ok(Some(permit)),
            None => Err(Refusal::for_now(
                RefusalReason::CheckLimit,
                detail,
                CHECK_RETRY,
            )),
        };
    }
    let Err(refusal) = precheck else {
        go_elsewhere(shared, greeting)?;
        return Ok(None);
    };
    // It is refused each second.
    let slot = || shared.registry.slot(runtime.label.as_str());
    if let ClaimRefusal::Contested { takeovers, .. } = &refusal
        && slot().is_none_or(|slot| slot.is_contested_anew())
    {
        let contested = Event::of(EventKind::Contested, &runtime.label);
        shared
            .events
            .report(contested.detail(format!("{takeovers} takeovers in a row")));
    }
    Err(refusal.into())
}

/// Refuses with `elsewhere` if another node should take this session, unless the client does not know that refusal or
/// was refused for it often enough.
fn go_elsewhere(shared: &TunnelListener, greeting: &Greeting) -> Result<(), Refusal> {
    let placement = greeting.placement.as_ref();
    let Some(placement) = placement.filter(|placement| placement.may_go_elsewhere()) else {
        return Ok(());
    };
    let is_leaving = shared.lifecycle.is_leaving();
    let directory = shared.registry.directory();
    match directory.is_better_elsewhere(&placement.avoid, is_leaving) {
        true => Err(Refusal::for_now(
            RefusalReason::Elsewhere,
            "another server node should take this session: dial again",
            Duration::ZERO,
        )),
        false => Ok(()),
    }
}

/// The source networks that the instance itself allows for its runtime.
fn allow_from(greeting: &Greeting) -> Result<Option<Vec<IpNet>>, Refusal> {
    let list = greeting.allow_from.as_deref().map(sources::parse);
    list.transpose().map_err(|error| {
        let detail = format!("the tunnel client's source addresses: {error}");
        Refusal::new(RefusalReason::AllowFromMalformed, detail)
    })
}

/// The 101 that accepts the WebSocket handshake.
fn switching_protocols<B>(
    request: &Request<B>,
    subprotocol: &'static str,
) -> Response<Full<Bytes>> {
    // `handshake::check_request` has checked that the key is present.
    let key = request
        .headers()
        .get(header::SEC_WEBSOCKET_KEY)
        .map(HeaderValue::as_bytes);
    let accept = handshake::accept_key(key.unwrap_or_default());
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    let protocol = HeaderValue::from_static(subprotocol);
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    // Base64 is always a valid field value.
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// The response to a tunnel client for which there is no permit for a connection.
pub(crate) fn too_many_connections<B>(
    shared: &TunnelListener,
    request: &Request<B>,
) -> Response<Full<Bytes>> {
    RefusedClient::new(Refusal::too_many_connections(), request).response(&shared.metrics)
}
