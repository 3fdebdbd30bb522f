//! What a client may reach: the upstream that its own configuration names, and nothing else.
//!
//! No part of a request ever becomes a part of a destination. A name may still be made to point
//! elsewhere by whoever serves it, so link-local addresses, among them the metadata services of
//! clouds, are reached only by those who wrote the address itself into the configuration.

use std::net::{IpAddr, SocketAddr};

use http::uri::Scheme;

use crate::config::{UpstreamScheme, UpstreamUrl};

/// Where an upstream is, and how it is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    url: UpstreamUrl,
    is_address: bool,
}

impl Destination {
    pub(crate) fn new(url: UpstreamUrl) -> Self {
        let is_address = url.host().parse::<IpAddr>().is_ok();
        Self { url, is_address }
    }

    /// As it was configured.
    pub(super) fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// The name or address that is dialled.
    pub(super) fn host(&self) -> &str {
        self.url.host()
    }

    pub(super) fn port(&self) -> u16 {
        self.url.port()
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

    /// Whether one of the host's addresses may be dialled.
    pub(super) fn allows(&self, address: &SocketAddr) -> bool {
        self.is_address || !is_link_local(address.ip())
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.url.fmt(f)
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(url: &str, address: &str) -> bool {
        Destination::new(url.parse().unwrap())
            .allows(&SocketAddr::new(address.parse().unwrap(), 80))
    }

    #[test]
    fn a_name_never_leads_to_a_link_local_address() {
        for address in ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254"] {
            assert!(!allows("http://app-proxy", address), "{address}");
        }
        for address in ["127.0.0.1", "10.0.0.1", "192.0.2.1", "::1", "fd00::1"] {
            assert!(allows("http://app-proxy", address), "{address}");
        }
    }

    #[test]
    fn who_writes_the_address_means_it() {
        assert!(allows("http://169.254.1.2", "169.254.1.2"));
    }
}
