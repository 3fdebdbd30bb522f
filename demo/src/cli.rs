//! The demo's flags.

use std::net::SocketAddr;

use clap::Parser;

/// Default address of the demo for browsers and curl; its port is that of the examples.
const PUBLIC_LISTEN: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(
    std::net::Ipv4Addr::LOCALHOST,
    8080,
));

/// Most nodes: each is a whole server.
const MOST_NODES: i64 = 9;

/// Starts a tunnel server, a tunnel client and a sample service in one process, to be tried.
#[derive(Debug, Parser)]
#[command(name = "demo", bin_name = "cargo demo", version)]
pub(crate) struct Cli {
    /// Your own service, such as http://127.0.0.1:3000, instead of the sample
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,

    /// Where browsers and curl connect; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value_t = PUBLIC_LISTEN)]
    pub(crate) public_listen: SocketAddr,

    /// Servers that share an etcd, which has to be installed; one of them is killed every few seconds, to be seen
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=MOST_NODES))]
    pub(crate) nodes: u8,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }
}
