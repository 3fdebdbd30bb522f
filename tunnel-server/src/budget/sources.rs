//! The source networks that are allowed to reach a runtime.
//!
//! There are two lists, that of the runtime's entry and that of its tunnel client; an address must be in both. The address
//! is the trusted one of the connection, never one of a request's fields.

use std::net::IpAddr;

use ipnet::IpNet;
use tunnel_ops::config_value::Network;
use tunnel_ops::settings::SettingValue;
use tunnel_proto::problem::{Hop, Problem, Reason};

/// The text is not a list of networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected networks such as `10.0.0.0/8`, or addresses, separated by commas")]
pub struct InvalidNetworks;

/// Parses a tunnel client's list: networks or addresses, separated by commas.
///
/// # Errors
/// When an item is malformed, or the list is empty, which could be read as "no address" or as "any address".
pub fn parse(list: &str) -> Result<Vec<IpNet>, InvalidNetworks> {
    let networks = list.split(',').map(|text| text.trim().parse::<Network>());
    let networks: Result<Vec<_>, _> = networks.collect();
    networks
        .map(SettingValue::plain)
        .map_err(|_| InvalidNetworks)
}

/// Checks an address against a list.
///
/// # Errors
/// When it is not in the list, which the refusal does not disclose.
pub fn admit(networks: &[IpNet], address: IpAddr) -> Result<(), Problem> {
    let address = address.to_canonical();
    if networks.iter().any(|network| network.contains(&address)) {
        return Ok(());
    }
    // Not the address, which may be that of a load balancer inside; the log has it.
    let detail = "this runtime may not be reached from your address";
    Err(Problem::new(Hop::Server, Reason::AddressDenied, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_strictly() {
        let networks = parse("10.0.0.0/8, 2001:db8::/32,192.0.2.7").unwrap();
        assert_eq!(networks.len(), 3);
        for bad in [
            "",
            " ",
            ",",
            "10.0.0.0/8,",
            "10.0.0.0/33",
            "any",
            "10.0.0.0/8 ::1",
        ] {
            assert_eq!(parse(bad), Err(InvalidNetworks), "{bad}");
        }
    }

    #[test]
    fn addresses_are_compared_in_their_canonical_form() {
        let networks = parse("10.0.0.0/8,2001:db8::/32").unwrap();
        let admits = |text: &str| admit(&networks, text.parse().unwrap());
        for good in ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8:1::1"] {
            assert_eq!(admits(good), Ok(()), "{good}");
        }
        for bad in ["11.0.0.1", "::ffff:11.0.0.1", "::1", "2001:db9::1"] {
            assert_eq!(admits(bad).unwrap_err().reason(), Reason::AddressDenied);
        }
        assert!(admit(&[], "10.0.0.1".parse().unwrap()).is_err());
    }
}
