//! The address of a name server, with an optional port.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use tunnel_ops::config_value::ValueError;

/// The default port of name servers.
const PORT: u16 = 53;

/// A name server: `10.96.0.10`, `10.96.0.10:5353`, `[fd00::a]:53`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DnsServer(SocketAddr);

impl FromStr for DnsServer {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let alone = || {
            text.parse::<IpAddr>()
                .map(|address| SocketAddr::new(address, PORT))
        };
        let server = text.parse().or_else(|_| alone()).ok();
        // Port 0 is not valid.
        let server = server.filter(|server: &SocketAddr| server.port() != 0);
        server.map(Self).ok_or_else(|| {
            ValueError::new(
                "expected a name server's IP address, such as `10.96.0.10` or `10.96.0.10:53`",
            )
        })
    }
}

tunnel_ops::text_value!(
    DnsServer as SocketAddr,
    |server| server.0,
    SocketAddr::to_string
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_53_unless_it_is_written() {
        for (text, address) in [
            ("10.96.0.10", "10.96.0.10:53"),
            ("10.96.0.10:5353", "10.96.0.10:5353"),
            ("fd00::a", "[fd00::a]:53"),
            ("[fd00::a]:5353", "[fd00::a]:5353"),
        ] {
            let server: DnsServer = text.parse().unwrap();
            assert_eq!(SocketAddr::from(server), address.parse().unwrap(), "{text}");
        }
        for bad in ["", "dns.example", "10.96.0.10:", "10.96.0.10:0", "10.96.0"] {
            assert!(bad.parse::<DnsServer>().is_err(), "{bad}");
        }
    }
}
