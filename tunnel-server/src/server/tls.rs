//! The certificates of the two listeners, replaced together or not at all.

use std::sync::Arc;

use tunnel_ops::tls_files::{ClientAuth, LiveServerConfig, NextServerConfig, TlsFilesError};

use crate::{config::Config, metrics::Metrics};

/// The listeners' certificates, and how client certificates are checked.
pub(super) struct ListenerTls {
    pub(super) tunnel: Arc<LiveServerConfig>,
    /// `None` when the public listener is plain.
    pub(super) public: Option<Arc<LiveServerConfig>>,
}

/// A prepared configuration for [`ListenerTls::commit`].
pub(super) struct NextListenerTls {
    tunnel: NextServerConfig,
    public: Option<NextServerConfig>,
}

impl ListenerTls {
    pub(super) fn new(
        config: &Config,
        client_auth: Option<ClientAuth>,
    ) -> Result<Self, TlsFilesError> {
        let public = |identity| LiveServerConfig::new(identity, &[b"h2", b"http/1.1"], None);
        let public = config.public_tls.clone().map(public).transpose()?;
        let identity = config.tunnel_tls.clone();
        let tunnel = LiveServerConfig::new(identity, &[b"http/1.1"], client_auth)?;
        Ok(Self {
            tunnel: Arc::new(tunnel),
            public: public.map(Arc::new),
        })
    }

    /// Prepares a new configuration, which takes effect when it is committed.
    pub(super) fn prepare(
        &self,
        config: &Config,
        client_auth: Option<ClientAuth>,
    ) -> Result<NextListenerTls, TlsFilesError> {
        let public = self.public.as_ref().zip(config.public_tls.clone());
        let public = public.map(|(public, identity)| public.prepare(identity, None));
        Ok(NextListenerTls {
            tunnel: (self.tunnel).prepare(config.tunnel_tls.clone(), client_auth)?,
            public: public.transpose()?,
        })
    }

    pub(super) fn commit(&self, next: NextListenerTls) {
        self.tunnel.commit(next.tunnel);
        if let (Some(public), Some(next)) = (&self.public, next.public) {
            public.commit(next);
        }
    }

    /// Updates the metrics of the certificates' expiry.
    pub(super) fn show(&self, metrics: &Metrics) {
        metrics.set_certificate_expiry("tunnel", self.tunnel.not_after());
        if let Some(public) = &self.public {
            metrics.set_certificate_expiry("public", public.not_after());
        }
    }
}
