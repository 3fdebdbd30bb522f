//! Verdicts on the response to the request for a session, and on the session itself.
//!
//! A tunnel server refuses with a JSON body that has a `reason`; nothing else does. So a response with a refusal is the
//! server's own, and one without comes from something else in place of the server.

use std::time::Duration;

use tunnel_proto::close::CloseReason;
use tunnel_proto::handshake::Refusal;
use tunnel_proto::refusal::RefusalReason as R;

use super::{Verdict, clock_off, verdicts};
use crate::check::evidence::{Evidence, ResponseEvidence};
use crate::check::session::SessionFailure;
use crate::check::text::{listed, printable, span};

/// No response to the request for a session.
pub(super) fn none(evidence: &Evidence, text: &str) -> Verdict {
    let host = &evidence.host;
    verdicts! {
        "upgrade_cut"
        "TLS with {host} is established, and the connection ended at the request for a session: {text}"
        "something on the way cuts WebSocket (a firewall, a proxy), or what listens there does not speak HTTP/1.1: have \
         WebSocket to the host allowed, and check the port"
    }
}

/// Any response but a 101.
pub(super) fn refused(evidence: &Evidence) -> Verdict {
    let Some(response) = &evidence.response else {
        return none(evidence, "no answer");
    };
    if let Some(refusal) = &response.refusal {
        return by_server(evidence, response, refusal);
    }
    // RFC 6585 section 6. Any other peer has proven by its certificate that it is the host of --server.
    if response.status == 511 {
        return portal(evidence, response);
    }
    // The server's own answer to a request without credential and Upgrade.
    let probe = evidence.probe.as_ref();
    match probe.and_then(|probe| Some((probe, probe.refusal.as_ref()?))) {
        Some((probe, refusal)) if probe.is_public => public_listener(evidence, refusal),
        // The server is there; what the request for a session had in addition was stopped.
        Some((_, refusal)) if is_about_upgrade(response) => {
            let (reason, status) = (printable(&refusal.reason), response.status);
            let observed = format!(
                "requests reach the tunnel server (it said {reason}), one for a WebSocket was answered {status} on the way"
            );
            stripped(evidence, response, &observed)
        }
        Some(_) => by_another(
            evidence,
            response,
            ", and a request without token and Upgrade gets through",
        ),
        None => by_another(evidence, response, ""),
    }
}

/// Whether the Upgrade is what is refused, when a request without Upgrade and token gets through.
fn is_about_upgrade(response: &ResponseEvidence) -> bool {
    match response.status {
        401 | 403 | 407 | 429 | 431 => false,
        501 => true,
        500.. => false,
        _ => !response.is_too_large,
    }
}

/// Not the tunnel server's own response. `through` says whether another request got through.
fn by_another(evidence: &Evidence, response: &ResponseEvidence, through: &str) -> Verdict {
    let Evidence {
        host, port, name, ..
    } = evidence;
    let (by, status) = (by(response), response.status);
    let is_through = !through.is_empty();
    let challenges = match response.challenges.is_empty() {
        true => "it does not say which".to_owned(),
        false => listed(&response.challenges),
    };
    let wanted = match response.challenges.is_empty() {
        true => String::new(),
        false => format!(" ({challenges})"),
    };
    let or_elsewhere = match is_through {
        true => String::new(),
        false => format!("; or {host}:{port} is not the tunnel server"),
    };
    let (what, or_portal) = (page(response), or_portal(evidence, response));
    let is_about_head = status == 431 || status == 400 && response.is_too_large;
    match status {
        400 | 501 if !is_about_head && is_same_for_all(evidence, response) => {
            return refuses_all(evidence, response);
        }
        400 | 426 | 501 if !is_about_head => {
            let observed = format!("{by} answered {status} to the request for a WebSocket");
            return stripped(evidence, response, &observed);
        }
        _ => {}
    }
    verdicts! { status;
        407 =>
            "proxy_login" "a proxy on the way that is not configured demands a login ({challenges}){through}"
            "name the proxy by --proxy, and its user and password by --proxy-auth-file"
        400 | 431 =>
            "refused_on_the_way" "{by} answered {status}: the request's head is too large for it{through}"
            "the token makes it so large: the operator of what stands before the server has to allow larger heads (in \
             nginx `large_client_header_buffers`), or the token has to have fewer claims"
        401 | 403 =>
            "refused_on_the_way"
            "{by} refused the request with {status}, which is not an answer of the tunnel server{wanted}{through}"
            "something before the server (a web firewall, a gateway that checks tokens itself) has to pass /connect on \
             unchanged, with its Authorization{or_elsewhere}"
        429 =>
            "server_busy" "{by} reports too many requests (429){through}"
            "wait, and try again; if it persists, ask the operator of what stands before the server"
        500.. if is_through =>
            "refused_on_the_way" "{by} answered {status} to the request for a session{through}"
            "the operator of what stands before the server finds the cause in its log: it fails at the token or at the \
             WebSocket, or the server was away at that moment"
        502..=504 =>
            "server_away" "{by} answered {status}: what stands before the tunnel server does not reach it"
            "the operator of the server has to check whether it runs, and whether the load balancer knows its address"
        _ =>
            "not_a_tunnel_server"
            "{by} answered {status}{what} to the request for a session, which no tunnel server does"
            "check host and port of --server; if {name} is right, the load balancer before the server has to route \
             /connect to it, with its Upgrade{or_portal}"
    }
}

