//! Connections of a gateway that a test scripts, from the socket of a platform client that is written and read byte by byte.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on is to say so"
)]

mod cuts;
mod early_answers;
mod http2;
mod persistence;
mod rig;
mod stops;
