//! The TLS configuration of a listener, replaceable at run time.
//!
//! In: a certificate and client authentication, at the start and whenever they change. Out: the current
//! configuration for each accepted connection. Open connections are not affected; the programs decide
//! whether one has to end.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ProducesTickets, ResolvesServerCert};
use rustls::sign::SingleCertAndKey;
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use super::{ClientAuth, Identity, TlsFilesError, listener_config};

/// The certificate that a listener shows.
#[derive(Clone)]
pub enum ServerCertificate {
    /// This one, until it is replaced.
    Fixed(Identity),
    /// The one that the resolver chooses for each handshake.
    Resolved(Arc<dyn ResolvesServerCert>),
}

/// The current TLS configuration of a listener.
pub struct LiveServerConfig {
    current: ArcSwap<ServerConfig>,
    alpn: Vec<Vec<u8>>,
    inputs: Mutex<ConfigInputs>,
}

/// A prepared configuration that is not in use yet.
#[derive(Debug)]
pub struct NextServerConfig(Option<PreparedConfig>);

struct PreparedConfig {
    config: Arc<ServerConfig>,
    inputs: ConfigInputs,
}

/// The inputs of a configuration.
struct ConfigInputs {
    certificate: ServerCertificate,
    client_auth: Option<ClientAuth>,
    ticketer: Arc<dyn ProducesTickets>,
}

impl LiveServerConfig {
    /// Creates the configuration; `alpn`, the preferred protocol first, cannot be changed later. An expired
    /// certificate is accepted with a warning, since clients that do not verify it can still be served.
    pub fn new(
        certificate: impl Into<ServerCertificate>,
        alpn: &[&[u8]],
        client_auth: Option<ClientAuth>,
    ) -> Result<Self, TlsFilesError> {
        let certificate = certificate.into();
        if let Err(problem) = certificate.check_end(SystemTime::now()) {
            warn!(%problem, "clients of this listener will refuse its certificate");
        }
        let alpn: Vec<_> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let inputs = ConfigInputs {
            certificate,
            client_auth,
            ticketer: aws_lc_rs::Ticketer::new()?,
        };
        Ok(Self {
            current: ArcSwap::new(inputs.config(&alpn)?),
            alpn,
            inputs: Mutex::new(inputs),
        })
    }

    /// The acceptor for the next connection. Takes no lock.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Uses these from the next accepted connection on; whether anything has changed. After an error
    /// nothing has changed. Replacing a valid certificate by an expired one is an error.
    ///
    /// With a new certificate, session tickets stay valid. With new client authentication they do not: a
    /// resumed session presents no certificate, so it would bypass the new check.
    pub fn replace(
        &self,
        certificate: impl Into<ServerCertificate>,
        client_auth: Option<ClientAuth>,
    ) -> Result<bool, TlsFilesError> {
        let next = self.prepare(certificate, client_auth)?;
        Ok(self.commit(next))
    }

    /// The first half of [`Self::replace`], which includes all that can fail.
    pub fn prepare(
        &self,
        certificate: impl Into<ServerCertificate>,
        client_auth: Option<ClientAuth>,
    ) -> Result<NextServerConfig, TlsFilesError> {
        let certificate = certificate.into();
        let current = self.inputs.lock();
        let is_same_auth = current.client_auth == client_auth;
        if is_same_auth && current.certificate == certificate {
            return Ok(NextServerConfig(None));
        }
        let now = SystemTime::now();
        if current.certificate.check_end(now).is_ok() {
            certificate.check_end(now)?;
        }
        let inputs = ConfigInputs {
            certificate,
            client_auth,
            ticketer: match is_same_auth {
                true => Arc::clone(&current.ticketer),
                false => aws_lc_rs::Ticketer::new()?,
            },
        };
        let config = inputs.config(&self.alpn)?;
        Ok(NextServerConfig(Some(PreparedConfig { config, inputs })))
    }

    /// The second half of [`Self::replace`].
    pub fn commit(&self, next: NextServerConfig) -> bool {
        let NextServerConfig(Some(PreparedConfig { config, inputs })) = next else {
            return false;
        };
        let mut current = self.inputs.lock();
        self.current.store(config);
        *current = inputs;
        true
    }

    /// The end of validity of the current certificate; `None` if a resolver chooses it.
    #[must_use]
    pub fn not_after(&self) -> Option<SystemTime> {
        match &self.inputs.lock().certificate {
            ServerCertificate::Fixed(identity) => Some(identity.not_after()),
            ServerCertificate::Resolved(_) => None,
        }
    }
}

impl ServerCertificate {
    /// Checks that a fixed certificate has not expired.
    fn check_end(&self, now: SystemTime) -> Result<(), TlsFilesError> {
        match self {
            Self::Fixed(identity) => identity.check_end(now),
            Self::Resolved(_) => Ok(()),
        }
    }

    fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        match self {
            Self::Fixed(identity) => Arc::new(SingleCertAndKey::from(identity.certified_key())),
            Self::Resolved(resolver) => Arc::clone(resolver),
        }
    }
}

impl From<Identity> for ServerCertificate {
    fn from(identity: Identity) -> Self {
        Self::Fixed(identity)
    }
}

impl PartialEq for ServerCertificate {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fixed(one), Self::Fixed(other)) => one == other,
            (Self::Resolved(one), Self::Resolved(other)) => Arc::ptr_eq(one, other),
            (Self::Fixed(_), Self::Resolved(_)) | (Self::Resolved(_), Self::Fixed(_)) => false,
        }
    }
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(identity) => identity.fmt(f),
            Self::Resolved(_) => f.write_str("Resolved"),
        }
    }
}

impl ConfigInputs {
    fn config(&self, alpn: &[Vec<u8>]) -> Result<Arc<ServerConfig>, TlsFilesError> {
        let client_auth = self.client_auth.as_ref();
        let ticketer = Arc::clone(&self.ticketer);
        let resolver = self.certificate.resolver();
        listener_config(resolver, alpn.to_vec(), client_auth, ticketer)
    }
}

impl fmt::Debug for LiveServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveServerConfig")
            .field("inputs", &self.inputs.lock())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PreparedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inputs.fmt(f)
    }
}

impl fmt::Debug for ConfigInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigInputs")
            .field("certificate", &self.certificate)
            .field("client_auth", &self.client_auth)
            .finish_non_exhaustive()
    }
}
