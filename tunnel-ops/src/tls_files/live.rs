//! The TLS configuration of a listener that runs on while its files are replaced.
//!
//! In come an identity and the check of clients, at the start and whenever they change; out comes,
//! at each accept, what is in force then. Connections that are open are left alone: whether one of them must
//! end is the programs' business.

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

/// What a TLS listener answers with now.
pub struct LiveServerConfig {
    current: ArcSwap<ServerConfig>,
    alpn: Vec<Vec<u8>>,
    origin: Mutex<Origin>,
}

/// What a listener is to answer with next: made, and not in force yet.
#[derive(Debug)]
pub struct NextServerConfig(Option<Next>);

struct Next {
    config: Arc<ServerConfig>,
    origin: Origin,
}

/// What the current configuration was made of.
struct Origin {
    identity: Identity,
    client_auth: Option<ClientAuth>,
    ticketer: Arc<dyn ProducesTickets>,
}

impl LiveServerConfig {
    /// Starts with these; `alpn` stays, the preferred protocol first. A certificate that has run out is told
    /// in the log: with it some are still served, without it nobody.
    pub fn new(
        identity: Identity,
        alpn: &[&[u8]],
        client_auth: Option<ClientAuth>,
    ) -> Result<Self, TlsFilesError> {
        if let Err(problem) = identity.check_end(SystemTime::now()) {
            warn!(%problem, "who connects to this listener will refuse its certificate");
        }
        let alpn: Vec<_> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let origin = Origin {
            identity,
            client_auth,
            ticketer: aws_lc_rs::Ticketer::new()?,
        };
        Ok(Self {
            current: ArcSwap::new(origin.config(&alpn)?),
            alpn,
            origin: Mutex::new(origin),
        })
    }

    /// What to accept the next connection with. Takes no lock.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Uses these from the next accept on, and tells whether that is a change. After an error all is as
    /// it was; a certificate that has run out is one in place of a good one.
    ///
    /// A new certificate leaves clients their tickets. A new check of clients does not: a resumed session
    /// shows no certificate again, so it would go round the check.
    pub fn replace(
        &self,
        identity: Identity,
        client_auth: Option<ClientAuth>,
    ) -> Result<bool, TlsFilesError> {
        let next = self.prepare(identity, client_auth)?;
        Ok(self.commit(next))
    }

    /// The first half of [`Self::replace`], which is all that can fail of it.
    pub fn prepare(
        &self,
        identity: Identity,
        client_auth: Option<ClientAuth>,
    ) -> Result<NextServerConfig, TlsFilesError> {
        let current = self.origin.lock();
        let is_same_auth = current.client_auth == client_auth;
        if is_same_auth && current.identity == identity {
            return Ok(NextServerConfig(None));
        }
        let now = SystemTime::now();
        if current.identity.check_end(now).is_ok() {
            identity.check_end(now)?;
        }
        let origin = Origin {
            identity,
            client_auth,
            ticketer: match is_same_auth {
                true => Arc::clone(&current.ticketer),
                false => aws_lc_rs::Ticketer::new()?,
            },
        };
        let config = origin.config(&self.alpn)?;
        Ok(NextServerConfig(Some(Next { config, origin })))
    }

    /// The second half of [`Self::replace`].
    pub fn commit(&self, next: NextServerConfig) -> bool {
        let NextServerConfig(Some(Next { config, origin })) = next else {
            return false;
        };
        let mut current = self.origin.lock();
        self.current.store(config);
        *current = origin;
        true
    }

    /// Until when the certificate in force is valid.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.origin.lock().identity.not_after()
    }
}

impl Origin {
    fn config(&self, alpn: &[Vec<u8>]) -> Result<Arc<ServerConfig>, TlsFilesError> {
        let client_auth = self.client_auth.as_ref();
        let ticketer = Arc::clone(&self.ticketer);
        listener_config(&self.identity, alpn.to_vec(), client_auth, ticketer)
    }
}

impl fmt::Debug for LiveServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveServerConfig")
            .field("origin", &self.origin.lock())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.origin.fmt(f)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin")
            .field("identity", &self.identity)
            .field("client_auth", &self.client_auth)
            .finish_non_exhaustive()
    }
}
