//! The wire between a tunnel server and a tunnel client.
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
//! - [`handshake`], [`control`], [`close`]: how a session begins, what the ends tell each other
//!   beside the exchanges, and why it ended.
//! - [`refusal`]: the one table of why a session is refused.
//! - [`problem`]: the one table from what went wrong to what is answered.
//! - [`limits`], [`fields`]: what a peer may send, and what never travels.
//!
//! This crate knows nothing of runtimes, tokens, routes, files, flags or listeners. Which
//! multiplexer and which WebSocket library stand behind a session is seen in one module each.
//! `docs/protocol.md` describes the same in words.

pub mod bhttp;
pub mod close;
pub mod control;
pub mod exchange;
pub mod fields;
pub mod handshake;
pub mod limits;
pub mod memory;
pub mod problem;
pub mod refusal;
pub mod session;
