//! Verdicts on what routes lead to.

use rustls::CertificateError;

use super::Verdict;
use crate::check::facts::{UpstreamFailure, UpstreamTrouble};

pub(super) fn failed(trouble: &UpstreamTrouble) -> Verdict {
    let UpstreamTrouble {
        url, kind, text, ..
    } = trouble;
    match kind {
        UpstreamFailure::Unusable => Verdict::new(
            "upstream_unusable",
            format!("{url} cannot be asked as it is configured: {text}"),
            "mend the route's `tls` in the configuration",
        ),
        UpstreamFailure::Unresolved => Verdict::new(
            "upstream_dns_failure",
            format!("the name of {url} has no address: {text}"),
            "look for a slip in the name; a service of another namespace needs that in its name, such as \
             app.other.svc.cluster.local",
        ),
        UpstreamFailure::ResolveTimedOut => Verdict::new(
            "upstream_dns_timeout",
            format!("no name server says where {url} is: {text}"),
            "look whether the name servers of --dns-server, or else of /etc/resolv.conf, answer, and whether a \
             firewall or a network policy lets port 53 through",
        ),
        UpstreamFailure::Refused | UpstreamFailure::Unreached if trouble.is_socket => {
            at_socket(trouble)
        }
        UpstreamFailure::Refused => Verdict::new(
            "upstream_refused",
            format!("nobody listens at {url}: {text}"),
            "start the service, or mend the port; within a pod, 127.0.0.1 is that pod alone",
        ),
        UpstreamFailure::TimedOut => Verdict::new(
            "upstream_timeout",
            format!("{url} does not answer: {text}"),
            "a firewall or a network policy drops what is sent there, or the service hangs",
        ),
        UpstreamFailure::Unreached => Verdict::new(
            "upstream_unreachable",
            format!("{url} cannot be reached: {text}"),
            "look at the address and at this machine's routes",
        ),
        UpstreamFailure::Denied => Verdict::new(
            "upstream_denied",
            format!("{url} may not be reached: {text}"),
            "its name leads to an address that is reached only when the address itself is written into the \
             configuration",
        ),
        UpstreamFailure::Certificate(error) => Verdict::new(
            "upstream_certificate",
            format!("the certificate of {url} is not good: {text}"),
            mend(error),
        ),
        UpstreamFailure::Tls => Verdict::new(
            "upstream_tls",
            format!("{url} does not speak TLS as it should: {text}"),
            "does it speak plain HTTP? then its URL begins with http://",
        ),
        UpstreamFailure::Unhealthy => Verdict::new(
            "upstream_unhealthy",
            format!("{url} says that it is not well: {text}"),
            "look at the service's own log",
        ),
    }
}

/// A Unix socket has no port and no route, but a path and rights.
fn at_socket(trouble: &UpstreamTrouble) -> Verdict {
    let UpstreamTrouble {
        url, kind, text, ..
    } = trouble;
    match kind {
        UpstreamFailure::Refused => Verdict::new(
            "upstream_refused",
            format!("nobody listens at {url}: {text}"),
            "start the service, or mend the path; within a pod, the socket's folder has to be a volume that both \
             containers mount",
        ),
        _ => Verdict::new(
            "upstream_unreachable",
            format!("{url} cannot be reached: {text}"),
            "let the user that this program runs as enter the socket's folder and write to the socket, and look \
             whether it is a stream socket at all",
        ),
    }
}

/// What mends a certificate that is not good for this.
fn mend(error: &CertificateError) -> &'static str {
    match error {
        CertificateError::UnknownIssuer => {
            "give the CA that signed it by --upstream-ca-file, or the route's `tls`"
        }
        CertificateError::BadSignature => {
            "the CA that signed it was made anew: give its certificate as it is now by --upstream-ca-file, or the \
             route's `tls`"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "write a name that it is for into the URL, or into the route's `tls` as `server_name`"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "whoever runs the service has to take a new one; or this machine's clock is ahead"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "this machine's clock is behind; or whoever runs the service has taken it too early"
        }
        _ => "whoever runs the service has to take another one",
    }
}
