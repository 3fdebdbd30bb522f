//! From a destination to a connection: name, TCP, and TLS for `https`; or a Unix socket. An error becomes the
//! [`Problem`] that the platform client is sent.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::CertificateError;
use tokio::net::{TcpStream, UnixStream};
use tunnel_ops::connect::step::{self, within};
use tunnel_ops::connect::{Keepalive, connect, tls};
use tunnel_ops::descriptors;
use tunnel_proto::memory::MemoryAccount;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::destination::{Denied, Destination};
use super::resolve::Resolution;
use super::settings::UpstreamShared;
use super::socket::Socket;
use super::tls::{Offer, TlsOffers};
use crate::url::UpstreamScheme;

/// Keepalive of connections to upstreams: a lost peer is found after 20 s, like unacknowledged bytes. With
/// `TCP_USER_TIMEOUT` set, the kernel ends the connection at that time, not after a number of probes: with longer
/// intervals one lost probe would be enough.
const KEEPALIVE: Keepalive = Keepalive {
    idle: Duration::from_secs(8),
    interval: Duration::from_secs(4),
};

/// Dials one destination.
pub(super) struct UpstreamDialler {
    destination: Destination,
    /// For `https`.
    tls: Option<TlsOffers>,
    /// For each step.
    limit: Duration,
    shared: Arc<UpstreamShared>,
    /// Number of dials, to spread them over the addresses of a name.
    dials: AtomicUsize,
}

/// A new connection.
pub(super) struct Dialled {
    pub(super) socket: Socket,
    /// The connected address and all addresses of the name; `None` without a name.
    pub(super) named: Option<(IpAddr, Arc<[IpAddr]>)>,
}

/// One step of a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The name's addresses are looked up.
    Resolve,
    /// A connection is made.
    Connect,
    /// TLS is agreed on, the certificate checked.
    Tls,
}

type StepError = step::StepError<Step>;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "looking up the name",
            Self::Connect => "connecting",
            Self::Tls => "TLS",
        })
    }
}

/// Why there is no connection, for [`Upstream::try_dial`](super::Upstream::try_dial).
#[derive(Debug)]
pub struct TryDialError {
    /// The problem that an exchange would fail with.
    pub problem: Problem,
    /// The error of the certificate, if that is the cause.
    pub certificate: Option<CertificateError>,
}

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
enum UpstreamDialError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Denied(#[from] Denied),
}

impl UpstreamDialler {
    /// A dialler; `tls` is needed for `https` and not used otherwise.
    pub(super) fn new(
        destination: Destination,
        tls: Option<TlsOffers>,
        limit: Duration,
        shared: &Arc<UpstreamShared>,
    ) -> Self {
        Self {
            destination,
            tls,
            limit,
            shared: Arc::clone(shared),
            dials: AtomicUsize::new(0),
        }
    }

    /// The account for bytes read from upstreams.
    pub(super) fn memory(&self) -> &Arc<MemoryAccount> {
        &self.shared.memory
    }

    /// A new connection.
    pub(super) async fn dial(&self, offer: Offer) -> Result<Dialled, Problem> {
        self.take_steps(offer)
            .await
            .map_err(|error| self.problem(&error))
    }

    /// A new connection, or more than the problem.
    pub(super) async fn try_dial(&self, offer: Offer) -> Result<Dialled, TryDialError> {
        let dialled = self.take_steps(offer).await;
        dialled.map_err(|error| TryDialError {
            problem: self.problem(&error),
            certificate: match error {
                UpstreamDialError::Step(error) => error.certificate().cloned(),
                UpstreamDialError::Denied(_) => None,
            },
        })
    }

    /// The current addresses of the name; `None` without a name.
    pub(super) async fn look_up(&self) -> Option<io::Result<Resolution>> {
        let name = self.destination.name()?;
        let answer = self.shared.resolver.look_up(name).await;
        Some(answer.map_err(io::Error::from))
    }

    /// The addresses of the name by its last answer.
    pub(super) fn last_answer(&self) -> Option<Arc<[IpAddr]>> {
        self.shared.resolver.last_answer(self.destination.name()?)
    }

    async fn take_steps(&self, offer: Offer) -> Result<Dialled, UpstreamDialError> {
        if let Some(path) = self.destination.socket_path() {
            let connecting = UnixStream::connect(path);
            let socket = within(Step::Connect, self.limit, connecting).await?;
            return Ok(Dialled {
                socket: Socket::Unix(socket),
                named: None,
            });
        }
        let (tcp, named) = self.connect().await?;
        let socket = match (self.destination.scheme(), &self.tls) {
            (UpstreamScheme::Http | UpstreamScheme::H2c, _) => Socket::Plain(tcp),
            (UpstreamScheme::Https, offers) => {
                let handshake = self.handshake(tcp, offers.as_ref(), offer);
                within(Step::Tls, self.limit, handshake).await?
            }
        };
        Ok(Dialled { socket, named })
    }

