//! The HTTP client for requests to configured URLs, such as the platform's: one bounded answer within one deadline.
//!
//! TLS is configured as for the listeners, with the system's roots and the configured CA file. Redirects are not followed,
//! so that requests go only to the configured URLs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::tls_files::{self, Roots, TlsFilesError};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{
    Client,
    connect::{HttpConnector, capture_connection},
};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

/// Time after which an idle connection is closed.
const IDLE: Duration = Duration::from_secs(30);

/// Most idle connections per host.
const IDLE_CONNECTIONS: usize = 16;

/// Sends requests over HTTP/1.1, with TLS for `https` URLs.
#[derive(Debug, Clone)]
pub struct HttpsClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    deadline: Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There was no connection for the request: it has had no part in the failure.
    #[error("{0}")]
    NoConnection(String),
    /// The deadline has passed.
    #[error("no complete answer before the deadline")]
    Deadline,
    /// The connection, or the protocol on it, has failed.
    #[error("{0}")]
    Failed(String),
    /// The answer is too large.
    #[error("the answer is larger than {most} bytes")]
    TooLarge {
        /// Its status.
        status: StatusCode,
        /// The allowed bytes.
        most: usize,
    },
}

impl HttpsClient {
    /// Trusts the system's roots and those of the file. `deadline` limits a request from the name's resolution to the
    /// answer's last byte.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn new(ca_file: Option<&Path>, deadline: Duration) -> Result<Self, TlsFilesError> {
        let roots = Roots::load(ca_file)?;
        let tls = tls_files::client_config(&roots, None, &[])?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(deadline));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(Arc::unwrap_or_clone(tls))
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { client, deadline })
    }

    /// The time for one request and its answer.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Sends a request and returns the status of its answer, and its whole content of at most `most` bytes.
    ///
    /// # Errors
    /// When the answer is missing, late or too large.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), RequestError> {
        let (head, content) = self.exchange(request, most).await?.into_parts();
        Ok((head.status, content))
    }

    /// As [`HttpsClient::send`], with the fields of the answer.
    ///
    /// # Errors
    /// As those of `send`.
    pub async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Response<Bytes>, RequestError> {
        let connection = capture_connection(&mut request);
        let exchange = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| match error.is_connect() {
                true => RequestError::NoConnection(chain(&error)),
                false => RequestError::Failed(chain(&error)),
            })?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, most).collect().await;
            match body {
                Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
                Err(error) if error.is::<LengthLimitError>() => Err(RequestError::TooLarge {
                    status: head.status,
                    most,
                }),
                Err(error) => Err(RequestError::Failed(chain(&*error))),
            }
        };
        let ended = timeout(self.deadline, Box::pin(exchange)).await;
        ended.unwrap_or_else(|_| {
            Err(match connection.connection_metadata().is_some() {
                true => RequestError::Deadline,
                false => RequestError::NoConnection("no connection before the deadline".into()),
            })
        })
    }
}

/// The error's text with its causes, since the library's own text does not name them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_failure_says_whether_there_was_a_connection() {
        let ca = tempfile::NamedTempFile::new().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(ca.path(), made.cert.pem()).unwrap();
        let client = HttpsClient::new(Some(ca.path()), Duration::from_millis(300)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let failure = async |scheme: &str| {
            let request = Request::get(format!("{scheme}://{address}/"));
            let request = request.body(Full::default()).unwrap();
            client.send(request, 1).await.unwrap_err()
        };
        assert!(matches!(failure("http").await, RequestError::Deadline));
        // Without an answer to the ClientHello.
        let no_tls = failure("https").await;
        assert!(matches!(no_tls, RequestError::NoConnection(_)), "{no_tls}");
        drop(listener);
        let refused = failure("http").await;
        assert!(
            matches!(refused, RequestError::NoConnection(_)),
            "{refused}"
        );
    }
}
