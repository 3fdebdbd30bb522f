//! The source addresses that a runtime may be reached from.
//!
//! Two lists say so, that of the runtime's entry and that of its own tunnel client, and both have to
//! let an address in. The address is the trusted one of the connection, never a field of a request.

use std::net::IpAddr;

use ipnet::IpNet;
use tunnel_ops::config_value::Network;
use tunnel_ops::settings::SettingValue;
use tunnel_proto::problem::{Hop, Problem, Reason};

/// Text that is no list of networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected networks such as `10.0.0.0/8`, or addresses, separated by commas")]
pub struct NoNetworks;

/// Reads what a tunnel client says: networks or addresses, separated by commas.
///
/// # Errors
/// When one of them is none, or there is none at all: an empty list means neither "nobody" nor "anybody".
pub fn parse(list: &str) -> Result<Vec<IpNet>, NoNetworks> {
    let networks = list.split(',').map(|text| text.trim().parse::<Network>());
    let networks: Result<Vec<_>, _> = networks.collect();
    networks.map(SettingValue::plain).map_err(|_| NoNetworks)
}

/// Whether a list lets an address in.
///
/// # Errors
/// With the refusal, which does not reveal the list.
pub fn admit(networks: &[IpNet], address: IpAddr) -> Result<(), Problem> {
    let address = address.to_canonical();
    if networks.iter().any(|network| network.contains(&address)) {
        return Ok(());
    }
    let detail = format!("this runtime may not be reached from {address}");
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
            assert_eq!(parse(bad), Err(NoNetworks), "{bad}");
        }
    }

    #[test]
    fn an_address_is_let_in_by_its_canonical_form() {
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
