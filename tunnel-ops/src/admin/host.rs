//! Checks by its host name whether a request is meant for this listener, and whether another web page sent it.
//!
//! A web page can have its own host name resolve to this listener's address (DNS rebinding), and then read
//! and send whatever it likes: to the browser all is of one origin. The browser still says the page's
//! name. So only names that no page can have are taken: IP addresses, `localhost`, and those that
//! the operator allows.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Version};

use crate::config_value::ValueError;

/// The longest name that DNS can hold.
const MAX_NAME: usize = 253;

/// A host name of the admin listener, without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminHost(String);

impl FromStr for AdminHost {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !label.is_empty() && label.bytes().all(fits)
        };
        if name.len() > MAX_NAME || !name.split('.').all(is_label) {
            return Err(ValueError::new(
                "expected a host name without port, such as `tunnel.example.com`",
            ));
        }
        Ok(Self(name.to_ascii_lowercase()))
    }
}

impl fmt::Display for AdminHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::text_value!(AdminHost);

/// Whether everything that names a host in this request names this listener.
pub(super) fn is_ours<B>(request: &Request<B>, allowed: &[AdminHost]) -> bool {
    let mut given = request.headers().get_all(HOST).iter();
    let header_is_ours = match (given.next(), given.next()) {
        // No browser speaks HTTP/1.0; some load balancers' probes do.
        (None, _) => request.version() <= Version::HTTP_10,
        (Some(host), None) => host.to_str().is_ok_and(|host| names_us(host, allowed)),
        (Some(_), Some(_)) => false,
    };
    let authority = request.uri().authority();
    header_is_ours && authority.is_none_or(|authority| names_us(authority.as_str(), allowed))
}

fn names_us(text: &str, allowed: &[AdminHost]) -> bool {
    let Ok(authority) = text.parse::<Authority>() else {
        return false;
    };
    if text.contains('@') {
        return false;
    }
    let host = authority.host();
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']').unwrap_or_default();
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    host.parse::<Ipv4Addr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || (allowed.iter()).any(|AdminHost(allowed)| name.eq_ignore_ascii_case(allowed))
}

/// Whether a browser sends this for a web page that is not this listener's own. A browser names the origin of the page
/// wherever a page may change something or read the answer of another origin, and says, to this machine and over TLS, how
/// far the page is from here: `none` is an address that a person has typed in. The own page's origin has the request's own
/// host and port, which [`is_ours`] has checked; its scheme is another one behind a gateway with TLS.
pub(super) fn is_of_foreign_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if site.is_some_and(|site| site != b"none" && site != b"same-origin") {
        return true;
    }
    let mut origins = headers.get_all(ORIGIN).iter().map(HeaderValue::as_bytes);
    let origin = match (origins.next(), origins.next()) {
        (None, _) => return false,
        (Some(origin), None) => origin,
        (Some(_), Some(_)) => return true,
    };
    let schemes = [&b"http://"[..], b"https://"];
    let mut authorities = schemes
        .iter()
        .filter_map(|scheme| origin.strip_prefix(*scheme));
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    !authorities.any(|authority| host.is_some_and(|host| host.eq_ignore_ascii_case(authority)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(hosts: &[&str], version: Version, uri: &str, expected: bool) {
        let mut request = Request::builder().version(version).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let allowed = ["Tunnel.example.com.".parse().unwrap()];
        let given = is_ours(&request.body(()).unwrap(), &allowed);
        assert_eq!(given, expected, "{hosts:?} {version:?} {uri}");
    }

    #[test]
    fn only_names_that_no_web_page_can_have_are_taken() {
        let cases = [
            ("127.0.0.1", true),
            ("10.1.2.3:9090", true),
            ("[::1]:9090", true),
            ("[fd00::1]", true),
            ("localhost", true),
            ("LocalHost.:80", true),
            ("tunnel.example.com", true),
            ("TUNNEL.example.com.:9090", true),
            ("", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("x.tunnel.example.com", false),
            ("evil.example@127.0.0.1", false),
            ("127.0.0.1, evil.example", false),
            ("[::1", false),
            ("[evil]", false),
            ("127.1", false),
        ];
        for (host, expected) in cases {
            check(&[host], Version::HTTP_11, "/", expected);
        }
    }

    #[test]
    fn every_name_counts() {
        check(&[], Version::HTTP_11, "/", false);
        check(&[], Version::HTTP_10, "/", true);
        check(&["localhost", "localhost"], Version::HTTP_11, "/", false);
        let (ours, theirs) = ("http://localhost/", "http://evil.example/");
        check(&["localhost"], Version::HTTP_11, ours, true);
        check(&["localhost"], Version::HTTP_11, theirs, false);
        check(&["evil.example"], Version::HTTP_11, ours, false);
    }

    #[test]
    fn a_page_of_another_origin_is_told_from_the_own() {
        let cases = [
            ("10.1.2.3:9090", "", "", false),
            ("localhost:9090", "", "none", false),
            ("localhost:9090", "", "same-origin", false),
            ("10.1.2.3:9090", "http://10.1.2.3:9090", "", false),
            (
                "localhost:9090",
                "http://localhost:9090",
                "same-origin",
                false,
            ),
            (
                "tunnel.example.com",
                "https://tunnel.example.com",
                "same-origin",
                false,
            ),
            ("localhost:9090", "", "same-site", true),
            ("localhost:9090", "", "cross-site", true),
            ("localhost:9090", "http://localhost:3000", "", true),
            ("localhost:9090", "http://localhost", "", true),
            ("localhost:9090", "http://127.0.0.1:9090", "", true),
            ("localhost:9090", "http://localhost:9090", "same-site", true),
            ("localhost:9090", "localhost:9090", "", true),
            ("localhost:9090", "http://evil.example", "", true),
            ("localhost:9090", "null", "", true),
            ("", "http://", "", true),
        ];
        for (host, origin, site, expected) in cases {
            let mut request = Request::builder();
            for (name, value) in [("host", host), ("origin", origin), ("sec-fetch-site", site)] {
                if !value.is_empty() {
                    request = request.header(name, value);
                }
            }
            let request = request.body(()).unwrap();
            let given = is_of_foreign_page(request.headers());
            assert_eq!(given, expected, "{host} {origin} {site}");
        }
    }

    #[test]
    fn a_slip_in_a_name_is_refused() {
        let long = format!("{}a", "a.".repeat(127));
        for text in [
            "",
            ".",
            "a..b",
            "*.example.com",
            "a:80",
            "http://a",
            "a b",
            &long,
        ] {
            assert!(text.parse::<AdminHost>().is_err(), "{text}");
        }
    }
}
