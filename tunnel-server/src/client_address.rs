//! The address of a tunnel client, as far as it is known.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};
use tunnel_http::forwarded::Node;

/// The address of a tunnel client: that of its connection, or the one that trusted proxies name, which may have no port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress {
    /// The IP address.
    pub ip: IpAddr,
    /// The port, if it is known.
    pub port: Option<u16>,
}

impl From<SocketAddr> for ClientAddress {
    fn from(address: SocketAddr) -> Self {
        Self {
            ip: address.ip().to_canonical(),
            port: Some(address.port()),
        }
    }
}

impl From<Node> for ClientAddress {
    fn from(Node { ip, port }: Node) -> Self {
        Self { ip, port }
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

impl Serialize for ClientAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
