//! What a client may reach: the upstream that its own configuration names, and nothing else.
//!
//! No part of a request becomes a part of a destination, but for segments that a template of the
//! configuration asks for. Names may be made to point elsewhere by whoever serves them, so addresses
//! at which only the machine itself, its neighbours or a cloud's metadata service answer are reached
//! only by who wrote the very address into the configuration, or `localhost` for the machine itself.
//! Each address of a name is looked at after each lookup.

mod forbidden;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use http::uri::Scheme;

use self::forbidden::Kind;
use crate::url::{UpstreamScheme, UpstreamUrl};

/// Most addresses of one name that are tried: the time for the step is shared among them.
const ADDRESSES: usize = 8;

/// Where an upstream is, and how it is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    url: UpstreamUrl,
    /// The host, if it is an address.
    address: Option<IpAddr>,
    /// The name as it is looked up, where that is not the host as it stands.
    whole_name: Option<Box<str>>,
    meaning: Meaning,
}

/// What the host stands for, by who wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// An address that the configuration has: meant, whatever it is.
    Address,
    /// `localhost` in the configuration: the machine itself is meant.
    Localhost,
    /// A name, or anything that a request had a part in.
    Other,
    /// Whatever a test needs: the machine itself is all that it has.
    #[cfg(test)]
    Anywhere,
}

/// Why a name is not followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{host}` leads to {address} ({kind}), where only an address written into the configuration \
     may lead: write the address itself{localhost}"
)]
pub(super) struct Denied {
    host: String,
    address: IpAddr,
    kind: Kind,
    localhost: &'static str,
}

impl Destination {
    /// What the configuration names.
    pub(crate) fn new(url: UpstreamUrl) -> Self {
        let address = url.host().parse().ok();
        let meaning = match address {
            Some(_) => Meaning::Address,
            None if is_localhost(url.host()) => Meaning::Localhost,
            None => Meaning::Other,
        };
        Self {
            url,
            address,
            whole_name: None,
            meaning,
        }
    }

    /// What a template of the configuration became by a request: nothing in it was written out.
    pub(super) fn of_template(url: UpstreamUrl) -> Self {
        Self {
            address: url.host().parse().ok(),
            whole_name: whole_name(url.host()),
            url,
            meaning: Meaning::Other,
        }
    }

    /// A destination whose name may lead anywhere.
    #[cfg(test)]
    pub(super) fn anywhere(url: UpstreamUrl) -> Self {
        Self {
            meaning: Meaning::Anywhere,
            ..Self::new(url)
        }
    }

    /// Where it is.
    pub(super) fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// The name or address that is dialled.
    pub(super) fn host(&self) -> &str {
        self.url.host()
    }

    /// The host's one address, if it is no name.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The name that has to be looked up, if there is one; with a last dot if it is to be taken as it
    /// is.
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

    /// The host that a request names when it came with none.
    pub(super) fn authority(&self) -> &str {
        self.url.authority()
    }

    /// Those of the host's addresses that may be dialled, IPv4 first, each kind from the `turn`th on
    /// so that dials are spread over all.
    ///
    /// # Errors
    /// When none of them may be.
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

    /// Why an address may not be dialled; `None` when it may.
    fn judge(&self, address: IpAddr) -> Option<Denied> {
        let kind = forbidden::kind(address)?;
        match self.meaning {
            Meaning::Address => None,
            #[cfg(test)]
            Meaning::Anywhere => None,
            Meaning::Localhost if kind == Kind::Loopback => None,
            Meaning::Localhost | Meaning::Other => Some(Denied {
                host: self.host().to_owned(),
                address,
                kind,
                localhost: match kind {
                    Kind::Loopback => ", or localhost",
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

/// The name for which nothing else may stand in, if this is a whole one: with two dots or more. Which
/// name it is depends on a request, and if there is no such name, then a wildcard in one of the
/// system's search domains must not answer in its place.
fn whole_name(host: &str) -> Option<Box<str>> {
    let is_whole = !host.ends_with('.') && host.matches('.').count() >= 2;
    is_whole.then(|| format!("{host}.").into())
}

/// Whether this is the one name that means the machine itself.
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
