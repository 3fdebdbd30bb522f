//! Verdicts on TLS: certificates that are not good, versions, and what is no TLS at all.

use std::time::SystemTime;

use rustls::CertificateError;

use super::{Verdict, answer};
use crate::check::certificate::CertificateFacts;
use crate::check::facts::{Facts, Leg, TlsTrouble};
use crate::check::words::{moment, printable, span};

/// What issuers of products are called that open TLS to look into it.
const INSPECTORS: [&str; 24] = [
    "avast",
    "barracuda",
    "bitdefender",
    "blue coat",
    "bluecoat",
    "charles proxy",
    "check point",
    "cisco umbrella",
    "eset ssl",
    "fiddler",
    "forcepoint",
    "fortigate",
    "fortinet",
    "kaspersky",
    "mcafee",
    "mitmproxy",
    "netskope",
    "palo alto",
    "skyhigh",
    "sonicwall",
    "sophos",
    "squid",
    "watchguard",
    "zscaler",
];

pub(super) fn certificate(facts: &Facts, leg: Leg, error: &CertificateError) -> Verdict {
    if leg == Leg::Proxy {
        return of_proxy(facts, error);
    }
    let own = facts.chain.first();
    match error {
        CertificateError::UnknownIssuer => unknown_issuer(facts, own),
        // What is wrong with it is told before who signed it.
        CertificateError::Other(_) if own.is_some_and(|own| is_alone(facts, own)) => {
            unknown_issuer(facts, own)
        }
        CertificateError::BadSignature => replaced(facts),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            wrong_name(facts, own)
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            out_of_time(facts, "tls_expired", "ran out")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            out_of_time(facts, "tls_not_yet_valid", "is not good yet")
        }
        CertificateError::Revoked => Verdict::new(
            "tls_revoked",
            format!(
                "the certificate of {} has been revoked by its issuer",
                facts.name
            ),
            "whoever runs the server has to take a new one; do not go on with this one",
        ),
        other => Verdict::new(
            "tls_certificate",
            match own {
                Some(own) if own.is_authority => format!(
                    "the certificate of {} was made as a CA's, which a server may not show as its own",
                    facts.name
                ),
                _ => format!("the certificate of {} is not good: {other}", facts.name),
            },
            "whoever runs the server, or what stands before it, has to mend its certificate",
        ),
    }
}

fn of_proxy(facts: &Facts, error: &CertificateError) -> Verdict {
    let signed = facts.chain.last().map_or_else(String::new, |last| {
        format!(", which {} signed", last.issuer)
    });
    Verdict::new(
        "proxy_tls",
        format!("the certificate of the proxy itself{signed} is not good: {error}"),
        "give the CA that signed it by --proxy-ca-file; if the proxy itself speaks plain HTTP, its URL begins with \
         http://",
    )
}

/// Whoever signed it is trusted by nobody here: something that looks into TLS, a private CA, or a chain that
/// is not whole.
fn unknown_issuer(facts: &Facts, own: Option<&CertificateFacts>) -> Verdict {
    if let Some(page) = &facts.plain
        && answer::is_portal(facts, page)
    {
        return answer::portal(facts, page);
    }
    let (name, Some(own)) = (&facts.name, own) else {
        return Verdict::new(
            "tls_inspection",
            format!(
                "the certificate of {} is signed by nobody that is trusted here",
                facts.name
            ),
            "give the CA that signed it by --ca-file",
        );
    };
    if !own.is_for(name) {
        return wrong_name(facts, Some(own));
    }
    if is_alone(facts, own) {
        return self_signed(name, own);
    }
    let last = facts.chain.last().unwrap_or(own);
    if own.is_logged {
        return Verdict::new(
            "tls_chain_incomplete",
            format!(
                "the certificate of {name} is by a public CA, and the chain ends at {}, which is not known here",
                last.issuer
            ),
            "the server has to send the certificates of its issuers too; or this machine's CA certificates are too \
             old: update the package ca-certificates",
        );
    }
    let issuer = &last.issuer;
    let known = chain_words(&facts.chain).find_map(|words| inspector(&words));
    let sentence = match known {
        Some(product) => format!(
            "{product} on the way opens TLS and looks into it: the certificate for {name} is signed by {issuer}, \
             which is not trusted here"
        ),
        None => format!(
            "the certificate for {name} is signed by {issuer}, a private CA that is not trusted here: something on \
             the way opens TLS and looks into it, or the server has a private CA"
        ),
    };
    let advice = format!(
        "get the CA certificate of {} from whoever runs this network (or the server) and give it by --ca-file; or \
         have {name} left out of TLS inspection",
        last.issuer_name
    );
    Verdict::new("tls_inspection", sentence, advice)
}

