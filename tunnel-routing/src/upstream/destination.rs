//! Where an upstream is, and which of its addresses may be dialled.
//!
//! No part of a request becomes part of a destination, except for segments that a template of the configuration asks
//! for. DNS may make a name point anywhere, so addresses of the machine itself, its link and cloud metadata services
//! are dialled only if the configuration has the address itself, or `localhost` for the machine. The addresses of a
//! name are checked after each look-up.

mod forbidden;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use http::uri::Scheme;

use self::forbidden::AddressKind;
use crate::url::{UpstreamScheme, UpstreamUrl};

/// Most addresses of a name that are tried: the step's time is shared among them.
const ADDRESSES: usize = 8;

/// The destination of an upstream.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    url: UpstreamUrl,
    /// The host, if it is an address.
    address: Option<IpAddr>,
    /// The name for the look-up, where it differs from the host.
    whole_name: Option<Box<str>>,
    origin: HostOrigin,
}

/// Where the host comes from, which decides what it may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostOrigin {
    /// An address in the configuration, which may be any.
    Address,
    /// `localhost` in the configuration: the machine itself is meant.
    Localhost,
    /// Another name, or a host made from a request.
    Other,
    /// Anything, for tests, which have only the machine itself.
    #[cfg(test)]
    Anywhere,
}

/// A name leads only to addresses that may not be dialled.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{host}` leads to {address} ({kind}), where only an address written into the configuration \
     may lead: write the address itself{localhost}"
)]
pub(super) struct Denied {
    host: String,
    address: IpAddr,
    kind: AddressKind,
    localhost: &'static str,
}

impl Destination {
    /// A destination from the configuration.
    pub(crate) fn new(url: UpstreamUrl) -> Self {
        let address = url.host().parse().ok();
        let origin = match address {
            Some(_) => HostOrigin::Address,
            None if is_localhost(url.host()) => HostOrigin::Localhost,
            None => HostOrigin::Other,
        };
        Self {
            url,
            address,
            whole_name: None,
            origin,
        }
    }

    /// A destination that a request has filled into a template.
    pub(super) fn of_template(url: UpstreamUrl) -> Self {
        Self {
            address: url.host().parse().ok(),
            whole_name: whole_name(url.host()),
            url,
            origin: HostOrigin::Other,
        }
    }

    /// A destination that may lead anywhere.
    #[cfg(test)]
    pub(super) fn anywhere(url: UpstreamUrl) -> Self {
        Self {
            origin: HostOrigin::Anywhere,
            ..Self::new(url)
        }
    }

    /// The URL.
    pub(super) fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// The name or address that is dialled.
    pub(super) fn host(&self) -> &str {
        self.url.host()
    }

    /// The address, if the host is one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The name to look up, if there is one; with a last dot if search domains are not to be tried.
    pub(super) fn name(&self) -> Option<&str> {
        let is_named = self.address.is_none() && self.socket_path().is_none();
        is_named.then(|| self.whole_name.as_deref().unwrap_or_else(|| self.host()))
    }

    /// The path of the Unix socket, if it is one.
    pub(super) fn socket_path(&self) -> Option<&Path> {
        self.url.socket_path()
    }

    pub(super) fn scheme(&self) -> UpstreamScheme {
        self.url.scheme()
    }

    /// The scheme that a request over HTTP/2 names.
    pub(super) fn uri_scheme(&self) -> Scheme {
        match self.url.scheme() {
            UpstreamScheme::Http | UpstreamScheme::H2c => Scheme::HTTP,
            UpstreamScheme::Https => Scheme::HTTPS,
        }
    }

    /// The authority for a request without a host.
    pub(super) fn authority(&self) -> &str {
        self.url.authority()
    }

