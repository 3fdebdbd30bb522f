//! What can go wrong with a request, by kind. Every failure becomes one of these and is counted.

use std::{borrow::Cow, collections::BTreeMap, error::Error, fmt, io};

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// Nothing listens at the target's address.
    ConnectRefused,
    /// No connection within the time limit.
    ConnectTimeout,
    /// The connection could not be made for another reason.
    ConnectFailed,
    /// The TLS handshake failed.
    TlsHandshake,
    /// The peer reset the connection, or it broke while being written to.
    ConnectionReset,
    /// The peer closed the connection before the answer's head had come.
    ClosedEarly,
    /// No whole answer within the time limit of a request.
    Timeout,
    /// The answer's body ended before its announced end.
    BodyShort,
    /// The answer breaks the protocol.
    Protocol,
    /// The stream was reset (HTTP/2).
    StreamReset,
    /// An answer with this status, which is no success.
    Status(u16),
    /// A gRPC call ended with this status.
    GrpcStatus(u8),
    /// It was due, but no connection was free before the end (open loop).
    NotSent,
    /// What only one scenario knows, such as `wrong_echo`. In lower case, with underscores.
    Other(&'static str),
}

impl FailureKind {
    /// Its name in reports.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::ConnectRefused => "connect_refused",
            Self::ConnectTimeout => "connect_timeout",
            Self::ConnectFailed => "connect_failed",
            Self::TlsHandshake => "tls_handshake",
            Self::ConnectionReset => "connection_reset",
            Self::ClosedEarly => "closed_early",
            Self::Timeout => "timeout",
            Self::BodyShort => "body_short",
            Self::Protocol => "protocol",
            Self::StreamReset => "stream_reset",
            Self::Status(code) => return Cow::Owned(format!("status_{code}")),
            Self::GrpcStatus(code) => return Cow::Owned(format!("grpc_status_{code}")),
            Self::NotSent => "not_sent",
            Self::Other(name) => name,
        })
    }

    /// The kind of a failure to read or write.
    pub fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::ConnectRefused,
            io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::UnexpectedEof => Self::ClosedEarly,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected => Self::ConnectionReset,
            // A record that cannot be decrypted, or an alert, comes as invalid data.
            _ => Self::Protocol,
        }
    }

    /// The kind of a failure of an HTTP connection.
    pub fn of_hyper(error: &hyper::Error) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(io) = inner.downcast_ref::<io::Error>() {
                return Self::of_io(io);
            }
            if let Some(h2) = inner.downcast_ref::<h2::Error>() {
                return Self::of_h2(h2);
            }
            cause = inner.source();
        }
        if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            Self::ClosedEarly
        } else {
            Self::Protocol
        }
    }

    /// The kind of a failure of an HTTP/2 stream or connection.
    pub fn of_h2(error: &h2::Error) -> Self {
        if let Some(io) = error.get_io() {
            Self::of_io(io)
        } else if error.is_reset() {
            Self::StreamReset
        } else if error.is_go_away() {
            Self::ClosedEarly
        } else {
            Self::Protocol
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name())
    }
}

/// A request that failed, and whether its connection may carry the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct Failure {
    /// What went wrong.
    pub kind: FailureKind,
    /// Whether the connection is still good.
    pub connection_good: bool,
}

impl Failure {
    /// A failure that ends the connection.
    pub fn fatal(kind: FailureKind) -> Self {
        Self {
            kind,
            connection_good: false,
        }
    }

    /// A failure after which the connection goes on, such as a status.
    pub fn harmless(kind: FailureKind) -> Self {
        Self {
            kind,
            connection_good: true,
        }
    }
}

impl From<FailureKind> for Failure {
    fn from(kind: FailureKind) -> Self {
        Self::fatal(kind)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        FailureKind::of_io(&error).into()
    }
}

impl From<hyper::Error> for Failure {
    fn from(error: hyper::Error) -> Self {
        FailureKind::of_hyper(&error).into()
    }
}

/// How often each kind happened.
#[derive(Clone, Debug, Default)]
pub struct FailureCounts {
    counts: BTreeMap<FailureKind, u64>,
}

impl FailureCounts {
    /// Counts `times` failures of this kind.
    pub fn add(&mut self, kind: FailureKind, times: u64) {
        if times > 0 {
            *self.counts.entry(kind).or_insert(0) += times;
        }
    }

    /// Adds what `other` counted.
    pub fn merge(&mut self, other: &Self) {
        for (kind, times) in &other.counts {
            self.add(*kind, *times);
        }
    }

    /// All together.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Counts by the kind's name.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        self.counts
            .iter()
            .map(|(kind, times)| (kind.name().into_owned(), *times))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_keeps_its_code() {
        let mut errors = FailureCounts::default();
        errors.add(FailureKind::Status(503), 2);
        errors.add(FailureKind::Status(500), 1);
        errors.add(FailureKind::Timeout, 0);
        let expected = [("status_500".to_owned(), 1), ("status_503".to_owned(), 2)];
        assert_eq!(errors.by_name(), BTreeMap::from(expected));
        assert_eq!(errors.total(), 3);
    }
}