    /// A TCP connection, and the addresses of the name if there is one.
    async fn connect(
        &self,
    ) -> Result<(TcpStream, Option<(IpAddr, Arc<[IpAddr]>)>), UpstreamDialError> {
        let looking = async { self.look_up().await.transpose() };
        let answer = within(Step::Resolve, self.limit, looking).await?;
        let turn = self.dials.fetch_add(1, Ordering::Relaxed);
        let allowed = match (&answer, self.destination.address()) {
            (Some(answer), _) => self.destination.allowed(&answer.addresses, turn)?,
            (None, Some(address)) => self.destination.allowed(&[address], turn)?,
            (None, None) => Vec::new(),
        };
        let connected = connect(&allowed, self.limit, KEEPALIVE).await;
        let tcp = step::ended_within(Step::Connect, self.limit, connected)?.stream;
        let peer = || tcp.peer_addr().as_ref().map(SocketAddr::ip).ok();
        let named = answer.and_then(|answer| Some((peer()?, answer.addresses)));
        Ok((tcp, named))
    }

    async fn handshake(
        &self,
        tcp: TcpStream,
        offers: Option<&TlsOffers>,
        offer: Offer,
    ) -> io::Result<Socket> {
        // `https` never goes without TLS.
        let offers = offers.ok_or_else(|| io::Error::other("TLS is not set up"))?;
        let name = offers.name(self.destination.host())?;
        let stream = tls::handshake(tcp, offers.config(offer), name).await?;
        Ok(Socket::Tls(Box::new(stream)))
    }

    fn problem(&self, error: &UpstreamDialError) -> Problem {
        let reason = match error {
            UpstreamDialError::Denied(_) => Reason::DestinationDenied,
            UpstreamDialError::Step(error) => reason(error),
        };
        Problem::new(
            Hop::Client,
            reason,
            format!("{}: {error}", self.destination),
        )
    }
}

fn reason(error: &StepError) -> Reason {
    match error {
        StepError::TimedOut(Step::Resolve, _) => Reason::DnsTimeout,
        StepError::TimedOut(..) => Reason::ConnectionTimeout,
        StepError::Failed(Step::Resolve, error) if error.kind() == io::ErrorKind::TimedOut => {
            Reason::DnsTimeout
        }
        StepError::Failed(Step::Resolve, _) => Reason::DnsError,
        StepError::Failed(Step::Tls, error) if tls::is_certificate_error(error) => {
            Reason::TlsCertificateError
        }
        StepError::Failed(Step::Tls, error) if tls::is_protocol_refused(error) => {
            Reason::ProtocolRefused
        }
        StepError::Failed(Step::Tls, _) => Reason::TlsProtocolError,
        StepError::Failed(_, error) if descriptors::is_exhausted(error) => Reason::DescriptorLimit,
        // A Unix socket without a listener: its file is there (refused) or missing (not found).
        StepError::Failed(_, error)
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) =>
        {
            Reason::ConnectionRefused
        }
        StepError::Failed(_, error) if error.kind() == io::ErrorKind::TimedOut => {
            Reason::ConnectionTimeout
        }
        StepError::Failed(..) => Reason::ConnectionFailed,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tunnel_ops::task::Owned;
    use tunnel_ops::tls_files::{self, Roots, TlsFilesError};

    use super::super::settings::{TlsOptions, UpstreamError};
    use super::*;

    const LIMIT: Duration = Duration::from_millis(500);

    async fn reason(url: &str, roots: Option<&Roots>) -> Reason {
        let destination = Destination::new(url.parse().unwrap());
        let tls = roots.map(|roots| {
            TlsOffers::new(&TlsOptions {
                roots: Some(roots.clone()),
                ..TlsOptions::default()
            })
        });
        let tls = tls.transpose().unwrap();
        let shared = Arc::new(UpstreamShared::new(&[], MemoryAccount::new(usize::MAX), 1));
        let dialler = UpstreamDialler::new(destination, tls, LIMIT, &shared);
        match dialler.dial(Offer::Any).await {
            Ok(_) => panic!("{url} was reached"),
            Err(problem) => problem.reason(),
        }
    }

    fn some_roots() -> Roots {
        testkit::ca::self_signed("localhost").roots()
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

    #[tokio::test]
    async fn https_is_never_spoken_without_tls() {
        let made = TlsOffers::new(&TlsOptions::default());
        let error = made.err().unwrap();
        assert!(matches!(error, UpstreamError::Tls(TlsFilesError::NoRoots)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        assert_eq!(reason(&url, None).await, Reason::TlsProtocolError);
    }

    #[tokio::test]
    async fn a_unix_socket_without_a_listener_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.sock");
        let url = format!("unix:{}", path.display());
        assert_eq!(reason(&url, None).await, Reason::ConnectionRefused);
        drop(tokio::net::UnixListener::bind(&path).unwrap());
        assert_eq!(reason(&url, None).await, Reason::ConnectionRefused);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_that_may_open_no_more_sockets_says_so() {
        // EMFILE, ENFILE and EADDRNOTAVAIL.
        for (errno, expected) in [
            (24, Reason::DescriptorLimit),
            (23, Reason::DescriptorLimit),
            (99, Reason::ConnectionFailed),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(
                super::reason(&StepError::Failed(Step::Connect, error)),
                expected
            );
        }
    }

    #[tokio::test]
    async fn tls_that_fails_says_how() {
        let identity = testkit::ca::self_signed("127.0.0.1").identity();
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
