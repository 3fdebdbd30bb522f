//! Connections to a target: TCP or TLS, HTTP/1.1 or HTTP/2.
//!
//! [`Dialer`] makes them. [`connection`] is hyper, for everything that looks at content, sends much of it, or uses
//! HTTP/2; [`minimal`] is for small requests that are all alike, where the generator must not be the limit.
//! Errors are [`Failure`]s: counted, never shown.

pub mod body;
pub mod connection;
pub mod minimal;
pub mod template;

use std::{io, net::SocketAddr, sync::Arc};

use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

use crate::measure::errors::{Failure, FailureKind};

/// A connection, plain or with TLS.
pub type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// What the system says when a process has no descriptor left: `EMFILE`.
const TOO_MANY_FILES: i32 = rustix::io::Errno::MFILE.raw_os_error();

/// Makes connections to one target.
#[derive(Clone, Debug)]
pub struct Dialer {
    addresses: Arc<[SocketAddr]>,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
}

impl Dialer {
    /// For a target at these addresses, which are tried in turn; plain without `tls`.
    pub fn new(
        addresses: Vec<SocketAddr>,
        tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    ) -> Self {
        Self {
            addresses: addresses.into(),
            tls,
        }
    }

    /// Makes a connection, through the TLS handshake. Has no time limit of its own.
    ///
    /// # Errors
    /// Refused, failed, or the handshake failed.
    pub async fn dial(&self) -> Result<Stream, Failure> {
        let mut last = FailureKind::ConnectFailed;
        for address in self.addresses.iter() {
            match TcpStream::connect(address).await {
                Ok(stream) => return self.secure(stream).await,
                Err(error) => last = kind_of_connect(&error),
            }
        }
        Err(Failure::fatal(last))
    }

    async fn secure(&self, stream: TcpStream) -> Result<Stream, Failure> {
        // Without it small requests would wait for acknowledgements. It fails only on a socket
        // that is already dead, which the first write tells.
        drop(stream.set_nodelay(true));
        let Some((config, name)) = &self.tls else {
            return Ok(Stream::Left(stream));
        };
        let connector = TlsConnector::from(config.clone());
        match connector.connect(name.clone(), stream).await {
            Ok(stream) => Ok(Stream::Right(Box::new(stream))),
            Err(error) => Err(Failure::fatal(match FailureKind::of_io(&error) {
                FailureKind::Protocol => FailureKind::TlsHandshake,
                // A peer that is gone in the midst of it is no failure of TLS.
                other => other,
            })),
        }
    }
}

/// The kind of a failure to connect.
pub(crate) fn kind_of_connect(error: &io::Error) -> FailureKind {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => FailureKind::ConnectRefused,
        io::ErrorKind::TimedOut => FailureKind::ConnectTimeout,
        io::ErrorKind::ConnectionReset => FailureKind::ConnectionReset,
        // These two are this machine's limits, not the target's.
        io::ErrorKind::AddrNotAvailable => FailureKind::Other("no_local_port"),
        _ if error.raw_os_error() == Some(TOO_MANY_FILES) => FailureKind::Other("no_descriptor"),
        _ => FailureKind::ConnectFailed,
    }
}
