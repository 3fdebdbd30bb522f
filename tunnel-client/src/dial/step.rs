//! The steps of a dial: their names and their error.

use std::fmt;

use tunnel_ops::connect::step;

use super::proxy_error::ProxyError;
use super::upgrade::NotATunnel;

/// One step of a dial. Those with a proxy are left out without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Resolve the proxy's name.
    ProxyResolve,
    /// Connect to the proxy by TCP.
    ProxyConnect,
    /// TLS handshake with the proxy.
    ProxyTls,
    /// Request the proxy to connect to the server.
    ProxyAsk,
    /// Resolve the server's name.
    Resolve,
    /// Connect to the server by TCP.
    Connect,
    /// TLS handshake with the server.
    Tls,
    /// Request a session.
    Upgrade,
}

/// A step that failed.
pub(crate) type StepError = step::StepError<Step>;

/// The proxy's error, if the step failed by one.
pub(crate) fn proxy_error(error: &StepError) -> Option<&ProxyError> {
    error.inner()
}

/// Whether the server switched to another protocol than the tunnel's.
pub(crate) fn is_not_a_tunnel(error: &StepError) -> bool {
    error.inner::<NotATunnel>().is_some()
}

impl Step {
    /// Whether the peer of this step is the proxy.
    pub(crate) fn is_of_proxy(self) -> bool {
        matches!(
            self,
            Self::ProxyResolve | Self::ProxyConnect | Self::ProxyTls | Self::ProxyAsk
        )
    }

    /// The name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ProxyResolve => "proxy_resolve",
            Self::ProxyConnect => "proxy_connect",
            Self::ProxyTls => "proxy_tls",
            Self::ProxyAsk => "proxy_ask",
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Upgrade => "upgrade",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProxyResolve => "looking up the proxy's name",
            Self::ProxyConnect => "connecting to the proxy",
            Self::ProxyTls => "TLS to the proxy",
            Self::ProxyAsk => "asking the proxy",
            Self::Resolve => "looking up the name",
            Self::Connect => "connecting",
            Self::Tls => "TLS",
            Self::Upgrade => "asking for a session",
        })
    }
}
