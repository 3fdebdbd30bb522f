//! What all workers of a load ask, and how they connect.

use std::time::Duration;

use http::{HeaderMap, Method, Request, Uri};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::{
    client::{Dialer, body, connection::Connection},
    measure::errors::{Failure, FailureKind},
};

/// Rest after a connection that failed, so that a dead target does not cost a core.
pub const PAUSE: Duration = Duration::from_millis(100);

/// A request that is sent many times, and how to connect for it.
#[derive(Clone, Debug)]
pub struct Template {
    /// Makes the connections.
    pub dialer: Dialer,
    /// Whether they are HTTP/2.
    pub http2: bool,
    /// The method of each request.
    pub method: Method,
    /// What each asks for: the path alone with HTTP/1.1.
    pub uri: Uri,
    /// Sent with each request.
    pub headers: HeaderMap,
}

impl Template {
    /// The next request.
    pub fn request<C>(&self, content: C) -> Request<C> {
        let mut request = Request::new(content);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        request.headers_mut().clone_from(&self.headers);
        request
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// As [`Dialer::connect`], or it takes longer than `limit`.
    pub async fn connect(&self, limit: Duration) -> Result<Connection, Failure> {
        connected(limit, self.dialer.connect(self.http2)).await
    }

    /// Connects and sends a request without content; returns the content of an answer that is a success.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn open(&self, limit: Duration) -> Result<(Connection, Incoming), Failure> {
        let mut connection = self.connect(limit).await?;
        let content = self.ask(&mut connection, limit).await?;
        Ok((connection, content))
    }

    /// Sends a request without content; returns the content of an answer that is a success.
    ///
    /// # Errors
    /// The connection breaks, the head takes longer than `limit`, or its status is no success.
    pub async fn ask(
        &self,
        connection: &mut Connection,
        limit: Duration,
    ) -> Result<Incoming, Failure> {
        let request = self.request(body::empty());
        let answer = within(limit, connection.send(request)).await?;
        match answer.status() {
            status if status.is_success() => Ok(answer.into_body()),
            // What is left of the answer makes the connection useless.
            status => Err(FailureKind::Status(status.as_u16()).into()),
        }
    }
}

/// The connection that is made, or a time-out.
pub async fn connected<T>(
    limit: Duration,
    made: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = |_| Err(FailureKind::ConnectTimeout.into());
    timeout(limit, made).await.unwrap_or_else(late)
}

/// The result of `step`, or a time-out.
pub async fn within<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = |_| Err(FailureKind::Timeout.into());
    timeout(limit, step).await.unwrap_or_else(late)
}
