//! Peers that others wrote: curl, nginx, squid, dante, mitmproxy, faketime, Python's `websockets` and `h2`.
//!
//! They are what `e2e/install-peers` puts on the machine. A test that needs one and does not find
//! it fails and says so: a peer that is silently left out proves nothing.

pub mod browser;
pub mod curl;
pub mod dante;
pub mod mitmproxy;
pub mod nginx;
mod port;
pub mod python;
pub mod squid;
