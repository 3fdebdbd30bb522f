//! The certificates of the listeners and of the links to other nodes, replaced together or not at all.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tunnel_ops::tls_files::{ClientAuth, LiveServerConfig, NextServerConfig, TlsFilesError};

use crate::{
    config::{Config, PeerLinks},
    metrics::Metrics,
    peer_tls::{ALPN, PeerTls},
};

/// The listeners' certificates, and how client certificates are checked.
pub(super) struct ListenerTls {
    /// `None` when tunnel clients come in plain HTTP.
    pub(super) tunnel: Option<Arc<LiveServerConfig>>,
    /// `None` when the public listener is plain.
    pub(super) public: Option<Arc<LiveServerConfig>>,
    /// `None` when there are no links to other nodes.
    pub(super) links: Option<LinkTls>,
}

/// The certificate of this node for others, and how theirs are checked.
pub(super) struct LinkTls {
    /// For links from other nodes.
    pub(super) listener: Arc<LiveServerConfig>,
    /// For links to them.
    pub(super) dialling: Arc<ArcSwap<PeerTls>>,
}

/// A prepared configuration for [`ListenerTls::commit`].
pub(super) struct NextListenerTls {
    tunnel: Option<NextServerConfig>,
    public: Option<NextServerConfig>,
    links: Option<(NextServerConfig, PeerTls)>,
}

impl ListenerTls {
    pub(super) fn new(
        config: &Config,
        client_auth: Option<ClientAuth>,
    ) -> Result<Self, TlsFilesError> {
        let public = |identity| LiveServerConfig::new(identity, &[b"h2", b"http/1.1"], None);
        let public = config.public_tls.clone().map(public).transpose()?;
        let tunnel = |identity| LiveServerConfig::new(identity, &[b"http/1.1"], client_auth);
        let tunnel = config.tunnel_tls.clone().map(tunnel).transpose()?;
        Ok(Self {
            tunnel: tunnel.map(Arc::new),
            public: public.map(Arc::new),
            links: links(config).map(LinkTls::new).transpose()?,
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
        let tunnel = self.tunnel.as_ref().zip(config.tunnel_tls.clone());
        let tunnel = tunnel.map(|(tunnel, identity)| tunnel.prepare(identity, client_auth));
        let links = self.links.as_ref().zip(links(config));
        let links = links.map(|(current, next)| current.prepare(next));
        Ok(NextListenerTls {
            links: links.transpose()?,
            tunnel: tunnel.transpose()?,
            public: public.transpose()?,
        })
    }

    pub(super) fn commit(&self, next: NextListenerTls) {
        if let (Some(tunnel), Some(next)) = (&self.tunnel, next.tunnel) {
            tunnel.commit(next);
        }
        if let (Some(public), Some(next)) = (&self.public, next.public) {
            public.commit(next);
        }
        if let (Some(links), Some(next)) = (&self.links, next.links) {
            links.commit(next);
        }
    }

    /// Updates the metrics of the certificates' expiry.
    pub(super) fn show(&self, metrics: &Metrics) {
        if let Some(tunnel) = &self.tunnel {
            metrics.set_certificate_expiry("tunnel", tunnel.not_after());
        }
        if let Some(public) = &self.public {
            metrics.set_certificate_expiry("public", public.not_after());
        }
    }
}

/// How a node with these links dials others.
fn dialling(links: &PeerLinks) -> PeerTls {
    PeerTls {
        ca: links.ca.clone(),
        identity: links.identity.clone(),
    }
}

fn links(config: &Config) -> Option<&PeerLinks> {
    config.shared_directory.as_ref()?.links.as_ref()
}

impl LinkTls {
    fn new(links: &PeerLinks) -> Result<Self, TlsFilesError> {
        let auth = links.ca.client_auth();
        let listener = LiveServerConfig::new(links.identity.clone(), &[ALPN], Some(auth))?;
        Ok(Self {
            listener: Arc::new(listener),
            dialling: Arc::new(ArcSwap::from_pointee(dialling(links))),
        })
    }

    fn prepare(&self, links: &PeerLinks) -> Result<(NextServerConfig, PeerTls), TlsFilesError> {
        let auth = links.ca.client_auth();
        let listener = self.listener.prepare(links.identity.clone(), Some(auth))?;
        Ok((listener, dialling(links)))
    }

    /// Links that are open stay.
    fn commit(&self, (listener, dialling): (NextServerConfig, PeerTls)) {
        self.listener.commit(listener);
        self.dialling.store(Arc::new(dialling));
    }
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::ServerName;
    use tokio::io::duplex;
    use tokio_rustls::TlsConnector;
    use tunnel_ops::tls_files::Identity;

    use super::*;
    use crate::{certs::NodeAuthority, directory::NodeName, peer_tls::PeerCa};

    fn issued(authority: &NodeAuthority, node: &NodeName) -> PeerLinks {
        let (pem, key) = authority.issue(node, 1).unwrap();
        let identity = Identity::from_pem(&pem, &key).unwrap();
        let ca = PeerCa::from_pem(&authority.pem).unwrap();
        PeerLinks::new("127.0.0.1:1".into(), ca, identity)
    }

    /// Whether one node gets a link to another one.
    async fn links_to(from: &LinkTls, to: &LinkTls, name: &NodeName) -> bool {
        let (near, far) = duplex(65_536);
        let config = from.dialling.load().client(name).unwrap();
        let any = ServerName::try_from("tunnel-node").unwrap();
        let connector = TlsConnector::from(config);
        let acceptor = to.listener.acceptor();
        let (dialled, accepted) = tokio::join!(connector.connect(any, near), acceptor.accept(far));
        dialled.is_ok() && accepted.is_ok()
    }

    #[tokio::test]
    async fn links_use_the_certificates_that_were_read_last() {
        let (one, two): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let [old, new] = [(); 2].map(|()| NodeAuthority::generate(1).unwrap());
        let first = LinkTls::new(&issued(&old, &one)).unwrap();
        let second = LinkTls::new(&issued(&old, &two)).unwrap();
        assert!(links_to(&first, &second, &two).await);
        let next = first.prepare(&issued(&new, &one)).unwrap();
        assert!(links_to(&first, &second, &two).await, "not committed yet");
        first.commit(next);
        assert!(!links_to(&first, &second, &two).await);
        assert!(!links_to(&second, &first, &one).await);
        let next = second.prepare(&issued(&new, &two)).unwrap();
        second.commit(next);
        assert!(links_to(&first, &second, &two).await);
        assert!(links_to(&second, &first, &one).await);
    }
}
