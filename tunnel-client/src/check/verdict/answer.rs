//! Verdicts on the answer to the request for a session, and on the session itself.
//!
//! A tunnel server refuses with a JSON body that has a `reason`; nobody else does. So what has one is the
//! server's own word, and what has none is by something else that stands where the server should.

use std::time::Duration;

use tunnel_proto::close::CloseReason;
use tunnel_proto::handshake::Refusal;
use tunnel_proto::refusal::RefusalReason;

use super::{Verdict, tls};
use crate::check::facts::{AnswerFacts, Facts};
use crate::check::words::{listed, printable, span};

/// What to do about a token that is not good any more, or was never known.
const ASK: &str = "ask whoever runs the server for a new token, and put it into the token file";

/// Where TLS 1.3 tells, behind the handshake, that the client's certificate is not taken.
const ALERT: &str = "received fatal alert: ";

pub(super) fn none(facts: &Facts, text: &str) -> Verdict {
    let host = &facts.host;
    if let Some((_, alert)) = text.split_once(ALERT)
        && (alert.contains("ertificate") || alert.contains("UnknownCA"))
    {
        return tls::identity(facts, alert);
    }
    Verdict::new(
        "upgrade_cut",
        format!(
            "TLS with {host} stands, and the connection ended at the request for a session: {}",
            printable(text)
        ),
        "something between cuts WebSocket (a firewall, a proxy), or what listens there speaks no HTTP/1.1: have \
         WebSocket to the host allowed, and look at the port",
    )
}

/// Any answer but a 101.
pub(super) fn refused(facts: &Facts) -> Verdict {
    let Some(answer) = &facts.answer else {
        return none(facts, "no answer");
    };
    if let Some(refusal) = &answer.refusal {
        return by_server(facts, answer, refusal);
    }
    // RFC 6585 section 6. Whoever else answers has proven that he is whom --server names.
    if answer.status == 511 {
        return portal(facts, answer);
    }
    match words_of_server(facts) {
        Some((plain, refusal)) if plain.is_public => public_listener(facts, refusal),
        // A server that is asked for no session says so in its own way: it is there, and what was on the
        // request for one was not.
        Some((_, refusal)) if is_about_upgrade(answer) => {
            let (reason, status) = (printable(&refusal.reason), answer.status);
            let seen = format!(
                "requests reach the tunnel server (it said {reason}), one for a WebSocket was answered {status} on the way"
            );
            stripped(facts, answer, &seen)
        }
        Some(_) => by_another(
            facts,
            answer,
            ", and a request without token and Upgrade gets through",
        ),
        None => by_another(facts, answer, ""),
    }
}

/// The tunnel server's word on a request that asked for no session and showed no credential.
fn words_of_server(facts: &Facts) -> Option<(&AnswerFacts, &Refusal)> {
    let plain = facts.plain.as_ref()?;
    Some((plain, plain.refusal.as_ref()?))
}

/// Whether it is the Upgrade that is refused, where a request without that, and without a token, gets through.
fn is_about_upgrade(answer: &AnswerFacts) -> bool {
    match answer.status {
        401 | 403 | 407 | 429 | 431 => false,
        501 => true,
        500.. => false,
        _ => !answer.is_too_large,
    }
}

/// Neither the tunnel server's word, nor a page for people. `through` tells of a request that got through.
fn by_another(facts: &Facts, answer: &AnswerFacts, through: &str) -> Verdict {
    let (by, status) = (by(answer), answer.status);
    match status {
        407 => Verdict::new(
            "proxy_login",
            format!(
                "a proxy on the way that nobody named demands a login ({}){through}",
                challenges(answer)
            ),
            "name the proxy by --proxy, and its user and password by --proxy-auth-file",
        ),
        400 | 431 if status == 431 || answer.is_too_large => Verdict::new(
            "refused_on_the_way",
            format!("{by} answered {status}: the head of the request is too large for it{through}"),
            "the token makes it so large: whoever runs what stands before the server has to allow larger heads (in \
             nginx `large_client_header_buffers`), or the token has to say less",
        ),
        400 | 501 if is_same_to_all(facts, answer) => refuses_all(facts, answer),
        400 | 426 | 501 => {
            let seen = format!("{by} answered {status} to the request for a WebSocket");
            stripped(facts, answer, &seen)
        }
        401 | 403 => unauthorized(facts, answer, through),
        429 => Verdict::new(
            "server_busy",
            format!("{by} says that there are too many requests (429){through}"),
            "wait, and try again; if it stays so, ask whoever runs what stands before the server",
        ),
        500.. if !through.is_empty() => Verdict::new(
            "refused_on_the_way",
            format!("{by} answered {status} to the request for a session{through}"),
            "whoever runs what stands before the server finds in its log why: it fails at the token or at the \
             WebSocket, or the server was away just then",
        ),
        502..=504 => Verdict::new(
            "server_away",
            format!(
                "{by} answered {status}: what stands before the tunnel server does not reach it"
            ),
            "whoever runs the server has to look whether it runs, and whether the load balancer knows where",
        ),
        _ => elsewhere(facts, answer),
    }
}

