//! The demo's flags.

use std::net::SocketAddr;

use clap::Parser;

/// Default address of the demo for browsers and curl; its port is that of the examples.
const PUBLIC_LISTEN: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(
    std::net::Ipv4Addr::LOCALHOST,
    8080,
));

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
