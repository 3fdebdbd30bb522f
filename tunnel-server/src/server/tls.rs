//! The certificates of the listeners and of the links to other nodes, replaced together or not at all.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tunnel_ops::tls_files::{
    ClientAuth, Identity, LiveServerConfig, NextServerConfig, ServerCertificate, TlsFilesError,
};

use crate::{
    acme,
    admin::view::{CertificateSource, CertificateView, ReadCertificates},
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
    /// For listeners without certificates in files.
    acme: Option<ServerCertificate>,
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
    /// `acme` is for the listeners that have no certificate in files.
    ///
    /// # Errors
    /// When a certificate or list cannot be used, or the tunnel listener has none.
    pub(super) fn new(
        config: &Config,
        client_auth: Option<ClientAuth>,
        acme: Option<ServerCertificate>,
    ) -> Result<Self, TlsFilesError> {
        let live = |certificate, alpn: &[&'static [u8]], client_auth| {
            let mut alpn = alpn.to_vec();
            if matches!(certificate, ServerCertificate::Resolved(_)) {
                alpn.push(acme::ALPN);
            }
            LiveServerConfig::new(certificate, &alpn, client_auth).map(Arc::new)
        };
        let public = certificate(&config.public_tls, &acme);
        let public = public.map(|public| live(public, &[b"h2", b"http/1.1", b"http/1.0"], None));
        let tunnel = tunnel_certificate(config, &acme)?;
        let tunnel = tunnel.map(|tunnel| live(tunnel, &[b"http/1.1"], client_auth));
        Ok(Self {
            tunnel: tunnel.transpose()?,
            public: public.transpose()?,
            links: links(config).map(LinkTls::new).transpose()?,
            acme,
        })
    }

    /// Prepares a new configuration, which takes effect when it is committed.
    pub(super) fn prepare(
        &self,
        config: &Config,
        client_auth: Option<ClientAuth>,
    ) -> Result<NextListenerTls, TlsFilesError> {
        let tunnel = self
            .tunnel
            .as_ref()
            .zip(tunnel_certificate(config, &self.acme)?);
        let tunnel = tunnel.map(|(tunnel, certificate)| tunnel.prepare(certificate, client_auth));
        let public = certificate(&config.public_tls, &self.acme);
        let public = self.public.as_ref().zip(public);
        let public = public.map(|(public, certificate)| public.prepare(certificate, None));
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

    /// Reads the certificates in files that the listeners show.
    pub(super) fn read_certificates(&self) -> ReadCertificates {
        let listeners = [
            ("tunnel", self.tunnel.clone()),
            ("public", self.public.clone()),
        ];
        Arc::new(move || {
            let view = |(name, live): &(&str, Option<Arc<LiveServerConfig>>)| {
                Some(CertificateView {
                    source: CertificateSource::File,
                    name: (*name).to_owned(),
                    not_after: Some(live.as_ref()?.not_after()?.into()),
                    problem: None,
                })
            };
            listeners.iter().filter_map(view).collect()
        })
    }

    /// Updates the metrics of the expiry of certificates in files.
    pub(super) fn show(&self, metrics: &Metrics) {
        let listeners = [("tunnel", &self.tunnel), ("public", &self.public)];
        for (listener, live) in listeners {
            let not_after = live.as_ref().and_then(|live| live.not_after());
            if let Some(not_after) = not_after {
                metrics.set_certificate_expiry(listener, not_after);
            }
        }
    }
}

/// What a listener shows: the certificate in its files, else those by ACME.
fn certificate(
    in_files: &Option<Identity>,
    acme: &Option<ServerCertificate>,
) -> Option<ServerCertificate> {
    in_files.clone().map(Into::into).or_else(|| acme.clone())
}

/// What the tunnel listener shows; `None` if it is plain.
fn tunnel_certificate(
    config: &Config,
    acme: &Option<ServerCertificate>,
) -> Result<Option<ServerCertificate>, TlsFilesError> {
    if !config.settings.tunnel_tls {
        return Ok(None);
    }
    let certificate = certificate(&config.tunnel_tls, acme);
    certificate.ok_or(TlsFilesError::NoIdentity).map(Some)
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
    use tunnel_directory::NodeName;
    use tunnel_ops::tls_files::Identity;

    use super::*;
    use crate::{certs::NodeAuthority, peer_tls::PeerCa};

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
