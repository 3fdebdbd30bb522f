//! Verdicts on the upstreams of routes.

use rustls::CertificateError;
use tunnel_ops::connect::tls;
use tunnel_proto::problem::Reason;
use tunnel_routing::config::UpstreamHttp;
use tunnel_routing::upstream::{FirstAnswer, TryDialError};
use tunnel_routing::url::UpstreamScheme;

use super::{Verdict, verdicts};

/// An upstream that cannot be used as it is configured.
pub(in crate::check) fn unusable(url: &str, text: &str) -> Verdict {
    verdicts! {
        "upstream_unusable" "{url} cannot be used as it is configured: {text}"
        "correct the route's `tls` in the configuration"
    }
}

/// An upstream whose health check fails.
pub(in crate::check) fn unhealthy(url: &str, text: &str) -> Verdict {
    verdicts! {
        "upstream_unhealthy" "{url} reports that it is not healthy: {text}"
        "look at the service's own log"
    }
}

/// An upstream that does not speak the HTTP of its scheme.
pub(in crate::check) fn other_protocol(
    url: &str,
    scheme: UpstreamScheme,
    answer: FirstAnswer,
    text: &str,
) -> Verdict {
    verdicts! { (scheme, answer);
        (UpstreamScheme::H2c, _) => "upstream_protocol" "requests to {url} will fail: {text}"
            "if the service speaks HTTP/1.1, its URL begins with http://; if it speaks TLS, with https://"
        (UpstreamScheme::Http, FirstAnswer::Http2) => "upstream_protocol" "requests to {url} will fail: {text}"
            "a gRPC service, or another that speaks HTTP/2 alone, has a URL that begins with h2c://"
        (UpstreamScheme::Http, _) => "upstream_protocol" "requests to {url} will fail: {text}"
            "if the service speaks TLS, its URL begins with https://; else correct the port: another service is there"
        (UpstreamScheme::Https, _) => "upstream_protocol" "requests to {url} will fail: {text}"
            "correct the port: another service is there; or the service speaks no version of HTTP that it agrees to in TLS"
    }
}

/// An upstream that takes the connection, and says nothing.
pub(in crate::check) fn silent(url: &str) -> Verdict {
    verdicts! {
        "upstream_silent" "{url} accepts the connection, but does not answer `HEAD /`: requests may fail as well"
        "look whether the service hangs, or another one is at this port; if it answers other paths only, name one as \
         `path` in the route's `health`"
    }
}

/// An upstream that takes `HEAD /` for no good request.
pub(in crate::check) fn bad_request(url: &str, scheme: UpstreamScheme) -> Verdict {
    verdicts! { scheme;
        UpstreamScheme::Https => "upstream_bad_request" "{url} answers 400 to `HEAD /`"
            "if the service serves certain hosts only, name one by `host_header` of the route, or a path that it answers as \
             `path` in the route's `health`"
        _ => "upstream_bad_request" "{url} answers 400 to `HEAD /`, as a port for TLS does"
            "if the service speaks TLS, its URL begins with https://; if it serves certain hosts only, name one by \
             `host_header` of the route"
    }
}

/// An upstream of a gRPC service's route to which gRPC calls do not get HTTP/2.
pub(in crate::check) fn no_grpc(url: &str, scheme: UpstreamScheme, http: UpstreamHttp) -> Verdict {
    verdicts! { (scheme, http);
        (UpstreamScheme::Https, UpstreamHttp::Http1) =>
            "upstream_grpc" "{url} is sent HTTP/1.1 alone, by `http` of the route or --upstream-http"
            "leave it out, unless the route is for gRPC-Web or calls of Connect without streams"
        (UpstreamScheme::Https, _) =>
            "upstream_grpc" "{url} does not offer HTTP/2 over TLS (ALPN h2)"
            "enable it there, unless the route is for gRPC-Web or calls of Connect without streams"
        _ =>
            "upstream_grpc" "{url} is sent HTTP/1.1"
            "if the service speaks gRPC, its URL begins with h2c://, or with https:// if it speaks TLS; gRPC-Web and calls \
             of Connect without streams need neither"
    }
}

/// An upstream to which there is no connection.
pub(in crate::check) fn not_reached(
    url: &str,
    is_socket: bool,
    failure: &TryDialError,
    text: &str,
) -> Verdict {
    if let Some(error) = &failure.certificate {
        let advice = certificate_advice(error);
        return verdicts! {
            "upstream_certificate" "the certificate of {url} is not valid: {text}" "{advice}"
        };
    }
    verdicts! { failure.problem.reason();
        Reason::DnsError =>
            "upstream_dns_failure" "the name of {url} has no address: {text}"
            "check the spelling of the name; the name of a service in another namespace includes the namespace, such as \
             app.other.svc.cluster.local"
        Reason::DnsTimeout =>
            "upstream_dns_timeout" "no name server answered for the name of {url}: {text}"
            "check whether the name servers of --dns-server, or else of /etc/resolv.conf, answer, and whether a firewall \
             or a network policy allows port 53"
        Reason::ConnectionRefused if is_socket =>
            "upstream_refused" "nothing listens at {url}: {text}"
            "start the service, or correct the path; within a pod, the socket's folder has to be a volume that both \
             containers mount"
        Reason::ConnectionRefused =>
            "upstream_refused" "nothing listens at {url}: {text}"
            "start the service, or correct the port; within a pod, 127.0.0.1 is only that pod"
        Reason::ConnectionTimeout =>
            "upstream_timeout" "{url} does not answer: {text}"
            "a firewall or a network policy drops what is sent there, or the service hangs"
        Reason::DestinationDenied =>
            "upstream_denied" "{url} may not be reached: {text}"
            "its name resolves to an address that is reached only when the configuration contains the address itself"
        Reason::TlsCertificateError | Reason::TlsProtocolError =>
            "upstream_tls" "{url} does not speak TLS as it should: {text}"
            "if the service speaks plain HTTP, its URL begins with http://"
        Reason::ProtocolRefused =>
            "upstream_protocol" "{url} does not offer the version of HTTP that the route wants: {text}"
            "enable it there, or change `http` of the route, or --upstream-http"
        _ if is_socket =>
            "upstream_unreachable" "{url} cannot be reached: {text}"
            "let the user that runs this program enter the socket's folder and write to the socket, and check whether it \
             is a stream socket"
        _ =>
            "upstream_unreachable" "{url} cannot be reached: {text}"
            "check the address and this machine's routes"
    }
}

fn certificate_advice(error: &CertificateError) -> &'static str {
    match error {
        CertificateError::UnknownIssuer => {
            "give the CA that signed it by --upstream-ca-file, or the route's `tls`"
        }
        CertificateError::BadSignature => {
            "the CA that signed it was replaced: give its current certificate by --upstream-ca-file, or the route's `tls`"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "put a name that it is valid for into the URL, or into the route's `tls` as `server_name`"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the operator of the service has to get a new one; or this machine's clock is ahead"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "this machine's clock is behind; or the service uses the certificate too early"
        }
        error if tls::is_old_certificate(error) => {
            "the operator of the service has to make it again with the extension subjectAltName, which gives it version 3"
        }
        _ => "the operator of the service has to get another one",
    }
}
