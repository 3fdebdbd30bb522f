//! The program as it is run, and the server as a whole: real processes, real files, real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may"
)]

mod cancel;
mod certs;
mod config;
mod deadline;
mod fake;
mod fields;
mod frames;
mod hostile;
mod http1;
mod http2;
mod http2_client;
mod http2_limits;
mod http2_malformed;
mod http2_upgrade;
mod informational;
mod limits;
mod panics;
mod program;
mod proxy;
mod raw;
mod responses;
mod rig;
mod routing;
mod sessions;
mod stopping;
mod token;
mod upgrade;
mod wire;