/// What a page is.
fn page(response: &ResponseEvidence) -> String {
    match &response.location {
        Some(location) => format!(" (it points to {location})"),
        None if response.is_html => " (a page for a browser)".to_owned(),
        None => String::new(),
    }
}

fn or_portal(evidence: &Evidence, response: &ResponseEvidence) -> &'static str {
    match is_portal(evidence, response) {
        true => "; a network that inspects TLS and demands a sign-in answers so too",
        false => "",
    }
}

/// Whether a request without token and Upgrade got the status of this response, from a program with this `Server` field.
fn is_same_for_all(evidence: &Evidence, response: &ResponseEvidence) -> bool {
    let probe = evidence.probe.as_ref();
    probe.is_some_and(|probe| probe.status == response.status && probe.server == response.server)
}

/// Neither the Upgrade nor the token is the cause.
fn refuses_all(evidence: &Evidence, response: &ResponseEvidence) -> Verdict {
    let (by, status) = (by(response), response.status);
    let words = evidence.probe.as_ref().map_or("", |probe| &probe.words);
    let said = match words.is_empty() {
        true => String::new(),
        false => format!(": {words}"),
    };
    let advice = match words.contains("ertificate") {
        true => {
            "something before the server demands a client certificate: give one by --client-cert and --client-key, or \
             have /connect exempted"
        }
        false => "the operator of what stands before the server has to pass /connect on unchanged",
    };
    verdicts! {
        "refused_on_the_way" "{by} answers {status} to any request, with a WebSocket or without{said}" "{advice}"
    }
}

/// Another listener of the tunnel server, which answers requests and takes no sessions.
pub(super) fn public_listener(evidence: &Evidence, refusal: &Refusal) -> Verdict {
    let Evidence { host, port, .. } = evidence;
    let said = said(refusal);
    verdicts! {
        "public_listener" "at {host}:{port} is the tunnel server's listener for platform clients; it says: {said}"
        "give the address of the server's --tunnel-listen by --server: it is not the host of a runtime"
    }
}

fn stripped(evidence: &Evidence, response: &ResponseEvidence, observed: &str) -> Verdict {
    let host = &evidence.host;
    let by = match &response.server {
        Some(server) => format!(" ({server})"),
        None => String::new(),
    };
    verdicts! {
        "upgrade_stripped" "{observed}: a load balancer or proxy before {host}{by} does not pass the Upgrade on"
        "it has to pass WebSocket on: in nginx `proxy_http_version 1.1`, `proxy_set_header Upgrade $http_upgrade` and \
         `proxy_set_header Connection \"upgrade\"`; elsewhere an HTTP/1.1 or TCP listener in place of one that speaks \
         HTTP/2 to the server"
    }
}

/// Whether a response is that of a network that demands a sign-in, or of a web site: a page for people where none is
/// expected.
pub(super) fn is_portal(evidence: &Evidence, response: &ResponseEvidence) -> bool {
    match response.status {
        // RFC 6585 section 6.
        511 => true,
        300..=399 => (response.location.as_deref())
            .is_some_and(|location| leads_elsewhere(location, evidence)),
        200..=299 => response.is_html,
        _ => false,
    }
}

