//! Verdicts on a dial: names, connections, proxies.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;

use tunnel_ops::connect::Attempt;

use super::{Verdict, local, response, tls, verdicts};
use crate::check::evidence::Evidence;
use crate::check::text::{listed, printable, span};
use crate::credential::CredentialError;
use crate::dial::proxy_error::ProxyError;
use crate::dial::{DialError, StepError, is_not_a_tunnel, proxy_error};
use crate::step::Step;

/// Endings of host names that are easily mistyped, and what was meant.
const TYPOS: [(&str, &str); 6] = [
    (".con", ".com"),
    (".cmo", ".com"),
    (".ocm", ".com"),
    (".comm", ".com"),
    (".ogr", ".org"),
    (".nett", ".net"),
];

/// A dial that failed.
pub(in crate::check) fn dial(evidence: &Evidence, error: &DialError) -> Verdict {
    match error {
        DialError::Step { error, .. } => step(evidence, error),
        DialError::Refused { .. } => response::refused(evidence),
        DialError::Credential(CredentialError::Token(error)) => local::token_file(error),
        DialError::Credential(CredentialError::Certificate(error)) => {
            local::identity(&error.to_string())
        }
    }
}

/// A step of a dial that failed.
pub(in crate::check) fn step(evidence: &Evidence, error: &StepError) -> Verdict {
    let source = match error {
        StepError::TimedOut(step, limit) => return timed_out(evidence, *step, *limit),
        StepError::Failed(_, source) => source,
    };
    let text = printable(&source.to_string());
    match error.step() {
        step @ (Step::ProxyDns | Step::Dns) => unresolved(evidence, step, &text),
        step @ (Step::ProxyTcp | Step::Tcp) => unreached(evidence, step, error.attempts(), source),
        Step::Proxy => proxy(evidence, proxy_error(error), &text),
        Step::ProxyTls => tls::of_proxy(evidence, error, &text),
        Step::Tls => tls::of_server(evidence, error, &text),
        Step::Upgrade if is_not_a_tunnel(error) => response::not_a_tunnel(evidence),
        _ => {
            tls::after_handshake(evidence, &text).unwrap_or_else(|| response::none(evidence, &text))
        }
    }
}

fn timed_out(evidence: &Evidence, step: Step, limit: Duration) -> Verdict {
    let Evidence { host, port, .. } = evidence;
    let (peer, within) = (peer(evidence, step), span(limit));
    let or_proxy = or_proxy(evidence);
    verdicts! { step;
        Step::ProxyDns | Step::Dns =>
            "dns_timeout" "no name server answered within {within} for the name of {peer}"
            "check whether the name servers of this machine (/etc/resolv.conf) answer, and whether a firewall or a \
             network policy allows port 53"
        Step::ProxyTcp =>
            "proxy_connect_timeout" "{peer} did not answer within {within}"
            "check the proxy's address, and whether a firewall between drops packets to it"
        Step::ProxyTls =>
            "proxy_tls" "{peer} does not speak TLS: nothing was received within {within}"
            "if the proxy itself speaks plain HTTP, its URL begins with http://"
        Step::Proxy =>
            "proxy_timeout"
            "the proxy accepted the connection, and did not answer the request for {host}:{port} within {within}"
            "the proxy cannot reach the server, or is a proxy of another kind: look at its log, and at the scheme of the \
             proxy's URL (http, https, socks5)"
        Step::Tcp =>
            "connect_timeout" "{host} does not answer on port {port} within {within}"
            "a firewall drops packets to it: have outbound TCP to {host} port {port} allowed{or_proxy}"
        Step::Tls =>
            "tls_timeout" "{peer} accepted the connection, and sent nothing of TLS within {within}"
            "a firewall that inspects TLS holds it, or a service with another protocol listens there: check the port, \
             and have the host allowed"
        _ =>
            "upgrade_timeout" "TLS is established, and the request for a session was not answered within {within}"
            "something on the way reads the request and does not pass it on: a proxy or load balancer that does not \
             support WebSocket, or a server that hangs; look at their logs"
    }
}

fn unresolved(evidence: &Evidence, step: Step, text: &str) -> Verdict {
    let host = match step {
        Step::ProxyDns => &evidence.proxy_host,
        _ => &evidence.host,
    };
    // How glibc and musl report name servers that do not answer, or that cannot.
    let hint = match text.contains("emporary failure") || text.contains("Try again") {
        true => "no name server gives an answer: check /etc/resolv.conf, and whether a firewall or a network policy \
                 allows port 53"
            .to_owned(),
        false => hint(host),
    };
    let or_proxy = match evidence.proxy {
        Some(_) => "",
        None => "; where only a proxy resolves names of the internet, name it by --proxy",
    };
    verdicts! { step;
        Step::ProxyDns =>
            "proxy_dns_failure" "the name of the proxy, {host}, has no address: {text}" "{hint}"
        _ =>
            "dns_failure" "the name of the server, {host}, has no address: {text}" "{hint}{or_proxy}"
    }
}

/// The most frequent cause with a name of this form.
fn hint(host: &str) -> String {
    let host = host.trim_end_matches('.');
    if let Some((typo, meant)) = TYPOS.iter().find(|(typo, _)| host.ends_with(typo)) {
        let host = host.trim_end_matches(typo);
        return format!("is {host}{meant} meant?");
    }
    let hint = if !host.contains('.') {
        "the name has no dot, so it is resolved only with a search domain of this machine: write the full name"
    } else if host.ends_with(".svc") || host.ends_with(".cluster.local") {
        "it is a name of a cluster, resolved only in that: check it for a slip, and whether this program runs there"
    } else {
        "check the spelling of the name, and resolve it on another machine (`getent hosts`, `nslookup`)"
    };
    hint.to_owned()
}

