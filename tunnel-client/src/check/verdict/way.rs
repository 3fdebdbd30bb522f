//! Verdicts on the way to the server: names, connections, proxies.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use super::Verdict;
use crate::check::facts::{Act, Facts, Leg, ProxyRefusal, ProxyTrouble, Tried};
use crate::check::words::{listed, span};

/// Endings that are easily typed, and what was meant.
const SLIPS: [(&str, &str); 6] = [
    (".con", ".com"),
    (".cmo", ".com"),
    (".ocm", ".com"),
    (".comm", ".com"),
    (".ogr", ".org"),
    (".nett", ".net"),
];

pub(super) fn timed_out(facts: &Facts, leg: Leg, act: Act, limit: Duration) -> Verdict {
    let (whom, within) = (whom(facts, leg), span(limit));
    match (act, leg) {
        (Act::Resolve, _) => Verdict::new(
            "dns_timeout",
            format!("no name server said within {within} where {whom} is"),
            "look whether the name servers of this machine (/etc/resolv.conf) answer, and whether a firewall or a \
             network policy lets port 53 through",
        ),
        (Act::Connect, Leg::Proxy) => Verdict::new(
            "proxy_connect_timeout",
            format!("{whom} did not answer within {within}"),
            "look whether the proxy's address is right, and whether a firewall between drops what is sent to it",
        ),
        (Act::Connect, Leg::Server) => connect_timeout(facts, &format!("within {within}")),
        (Act::AskProxy, _) => Verdict::new(
            "proxy_timeout",
            format!(
                "the proxy took the connection and said nothing within {within} when asked for {}:{}",
                facts.host, facts.port
            ),
            "the proxy cannot reach the server, or it is no proxy of this kind: look at its log, and at the scheme of \
             the proxy's URL (http, https, socks5)",
        ),
        (Act::Tls, Leg::Proxy) => Verdict::new(
            "proxy_tls",
            format!("{whom} does not speak TLS: nothing came within {within}"),
            "if the proxy itself speaks plain HTTP, its URL begins with http://",
        ),
        (Act::Tls, Leg::Server) => Verdict::new(
            "tls_timeout",
            format!("{whom} took the connection and said nothing of TLS within {within}"),
            "a firewall that looks into TLS holds it, or something that speaks another protocol listens there: look \
             at the port, and have the host let through",
        ),
        (Act::Ask, _) => Verdict::new(
            "upgrade_timeout",
            format!(
                "TLS stands, and there was no answer to the request for a session within {within}"
            ),
            "something between reads the request and does not pass it on: a proxy or load balancer that does not know \
             WebSocket, or a server that hangs; look at their logs",
        ),
    }
}

pub(super) fn unresolved(facts: &Facts, leg: Leg, host: &str, text: &str) -> Verdict {
    let whom = match leg {
        Leg::Proxy => "the proxy",
        Leg::Server => "the server",
    };
    let mut advice = hint(host);
    // The words of glibc and of musl for a name server that says nothing, or that it cannot say.
    if text.contains("emporary failure") || text.contains("Try again") {
        advice = "no name server gives an answer: look at /etc/resolv.conf, and whether a firewall or a network \
                  policy lets port 53 through"
            .to_owned();
    }
    if leg == Leg::Server && facts.proxy.is_none() {
        advice += "; where names of the internet are known to a proxy alone, name that by --proxy";
    }
    let name = match leg {
        Leg::Proxy => "proxy_dns_failure",
        Leg::Server => "dns_failure",
    };
    let sentence = format!("the name of {whom}, {host}, has no address: {text}");
    Verdict::new(name, sentence, advice)
}

/// What is most often wrong with a name like this.
fn hint(host: &str) -> String {
    let host = host.trim_end_matches('.');
    if let Some((slip, meant)) = SLIPS.iter().find(|(slip, _)| host.ends_with(slip)) {
        let meant = format!("{}{meant}", host.trim_end_matches(slip));
        return format!("is {meant} meant?");
    }
    if !host.contains('.') {
        return "the name has no dot, so that it is known only together with a search domain of this machine: write \
                the whole name"
            .to_owned();
    }
    if host.ends_with(".svc") || host.ends_with(".cluster.local") {
        return "it is a name of a cluster, known only within that: look for a slip, and whether this program runs \
                there"
            .to_owned();
    }
    "look for a slip in the name, and ask another machine for it (`getent hosts`, `nslookup`)"
        .to_owned()
}

