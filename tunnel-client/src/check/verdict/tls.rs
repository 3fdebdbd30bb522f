//! Verdicts on TLS: certificates, versions, the clock, and what is not TLS at all.

use std::io::ErrorKind;
use std::time::SystemTime;

use rustls::AlertDescription as Alert;
use rustls::{CertificateError, Error as TlsError};
use tunnel_ops::connect::tls;

use super::{Verdict, clock_off, response, verdicts};
use crate::check::certificate::CertificateEvidence;
use crate::check::evidence::Evidence;
use crate::check::text::moment;
use crate::dial::{Crowded, StepError};

/// The text of a TLS alert in an error, before its name.
const ALERT: &str = "received fatal alert: ";

/// What issuers of products are called that inspect TLS.
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

/// TLS with the proxy itself.
pub(super) fn of_proxy(evidence: &Evidence, error: &StepError, text: &str) -> Verdict {
    if let Some(error) = error.certificate() {
        let signed = (evidence.chain.last()).map_or_else(String::new, |last| {
            format!(", which {} signed", last.issuer)
        });
        return verdicts! {
            "proxy_tls" "the certificate of the proxy itself{signed} is not valid: {error}"
            "give the CA that signed it by --proxy-ca-file; if the proxy itself speaks plain HTTP, its URL begins with \
             http://"
        };
    }
    let what = match error.inner() {
        Some(TlsError::InvalidMessage(_)) => "what it answers is not TLS",
        None if is_cut(error) => "the connection was closed",
        _ => text,
    };
    verdicts! {
        "proxy_tls" "TLS with the proxy itself failed: {what}"
        "if the proxy itself speaks plain HTTP, its URL begins with http://"
    }
}

/// TLS with the server.
pub(super) fn of_server(evidence: &Evidence, error: &StepError, text: &str) -> Verdict {
    let Evidence {
        host, port, name, ..
    } = evidence;
    if let Some(crowded) = error.inner::<Crowded>() {
        return verdicts! {
            "server_busy" "{host}:{port} says: {crowded}"
            "the server is there and has no capacity now: try again in a minute"
        };
    }
    match error.inner() {
        Some(TlsError::InvalidCertificate(error)) => return certificate(evidence, error),
        Some(TlsError::InvalidMessage(_)) => return not_tls(evidence),
        Some(TlsError::AlertReceived(alert)) if is_about_identity(*alert) => {
            return identity(evidence, text);
        }
        _ => {}
    }
    verdicts! { error.inner();
        Some(TlsError::PeerIncompatible(_)
            | TlsError::AlertReceived(Alert::ProtocolVersion | Alert::InsufficientSecurity)) =>
            "tls_version" "{host}:{port} and this program have no TLS version, or no cipher, in common: {text}"
            "TLS 1.2 or 1.3 is needed: the operator of the server, or of what inspects TLS on the way, has to allow one"
        Some(TlsError::AlertReceived(Alert::HandshakeFailure)) =>
            "tls_handshake_failure"
            "{host}:{port} ends TLS without a reason ({text}): it has no certificate for the name {name}, or demands one \
             of this client, or the two have no version or cipher in common"
            "check --server and --server-name for a slip; where clients need a certificate, give it by --client-cert and \
             --client-key; else the operator of the server, or of what inspects TLS on the way, has to allow TLS 1.2 or 1.3"
        Some(TlsError::AlertReceived(Alert::UnrecognisedName)) =>
            "tls_name_unknown" "{host}:{port} does not know a server of the name {name}"
            "check --server and --server-name for a slip; what stands before the server has to be configured with that name"
        Some(TlsError::NoApplicationProtocol | TlsError::AlertReceived(Alert::NoApplicationProtocol)) =>
            "upgrade_stripped" "{host}:{port} does not speak HTTP/1.1 under TLS, which a WebSocket needs"
            "the operator of the load balancer before the server has to offer HTTP/1.1 (ALPN `http/1.1`) beside HTTP/2"
        None if is_cut(error) =>
            "tls_cut" "the connection to {host}:{port} was closed during the TLS handshake"
            "a firewall that filters by name often does this: have {host} allowed; or what listens there is not a TLS \
             server"
        _ =>
            "tls_failed" "TLS with {host}:{port} failed: {text}"
            "something other than the server answers there, or changes what is sent: check the port, and what is on the way"
    }
}

/// The server refuses the client's certificate after the handshake, as with TLS 1.3, or demands one. `text` is the error
/// of the request for a session.
pub(super) fn after_handshake(evidence: &Evidence, text: &str) -> Option<Verdict> {
    let (_, alert) = text.split_once(ALERT)?;
    let is_about_identity = alert.contains("ertificate") || alert.contains("UnknownCA");
    is_about_identity.then(|| identity(evidence, alert))
}