fn unreached(evidence: &Evidence, step: Step, attempts: &[Attempt], error: &io::Error) -> Verdict {
    let has = |kind| match attempts {
        [] => error.kind() == kind,
        _ => attempts.iter().any(|attempt| attempt.error.kind() == kind),
    };
    let all: Vec<String> = attempts.iter().map(failed_attempt).collect();
    let all = match all.is_empty() {
        true => format!("no address ({})", printable(&error.to_string())),
        false => listed(&all),
    };
    let Evidence { host, port, .. } = evidence;
    let (peer, or_proxy) = (peer(evidence, step), or_proxy(evidence));
    // An address that answers tells more than one without a route, which is frequent with IPv6.
    let kinds = [ErrorKind::ConnectionRefused, ErrorKind::TimedOut];
    verdicts! { (step, kinds.into_iter().find(|kind| has(*kind)));
        (Step::ProxyTcp, Some(ErrorKind::ConnectionRefused)) =>
            "proxy_connect_refused" "{peer} refuses connections: {all}"
            "nothing listens there: check host and port of the proxy, and whether it runs"
        (_, Some(ErrorKind::ConnectionRefused)) =>
            "connect_refused" "{peer} refuses connections: {all}"
            "nothing listens there, or a firewall rejects the connection: check host and port of --server, and whether \
             the server runs"
        (Step::ProxyTcp, Some(_)) =>
            "proxy_connect_timeout" "{peer} does not answer: {all}"
            "check the proxy's address, and whether a firewall between drops packets to it"
        (_, Some(_)) =>
            "connect_timeout" "{host} does not answer on port {port} at {all}"
            "a firewall drops packets to it: have outbound TCP to {host} port {port} allowed{or_proxy}"
        (Step::ProxyTcp, None) =>
            "proxy_unreachable" "{peer} cannot be reached: {all}"
            "check this machine's network and routes, and whether a firewall or a network policy allows that port"
        (_, None) =>
            "connect_unreachable" "{peer} cannot be reached: {all}"
            "check this machine's network and routes, and whether a firewall or a network policy allows that port"
    }
}

fn failed_attempt(Attempt { address, error }: &Attempt) -> String {
    match error.kind() {
        ErrorKind::TimedOut => format!("{address} (no answer)"),
        _ => format!("{address} ({})", printable(&error.to_string())),
    }
}

/// Further advice for a server on the internet that is dialled without a proxy.
fn or_proxy(evidence: &Evidence) -> &'static str {
    let is_private = match evidence.host.parse() {
        Ok(IpAddr::V4(address)) => address.is_private() || address.is_loopback(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unique_local(),
        Err(_) => false,
    };
    match evidence.proxy.is_some() || is_private {
        true => "",
        false => ", or name the proxy through which this network reaches the internet by --proxy",
    }
}

fn proxy(evidence: &Evidence, error: Option<&ProxyError>, text: &str) -> Verdict {
    let Evidence { host, port, .. } = evidence;
    let peer = peer(evidence, Step::Proxy);
    let answer = error.and_then(ProxyError::response);
    let words = answer.map_or(text, |answer| &answer.text);
    let offers = match answer.map(|answer| answer.schemes.as_slice()) {
        None | Some([]) => String::new(),
        Some(schemes) => format!("; it offers {}", listed(schemes)),
    };
    let status = answer
        .and_then(|answer| answer.status)
        .map(|status| status.as_u16());
    verdicts! { error;
        Some(ProxyError::LoginRequired(_)) =>
            "proxy_login" "{peer} demands a login ({words}{offers})"
            "give user and password by --proxy-auth-file, in a file that holds user:password"
        Some(ProxyError::LoginSchemeUnsupported(_)) =>
            "proxy_login" "{peer} demands a login of a kind that this program does not support ({words}{offers})"
            "have Basic or Digest allowed for this program, or the server's host allowed without a login; a local relay \
             that speaks NTLM or Kerberos to the proxy works too"
        Some(ProxyError::LoginRefused(_) | ProxyError::LoginSuppressed(..)) =>
            "proxy_login" "{peer} does not accept the login ({words}{offers})"
            "check user and password of the proxy: has the password expired?"
        Some(ProxyError::Login(_)) =>
            "proxy_login" "the login for {peer} cannot be read: {words}"
            "correct the file that --proxy-auth-file names"
        Some(ProxyError::Refused(_)) if matches!(status, Some(502..=504)) =>
            "proxy_refused" "{peer} does not let the connection to {host}:{port} through: {words}"
            "the proxy allows {host} and does not reach it: check the spelling of the name, and whether the proxy may connect \
             to port {port}"
        Some(ProxyError::Refused(_)) =>
            "proxy_refused" "{peer} does not let the connection to {host}:{port} through: {words}"
            "have CONNECT to {host} port {port} allowed at the proxy; many allow only port 443"
        _ =>
            "not_a_proxy" "{peer} does not answer as a proxy of its kind does: {words}"
            "check the scheme (http, https, socks5, socks5h) and the port of the proxy's URL"
    }
}

/// The peer of this step: the proxy with its origin, or the server.
fn peer(evidence: &Evidence, step: Step) -> String {
    let Evidence {
        host,
        port,
        proxy_from,
        ..
    } = evidence;
    match (step.is_of_proxy(), &evidence.proxy) {
        (false, _) => format!("{host}:{port}"),
        (true, Some(proxy)) if proxy_from.is_empty() => format!("the proxy {proxy}"),
        (true, Some(proxy)) => format!("the proxy {proxy} (named by {proxy_from})"),
        (true, None) => "the proxy".to_owned(),
    }
}
