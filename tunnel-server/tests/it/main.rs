//! The program as it is run, and the server as a whole: real processes, real files, real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may"
)]

mod certs;
mod config;
mod deadline;
mod fake;
mod fields;
mod http1;
mod program;
mod raw;
mod responses;
mod rig;
mod routing;
mod token;
