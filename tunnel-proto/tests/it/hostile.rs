//! Hostile peers: whatever the other end sends ends at most its session or exchange, with a named error. It
//! never causes a panic, unbounded memory, or harm to another session.

mod bytes;
mod client;
mod server;
