//! The program as it is run, and the server as a whole: real processes, real files, real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may"
)]

mod access_lines;
mod access_log;
mod admin;
mod admin_commands;
mod admin_nodes;
mod allowed;
mod authority;
mod budgets;
mod cancel;
mod certs;
mod checks;
mod config;
mod credentials;
mod cuts;
mod events;
mod exchanges;
mod fields;
mod forwarded_again;
mod forwarding;
mod frames;
mod hostile;
mod http1;
mod http2;
mod http2_client;
mod http2_limits;
mod http2_malformed;
mod http2_upgrade;
mod informational;
mod jwt_keys;
mod labels;
mod lasting;
mod limits;
mod long_streams;
mod managed;
mod nodes;
mod one_address;
mod outliving;
mod panics;
mod peer_port;
mod problem_answers;
mod program;
mod proxy;
mod reload;
mod responses;
mod rig;
mod routing;
mod scripted_server;
mod serving;
mod sessions;
mod stopping;
mod takeovers;
mod token;
mod upgrade;
mod validate;
mod waiting;
mod webhook;
mod wedged;
