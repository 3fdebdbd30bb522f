//! Questions to the platform and to issuers of keys: one request, one bounded answer, one deadline.
//!
//! TLS is configured as for the listeners, with the system's roots and the CA file that was given.
//! Redirects are not followed: what is asked is what the configuration names.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;
use tunnel_ops::tls_files::{self, Roots, TlsFilesError};

/// How long a connection waits for the next question.
const IDLE: Duration = Duration::from_secs(30);

/// Connections that wait for a question.
const IDLE_CONNECTIONS: usize = 16;

/// Asks over HTTP/1.1, with or without TLS as the URL says.
#[derive(Clone)]
pub(super) struct HttpsClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    deadline: Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("no whole answer within the time for it")]
    Deadline,
    #[error("{0}")]
    Failed(String),
    #[error("the answer is larger than {most} bytes")]
    TooLarge { status: StatusCode, most: usize },
}

impl HttpsClient {
    /// `deadline` is for one whole question, from the name's resolution to the answer's last byte.
    pub(super) fn new(ca_file: Option<&Path>, deadline: Duration) -> Result<Self, TlsFilesError> {
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

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// One question, and its whole answer of at most `most` bytes.
    pub(super) async fn ask(
        &self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), AskError> {
        let asking = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| AskError::Failed(chain(&error)))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, most).collect().await;
            match body {
                Ok(body) => Ok((head.status, body.to_bytes())),
                Err(error) if error.is::<LengthLimitError>() => Err(AskError::TooLarge {
                    status: head.status,
                    most,
                }),
                Err(error) => Err(AskError::Failed(chain(&*error))),
            }
        };
        timeout(self.deadline, Box::pin(asking))
            .await
            .unwrap_or(Err(AskError::Deadline))
    }
}

/// The error with what caused it: the library's own text says little.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
