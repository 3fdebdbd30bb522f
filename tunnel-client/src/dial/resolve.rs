//! Resolves a host to the addresses that are tried, in order.

use std::io;
use std::net::SocketAddr;

use tunnel_ops::connect::order;

/// Most addresses of one name that are tried: with 250 ms between two attempts, as many as fit into the time-out of a
/// step.
const ADDRESSES: usize = 32;

/// The addresses of a host, in the order in which they are tried. `host` is a name or an IP address, IPv6 without
/// brackets.
pub(crate) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    // Ordered before they are truncated: the resolver may return all addresses of one family first.
    let mut addresses = order(tokio::net::lookup_host((host, port)).await?);
    addresses.truncate(ADDRESSES);
    if addresses.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_its_own() {
        assert_eq!(
            resolve("127.0.0.1", 80).await.unwrap(),
            ["127.0.0.1:80".parse().unwrap()]
        );
        assert_eq!(
            resolve("::1", 443).await.unwrap(),
            ["[::1]:443".parse().unwrap()]
        );
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_is_an_error() {
        assert!(resolve("no-such-host.invalid", 80).await.is_err());
    }
}
