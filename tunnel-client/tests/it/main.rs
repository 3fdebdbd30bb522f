//! The program as it is run (`config`), and a whole client in-process, between a tunnel server made
//! of the wire's other end and upstreams that are scripted byte by byte (all others).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on is to say so"
)]

mod admin;
mod broken;
mod check;
mod check_goes_on;
mod config;
mod credential;
mod cuts;
mod destination;
mod http1;
mod http2;
mod http2_faults;
mod locations;
mod network;
mod panics;
mod pool;
mod probe;
mod program;
mod proxy;
mod reach;
mod routes;
mod routes_reload;
mod routes_test;
mod routes_upstreams;
mod run_program;
mod serve;
mod serve_http2;
mod serve_program;
mod sessions;
mod setup;
mod stopping;
mod telling;
mod tunnel;
mod upgrade;
