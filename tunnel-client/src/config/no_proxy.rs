//! Which servers are reached without a proxy.
//!
//! In: the entries of a list such as `NO_PROXY`. Out: whether a host and port matches one of them. Entries are names
//! (`example.com` and `.example.com` both match the domain and its subdomains, as with curl), addresses, networks, and `*`
//! for everything, each with an optional port. Names are not resolved: a network matches only a host that is an IP
//! address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use tunnel_ops::config_value::ValueError;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoProxy {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    All,
    Network(IpNet),
    /// Lower case, without dots around it.
    Domain(String),
}

impl NoProxy {
    /// Whether this entry matches a host. A name may be in any case and end with a dot; an IPv6 address has no brackets.
    pub fn matches(&self, host: &str, port: u16) -> bool {
        if self.port.is_some_and(|only| only != port) {
            return false;
        }
        match &self.hosts {
            Hosts::All => true,
            Hosts::Network(network) => host
                .parse::<IpAddr>()
                .is_ok_and(|address| network.contains(&address.to_canonical())),
            Hosts::Domain(domain) => host.parse::<IpAddr>().is_err() && is_within(host, domain),
        }
    }

    /// Parses a list of the environment, with commas or spaces. An entry that cannot be parsed is logged and left out, since
    /// the variable is meant for all programs.
    pub(super) fn list(text: &str, variable: &str) -> Vec<Self> {
        let entries = text.split([',', ' ', '\t', '\n']).map(str::trim);
        let understood = entries.filter(|entry| !entry.is_empty()).map(str::parse);
        understood
            .filter_map(|entry: Result<Self, ValueError>| {
                entry
                    .inspect_err(|error| {
                        tracing::warn!(variable, %error, "ignoring an entry");
                    })
                    .ok()
            })
            .collect()
    }
}

/// Whether a host is a loopback name or address.
pub(super) fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => is_within(host, "localhost"),
    }
}

fn is_within(host: &str, domain: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).as_bytes();
    let domain = domain.as_bytes();
    let Some(begin) = host.len().checked_sub(domain.len()) else {
        return false;
    };
    let (before, end) = host.split_at(begin);
    end.eq_ignore_ascii_case(domain) && (before.is_empty() || before.ends_with(b"."))
}

