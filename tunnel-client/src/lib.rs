//! The tunnel client: dials a tunnel server, and answers what comes through the tunnel from local services.

pub mod check;
pub mod cli;
pub mod client;
pub mod command;
pub mod config;
pub mod metrics;
pub mod serving;
pub mod token_file;
pub mod upstream_advice;

mod admin;
mod credential;
mod dial;
mod exchange;
mod http1;
mod recent_problems;
mod serve;
mod session;
mod status;
mod step;
mod tunnel;
