//! The TLS configuration of a listener, replaceable at run time.
//!
//! In: an identity and client authentication, at the start and whenever they change. Out: the current
//! configuration for each accepted connection. Open connections are not affected; the programs decide
//! whether one has to end.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::ProducesTickets;
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use super::{ClientAuth, Identity, TlsFilesError, listener_config};

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
    identity: Identity,
    client_auth: Option<ClientAuth>,
    ticketer: Arc<dyn ProducesTickets>,
}

impl LiveServerConfig {
    /// Creates the configuration; `alpn`, the preferred protocol first, cannot be changed later. An expired
    /// certificate is accepted with a warning, since clients that do not verify it can still be served.
    pub fn new(
        identity: Identity,
        alpn: &[&[u8]],
        client_auth: Option<ClientAuth>,
    ) -> Result<Self, TlsFilesError> {
        if let Err(problem) = identity.check_end(SystemTime::now()) {
            warn!(%problem, "clients of this listener will refuse its certificate");
        }
        let alpn: Vec<_> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let inputs = ConfigInputs {
            identity,
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
        identity: Identity,
        client_auth: Option<ClientAuth>,
    ) -> Result<bool, TlsFilesError> {
        let next = self.prepare(identity, client_auth)?;
        Ok(self.commit(next))
    }

    /// The first half of [`Self::replace`], which includes all that can fail.
    pub fn prepare(
        &self,
        identity: Identity,
        client_auth: Option<ClientAuth>,
    ) -> Result<NextServerConfig, TlsFilesError> {
        let current = self.inputs.lock();
        let is_same_auth = current.client_auth == client_auth;
        if is_same_auth && current.identity == identity {
            return Ok(NextServerConfig(None));
        }
        let now = SystemTime::now();
        if current.identity.check_end(now).is_ok() {
            identity.check_end(now)?;
        }
        let inputs = ConfigInputs {
            identity,
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

    /// The end of validity of the current certificate.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.inputs.lock().identity.not_after()
    }
}

impl ConfigInputs {
    fn config(&self, alpn: &[Vec<u8>]) -> Result<Arc<ServerConfig>, TlsFilesError> {
        let client_auth = self.client_auth.as_ref();
        let ticketer = Arc::clone(&self.ticketer);
        listener_config(&self.identity, alpn.to_vec(), client_auth, ticketer)
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
            .field("identity", &self.identity)
            .field("client_auth", &self.client_auth)
            .finish_non_exhaustive()
    }
}