/// Whether a request without token and Upgrade was answered in the same way by the same.
fn is_same_to_all(facts: &Facts, answer: &AnswerFacts) -> bool {
    let plain = facts.plain.as_ref();
    plain.is_some_and(|plain| plain.status == answer.status && plain.server == answer.server)
}

/// Neither the Upgrade nor the token is to blame.
fn refuses_all(facts: &Facts, answer: &AnswerFacts) -> Verdict {
    let (by, status) = (by(answer), answer.status);
    let words = facts.plain.as_ref().map_or("", |plain| &plain.words);
    let said = match words.is_empty() {
        true => String::new(),
        false => format!(": {words}"),
    };
    let advice = match words.contains("ertificate") {
        true => {
            "something before the server wants a certificate of this client: give one by --client-cert and \
             --client-key, or have /connect let through without"
        }
        false => "whoever runs what stands before the server has to let /connect through as it is",
    };
    Verdict::new(
        "refused_on_the_way",
        format!("{by} answers {status} to any request, with a WebSocket or without{said}"),
        advice,
    )
}

fn unauthorized(facts: &Facts, answer: &AnswerFacts, through: &str) -> Verdict {
    let (by, status) = (by(answer), answer.status);
    let (host, port) = (&facts.host, facts.port);
    let wanted = match answer.challenges.is_empty() {
        true => String::new(),
        false => format!(" ({})", challenges(answer)),
    };
    let or = match through.is_empty() {
        true => format!("; or {host}:{port} is not the tunnel server"),
        false => String::new(),
    };
    Verdict::new(
        "refused_on_the_way",
        format!(
            "{by} refused the request with {status}, which is not the tunnel server's word{wanted}{through}"
        ),
        format!(
            "something before the server (a web firewall, a gateway that looks at tokens itself) has to let /connect \
             through as it is, with its Authorization{or}"
        ),
    )
}

/// No refusal, and no session: something else listens there.
fn elsewhere(facts: &Facts, answer: &AnswerFacts) -> Verdict {
    let (by, status, host) = (by(answer), answer.status, &facts.name);
    let what = match &answer.location {
        Some(location) => format!(" (it points to {location})"),
        None if answer.is_html => " (a page for a browser)".to_owned(),
        None => String::new(),
    };
    let or = match is_portal(facts, answer) {
        true => "; a network that opens TLS and wants a sign-in first answers so too",
        false => "",
    };
    Verdict::new(
        "not_a_tunnel_server",
        format!(
            "{by} answered {status}{what} to the request for a session, which no tunnel server does"
        ),
        format!(
            "look at host and port of --server; if {host} is right, the load balancer before the server has to lead \
             /connect to it, with its Upgrade{or}"
        ),
    )
}

/// Another listener of the tunnel server, which speaks of requests and not of sessions.
pub(super) fn public_listener(facts: &Facts, refusal: &Refusal) -> Verdict {
    let (host, port) = (&facts.host, facts.port);
    Verdict::new(
        "public_listener",
        format!(
            "at {host}:{port} is the tunnel server's listener for platform clients; it says: {} ({})",
            printable(&refusal.detail),
            printable(&refusal.reason)
        ),
        "give the address of the server's --tunnel-listen by --server: it is not a runtime's own host",
    )
}

fn stripped(facts: &Facts, answer: &AnswerFacts, seen: &str) -> Verdict {
    let by = match &answer.server {
        Some(server) => format!(" ({server})"),
        None => String::new(),
    };
    Verdict::new(
        "upgrade_stripped",
        format!(
            "{seen}: a load balancer or proxy before {}{by} does not pass on the Upgrade",
            facts.host
        ),
        "it has to pass on WebSocket: in nginx `proxy_http_version 1.1`, `proxy_set_header Upgrade $http_upgrade` and \
         `proxy_set_header Connection \"upgrade\"`; elsewhere an HTTP/1.1 or TCP listener in the place of one that \
         speaks HTTP/2 to the server",
    )
}

