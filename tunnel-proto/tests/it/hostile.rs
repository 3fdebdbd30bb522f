//! What the other end of a session may do is anything: it costs that session or that exchange, with
//! an error that has a name; never a panic, never more memory than a bound, never another session.

mod bytes;
mod client;
mod server;