/// Whether it is all that was shown, and signed itself.
fn is_alone(facts: &Facts, own: &CertificateFacts) -> bool {
    own.is_self_signed && facts.chain.len() == 1
}

fn self_signed(name: &str, own: &CertificateFacts) -> Verdict {
    let subject = &own.subject;
    if own.is_authority {
        // What `openssl req -x509` makes, unless it is told otherwise: no --ca-file helps with that.
        return Verdict::new(
            "tls_self_signed",
            format!(
                "the certificate of {name} is signed by nobody but itself ({subject}), and was made as a CA's, which \
                 a server may not show as its own"
            ),
            "if it is the server's own, make it anew with `-addext basicConstraints=critical,CA:FALSE` and \
             `-addext subjectAltName=DNS:…`, and give that by --ca-file; if not, something between answers in the \
             server's place",
        );
    }
    Verdict::new(
        "tls_self_signed",
        format!("the certificate of {name} is signed by nobody but itself ({subject})"),
        "if it is the server's own, give that very certificate by --ca-file; if not, something between answers in \
         the server's place",
    )
}

/// Who signed it has the name of somebody who is trusted here, and another key.
fn replaced(facts: &Facts) -> Verdict {
    let name = &facts.name;
    let issuer = facts.chain.last().map_or("", |last| last.issuer.as_str());
    Verdict::new(
        "tls_ca_replaced",
        format!(
            "the certificate for {name} is signed by {issuer}: a CA of that name is trusted here, but with another key"
        ),
        "the CA was made anew: get its certificate as it is now, and give it by --ca-file in the place of the old one",
    )
}

fn chain_words(chain: &[CertificateFacts]) -> impl Iterator<Item = String> {
    chain.iter().map(|one| one.issuer.to_lowercase())
}

/// The product that signs like this.
fn inspector(issuer: &str) -> Option<&'static str> {
    INSPECTORS.into_iter().find(|name| issuer.contains(name))
}

fn wrong_name(facts: &Facts, own: Option<&CertificateFacts>) -> Verdict {
    if let Some(page) = &facts.plain
        && answer::is_portal(facts, page)
    {
        return answer::portal(facts, page);
    }
    let name = &facts.name;
    let whose = own.map_or_else(
        || "another".to_owned(),
        |own| match own.names.is_empty() {
            true => own.subject.clone(),
            false => own.names_line(),
        },
    );
    let issuer = own.map_or_else(String::new, |own| format!(", signed by {}", own.issuer));
    Verdict::new(
        "tls_name_mismatch",
        format!("who answers for {name} shows a certificate for {whose}{issuer}"),
        "look for a slip in --server (an IP address is rarely in a certificate); --server-name says which name to \
         expect; else the name leads to another machine than it should, or this network answers in its place until \
         somebody signs in",
    )
}

/// Out of its time by this clock: the certificate is at fault, or the clock.
fn out_of_time(facts: &Facts, name: &'static str, what: &str) -> Verdict {
    let own = out_of_its_time(facts);
    let times = own.map_or_else(String::new, |own| {
        let (begin, end) = (moment(own.not_before), moment(own.not_after));
        format!(": {} is good from {begin} to {end}", own.subject)
    });
    let now = moment(facts.now);
    let is_good_there = own
        .zip(facts.clock)
        .is_some_and(|(own, clock)| clock.is_off() && is_within(own, clock.there_at(facts.now)));
    // Nobody gives out certificates of the future, but many machines start in the past.
    let is_early_clock = name == "tls_not_yet_valid" && facts.clock.is_none();
    if is_good_there || is_early_clock {
        return clock_off(
            facts,
            &format!("the certificate {what} by this machine's clock, {now}{times}"),
        );
    }
    Verdict::new(
        name,
        format!(
            "the certificate of {} {what}; this machine's clock says {now}{times}",
            facts.name
        ),
        "whoever runs the server (or what opens TLS on the way) has to take a new certificate; if the clock above is \
         wrong, set it",
    )
}

/// Which of the chain is at fault: not always the first.
fn out_of_its_time(facts: &Facts) -> Option<&CertificateFacts> {
    let mut chain = facts.chain.iter();
    chain
        .find(|one| !is_within(one, facts.now))
        .or_else(|| facts.chain.first())
}

fn is_within(own: &CertificateFacts, time: SystemTime) -> bool {
    (own.not_before..=own.not_after).contains(&time)
}

/// The clock explains what was seen.
pub(super) fn clock_off(facts: &Facts, what: &str) -> Verdict {
    let off = match facts.clock {
        Some(clock) if clock.is_off() => format!(
            "; {} says {}, which is {} {}",
            match clock.is_servers {
                true => "the server's",
                false => "that of whoever answers there",
            },
            moment(clock.there),
            span(clock.difference()),
            if clock.is_ahead() {
                "behind it"
            } else {
                "ahead of it"
            },
        ),
        _ => String::new(),
    };
    Verdict::new(
        "clock_off",
        format!("{what}{off}"),
        "set this machine's clock, and have it kept by NTP (`timedatectl set-ntp true`); a container has the clock of \
         its host",
    )
}

