//! Connections to a target: TCP or TLS, HTTP/1.1 or HTTP/2, as cheap as they can be.
//!
//! [`Dialer`] makes them. An [`http1::Http1`] is driven by the task that uses it, so a request
//! costs no hop between tasks; an [`http2::Http2`] has a task of its own, since its streams share
//! it. Errors are [`Failure`]s: counted, never shown.

pub mod body;
pub mod http1;
pub mod http2;
pub mod minimal;
pub mod shared;
pub mod template;

use std::{io, net::SocketAddr, sync::Arc};

use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

use crate::measure::errors::{Failure, Kind};

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
        let mut last = Kind::ConnectFailed;
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
            Err(_) => Err(Failure::fatal(Kind::TlsHandshake)),
        }
    }
}

/// What kind of failure it is not to be connected.
pub(crate) fn kind_of_connect(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Kind::ConnectRefused,
        io::ErrorKind::TimedOut => Kind::ConnectTimeout,
        io::ErrorKind::ConnectionReset => Kind::ConnectionReset,
        // These two are this machine's limits, not the target's.
        io::ErrorKind::AddrNotAvailable => Kind::Other("no_local_port"),
        _ if error.raw_os_error() == Some(TOO_MANY_FILES) => Kind::Other("no_descriptor"),
        _ => Kind::ConnectFailed,
    }
}
