//! Verdicts on upstreams.

use super::*;
use crate::check::facts::{UpstreamFailure, UpstreamTrouble};

fn upstream(url: &str, kind: UpstreamFailure) -> Trouble {
    Trouble::Upstream(UpstreamTrouble {
        url: url.to_owned(),
        is_socket: url.starts_with("unix:"),
        kind,
        text: "no".to_owned(),
    })
}

#[test]
fn upstreams_that_are_not_there() {
    let none = facts(|_| {});
    let unknown = CertificateError::UnknownIssuer;
    for (kind, name, advice) in [
        (
            UpstreamFailure::Unusable,
            "upstream_unusable",
            "configuration",
        ),
        (UpstreamFailure::Unresolved, "upstream_dns_failure", "slip"),
        (
            UpstreamFailure::ResolveTimedOut,
            "upstream_dns_timeout",
            "port 53",
        ),
        (UpstreamFailure::Refused, "upstream_refused", "port"),
        (UpstreamFailure::TimedOut, "upstream_timeout", "firewall"),
        (UpstreamFailure::Unreached, "upstream_unreachable", "routes"),
        (UpstreamFailure::Denied, "upstream_denied", "address"),
        (
            UpstreamFailure::Certificate(unknown),
            "upstream_certificate",
            "CA",
        ),
        (UpstreamFailure::Tls, "upstream_tls", "http://"),
        (UpstreamFailure::Unhealthy, "upstream_unhealthy", "log"),
    ] {
        let verdict = check(&none, &upstream("http://app:3000", kind), name);
        assert!(verdict.sentence.contains("http://app:3000"), "{verdict:?}");
        assert!(verdict.advice.contains(advice), "{verdict:?}");
    }
}

#[test]
fn a_socket_has_no_port_and_no_route() {
    let none = facts(|_| {});
    for (kind, name, advice) in [
        (
            UpstreamFailure::Refused,
            "upstream_refused",
            "mend the path",
        ),
        (UpstreamFailure::Unreached, "upstream_unreachable", "user"),
    ] {
        let verdict = check(&none, &upstream("unix:/run/app.sock", kind), name);
        assert!(verdict.advice.contains(advice), "{verdict:?}");
        let words = ["port", "this machine's routes"];
        assert!(
            words.iter().all(|words| !verdict.advice.contains(words)),
            "{verdict:?}"
        );
    }
}

#[test]
fn a_ca_is_advised_only_where_it_helps() {
    let none = facts(|_| {});
    for (error, advice) in [
        (CertificateError::UnknownIssuer, "--upstream-ca-file"),
        (CertificateError::BadSignature, "made anew"),
        (CertificateError::Expired, "new one"),
        (CertificateError::NotValidYet, "clock"),
        (CertificateError::NotValidForName, "server_name"),
        (CertificateError::Revoked, "another one"),
    ] {
        let is_of_a_ca = matches!(
            error,
            CertificateError::UnknownIssuer | CertificateError::BadSignature
        );
        let trouble = upstream("https://app", UpstreamFailure::Certificate(error));
        let verdict = check(&none, &trouble, "upstream_certificate");
        assert!(verdict.advice.contains(advice), "{verdict:?}");
        assert_eq!(verdict.advice.contains("--upstream-ca-file"), is_of_a_ca);
    }
}
