//! Whole-system tests, one module for each kind of promise.
//!
//! `language` proves the language itself, without a tunnel: what a test says of the tunnel is
//! worth no more than that. `tidy` checks what no linter sees.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation ends the test, with its reason"
)]

mod acme;
mod admin_page;
mod balancers;
mod black_hole;
mod check;
mod credentials;
mod demo;
mod differential;
mod egress;
mod floors;
mod grpc;
mod handover;
mod handover_failures;
mod hostile;
mod http;
mod http2_upstreams;
mod isolation;
mod language;
mod life;
mod lifecycle;
mod memory;
mod neighbour;
mod nodes;
mod nodes_rollout;
mod one_command;
mod pages;
mod peers;
mod revocation;
mod rollout;
mod routes;
mod secrets;
mod serve;
mod sidecar;
mod storm;
mod stranger;
mod streaming;
mod system;
mod tail;
mod takeover;
mod tidy;
mod traces;
mod upstreams;
mod websocket;
