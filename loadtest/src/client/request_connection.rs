//! A connection for one kind of load: the minimal client where answers are only counted, hyper for all else.

use crate::client::{connection::Connection, minimal::MinimalClient};

/// A connection for requests whose answers are counted alone, or for any.
#[derive(Debug)]
pub enum RequestConnection {
    /// HTTP/1.1, for requests in one piece.
    Minimal(Box<MinimalClient>),
    /// For all others.
    Hyper(Connection),
}

impl RequestConnection {
    /// Whether it may carry the next request: the peer has not closed it while it rested.
    pub fn is_open(&mut self) -> bool {
        match self {
            Self::Minimal(connection) => connection.is_open(),
            Self::Hyper(connection) => connection.is_open(),
        }
    }
}