    /// The addresses that may be dialled, IPv4 first, each family rotated by `turn` so that dials spread over all.
    ///
    /// # Errors
    /// When there are addresses and none may be dialled.
    pub(super) fn allowed(
        &self,
        addresses: &[IpAddr],
        turn: usize,
    ) -> Result<Vec<SocketAddr>, Denied> {
        let allowed = |address: &&IpAddr| self.judge(**address).is_none();
        let mut found = Vec::with_capacity(addresses.len().min(ADDRESSES));
        for is_wanted in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
            let of_kind = addresses.iter().filter(allowed);
            let mut of_kind: Vec<_> = of_kind.filter(|address| is_wanted(address)).collect();
            if !of_kind.is_empty() {
                let start = turn % of_kind.len();
                of_kind.rotate_left(start);
            }
            let port = self.url.port();
            found.extend(of_kind.into_iter().map(|ip| SocketAddr::new(*ip, port)));
        }
        found.truncate(ADDRESSES);
        match addresses.iter().find_map(|address| self.judge(*address)) {
            Some(denied) if found.is_empty() => Err(denied),
            _ => Ok(found),
        }
    }

    /// The reason not to dial an address; `None` if it may be dialled.
    fn judge(&self, address: IpAddr) -> Option<Denied> {
        let kind = forbidden::kind(address)?;
        match self.origin {
            HostOrigin::Address => None,
            #[cfg(test)]
            HostOrigin::Anywhere => None,
            HostOrigin::Localhost if kind == AddressKind::Loopback => None,
            HostOrigin::Localhost | HostOrigin::Other => Some(Denied {
                host: self.host().to_owned(),
                address,
                kind,
                localhost: match kind {
                    AddressKind::Loopback => ", or localhost",
                    _ => "",
                },
            }),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

/// The name with a last dot, if it has two dots or more. The name depends on a request: if it does not exist, a
/// wildcard in one of the system's search domains must not answer instead.
fn whole_name(host: &str) -> Option<Box<str>> {
    let is_whole = !host.ends_with('.') && host.matches('.').count() >= 2;
    is_whole.then(|| format!("{host}.").into())
}

/// Whether this is the name of the machine itself.
pub(super) fn is_localhost(name: &str) -> bool {
    name.strip_suffix('.').unwrap_or(name) == "localhost"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn allows(url: &str, address: &str) -> bool {
        let destination = Destination::new(url.parse().unwrap());
        destination.allowed(&addresses(&[address]), 0).is_ok()
    }

    #[test]
    fn a_name_leads_to_no_address_at_which_only_this_machine_or_its_cloud_answers() {
        for address in [
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "fe80::1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "100.100.100.200",
            "fd00:ec2::254",
            "0.0.0.0",
            "224.0.0.1",
        ] {
            assert!(!allows("http://app-proxy", address), "{address}");
        }
        for address in ["10.0.0.1", "192.0.2.1", "100.64.0.1", "fd00::1"] {
            assert!(allows("http://app-proxy", address), "{address}");
        }
    }

    #[test]
    fn who_writes_the_address_means_it() {
        for host in ["169.254.1.2", "127.0.0.1", "0.0.0.0"] {
            assert!(allows(&format!("http://{host}"), host));
        }
        assert!(allows("http://[::1]", "::1"));
    }

    #[test]
    fn localhost_is_this_machine_and_nothing_else_that_is_forbidden() {
        for host in ["http://localhost", "http://LOCALHOST.:1"] {
            assert!(allows(host, "127.0.0.1") && allows(host, "::1"));
            assert!(!allows(host, "169.254.169.254"));
        }
        assert!(!allows("http://localhost.example", "127.0.0.1"));
        assert!(!allows("http://app.localhost", "127.0.0.1"));
    }

    #[test]
    fn what_a_template_became_was_written_by_nobody() {
        for (url, address) in [
            ("http://127.0.0.1", "127.0.0.1"),
            ("http://localhost", "127.0.0.1"),
            ("http://169.254.169.254", "169.254.169.254"),
        ] {
            let destination = Destination::of_template(url.parse().unwrap());
            assert!(destination.allowed(&addresses(&[address]), 0).is_err());
        }
        let destination = Destination::of_template("http://10.0.0.1".parse().unwrap());
        assert!(destination.allowed(&addresses(&["10.0.0.1"]), 0).is_ok());
    }

    #[test]
    fn a_forbidden_address_is_left_out_and_dials_are_spread_over_the_others() {
        let destination = Destination::new("http://app:80".parse().unwrap());
        let found = addresses(&["fd00::1", "10.0.0.1", "127.0.0.1", "10.0.0.2"]);
        let dialled = |turn| {
            let allowed = destination.allowed(&found, turn).unwrap();
            allowed.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(dialled(0), ["10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"]);
        assert_eq!(dialled(1), ["10.0.0.2:80", "10.0.0.1:80", "[fd00::1]:80"]);
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        let denied = |url: &str, address| {
            let destination = Destination::new(url.parse().unwrap());
            destination.allowed(&addresses(&[address]), 0).unwrap_err()
        };
        let text = denied("http://dev-box", "127.0.0.1").to_string();
        assert!(
            text.contains("`dev-box` leads to 127.0.0.1 (loopback)"),
            "{text}"
        );
        assert!(
            text.ends_with("write the address itself, or localhost"),
            "{text}"
        );
        let text = denied("http://meta", "169.254.169.254").to_string();
        assert!(text.ends_with("write the address itself"), "{text}");
    }

    #[test]
    fn a_name_is_looked_up_and_nothing_else_is() {
        let name = |url: &str| {
            let destination = Destination::new(url.parse().unwrap());
            destination.name().map(str::to_owned)
        };
        assert_eq!(name("http://app.svc."), Some("app.svc.".to_owned()));
        assert_eq!(name("http://[::1]"), None);
        assert_eq!(name("unix:/run/app.sock"), None);
    }

    #[test]
    fn a_whole_name_that_a_template_became_is_looked_up_as_it_is() {
        for (host, looked_up) in [
            ("app.ns.svc.cluster.local", "app.ns.svc.cluster.local."),
            ("app.ns.svc", "app.ns.svc."),
            ("app.ns.svc.", "app.ns.svc."),
            ("app.ns", "app.ns"),
            ("app", "app"),
        ] {
            let url = format!("http://{host}:1").parse().unwrap();
            let destination = Destination::of_template(url);
            assert_eq!(destination.name(), Some(looked_up));
            let authority = format!("{}:1", host.trim_end_matches('.'));
            assert_eq!(destination.authority(), authority);
        }
    }
}