/// Whether an answer is one of a network that wants its users to sign in, or of a web site: a page for people
/// where none is due.
pub(super) fn is_portal(facts: &Facts, answer: &AnswerFacts) -> bool {
    match answer.status {
        // RFC 6585 section 6.
        511 => true,
        300..=399 => answer
            .location
            .as_deref()
            .is_some_and(|to| leads_elsewhere(to, facts)),
        200..=299 => answer.is_html,
        _ => false,
    }
}

/// Whether a redirect points to another host than the one that was asked for.
fn leads_elsewhere(location: &str, facts: &Facts) -> bool {
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
    !is_same_site(to, &facts.name) && !is_same_site(to, &facts.host)
}

fn is_same_site(one: &str, other: &str) -> bool {
    let bare = |host: &str| {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        host.strip_prefix("www.").map(str::to_owned).unwrap_or(host)
    };
    bare(one) == bare(other)
}

pub(super) fn portal(facts: &Facts, answer: &AnswerFacts) -> Verdict {
    let host = &facts.name;
    let what = match &answer.location {
        Some(location) => format!("points to {location}"),
        None => "is a page for a browser".to_owned(),
    };
    Verdict::new(
        "captive_portal",
        format!(
            "the answer in the name of {host} (status {}) {what}: this network wants a sign-in first, or {host} is a \
             web site",
            answer.status
        ),
        "open any http:// page in a browser on this machine and sign in, or have the network's owner let this machine \
         through; if the network is open, --server names the wrong host",
    )
}

/// The tunnel server's own words.
fn by_server(facts: &Facts, answer: &AnswerFacts, refusal: &Refusal) -> Verdict {
    let detail = printable(&refusal.detail);
    let own = |name, advice: &str| {
        Verdict::new(
            name,
            format!("the server says: {detail} ({})", printable(&refusal.reason)),
            advice,
        )
    };
    if answer.is_public {
        return public_listener(facts, refusal);
    }
    let Some(reason) = refusal.known() else {
        return own("refused", "do what the server says");
    };
    match reason {
        RefusalReason::UpgradeRequired => {
            let seen = "the request reached the tunnel server without its Upgrade".to_owned();
            stripped(facts, answer, &seen)
        }
        RefusalReason::PathUnknown
        | RefusalReason::MethodNotAllowed
        | RefusalReason::OriginNotAllowed
        | RefusalReason::GreetingMalformed
        | RefusalReason::AllowFromMalformed => own(
            "request_changed",
            "something between changes the request (its path, method or fields): whoever runs the load balancer has \
             to pass it on as it is",
        ),
        RefusalReason::VersionUnsupported => own(
            "version_unsupported",
            "the server is of another version, or too old for checks: install programs that match",
        ),
        RefusalReason::HandshakeQueue
        | RefusalReason::ServerDraining
        | RefusalReason::AuthUnavailable
        | RefusalReason::AuthUnclear
        | RefusalReason::AuthBusy
        | RefusalReason::CheckLimit
        | RefusalReason::RefreshTooOften => own(
            "server_busy",
            "the server is there and has no time now: try again in a minute",
        ),
        RefusalReason::TokenExpired => out_of_time(facts, "token_expired", &detail, ASK),
        RefusalReason::TokenNotYetValid => out_of_time(
            facts,
            "token_not_yet_valid",
            &detail,
            "wait until then; if it should be good already, its issuer's clock and the server's differ",
        ),
        RefusalReason::Superseded
        | RefusalReason::RuntimeHeld
        | RefusalReason::RuntimeContested => conflict(refusal),
        about_credential => {
            let (name, advice) = credential(about_credential);
            own(name, advice)
        }
    }
}

