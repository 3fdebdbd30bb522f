//! Host patterns of routes: one name, or all names below one.
//!
//! They are compared with the `Host` field of a request regardless of case, without port and last dot.

use std::fmt;
use std::str::FromStr;

use tunnel_ops::authority::{HOST_OCTETS, is_host_name};
use tunnel_ops::config_value::ValueError;

/// Which hosts a route takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This name, in lower case.
    Exact(Box<str>),
    /// All names below this one, which has no `*.` here.
    Below(Box<str>),
}

impl HostPattern {
    /// Whether a host in the form of [`bare_host`] matches. One that is longer than any DNS name matches nothing.
    pub fn matches(&self, host: &[u8]) -> bool {
        if host.len() > HOST_OCTETS {
            return false;
        }
        match self {
            Self::Exact(name) => name.as_bytes().eq_ignore_ascii_case(host),
            Self::Below(name) => {
                let Some(at) = host.len().checked_sub(name.len() + 1) else {
                    return false;
                };
                let (label, rest) = host.split_at(at);
                !label.is_empty()
                    && rest.first() == Some(&b'.')
                    && (rest.get(1..).unwrap_or_default()).eq_ignore_ascii_case(name.as_bytes())
            }
        }
    }

    /// How specific it is: a name more than all names below one, a longer one more than a shorter.
    pub fn rank(&self) -> (bool, usize) {
        match self {
            // Two exact names never match one host.
            Self::Exact(_) => (true, 0),
            Self::Below(name) => (false, name.len()),
        }
    }
}

/// The host of a `Host` field, without port and last dot.
pub fn bare_host(field: &[u8]) -> &[u8] {
    let end = match field {
        [b'[', ..] => field.iter().position(|byte| *byte == b']').map(|at| at + 1),
        _ => field.iter().position(|byte| *byte == b':'),
    };
    let host = field.get(..end.unwrap_or(field.len())).unwrap_or_default();
    host.strip_suffix(b".").unwrap_or(host)
}

impl FromStr for HostPattern {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (name, make): (_, fn(Box<str>) -> Self) = match text.strip_prefix("*.") {
            Some(name) => (name, Self::Below),
            None => (text, Self::Exact),
        };
        if !is_host_name(name) {
            return Err(ValueError::new(
                "expected a host name such as `app.example.com` or `*.example.com`, without port",
            ));
        }
        Ok(make(name.to_ascii_lowercase().into()))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, host: &str) -> bool {
        let pattern: HostPattern = pattern.parse().unwrap();
        pattern.matches(bare_host(host.as_bytes()))
    }

    #[test]
    fn a_host_longer_than_any_name_matches_nothing() {
        let of_length = |octets: usize| "a".repeat(octets - ".test".len()) + ".test";
        assert!(matches("*.test", &of_length(HOST_OCTETS)));
        assert!(!matches("*.test", &of_length(HOST_OCTETS + 1)));
    }

    #[test]
    fn a_host_is_compared_without_case_port_and_last_dot() {
        for host in [
            "app.example.com",
            "App.Example.COM:8443",
            "app.example.com.",
            "app.example.com.:1",
        ] {
            assert!(matches("APP.example.com", host), "{host}");
        }
        for host in [
            "example.com",
            "xapp.example.com",
            "app.example.com.evil",
            "",
            "app.example.com..",
        ] {
            assert!(!matches("app.example.com", host), "{host}");
        }
    }

    #[test]
    fn a_wildcard_is_for_all_below_and_not_for_the_name_itself() {
        assert!(matches("*.example.com", "a.example.com"));
        assert!(matches("*.example.com", "a.b.Example.com:1"));
        for host in [
            "example.com",
            ".example.com",
            "aexample.com",
            "example.com.a",
            "",
        ] {
            assert!(!matches("*.example.com", host), "{host}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for bad in [
            "", "*", "*.", "a.*.b", "**.a", "a:80", "a..b", "a b", "http://a", "a.",
        ] {
            assert!(bad.parse::<HostPattern>().is_err(), "{bad}");
        }
        assert_eq!("*.A.b".parse::<HostPattern>().unwrap().to_string(), "*.a.b");
    }

    #[test]
    fn addresses_lose_their_port_too() {
        assert_eq!(bare_host(b"[::1]:80"), b"[::1]");
        assert_eq!(bare_host(b"[::1"), b"[::1");
        assert_eq!(bare_host(b"10.0.0.1:80"), b"10.0.0.1");
        assert_eq!(bare_host(b":80"), b"");
    }
}
