//! What a look-up of a name results in.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolution {
    /// Never empty. The same `Arc` while nothing changes.
    pub(crate) addresses: Arc<[IpAddr]>,
    /// When the answer expires.
    pub(crate) until: Instant,
}

/// The answer to a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsAnswer {
    /// Not empty.
    pub(super) addresses: Vec<IpAddr>,
    /// How long the answer holds.
    pub(super) ttl: Duration,
    /// Whether the query for the other address family failed.
    pub(super) is_partial: bool,
}

/// Why a name has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LookUpError {
    /// The name servers say that the name does not exist or has no address.
    #[error("no such name, or one without an address")]
    NotFound,
    /// No name server answered in time.
    #[error("no name server answered in time")]
    TimedOut,
    /// No name server answered in time for this name, which the search list made of the one that is looked up.
    #[error(
        "no name server answered in time for {0}, a name of the search list: where the search list is not meant, write the \
         name with a dot at its end"
    )]
    SearchTimedOut(Arc<str>),
    /// They could not be queried, or answered with an error.
    #[error("{0}")]
    Failed(Arc<str>),
}

impl From<LookUpError> for io::Error {
    fn from(error: LookUpError) -> Self {
        let kind = match error {
            LookUpError::NotFound => io::ErrorKind::NotFound,
            LookUpError::TimedOut | LookUpError::SearchTimedOut(_) => io::ErrorKind::TimedOut,
            LookUpError::Failed(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
