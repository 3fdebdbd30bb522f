//! The language in which whole-system tests are written.
//!
//! A test names the parts of the system ([`system::System`]: server, client, upstream; [`relay::Relay`] between them, or a
//! [`network::Network`], or a proxy of [`peers`]), the platform clients ([`platform::PlatformClient`], [`raw::RawClient`],
//! [`peers`], [`grpc`], or all of them at once: [`load`]), and the upstreams ([`upstream::Upstream`],
//! [`scripted::ScriptedUpstream`], [`peers::nginx`], or a [`stranger::Stranger`] in place of the tunnel client), with names
//! ([`names::NameServer`]) and addresses ([`addresses::Addresses`]). Requests go to an [`entry::Entry`], so that one test
//! can run against an upstream directly and through the tunnel, and the difference is the tunnel's.
//!
//! ```text
//!  PlatformClient, RawClient,            tunnel-server    Relay    tunnel-client       Upstream,
//!  curl, Python, tonic        -- Entry -->  (process) <==========>   (process)  -->  ScriptedUpstream,
//!                                                                                     nginx, tonic
//! ```
//!
//! Every handle ends what it started when it is dropped. Nothing here listens on a fixed port, sleeps instead of awaiting
//! an event, or connects to another machine. A failed expectation panics with what was observed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is the test language: a failed expectation ends the test, with its reason"
)]

pub use testkit::{deadline, etcd, http1, names, random, record, scripted, secrets};

pub mod addresses;
pub mod ca;
pub mod checked;
pub mod client;
pub mod cluster_services;
pub mod differential;
pub mod entry;
pub mod grpc;
pub mod inside;
pub mod issuer;
pub mod load;
pub mod network;
pub mod nodes;
pub mod payload;
pub mod peers;
pub mod platform;
pub mod program;
pub mod raw;
pub mod relay;
pub mod served;
pub mod server;
pub mod stranger;
pub mod sweep;
pub mod system;
pub mod upstream;
