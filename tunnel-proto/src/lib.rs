//! The protocol between a tunnel server and a tunnel client.
//!
//! ```text
//!   tunnel server                                              tunnel client
//!   exchange(request) ──┐                                ┌──▶ service(request)
//!                       ▼                                │
//!   Session ◀─ one WebSocket over TLS, dialled by the client ─▶ Session
//!      │                                                        │
//!      └── control messages, pings, close reasons ──────────────┘
//! ```
//!
//! - [`session`]: one connection. A handle, a driver that moves bytes, and events.
//! - [`exchange`]: one request and its response over one stream of a session, in the binary form of
//!   [`bhttp`]. The server calls [`exchange::open`] and [`exchange::Opened::carry`], the client [`exchange::serve`].
//! - [`handshake`], [`control`], [`close`]: how a session begins, what the two ends announce beside the
//!   exchanges, and why a session ended.
//! - [`refusal`], [`redial`]: the one table of reasons for refusing a session, and when a client without one dials again.
//! - [`problem`]: the one table from what went wrong to the answer that the platform client gets.
//! - [`limits`], [`fields`], [`memory`]: what a peer may send, which fields are never forwarded, and how
//!   many received bytes may wait to be read.
//!
//! Runtimes, tokens, routes and flags are only text here, or named by a reason: this crate decides nothing by them,
//! reads no file and has no listener. The multiplexer and the WebSocket library are each visible in one module only.
//! `docs/protocol.md` specifies this protocol for other implementations.

pub mod bhttp;
pub mod close;
pub mod control;
pub mod exchange;
pub mod fields;
pub mod handshake;
pub mod limits;
pub mod memory;
pub mod problem;
pub mod redial;
pub mod refusal;
pub mod session;
