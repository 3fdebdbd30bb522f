//! Exchanges over a connection of either version, for scenarios that watch an answer's content
//! while it comes. Nothing here has a time limit of its own, except through [`within`].

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::{
    client::{Dialer, body::Outgoing, http1::Http1, http2::Http2},
    measure::errors::{Failure, Kind},
    target::Target,
};

/// A connection of either version.
#[derive(Debug)]
pub(crate) enum Connection {
    /// HTTP/1.1.
    One(Box<Http1>),
    /// HTTP/2.
    Two(Box<Http2>),
}

/// Rest after a connection that failed, so that a dead target does not cost a core.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

impl Connection {
    /// Connects.
    pub(super) async fn dial(dialer: &Dialer, http2: bool) -> Result<Self, Failure> {
        Ok(if http2 {
            Self::Two(Box::new(dialer.http2().await?))
        } else {
            Self::One(Box::new(dialer.http1().await?))
        })
    }

    /// Sends a request and gives the head of its answer.
    pub(super) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Failure> {
        match self {
            Self::One(connection) => connection.send(request).await,
            Self::Two(connection) => connection.send(request).await,
        }
    }

    /// The next piece of an answer's content; none at its clean end.
    pub(super) async fn frame(&mut self, content: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::One(connection) => connection.frame(content).await,
            Self::Two(connection) => connection.frame(content).await,
        }
    }

    /// Takes the whole of an answer's content, and gives its length.
    pub(super) async fn drain(&mut self, mut content: Incoming) -> Result<u64, Failure> {
        let mut length = 0;
        while !content.is_end_stream() {
            match self.frame(&mut content).await? {
                Some(data) => length += data.len() as u64,
                None => break,
            }
        }
        Ok(length)
    }

    /// Whether it may carry the next request.
    pub(super) fn is_open(&mut self) -> bool {
        match self {
            Self::One(connection) => connection.is_open(),
            Self::Two(connection) => connection.is_open(),
        }
    }

    /// This connection, if it may carry the next request.
    pub(super) fn if_open(mut self) -> Option<Self> {
        self.is_open().then_some(self)
    }
}

/// The result of `step`, or a time-out.
pub(super) async fn within<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = |_| Err(Failure::fatal(Kind::Timeout));
    tokio::time::timeout(limit, step).await.unwrap_or_else(late)
}

/// Makes a connection, or says that it took too long.
pub(super) async fn dial_within(
    limit: Duration,
    dialer: &Dialer,
    http2: bool,
) -> Result<Connection, Failure> {
    let made = tokio::time::timeout(limit, Connection::dial(dialer, http2)).await;
    made.unwrap_or_else(|_| Err(Failure::fatal(Kind::ConnectTimeout)))
}

/// Whether the target's URL names a path of its own. Without one, the target is taken for the
/// sample upstream behind whatever is measured, and asked for the path that a scenario needs.
pub(super) fn has_own_path(target: &Target) -> bool {
    target
        .uri()
        .path_and_query()
        .is_some_and(|path| path.as_str() != "/")
}

/// The path to ask: none (the URL's own) or the sample upstream's.
pub(super) fn path<'a>(target: &Target, sample: &'a str) -> Option<&'a str> {
    (!has_own_path(target)).then_some(sample)
}

/// A rate as a flag.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("a rate is a number above zero".to_owned()),
    }
}
