//! The language in which whole-system tests are written.
//!
//! A test says what is there ([`system::System`]: server, client, upstream; [`relay::Relay`]
//! between them, or a [`network::Network`], or a proxy of [`peers`]), who asks ([`platform::PlatformClient`], [`raw::RawClient`], [`peers`],
//! [`grpc`], or all of them at once: [`load`]), and who answers ([`upstream::Upstream`], [`scripted::ScriptedUpstream`],
//! [`peers::nginx`], or a [`stranger::Stranger`] in place of the tunnel client), by which names
//! ([`names::NameServer`]) and addresses ([`addresses::Addresses`]). Where the requests go in is an [`entry::Entry`], so that the same test runs
//! against an upstream directly and through the tunnel, and the difference is the tunnel's.
//!
//! ```text
//!  PlatformClient, RawClient,            tunnel-server    Relay    tunnel-client       Upstream,
//!  curl, Python, tonic        -- Entry -->  (process) <==========>   (process)  -->  ScriptedUpstream,
//!                                                                                     nginx, tonic
//! ```
//!
//! Every handle ends what it started when it is dropped. Nothing here listens on a fixed port,
//! sleeps and hopes, or reaches beyond this machine. What goes wrong panics with what was seen.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is the test language: a failed expectation ends the test, with its reason"
)]

pub use testkit::{deadline, http1, names, record, scripted, secrets};

pub mod addresses;
pub mod ca;
pub mod checked;
pub mod client;
pub mod cluster;
pub mod entry;
pub mod grpc;
pub mod inside;
pub mod issuer;
pub mod load;
pub mod network;
pub mod payload;
pub mod peers;
pub mod platform;
pub mod program;
pub mod raw;
pub mod relay;
pub mod served;
pub mod server;
pub mod stranger;
pub mod system;
pub mod upstream;