pub(super) fn unreached(facts: &Facts, leg: Leg, tried: &[Tried]) -> Verdict {
    let has = |kind| tried.iter().any(|tried| tried.kind == kind);
    let all: Vec<String> = tried
        .iter()
        .map(|tried| format!("{} ({})", tried.address, tried.text))
        .collect();
    let (whom, all) = (whom(facts, leg), listed(&all));
    // What an address that can be reached says tells more than one that cannot, as IPv6 often.
    if has(ErrorKind::ConnectionRefused) {
        let (name, advice) = match leg {
            Leg::Proxy => (
                "proxy_connect_refused",
                "nobody listens there: look at host and port of the proxy, and whether it runs",
            ),
            Leg::Server => (
                "connect_refused",
                "nobody listens there, or a firewall says no: look at host and port of --server, and whether the \
                 server runs",
            ),
        };
        return Verdict::new(name, format!("{whom} refuses connections: {all}"), advice);
    }
    if has(ErrorKind::TimedOut) {
        return match leg {
            Leg::Proxy => Verdict::new(
                "proxy_connect_timeout",
                format!("{whom} does not answer: {all}"),
                "look whether the proxy's address is right, and whether a firewall between drops what is sent to it",
            ),
            Leg::Server => connect_timeout(facts, &format!("at {all}")),
        };
    }
    let name = match leg {
        Leg::Proxy => "proxy_unreachable",
        Leg::Server => "connect_unreachable",
    };
    Verdict::new(
        name,
        format!("there is no way to {whom}: {all}"),
        "look at this machine's network and routes, and whether its firewall or a network policy lets it out to that \
         port",
    )
}

fn connect_timeout(facts: &Facts, where_and_when: &str) -> Verdict {
    let (host, port) = (&facts.host, facts.port);
    let mut advice = format!(
        "a firewall drops what is sent there: have outbound TCP to {host} port {port} let through"
    );
    if facts.proxy.is_none() && !is_private(host) {
        advice += ", or name the proxy by which this network reaches the internet by --proxy";
    }
    let sentence = format!("{host} does not answer on port {port} {where_and_when}");
    Verdict::new("connect_timeout", sentence, advice)
}

fn is_private(host: &str) -> bool {
    match host.parse() {
        Ok(IpAddr::V4(address)) => address.is_private() || address.is_loopback(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unique_local(),
        Err(_) => false,
    }
}

pub(super) fn proxy(facts: &Facts, trouble: &ProxyTrouble) -> Verdict {
    let whom = whom(facts, Leg::Proxy);
    let words = &trouble.words;
    let offers = match trouble.schemes.is_empty() {
        true => String::new(),
        false => format!("; it offers {}", listed(&trouble.schemes)),
    };
    let (sentence, advice) = match trouble.kind {
        ProxyRefusal::LoginWanted => (
            format!("{whom} demands a login ({words}{offers})"),
            "give user and password by --proxy-auth-file, in a file that holds user:password",
        ),
        ProxyRefusal::LoginUnknown => (
            format!("{whom} demands a login of a kind that is not spoken here ({words}{offers})"),
            "ask for Basic or Digest to be allowed for this program, or for the server's host to be let through \
             without a login; a local relay that speaks NTLM or Kerberos to the proxy does it too",
        ),
        ProxyRefusal::LoginRefused => (
            format!("{whom} does not take the login ({words}{offers})"),
            "look at user and password of the proxy: has the password run out?",
        ),
        ProxyRefusal::LoginUnreadable => (
            format!("the login for {whom} cannot be read: {words}"),
            "mend the file that --proxy-auth-file names",
        ),
        ProxyRefusal::Other => return proxy_refused(facts, &whom, trouble),
        ProxyRefusal::NotAProxy => {
            return Verdict::new(
                "not_a_proxy",
                format!("{whom} does not answer as a proxy of its kind does: {words}"),
                "look at the scheme (http, https, socks5, socks5h) and the port of the proxy's URL",
            );
        }
    };
    Verdict::new("proxy_login", sentence, advice)
}

fn proxy_refused(facts: &Facts, whom: &str, trouble: &ProxyTrouble) -> Verdict {
    let (host, port) = (&facts.host, facts.port);
    let advice = match trouble.status {
        Some(502..=504) => format!(
            "the proxy lets {host} through and does not reach it: look for a slip in the name, and whether the proxy \
             may connect to port {port}"
        ),
        _ => format!(
            "have CONNECT to {host} port {port} allowed at the proxy; many allow port 443 alone"
        ),
    };
    let sentence = format!(
        "{whom} does not let through to {host}:{port}: {}",
        trouble.words
    );
    Verdict::new("proxy_refused", sentence, advice)
}

fn whom(facts: &Facts, leg: Leg) -> String {
    match (leg, &facts.proxy) {
        (Leg::Proxy, Some(proxy)) if facts.proxy_from.is_empty() => format!("the proxy {proxy}"),
        (Leg::Proxy, Some(proxy)) => {
            format!("the proxy {proxy} (named by {})", facts.proxy_from)
        }
        (Leg::Proxy, None) => "the proxy".to_owned(),
        (Leg::Server, _) => format!("{}:{}", facts.host, facts.port),
    }
}
