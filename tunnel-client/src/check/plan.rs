//! Which steps lead to the server and back, so that those that were not reached can be told.

use super::step::StepName;
use crate::config::ProxyScheme;

/// The steps by such a proxy, or straight, in their order.
pub(super) fn steps(proxy: Option<ProxyScheme>) -> Vec<StepName> {
    let before: &[StepName] = match proxy {
        None => &[StepName::Dns, StepName::Tcp],
        Some(ProxyScheme::Http | ProxyScheme::Socks5h) => {
            &[StepName::ProxyDns, StepName::ProxyTcp, StepName::Proxy]
        }
        Some(ProxyScheme::Https) => &[
            StepName::ProxyDns,
            StepName::ProxyTcp,
            StepName::ProxyTls,
            StepName::Proxy,
        ],
        // It is told an address.
        Some(ProxyScheme::Socks5) => &[
            StepName::Dns,
            StepName::ProxyDns,
            StepName::ProxyTcp,
            StepName::Proxy,
        ],
    };
    let after = [
        StepName::Tls,
        StepName::Upgrade,
        StepName::Authentication,
        StepName::Echo,
    ];
    before.iter().copied().chain(after).collect()
}
