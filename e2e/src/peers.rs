//! Peers that others wrote: curl, nginx, squid, dante, mitmproxy, faketime, Pebble, Python's `websockets`, `h2` and
//! `opentelemetry-proto`.
//!
//! They are what `e2e/install-peers` puts on the machine. A test that needs one and does not find
//! it fails and says so: a peer that is silently left out proves nothing.

pub mod browser;
pub mod collector;
pub mod curl;
pub mod dante;
pub mod envoy;
pub mod mitmproxy;
pub mod nginx;
pub mod pebble;
mod port;
pub mod python;
pub mod squid;

/// What starts a program whose clock is off by so much, as `+3d`: faketime's library without its program, so that signals
/// reach the one that is started.
#[must_use]
pub fn at_clock(offset: &str) -> Vec<String> {
    let settings = [
        format!("FAKETIME={offset}"),
        "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1".to_owned(),
        // The library else makes shared memory that is named after the process and that a killed one leaves, and fails for
        // the next process of that number. It does without where what it is told does not exist.
        "FAKETIME_SHARED=/no-semaphore /no-memory".to_owned(),
    ];
    std::iter::once("env".to_owned()).chain(settings).collect()
}