/// The server does not accept the client's certificate, or demands one.
fn identity(evidence: &Evidence, text: &str) -> Verdict {
    let name = &evidence.name;
    verdicts! {
        "certificate_refused" "{name} does not accept this client's certificate, or demands one: {text}"
        "give a certificate of a CA that the server trusts by --client-cert and --client-key; has the present one expired?"
    }
}

fn is_about_identity(alert: Alert) -> bool {
    matches!(
        alert,
        Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
    )
}

fn is_cut(error: &StepError) -> bool {
    let StepError::Failed(_, error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
    )
}

/// A server certificate that is not valid.
fn certificate(evidence: &Evidence, error: &CertificateError) -> Verdict {
    let (name, own) = (&evidence.name, evidence.chain.first());
    match error {
        CertificateError::UnknownIssuer => return unknown_issuer(evidence, own),
        error if tls::is_old_certificate(error) => {
            let name = &evidence.name;
            return verdicts! {
                "tls_certificate" "the certificate of {name} is of X.509 version 1, which is not supported"
                "the operator of the server, or of what stands before it, has to make it again with the extension \
                 subjectAltName, which gives it version 3"
            };
        }
        // rustls reports the form of such a certificate before its issuer.
        CertificateError::Other(_) if own.is_some_and(|own| is_alone(evidence, own)) => {
            return unknown_issuer(evidence, own);
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            return wrong_name(evidence, own);
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            return out_of_time(evidence, "tls_expired", "has expired");
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            return out_of_time(evidence, "tls_not_yet_valid", "is not yet valid");
        }
        _ => {}
    }
    let issuer = evidence.chain.last().map_or("", |last| &last.issuer);
    verdicts! { error;
        CertificateError::BadSignature =>
            "tls_ca_replaced"
            "the certificate for {name} is signed by {issuer}: a CA of that name is trusted here, but with another key"
            "the CA was replaced, or --ca-file has the CA of another server: give the current certificate of this server's \
             CA by --ca-file"
        CertificateError::Revoked =>
            "tls_revoked" "the certificate of {name} was revoked by its issuer"
            "the operator of the server has to get a new one; do not go on with this one"
        _ if own.is_some_and(|own| own.is_authority) =>
            "tls_certificate" "the certificate of {name} is that of a CA, which a server may not use as its own"
            "the operator of the server, or of what stands before it, has to correct its certificate"
        other =>
            "tls_certificate" "the certificate of {name} is not valid: {other}"
            "the operator of the server, or of what stands before it, has to correct its certificate"
    }
}

/// An issuer that is not trusted here: something that inspects TLS, a private CA, or an incomplete chain.
fn unknown_issuer(evidence: &Evidence, own: Option<&CertificateEvidence>) -> Verdict {
    let name = &evidence.name;
    if let Some(portal) = response::portal_instead(evidence) {
        return portal;
    }
    let Some(own) = own else {
        return verdicts! {
            "tls_inspection" "the certificate of {name} is signed by a CA that is not trusted here"
            "give the CA that signed it by --ca-file"
        };
    };
    if !own.is_for(name) {
        return wrong_name(evidence, Some(own));
    }
    let last = evidence.chain.last().unwrap_or(own);
    let CertificateEvidence {
        issuer,
        issuer_name,
        ..
    } = last;
    let subject = &own.subject;
    verdicts! { inspector(&evidence.chain);
        // `openssl req -x509` makes such a one by default, and no --ca-file helps with it.
        _ if is_alone(evidence, own) && own.is_authority =>
            "tls_self_signed"
            "the certificate of {name} is self-signed ({subject}) and that of a CA, which a server may not use as its own"
            "if it is the server's own, make a new one with `-addext basicConstraints=critical,CA:FALSE` and \
             `-addext subjectAltName=DNS:…`, and give that by --ca-file; if not, something on the way answers in place of \
             the server"
        _ if is_alone(evidence, own) =>
            "tls_self_signed" "the certificate of {name} is self-signed ({subject})"
            "if it is the server's own, give that very certificate by --ca-file; if not, something on the way answers in \
             place of the server"
        _ if own.is_logged =>
            "tls_chain_incomplete"
            "the certificate of {name} is by a public CA, and its chain ends at {issuer}, which is not known here"
            "the server has to send the certificates of its issuers too; or this machine's CA certificates are too old: \
             update the package ca-certificates"
        Some(product) =>
            "tls_inspection"
            "{product} on the way inspects TLS: the certificate for {name} is signed by {issuer}, which is not trusted here"
            "get the CA certificate of {issuer_name} from the operator of this network (or of the server) and give it by \
             --ca-file; or have {name} exempted from TLS inspection"
        None =>
            "tls_inspection"
            "the certificate for {name} is signed by {issuer}, a CA that is not trusted here: the server has a private \
             CA, or something on the way inspects TLS"
            "get the CA certificate of {issuer_name} from the operator of this network (or of the server) and give it by \
             --ca-file; or have {name} exempted from TLS inspection"
    }
}

