//! The steps of a dial and of a check.

use std::fmt;

use serde::{Serialize, Serializer};

/// A step, in the order in which they are taken. Errors, logs, metrics and the output of `check` name it alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Read the configuration.
    Config,
    /// Read the token file.
    Token,
    /// Read the client's certificate and key.
    Certificate,
    /// Resolve the proxy's name.
    ProxyDns,
    /// Connect to the proxy by TCP.
    ProxyTcp,
    /// TLS handshake with the proxy.
    ProxyTls,
    /// Request the connection to the server from the proxy.
    Proxy,
    /// Resolve the server's name.
    Dns,
    /// Connect to the server by TCP.
    Tcp,
    /// TLS handshake with the server.
    Tls,
    /// Request a session.
    Upgrade,
    /// The server takes the credential.
    Authentication,
    /// An echo through the session.
    Echo,
    /// Compare this clock with the server's.
    Clock,
    /// Connect to an upstream of a route.
    Upstream,
    /// Measure how long an idle connection lives.
    Idle,
}

impl Step {
    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::ProxyDns => "proxy_dns",
            Self::ProxyTcp => "proxy_tcp",
            Self::ProxyTls => "proxy_tls",
            Self::Proxy => "proxy",
            Self::Dns => "dns",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Upgrade => "upgrade",
            Self::Authentication => "authentication",
            Self::Echo => "echo",
            Self::Clock => "clock",
            Self::Upstream => "upstream",
            Self::Idle => "idle",
        }
    }

    /// Whether the peer of this step is the proxy.
    pub(crate) fn is_of_proxy(self) -> bool {
        matches!(
            self,
            Self::ProxyDns | Self::ProxyTcp | Self::ProxyTls | Self::Proxy
        )
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
