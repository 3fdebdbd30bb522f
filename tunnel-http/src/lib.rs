//! The HTTP front door of the server's public listener and of `tunnel-client serve`: everything between a socket of
//! untrusted peers and a checked request, and between a response and that socket.
//!
//! ```text
//!   listener ─▶ detect ─▶ connection (http1: guard) ─▶ check ─▶ outgoing ─▶ head of the request that goes on
//!                             │                                              content: received
//!                             ◀── answer ◀── response or problem
//!                             ends: long streams are closed in order when the program stops
//! ```
//!
//! - [`listener`], [`permits`], [`proxy_protocol`], [`detect`], [`prefixed`]: accept a socket within bounds, read the
//!   address of a proxy's client, and detect HTTP/1 or HTTP/2.
//! - [`gateway`]: from an accepted socket to its requests; the trait that a program implements for that.
//! - [`connection`], [`tasks`]: one connection to its last byte, driven by hyper over HTTP/1 and by h2, and the tasks that it runs.
//! - [`http1`]: the guard that reads HTTP/1 beside hyper and refuses what two parsers could read differently.
//! - [`http2`]: what HTTP/2 needs beside `h2`: the peer's frames, and content that is read ahead.
//! - [`check`], [`outgoing`]: what a request has to be, and the fields with which it goes on.
//! - [`proxy_protocol`], [`forwarded`]: what a trusted proxy says of its client.
//! - [`received`], [`content`], [`trailers`], [`listener_body`]: content as it is received, with its time-outs; a cut
//!   is never an end.
//! - [`answer`]: the head and content of a response or of a problem, in the format and detail that its reader gets.
//! - [`upgraded`], [`long_streams`]: upgraded connections, and how long streams end in order.
//! - [`access_log`]: the record of an exchange, and its line; [`tail`]: the same for who is watching.
//!
//! This crate knows no runtimes, sessions, routes or files, and no flags but those of the commands `tail`.

pub mod access_log;
pub mod answer;
pub mod check;
pub mod connection;
pub mod content;
pub mod detect;
mod end;
pub mod forwarded;
pub mod gateway;
pub mod http1;
pub mod http2;
pub mod listener;
pub mod listener_body;
pub mod long_streams;
pub mod outgoing;
pub mod permits;
pub mod prefixed;
pub mod proxy_protocol;
pub mod received;
pub mod tail;
pub mod tasks;
pub mod trailers;
pub mod upgraded;
