//! Tests of the program as it is run: what it says of servers whose behaviour is known.
//!
//! `language` starts programs and scripted servers; `accounting` checks figures, `errors` that no
//! failure is lost, `output` what is written, `stack` the programs that it starts itself,
//! `upstream` what the sample upstream answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation ends the test, with its reason"
)]

mod accounting;
mod bulk;
mod cluster;
mod compare;
mod errors;
mod fairness;
mod grpc;
mod language;
mod output;
mod relay;
mod scale;
mod sse;
mod stack;
mod tunnels;
mod upstream;
mod websocket;
