//! What the tests of several crates use.
//!
//! Unit tests of `tunnel-ops` and `tunnel-proto` use only what has no types of their crate: cargo builds it twice for
//! them, and the types of the two do not match.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation ends the test, with its reason"
)]

pub mod bhttp;
pub mod ca;
pub mod closed_port;
pub mod deadline;
pub mod differential;
pub mod etcd;
pub mod http1;
pub mod http2;
pub mod listener;
pub mod names;
pub mod program;
pub mod random;
pub mod record;
pub mod scripted;
pub mod secrets;
pub mod tunnel;
pub mod yamux;