impl fmt::Display for NoProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::All => f.write_str("*"),
            Hosts::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            Hosts::Network(network) => network.fmt(f),
            Hosts::Domain(domain) => f.write_str(domain),
        }?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl FromStr for NoProxy {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let text = text.trim();
        // An IPv6 address or network first, since its colons do not begin a port.
        if let Some(network) = network(text) {
            let hosts = Hosts::Network(network);
            return Ok(Self { hosts, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port.map(str::parse::<u16>) {
            None => None,
            Some(Ok(port)) if port > 0 => Some(port),
            Some(_) => return Err(expected()),
        };
        let hosts = hosts(host).ok_or_else(expected)?;
        Ok(Self { hosts, port })
    }
}

fn hosts(text: &str) -> Option<Hosts> {
    if text == "*" {
        return Some(Hosts::All);
    }
    let unbracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    if let Some(network) = network(unbracketed.unwrap_or(text)) {
        return Some(Hosts::Network(network));
    }
    // Many write `*.example.com`.
    let name = text.strip_prefix('*').unwrap_or(text);
    let name = name.trim_matches('.');
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    // The beginning of an address, such as `10.`, is not a domain; a network is unambiguous.
    let is_address = name
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_domain = !is_address && name.bytes().all(is_name);
    is_domain.then(|| Hosts::Domain(name.to_ascii_lowercase()))
}

fn network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpNet>().ok();
    network
        .or_else(|| {
            text.parse::<IpAddr>()
                .ok()
                .map(|one| one.to_canonical().into())
        })
        .map(|network| network.trunc())
}

fn expected() -> ValueError {
    ValueError::new(
        "expected a name, a domain such as `.example.com`, an address, a network such as `10.0.0.0/8`, or `*`, \
         each with a port if only that is meant",
    )
}

tunnel_ops::text_value!(NoProxy);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(entry: &str, held: &[&str], others: &[&str]) {
        let entry: NoProxy = entry.parse().unwrap();
        let holds = |place: &&&str| {
            let (host, port) = place.rsplit_once(' ').unwrap_or((place, "443"));
            entry.matches(host, port.parse().unwrap())
        };
        let missed: Vec<_> = held.iter().filter(|place| !holds(place)).collect();
        let wrong: Vec<_> = others.iter().filter(holds).collect();
        assert!(
            missed.is_empty() && wrong.is_empty(),
            "{missed:?} {wrong:?}"
        );
    }

    #[test]
    fn a_domain_is_itself_and_all_below_it() {
        let held = [
            "example.com",
            "EXAMPLE.com.",
            "a.example.com",
            "a.B.example.com",
        ];
        let others = ["nonexample.com", "example.com.net", "com", "", ".com"];
        for entry in [
            "example.com",
            ".example.com",
            "*.example.com",
            "Example.COM.",
        ] {
            check(entry, &held, &others);
        }
        check("localhost", &["localhost"], &["127.0.0.1"]);
        check("7.example", &["7.example", "10.7.example"], &["10.0.0.7"]);
    }

    #[test]
    fn addresses_and_networks_hold_what_is_written_as_an_address() {
        check(
            "10.0.0.7",
            &["10.0.0.7", "::ffff:10.0.0.7"],
            &["10.0.0.8", "7.10.0.0.7"],
        );
        check("10.0.0.0/8", &["10.1.2.3"], &["11.0.0.1", "ten.example"]);
        check("10.1.2.3/8", &["10.9.9.9"], &["11.0.0.1"]);
        check("fd00::/8", &["fd12::1"], &["fe80::1", "10.0.0.1"]);
        check("::1", &["::1", "0:0::1"], &["::2"]);
        check("[::1]", &["::1"], &["::2"]);
    }

    #[test]
    fn a_port_narrows_it_and_a_star_is_everything() {
        check(
            "example.com:8443",
            &["a.example.com 8443"],
            &["example.com"],
        );
        check("[::1]:8443", &["::1 8443"], &["::1 443"]);
        check("10.0.0.1:443", &["10.0.0.1"], &["10.0.0.1 80"]);
        check("*", &["example.com", "10.0.0.1", "::1 1"], &[]);
        check("*:8443", &["example.com 8443"], &["example.com"]);
    }

    #[test]
    fn what_is_none_of_these_is_refused_and_in_a_list_passed_over() {
        for bad in [
            "",
            ".",
            "http://example.com",
            "a b",
            "10.0.0.0/33",
            "10.",
            ".7",
            "10.0.0",
            "a:b",
            "a:0",
            "[::1",
        ] {
            assert!(bad.parse::<NoProxy>().is_err(), "{bad}");
        }
        let list = NoProxy::list(
            " a.example,\thttp://x , .b.example  10.0.0.0/8,,",
            "NO_PROXY",
        );
        assert_eq!(list.len(), 3, "{list:?}");
    }

    #[test]
    fn this_machine_has_many_names() {
        for host in [
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "127.0.0.2",
            "::1",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        assert!(!is_loopback("localhost.example.com") && !is_loopback("10.0.0.1"));
    }

    proptest! {
        #[test]
        fn a_domain_holds_exactly_what_ends_with_it_at_a_dot(
            host in "[ab.]{1,8}", domain in "[ab]([ab.]{0,4}[ab])?"
        ) {
            let entry: NoProxy = domain.parse().unwrap();
            let host_name = host.strip_suffix('.').unwrap_or(&host);
            let slow = host_name == domain || host_name.ends_with(&format!(".{domain}"));
            prop_assert_eq!(entry.matches(&host, 443), slow);
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}", host in "\\PC{0,40}") {
            if let Ok(entry) = text.parse::<NoProxy>() {
                let _ = entry.matches(&host, 443);
            }
        }
    }
}
