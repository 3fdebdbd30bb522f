//! Verdicts on upstreams.

use tunnel_proto::problem::{Hop, Problem, Reason};
use tunnel_routing::config::UpstreamHttp;
use tunnel_routing::upstream::{FirstAnswer, TryDialError};
use tunnel_routing::url::UpstreamScheme;

use super::*;

fn unreached_for(url: &str, reason: Reason) -> Verdict {
    let failure = TryDialError {
        problem: Problem::new(Hop::Client, reason, "no"),
        certificate: None,
    };
    not_reached(url, url.starts_with("unix:"), &failure, "no")
}

#[test]
fn upstreams_that_are_not_there() {
    let url = "http://app:3000";
    for (verdict, name, advice) in [
        (unusable(url, "no"), "upstream_unusable", "configuration"),
        (unhealthy(url, "no"), "upstream_unhealthy", "log"),
        (silent(url), "upstream_silent", "hangs"),
        (
            bad_request(url, UpstreamScheme::Http),
            "upstream_bad_request",
            "https://",
        ),
        (
            bad_request(url, UpstreamScheme::Https),
            "upstream_bad_request",
            "host_header",
        ),
    ] {
        let verdict = check(verdict, name);
        assert!(verdict.sentence.contains(url) && verdict.advice.contains(advice));
    }
    for (scheme, answer, advice) in [
        (UpstreamScheme::H2c, FirstAnswer::Nothing, "http://"),
        (UpstreamScheme::Http, FirstAnswer::Other, "https://"),
        (UpstreamScheme::Http, FirstAnswer::Http2, "h2c://"),
        (UpstreamScheme::Https, FirstAnswer::Other, "port"),
    ] {
        let verdict = other_protocol(url, scheme, answer, "no");
        let verdict = check(verdict, "upstream_protocol");
        assert!(verdict.advice.contains(advice), "{verdict:?}");
    }
    for (scheme, http, advice) in [
        (UpstreamScheme::Http, UpstreamHttp::Auto, "h2c://"),
        (UpstreamScheme::Https, UpstreamHttp::Auto, "enable it"),
        (UpstreamScheme::Https, UpstreamHttp::Http1, "leave it out"),
    ] {
        let verdict = check(no_grpc(url, scheme, http), "upstream_grpc");
        assert!(verdict.advice.contains(advice), "{verdict:?}");
    }
    for (reason, name, advice) in [
        (
            Reason::DnsError,
            "upstream_dns_failure",
            "check the spelling",
        ),
        (Reason::DnsTimeout, "upstream_dns_timeout", "port 53"),
        (Reason::ConnectionRefused, "upstream_refused", "port"),
        (Reason::ConnectionTimeout, "upstream_timeout", "firewall"),
        (
            Reason::ConnectionTerminated,
            "upstream_unreachable",
            "routes",
        ),
        (Reason::DestinationDenied, "upstream_denied", "address"),
        (Reason::TlsProtocolError, "upstream_tls", "http://"),
    ] {
        let verdict = check(unreached_for(url, reason), name);
        assert!(verdict.sentence.contains(url), "{verdict:?}");
        assert!(verdict.advice.contains(advice), "{verdict:?}");
    }
}

#[test]
fn a_socket_has_no_port_and_no_route() {
    for (reason, name, advice) in [
        (
            Reason::ConnectionRefused,
            "upstream_refused",
            "correct the path",
        ),
        (Reason::ConnectionTerminated, "upstream_unreachable", "user"),
    ] {
        let verdict = check(unreached_for("unix:/run/app.sock", reason), name);
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
    for (error, advice) in [
        (CertificateError::UnknownIssuer, "--upstream-ca-file"),
        (CertificateError::BadSignature, "replaced"),
        (CertificateError::Expired, "new one"),
        (CertificateError::NotValidYet, "clock"),
        (CertificateError::NotValidForName, "server_name"),
        (CertificateError::Revoked, "another one"),
    ] {
        let is_of_a_ca = matches!(
            error,
            CertificateError::UnknownIssuer | CertificateError::BadSignature
        );
        let failure = TryDialError {
            problem: Problem::new(Hop::Client, Reason::TlsCertificateError, "no"),
            certificate: Some(error),
        };
        let verdict = not_reached("https://app", false, &failure, "no");
        let verdict = check(verdict, "upstream_certificate");
        assert!(verdict.advice.contains(advice), "{verdict:?}");
        assert_eq!(verdict.advice.contains("--upstream-ca-file"), is_of_a_ca);
    }
}