pub(super) fn failed(facts: &Facts, leg: Leg, trouble: &TlsTrouble) -> Verdict {
    if leg == Leg::Proxy {
        return Verdict::new(
            "proxy_tls",
            format!("TLS with the proxy itself failed: {}", words(trouble)),
            "if the proxy itself speaks plain HTTP, its URL begins with http://",
        );
    }
    let (host, port) = (&facts.host, facts.port);
    match trouble {
        TlsTrouble::NotTls => not_tls(facts),
        TlsTrouble::Version(text) => Verdict::new(
            "tls_version",
            format!(
                "{host}:{port} and this program have no version of TLS, or no cipher, in common: {text}"
            ),
            "TLS 1.2 or 1.3 is needed: whoever runs the server, or what opens TLS on the way, has to allow one of them",
        ),
        TlsTrouble::Handshake(text) => Verdict::new(
            "tls_handshake_failure",
            format!(
                "{host}:{port} ends TLS and does not say why ({text}): it has no certificate for the name {}, or \
                 wants one of this client, or the two have no version or cipher in common",
                facts.name
            ),
            "look for a slip in --server or --server-name; where clients need a certificate, give it by --client-cert \
             and --client-key; else TLS 1.2 or 1.3 has to be allowed by whoever runs the server, or what opens TLS on \
             the way",
        ),
        TlsTrouble::NameUnknown => Verdict::new(
            "tls_name_unknown",
            format!("{host}:{port} knows no server by the name {}", facts.name),
            "look for a slip in --server or --server-name; what stands before the server has to be told that name",
        ),
        TlsTrouble::NoHttp1 => Verdict::new(
            "upgrade_stripped",
            format!("{host}:{port} does not speak HTTP/1.1 under TLS, which a WebSocket needs"),
            "whoever runs the load balancer before the server has to offer HTTP/1.1 (ALPN `http/1.1`) beside HTTP/2",
        ),
        TlsTrouble::Identity(text) => identity(facts, text),
        TlsTrouble::Cut => Verdict::new(
            "tls_cut",
            format!("the connection to {host}:{port} was ended in the midst of TLS"),
            format!(
                "a firewall that goes by names often does this: have {host} allowed; or what listens there is no TLS \
                 server"
            ),
        ),
        TlsTrouble::Other(text) => Verdict::new(
            "tls_failed",
            format!("TLS with {host}:{port} failed: {}", printable(text)),
            "something that is not the server answers there, or changes what is sent: look at the port, and at what \
             stands between",
        ),
    }
}

/// Something without TLS: a network that wants a sign-in answers so in everybody's place, and any other service
/// for itself.
fn not_tls(facts: &Facts) -> Verdict {
    let (host, port) = (&facts.host, facts.port);
    let spoken = match &facts.plain {
        // A page is due at the port of many a web site, and at 443 only where somebody else answers.
        Some(page) if answer::is_portal(facts, page) && (port == 443 || !page.is_page()) => {
            return answer::portal(facts, page);
        }
        Some(page) => match &page.refusal {
            Some(refusal) if page.is_public => return answer::public_listener(facts, refusal),
            _ => ", but HTTP without TLS",
        },
        None => "",
    };
    Verdict::new(
        "not_tls",
        format!("what answers at {host}:{port} speaks no TLS{spoken}"),
        "look at host and port of --server: another service, or a listener without TLS, stands there; if this \
         network wants a sign-in first, open any http:// page in a browser and sign in",
    )
}

/// The server does not take the client's certificate, or wants one.
pub(super) fn identity(facts: &Facts, text: &str) -> Verdict {
    Verdict::new(
        "certificate_refused",
        format!(
            "{} does not take this client's certificate, or wants one: {text}",
            facts.name
        ),
        "give a certificate by a CA that the server trusts by --client-cert and --client-key; has the one in use run \
         out?",
    )
}

fn words(trouble: &TlsTrouble) -> String {
    match trouble {
        TlsTrouble::NotTls => "what came is no TLS".to_owned(),
        TlsTrouble::Cut => "the connection was ended".to_owned(),
        TlsTrouble::NoHttp1 => "it speaks no HTTP/1.1".to_owned(),
        TlsTrouble::NameUnknown => "it knows no server of that name".to_owned(),
        TlsTrouble::Version(text)
        | TlsTrouble::Handshake(text)
        | TlsTrouble::Identity(text)
        | TlsTrouble::Other(text) => printable(text),
    }
}
