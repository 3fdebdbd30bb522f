//! An origin of web pages, as browsers write it in the `Origin` field.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use tunnel_ops::config_value::ValueError;

use crate::runtimes::HostName;

/// A serialised origin (RFC 6454, section 6.2): `scheme://host[:port]`, spelled as browsers send it, so that it can be
/// compared byte by byte.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin(String);

impl Origin {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an `Origin` field's value names this origin.
    pub fn matches(&self, field: &[u8]) -> bool {
        self.0.as_bytes() == field
    }
}

impl FromStr for Origin {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match fault(text) {
            None => Ok(Self(text.to_owned())),
            Some(reason) => Err(ValueError::new(format!(
                "expected an origin such as `https://app.example.com`: {reason}"
            ))),
        }
    }
}

tunnel_ops::text_value!(Origin);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn fault(text: &str) -> Option<&'static str> {
    if text == "*" || text == "null" {
        return Some("each origin must be named: `*` and `null` match any origin");
    }
    let Some((scheme, authority)) = text.split_once("://") else {
        return Some("the scheme is missing");
    };
    let letters = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.')
    };
    if !scheme.starts_with(|first: char| first.is_ascii_lowercase()) || !scheme.bytes().all(letters)
    {
        return Some("the scheme must be lower-case letters");
    }
    if authority.contains(['/', '?', '#']) {
        return Some("an origin has no path and no slash at its end");
    }
    if authority.contains('@') {
        return Some("an origin has no user name");
    }
    let (host, port) = split_port(authority);
    match port {
        Some(port) if !is_port(port) => return Some("the port must be a number from 1 to 65535"),
        Some("443") if scheme == "https" => return Some("browsers leave out `:443` here"),
        Some("80") if scheme == "http" => return Some("browsers leave out `:80` here"),
        _ => {}
    }
    match is_host(host) {
        true => None,
        false => Some("the host must be a lower-case name or an IP address"),
    }
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        // Colons within brackets belong to the address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

fn is_port(port: &str) -> bool {
    port.parse::<u16>()
        .is_ok_and(|number| number > 0 && number.to_string() == port)
}

fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[') {
        let Some(inner) = inner.strip_suffix(']') else {
            return false;
        };
        return inner
            .parse::<Ipv6Addr>()
            .is_ok_and(|address| address.to_string() == inner);
    }
    if host.parse::<std::net::Ipv4Addr>().is_ok() {
        return true;
    }
    host.parse::<HostName>()
        .is_ok_and(|name| name.as_str() == host)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn origins_are_accepted_as_browsers_write_them() {
        for good in [
            "https://app.example.com",
            "http://localhost:3000",
            "http://127.0.0.1:8080",
            "https://[::1]:8443",
            "http://[::1]",
            "chrome-extension://abcdef",
            "https://xn--bcher-kva.example",
        ] {
            assert_eq!(
                good.parse::<Origin>().map(|origin| origin.0),
                Ok(good.to_owned())
            );
        }
    }

    #[test]
    fn origins_that_no_browser_sends_are_refused() {
        for bad in [
            "",
            "*",
            "null",
            "app.example.com",
            "https://",
            "https://app.example.com/",
            "https://a/b",
            "https://a?b",
            "https://me@a",
            "HTTPS://a",
            "https://A.example",
            "https://a:443",
            "http://a:80",
            "https://a:0",
            "https://a:08",
            "https://a:",
            "https://a:x",
            "https://[::1",
            "https://[0::1]",
            "https://bücher.example",
            "https://*.example.com",
            "://a",
            "1s://a",
        ] {
            assert!(bad.parse::<Origin>().is_err(), "{bad}");
        }
        assert!("https://a:80".parse::<Origin>().is_ok());
    }

    #[test]
    fn an_origin_matches_itself_alone() {
        let origin: Origin = "https://app.example.com".parse().unwrap();
        assert!(origin.matches(b"https://app.example.com"));
        assert!(!origin.matches(b"https://app.example.com.evil.example"));
        assert!(!origin.matches(b"http://app.example.com"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([a-z]{1,5}://)?\\PC{0,40}") {
            let _ = text.parse::<Origin>();
        }
    }
}
