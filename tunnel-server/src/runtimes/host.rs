//! Names of hosts, checked when they are parsed.
//!
//! In: the text of a file, a flag or a request. Out: valid values, cheap to clone and to compare.

use std::{fmt, str::FromStr, sync::Arc};

use tunnel_directory::RuntimeLabel;

/// Longest DNS label (RFC 1035, 2.3.4).
const LABEL_OCTETS: usize = 63;

/// Longest DNS name as text, without the trailing dot.
const HOST_OCTETS: usize = 253;

/// The text is no name of a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{host}` is no host: {reason}")]
pub struct HostError {
    host: String,
    reason: &'static str,
}

/// A host as requests name it: lower-case letters, digits and hyphens in labels, without port or last dot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Arc<str>);

impl HostName {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The default domain: browsers and curl resolve all names below `localhost` to the local machine.
    pub fn default_domain() -> Self {
        Self("tunnels.localhost".into())
    }

    /// The host `<label>.<domain>`, if it is not too long.
    pub fn of_runtime(label: &RuntimeLabel, domain: &Self) -> Result<Self, HostError> {
        format!("{label}.{domain}").parse()
    }

    /// The labels before `.domain`, when this host lies below `domain`.
    pub fn below<'a>(&'a self, domain: &Self) -> Option<&'a str> {
        self.0.strip_suffix(domain.as_str())?.strip_suffix('.')
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for HostName {
    type Err = HostError;

    /// Converts upper-case letters to lower-case ones, since hosts are compared without case; changes nothing else.
    fn from_str(text: &str) -> Result<Self, HostError> {
        match fault_of_host(text) {
            Some(reason) => Err(HostError {
                host: text.to_owned(),
                reason,
            }),
            None => Ok(Self(text.to_ascii_lowercase().into())),
        }
    }
}

tunnel_ops::text_value!(HostName);

fn fault_of_host(text: &str) -> Option<&'static str> {
    let bytes = text.as_bytes();
    if text.is_empty() {
        return Some("it is empty");
    }
    if !text.is_ascii() {
        return Some("write it in its ASCII form, with `xn--`");
    }
    if bytes.contains(&b':') {
        return Some("leave out the port and the scheme, and give no IP address");
    }
    if text.ends_with('.') {
        return Some("leave out the last dot");
    }
    if bytes.contains(&b'*') {
        return Some("wildcards are not possible here");
    }
    if text.len() > HOST_OCTETS {
        return Some("it is longer than 253 characters");
    }
    if !text.split('.').all(is_host_label) {
        return Some("use letters, digits and inner hyphens, 1 to 63 in each part");
    }
    // A last label of digits only distinguishes an IPv4 address from a name (RFC 3696, section 2).
    if text
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Some("an IP address is no host");
    }
    None
}

fn is_host_label(label: &str) -> bool {
    (1..=LABEL_OCTETS).contains(&label.len())
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_bare_host_names_are_accepted() {
        for good in [
            "argo.example.com",
            "localhost",
            "xn--bcher-kva.example",
            "1.example",
            "a-b.c",
        ] {
            assert_eq!(good.parse::<HostName>().unwrap().as_str(), good);
        }
        assert_eq!(
            "Argo.Example.COM".parse::<HostName>().unwrap().as_str(),
            "argo.example.com"
        );
        let long = format!("{}.example", "a.".repeat(130));
        for bad in [
            "",
            ".",
            "a..b",
            "a.",
            "-a.b",
            "a-.b",
            "a b",
            "a:80",
            "https://a.b",
            "[::1]",
            "127.0.0.1",
            "1",
            "*.a.b",
            "bücher.example",
            "a_b.c",
            "a/b",
            &long,
            &"a".repeat(64),
        ] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_below_a_domain_is_distinguished_from_one_with_an_equal_suffix() {
        let domain: HostName = "tunnels.localhost".parse().unwrap();
        let below = |host: &str| {
            host.parse::<HostName>()
                .unwrap()
                .below(&domain)
                .map(str::to_owned)
        };
        assert_eq!(below("a.tunnels.localhost").as_deref(), Some("a"));
        assert_eq!(below("a.b.tunnels.localhost").as_deref(), Some("a.b"));
        assert_eq!(below("tunnels.localhost"), None);
        assert_eq!(below("mytunnels.localhost"), None);
    }

    proptest! {
        #[test]
        fn a_parsed_host_parses_to_itself(text in "[A-Za-z0-9.-]{0,40}") {
            if let Ok(host) = text.parse::<HostName>() {
                let again: HostName = host.as_str().parse().unwrap();
                prop_assert_eq!(again, host);
            }
        }

        #[test]
        fn no_text_makes_a_host_panic(text in "\\PC{0,80}") {
            let _ = text.parse::<HostName>();
        }
    }
}