/// Whether it is the whole chain, and self-signed.
fn is_alone(evidence: &Evidence, own: &CertificateEvidence) -> bool {
    own.is_self_signed && evidence.chain.len() == 1
}

/// The product that issued one of these.
fn inspector(chain: &[CertificateEvidence]) -> Option<&'static str> {
    chain.iter().find_map(|one| {
        let issuer = one.issuer.to_lowercase();
        INSPECTORS.into_iter().find(|name| issuer.contains(name))
    })
}

fn wrong_name(evidence: &Evidence, own: Option<&CertificateEvidence>) -> Verdict {
    if let Some(portal) = response::portal_instead(evidence) {
        return portal;
    }
    let name = &evidence.name;
    let shown = match own {
        Some(own) if own.names.is_empty() => format!("{}, signed by {}", own.subject, own.issuer),
        Some(own) => format!("{}, signed by {}", own.names_line(), own.issuer),
        None => "another name".to_owned(),
    };
    verdicts! {
        "tls_name_mismatch" "what answers for {name} shows a certificate for {shown}"
        "check --server for a slip (an IP address is rarely in a certificate); --server-name says which name to expect; \
         else the name resolves to the wrong machine, or this network answers in place of the server until somebody \
         signs in"
    }
}

/// Outside its validity by this machine's clock: the fault is the certificate's, or the clock's.
fn out_of_time(evidence: &Evidence, verdict: &'static str, what: &str) -> Verdict {
    let Evidence { name, now, .. } = evidence;
    // Of a chain the first that is not valid now, which is not always the server's own.
    let chain = &evidence.chain;
    let own = (chain.iter().find(|one| !is_within(one, *now))).or_else(|| chain.first());
    let times = own.map_or_else(String::new, |own| {
        let (begin, end) = (moment(own.not_before), moment(own.not_after));
        format!(": {} is valid from {begin} to {end}", own.subject)
    });
    let is_valid_there = own
        .zip(evidence.clock)
        .is_some_and(|(own, clock)| clock.is_off() && is_within(own, clock.there_at(*now)));
    // Certificates of the future are not issued, but many machines start with a clock in the past.
    let is_early_clock = verdict == "tls_not_yet_valid" && evidence.clock.is_none();
    let now = moment(*now);
    if is_valid_there || is_early_clock {
        let what = format!("the certificate {what} by this machine's clock, {now}{times}");
        return clock_off(evidence, &what);
    }
    Verdict::new(
        verdict,
        format!("the certificate of {name} {what}; this machine's clock says {now}{times}"),
        "the operator of the server (or of what inspects TLS on the way) has to get a new certificate; if the clock above \
         is wrong, set it",
    )
}

fn is_within(own: &CertificateEvidence, time: SystemTime) -> bool {
    (own.not_before..=own.not_after).contains(&time)
}

/// A network that demands a sign-in answers without TLS in place of every server; so does any other service for itself.
fn not_tls(evidence: &Evidence) -> Verdict {
    let Evidence {
        host, port, proxy, ..
    } = evidence;
    let spoken = match &evidence.probe {
        // A page is usual at the port of a web site, and at 443 only where something else answers.
        Some(page)
            if response::is_portal(evidence, page) && (*port == 443 || !page.is_successful()) =>
        {
            return response::portal(evidence, page);
        }
        Some(page) => match &page.refusal {
            Some(refusal) if page.is_public => return response::public_listener(evidence, refusal),
            _ => ", but HTTP without TLS",
        },
        None => "",
    };
    if let Some(proxy) = proxy {
        return verdicts! {
            "not_tls" "the proxy {proxy} accepted the connection to {host}:{port}, and what answers there does not speak TLS{spoken}"
            "the proxy answers itself, or leads to another place: look at its log, check host and port of --proxy and its \
             scheme, then host and port of --server"
        };
    }
    verdicts! {
        "not_tls" "what answers at {host}:{port} does not speak TLS{spoken}"
        "check host and port of --server: another service, or a listener without TLS, is there; if this network demands a \
         sign-in, open any http:// page in a browser and sign in"
    }
}