/// Whether a redirect points to another host than the one that was asked for.
fn leads_elsewhere(location: &str, evidence: &Evidence) -> bool {
    let rest = location
        .split_once("://")
        .map_or_else(|| location.strip_prefix("//"), |(_, rest)| Some(rest));
    let Some(rest) = rest else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let to = match authority.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    !is_same_site(to, &evidence.name) && !is_same_site(to, &evidence.host)
}

fn is_same_site(one: &str, other: &str) -> bool {
    let bare = |host: &str| {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        host.strip_prefix("www.").map(str::to_owned).unwrap_or(host)
    };
    bare(one) == bare(other)
}

/// The portal that answered the probe, if one did.
pub(super) fn portal_instead(evidence: &Evidence) -> Option<Verdict> {
    let probe = evidence.probe.as_ref()?;
    is_portal(evidence, probe).then(|| portal(evidence, probe))
}

pub(super) fn portal(evidence: &Evidence, response: &ResponseEvidence) -> Verdict {
    let (name, status) = (&evidence.name, response.status);
    let what = match &response.location {
        Some(location) => format!("points to {location}"),
        None => "is a page for a browser".to_owned(),
    };
    verdicts! {
        "captive_portal"
        "the answer for {name} (status {status}) {what}: this network demands a sign-in, or {name} is a web site"
        "open any http:// page in a browser on this machine and sign in, or have the network's owner exempt this machine; \
         if the network is open, --server names the wrong host"
    }
}

/// The tunnel server's own refusal.
fn by_server(evidence: &Evidence, response: &ResponseEvidence, refusal: &Refusal) -> Verdict {
    if response.is_public {
        return public_listener(evidence, refusal);
    }
    let said = said(refusal);
    match refusal.known() {
        Some(R::UpgradeRequired) => {
            let observed = "the request reached the tunnel server without its Upgrade";
            return stripped(evidence, response, observed);
        }
        Some(R::Superseded | R::RuntimeHeld | R::RuntimeContested) => return conflict(refusal),
        Some(R::TokenExpired | R::TokenNotYetValid) => {
            if let Some(verdict) = clock_instead(evidence, refusal) {
                return verdict;
            }
        }
        _ => {}
    }
    verdicts! { refusal.known();
        Some(R::PathUnknown | R::MethodNotAllowed | R::OriginNotAllowed | R::GreetingMalformed | R::AllowFromMalformed) =>
            "request_changed" "the server says: {said}"
            "something on the way changes the request (its path, method or fields): the operator of the load balancer has \
             to pass it on unchanged"
        Some(R::TlsRequired) =>
            "tls_required" "the server says: {said}"
            "the operator of the load balancer before the server has to take tunnel clients over TLS alone, and the \
             server's --trusted-proxies has to name that balancer"
        Some(R::VersionUnsupported) =>
            "version_unsupported" "the server says: {said}"
            "the server is of another version, or too old for checks: install programs that match"
        Some(R::HandshakeQueue | R::ServerDraining | R::AuthUnavailable | R::AuthUnclear | R::AuthBusy | R::CheckLimit
            | R::DirectoryUnavailable | R::Elsewhere | R::RefreshTooOften) =>
            "server_busy" "the server says: {said}"
            "the server is there and has no capacity now: try again in a minute"
        Some(R::TokenExpired) =>
            "token_expired" "the server says: {said}"
            "ask the operator of the server for a new token, and put it into the token file"
        Some(R::TokenNotYetValid) =>
            "token_not_yet_valid" "the server says: {said}"
            "wait until then; if it should be valid already, the clocks of its issuer and of the server differ"
        Some(R::CredentialMissing) =>
            "credential_missing" "the server says: {said}"
            "something on the way removes the Authorization field (have it passed on), or the server takes no client \
             certificates: give a token by --token-file"
        Some(R::TokenRefused | R::TokenKeyUnknown) =>
            "token_unknown" "the server says: {said}"
            "ask the operator of the server for a new token, and put it into the token file"
        Some(R::TokenAudience | R::TokenIssuer | R::TokenMalformed | R::TokenAlgorithm | R::TokenSignature) =>
            "token_unfit" "the server says: {said}"
            "the token is for another server, or was changed or cut: ask for one that is for this server"
        Some(R::CredentialRevoked) =>
            "credential_revoked" "the server says: {said}"
            "ask the operator of the server for a new token, and put it into the token file"
        Some(R::CertificateExpired | R::CertificateNotYetValid | R::CertificateWithoutRuntime | R::CertificateUntrusted) =>
            "certificate_refused" "the server says: {said}"
            "give another certificate by --client-cert and --client-key"
        Some(R::CredentialsDisagree | R::RuntimeDiffers) =>
            "credentials_disagree" "the server says: {said}"
            "give a token and a client certificate of the same runtime, or only one of the two"
        Some(R::RuntimeLabelTaken) =>
            "runtime_label_taken" "the server says: {said}"
            "ask the operator of the server: the runtime needs another name, and its client a token for that"
        _ =>
            "refused" "the server says: {said}"
            "do what the server says"
    }
}

