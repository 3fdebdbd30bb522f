//! Verdicts on what routes lead to.

use super::Verdict;
use crate::check::facts::{UpstreamFailure, UpstreamTrouble};

pub(super) fn failed(trouble: &UpstreamTrouble) -> Verdict {
    let UpstreamTrouble { url, kind, text } = trouble;
    match kind {
        UpstreamFailure::Unresolved => Verdict::new(
            "upstream_dns_failure",
            format!("the name of {url} has no address: {text}"),
            "look for a slip in the name; a service of another namespace needs that in its name, such as \
             app.other.svc.cluster.local",
        ),
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
        UpstreamFailure::Certificate => Verdict::new(
            "upstream_certificate",
            format!("the certificate of {url} is not good: {text}"),
            "give the CA that signed it by --upstream-ca-file, or the route's `tls`",
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
