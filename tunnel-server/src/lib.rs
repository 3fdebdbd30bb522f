//! The tunnel server: forwards requests of platform clients through the tunnels that tunnel clients have dialled.
//!
//! ```text
//!   platform client ─▶ public ─▶ router ─▶ registry ─▶ tunnel ─▶ session ═══▶ tunnel client
//!                        check once, build anew                     ▲
//!   tunnel client ═══▶ connect ─▶ auth ─▶ directory ─▶ registry ────┘
//! ```
//!
//! [`server::Server::bind`] binds the listeners, [`server::Server::run`] serves until it is signalled to
//! stop. The wire itself is `tunnel-proto`'s; how a program is run is `tunnel-ops`'.

mod accepting;
mod acme;
pub mod admin;
mod allowance;
mod arrival;
mod atomic_file;
pub mod auth;
pub mod budget;
pub mod certs;
pub mod cli;
pub mod client_address;
pub mod command;
pub mod config;
mod connect;
pub mod directory;
pub mod events;
mod gauges;
pub mod history;
pub mod kept_revocations;
mod lifecycle;
mod lock;
pub mod managed;
pub mod metrics;
pub mod peer_tls;
pub mod peers;
pub mod public;
pub mod registry;
mod replica;
pub mod router;
pub mod runtimes;
pub mod server;
pub mod token;
pub mod tunnel;
pub mod upgrades;
pub mod webhook;

pub use tunnel_ops::timestamp;