/// Verdict and advice for what is wrong with a credential.
fn credential(reason: RefusalReason) -> (&'static str, &'static str) {
    match reason {
        RefusalReason::CredentialMissing => (
            "credential_missing",
            "something between removes the Authorization field (have it passed on), or the server takes no client \
             certificates: give a token by --token-file",
        ),
        RefusalReason::TokenRefused | RefusalReason::TokenKeyUnknown => ("token_unknown", ASK),
        RefusalReason::TokenAudience
        | RefusalReason::TokenIssuer
        | RefusalReason::TokenMalformed
        | RefusalReason::TokenAlgorithm
        | RefusalReason::TokenSignature => (
            "token_unfit",
            "the token is for another server, or was changed: ask for one that is for this server",
        ),
        RefusalReason::CredentialRevoked => ("credential_revoked", ASK),
        RefusalReason::CertificateExpired
        | RefusalReason::CertificateNotYetValid
        | RefusalReason::CertificateWithoutRuntime
        | RefusalReason::CertificateUntrusted => (
            "certificate_refused",
            "give another certificate by --client-cert and --client-key",
        ),
        RefusalReason::CredentialsDisagree | RefusalReason::RuntimeDiffers => (
            "credentials_disagree",
            "give a token and a client certificate of the same runtime, or one of the two alone",
        ),
        RefusalReason::RuntimeLabelTaken => (
            "runtime_label_taken",
            "ask whoever runs the server: the runtime needs another name, and its client a token for that",
        ),
        _ => ("refused", "do what the server says"),
    }
}

/// A token's time is over, or has not come: by the server's clock, which the two may not agree on.
fn out_of_time(facts: &Facts, name: &'static str, detail: &str, advice: &str) -> Verdict {
    let is_good_here = facts.token.as_ref().is_some_and(|token| {
        token.expires.or(token.not_before).is_some()
            && !token.is_expired(facts.now)
            && !token.is_early(facts.now)
    });
    if is_good_here && facts.clock.is_some_and(|clock| clock.is_off()) {
        let what =
            format!("by this machine's clock the token is good, and the server says: {detail}");
        return tls::clock_off(facts, &what);
    }
    Verdict::new(name, format!("the server says: {detail}"), advice)
}

/// A 101 that does not fit.
pub(super) fn not_a_tunnel(facts: &Facts) -> Verdict {
    Verdict::new(
        "not_a_tunnel_server",
        format!("{} opened something that is no tunnel", facts.host),
        "another WebSocket service answers there: look at host and port of --server",
    )
}

pub(super) fn no_echo(facts: &Facts, limit: Duration) -> Verdict {
    Verdict::new(
        "echo_failed",
        format!(
            "the session was opened, and nothing came through it within {}",
            span(limit)
        ),
        format!(
            "something between lets the WebSocket begin and holds its messages back (a proxy that buffers, or that \
             looks into it): have {} left out of that",
            facts.host
        ),
    )
}

pub(super) fn ended(facts: &Facts, reason: CloseReason) -> Verdict {
    let by_server = format!("the server ended the session: {}", reason.name());
    match reason {
        CloseReason::Conflict | CloseReason::Superseded => Verdict::new(
            "runtime_conflict",
            by_server,
            "another tunnel client holds the runtime: stop one of them",
        ),
        CloseReason::Revoked => Verdict::new(
            "credential_revoked",
            by_server,
            "ask whoever runs the server for a new token",
        ),
        CloseReason::Expired => Verdict::new(
            "token_expired",
            by_server,
            "ask whoever runs the server for a new token",
        ),
        CloseReason::Drained | CloseReason::Overloaded | CloseReason::Disconnected => Verdict::new(
            "server_busy",
            by_server,
            "the server is there and has no time now: try again in a minute",
        ),
        CloseReason::Wedged => no_echo(facts, Duration::from_secs(10)),
        _ => Verdict::new(
            "echo_failed",
            format!(
                "the session ended before an echo came through it: {}",
                reason.name()
            ),
            format!(
                "something between lets the WebSocket begin and then cuts or changes it (a proxy that looks into it): \
                 have {} left out of that",
                facts.host
            ),
        ),
    }
}

/// Another instance has the runtime.
pub(super) fn conflict(refusal: &Refusal) -> Verdict {
    Verdict::new(
        "runtime_conflict",
        format!(
            "the server would not give the runtime to a client that is started now: {} ({})",
            printable(&refusal.detail),
            printable(&refusal.reason)
        ),
        "a runtime has one tunnel client: if the other one is the one that should run, all is well; else stop it",
    )
}

fn by(answer: &AnswerFacts) -> String {
    match &answer.server {
        Some(server) => format!("something that calls itself {server}"),
        None => "something".to_owned(),
    }
}

fn challenges(answer: &AnswerFacts) -> String {
    match answer.challenges.is_empty() {
        true => "it does not say which".to_owned(),
        false => listed(&answer.challenges),
    }
}
