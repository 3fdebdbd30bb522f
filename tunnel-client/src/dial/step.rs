//! The steps of a dial: their names, and how one of them fails.

use std::fmt;

use tunnel_ops::connect::step;

use super::proxy_error::ProxyError;
use super::upgrade::NotATunnel;

/// One step of a dial. Those that concern a proxy are left out where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The addresses of the proxy's name are looked up.
    ProxyResolve,
    /// A TCP connection is made to the proxy.
    ProxyConnect,
    /// TLS is agreed on with the proxy, its certificate checked.
    ProxyTls,
    /// The proxy is requested to connect to the server.
    ProxyAsk,
    /// The name's addresses are looked up.
    Resolve,
    /// A TCP connection is made.
    Connect,
    /// TLS is agreed on, the certificate checked.
    Tls,
    /// A session is requested.
    Upgrade,
}

/// A step that failed.
pub(crate) type StepError = step::StepError<Step>;

/// What the proxy said, where it is the proxy that ended the dial.
pub(crate) fn proxy_error(error: &StepError) -> Option<&ProxyError> {
    error.inner()
}

/// Whether something else than a tunnel was opened.
pub(crate) fn is_not_a_tunnel(error: &StepError) -> bool {
    error.inner::<NotATunnel>().is_some()
}

impl Step {
    /// Whether it is one with the proxy, and not with the server.
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
