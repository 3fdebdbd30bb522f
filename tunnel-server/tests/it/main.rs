//! The program as it is run: real processes, real files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may"
)]

mod certs;
mod config;
mod program;
mod token;