/// The server's sentence, and its reason's name.
fn said(refusal: &Refusal) -> String {
    format!(
        "{} ({})",
        printable(&refusal.detail),
        printable(&refusal.reason)
    )
}

/// The clock explains that the server takes the token for expired or early, if the token is valid by this clock.
fn clock_instead(evidence: &Evidence, refusal: &Refusal) -> Option<Verdict> {
    let token = evidence.token.as_ref()?;
    let has_times = token.expires.or(token.not_before).is_some();
    let is_valid_here = !token.is_expired(evidence.now) && !token.is_early(evidence.now);
    if !has_times || !is_valid_here || !evidence.clock.is_some_and(|clock| clock.is_off()) {
        return None;
    }
    let detail = printable(&refusal.detail);
    let what = format!("by this machine's clock the token is valid, and the server says: {detail}");
    Some(clock_off(evidence, &what))
}

/// A 101 that does not fit.
pub(super) fn not_a_tunnel(evidence: &Evidence) -> Verdict {
    let host = &evidence.host;
    verdicts! {
        "not_a_tunnel_server" "{host} opened something that is not a tunnel"
        "another WebSocket service answers there: check host and port of --server"
    }
}

/// A session that gave no echo.
pub(in crate::check) fn session(evidence: &Evidence, failure: &SessionFailure) -> Verdict {
    match failure {
        SessionFailure::NoEcho(limit) => no_echo(evidence, *limit),
        SessionFailure::Ended(reason) => ended(evidence, *reason),
    }
}

fn no_echo(evidence: &Evidence, limit: Duration) -> Verdict {
    let (host, limit) = (&evidence.host, span(limit));
    verdicts! {
        "echo_failed" "the session was opened, and nothing came through it within {limit}"
        "something on the way lets the WebSocket begin and holds its messages back (a proxy that buffers or inspects it): \
         have {host} exempted from that"
    }
}

/// A session that ended before its echo, or while it was idle.
pub(in crate::check) fn ended(evidence: &Evidence, reason: CloseReason) -> Verdict {
    let (host, name) = (&evidence.host, reason.name());
    if reason == CloseReason::Wedged {
        return no_echo(evidence, Duration::from_secs(10));
    }
    verdicts! { reason;
        CloseReason::Conflict | CloseReason::Superseded =>
            "runtime_conflict" "the server ended the session: {name}"
            "another tunnel client holds the runtime: stop one of them"
        CloseReason::Revoked =>
            "credential_revoked" "the server ended the session: {name}"
            "ask the operator of the server for a new token"
        CloseReason::Expired =>
            "token_expired" "the server ended the session: {name}"
            "ask the operator of the server for a new token"
        CloseReason::Drained | CloseReason::Overloaded | CloseReason::Disconnected =>
            "server_busy" "the server ended the session: {name}"
            "the server is there and has no capacity now: try again in a minute"
        _ =>
            "echo_failed" "the session ended before an echo came through it: {name}"
            "something on the way lets the WebSocket begin and then cuts or changes it (a proxy that inspects it): have \
             {host} exempted from that"
    }
}

/// Another instance has the runtime.
pub(in crate::check) fn conflict(refusal: &Refusal) -> Verdict {
    let said = said(refusal);
    verdicts! {
        "runtime_conflict" "the server would not give the runtime to a client that is started now: {said}"
        "a runtime has one tunnel client: if the other one is the one that should run, nothing is wrong; else stop it"
    }
}

fn by(response: &ResponseEvidence) -> String {
    match &response.server {
        Some(server) => format!("something that calls itself {server}"),
        None => "something".to_owned(),
    }
}
