//! Tests of the protocol through its public interface.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod codec;
mod content;
mod cuts;
mod exchange;
mod hostile;
mod liveness;
mod pair;
mod path;
mod peer;
mod reference;
mod session;
mod streams;
mod threads;
mod upgrade;
