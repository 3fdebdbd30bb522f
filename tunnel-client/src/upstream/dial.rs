//! From a destination to a connection: name, TCP, and TLS where the scheme says so.
//!
//! What fails becomes the [`Problem`] that the platform client is told.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tunnel_ops::tls_files::{self, Roots, TlsFilesError};
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::destination::Destination;
use super::socket::Socket;
use crate::config::UpstreamScheme;
use crate::dial::{self, Step, StepError, tls};

/// Dials one destination.
pub(super) struct UpstreamDialler {
    destination: Destination,
    tls: Option<TlsOffers>,
    /// For each step.
    limit: Duration,
}

struct TlsOffers {
    /// HTTP/2 or HTTP/1.1, as the upstream likes.
    any: Arc<ClientConfig>,
    /// HTTP/1.1 alone.
    http1: Arc<ClientConfig>,
}

/// What a connection is to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// HTTP/2 or HTTP/1.1.
    Any,
    /// HTTP/1.1.
    Http1,
}

impl UpstreamDialler {
    /// `roots` are needed for `https`, and used for nothing else.
    pub(super) fn new(
        destination: Destination,
        roots: Option<&Roots>,
        limit: Duration,
    ) -> Result<Self, TlsFilesError> {
        let roots = match destination.scheme() {
            UpstreamScheme::Https => Some(roots.ok_or(TlsFilesError::NoRoots)?),
            UpstreamScheme::Http | UpstreamScheme::H2c => None,
        };
        let offers = |roots| {
            let any = tls_files::client_config(roots, None, &[b"h2", b"http/1.1"])?;
            let http1 = tls_files::client_config(roots, None, &[b"http/1.1"])?;
            Ok::<_, TlsFilesError>(TlsOffers { any, http1 })
        };
        let tls = roots.map(offers).transpose()?;
        Ok(Self {
            destination,
            tls,
            limit,
        })
    }

    /// A new connection.
    pub(super) async fn dial(&self, offer: Offer) -> Result<Socket, Problem> {
        self.take_steps(offer)
            .await
            .map_err(|error| self.problem(&error))
    }

    async fn take_steps(&self, offer: Offer) -> Result<Socket, StepError> {
        let to = &self.destination;
        let allowed = |address: &_| to.allows(address);
        let tcp = dial::reach(to.host(), to.port(), self.limit, allowed).await?;
        let Some(tls) = &self.tls else {
            return Ok(Socket::Plain(tcp));
        };
        let config = match offer {
            Offer::Any => &tls.any,
            Offer::Http1 => &tls.http1,
        };
        let handshake = async {
            let stream = tls::handshake(tcp, config, tls::server_name(to.host())?).await?;
            Ok(Socket::Tls(Box::new(stream)))
        };
        dial::within(Step::Tls, self.limit, handshake).await
    }

    fn problem(&self, error: &StepError) -> Problem {
        let reason = match error {
            StepError::TimedOut(Step::Resolve, _) => Reason::DnsTimeout,
            StepError::TimedOut(..) => Reason::ConnectionTimeout,
            StepError::Failed(Step::Resolve, _) => Reason::DnsError,
            StepError::Failed(Step::Tls, error) if tls::is_certificate_error(error) => {
                Reason::TlsCertificateError
            }
            StepError::Failed(Step::Tls, _) => Reason::TlsProtocolError,
            StepError::Failed(_, error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Reason::ConnectionRefused
            }
            StepError::Failed(_, error) if error.kind() == io::ErrorKind::TimedOut => {
                Reason::ConnectionTimeout
            }
            StepError::Failed(..) => Reason::ConnectionFailed,
        };
        Problem::new(
            Hop::Client,
            reason,
            format!("{}: {error}", self.destination),
        )
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tunnel_ops::task::Owned;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(500);

    async fn reason(url: &str, roots: Option<&Roots>) -> Reason {
        let destination = Destination::new(url.parse().unwrap());
        let dialler = UpstreamDialler::new(destination, roots, LIMIT).unwrap();
        match dialler.dial(Offer::Any).await {
            Ok(_) => panic!("{url} was reached"),
            Err(problem) => problem.reason(),
        }
    }

    fn some_roots() -> Roots {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Roots::from_pem(&made.cert.pem()).unwrap()
    }

    #[tokio::test]
    async fn a_closed_port_refuses_and_an_unknown_name_does_not_resolve() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        assert_eq!(reason(&url, None).await, Reason::ConnectionRefused);
        assert_eq!(
            reason("http://no-such-host.invalid", None).await,
            Reason::DnsError
        );
    }

    #[test]
    fn https_is_never_spoken_without_tls() {
        let destination = Destination::new("https://127.0.0.1:1".parse().unwrap());
        let made = UpstreamDialler::new(destination, None, LIMIT);
        assert!(matches!(made.err(), Some(TlsFilesError::NoRoots)));
    }

    #[tokio::test]
    async fn tls_that_fails_says_how() {
        let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let (cert, key) = (other.cert.pem(), other.signing_key.serialize_pem());
        let identity = tls_files::Identity::from_pem(&cert, &key).unwrap();
        let acceptor = tls_files::server_config(&identity, &[b"http/1.1"], None).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let _server = Owned::spawn("upstream", async move {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = tokio_rustls::TlsAcceptor::from(acceptor)
                .accept(stream)
                .await;
            let (mut stream, _) = listener.accept().await.unwrap();
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .await
                .unwrap();
            let _silent = listener.accept().await.unwrap();
            std::future::pending::<()>().await;
        });
        let roots = some_roots();
        assert_eq!(
            reason(&url, Some(&roots)).await,
            Reason::TlsCertificateError
        );
        assert_eq!(reason(&url, Some(&roots)).await, Reason::TlsProtocolError);
        assert_eq!(reason(&url, Some(&roots)).await, Reason::ConnectionTimeout);
    }
}
