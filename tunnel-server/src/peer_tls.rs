//! Who another node is: a certificate of the peers' CA with the URI `tunnel-node:<name>`.
//!
//! A certificate of a tunnel client or of a listener has no such name, and so is good for nothing here, even if it is of
//! the same CA.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    },
    server::ParsedCertificate,
};
use tunnel_directory::NodeName;
use tunnel_ops::faults::FaultyFile;
use tunnel_ops::tls_files::{self, ClientAuth, Identity, Roots, TlsFilesError};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// What the URI of a node's certificate begins with.
const SCHEME: &str = "tunnel-node:";

/// The protocol of links, in the TLS handshake.
pub(crate) const ALPN: &[u8] = b"tunnel-peer/1";

/// How a node dials the others: with its certificate, and with the CA that issued theirs.
#[derive(Clone)]
pub(crate) struct PeerTls {
    pub(crate) ca: PeerCa,
    pub(crate) identity: Identity,
}

/// The CA that issues the certificates of nodes.
#[derive(Clone, Debug)]
pub struct PeerCa {
    store: Arc<RootCertStore>,
    roots: Roots,
}

/// Why the identity of nodes cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum PeerIdentityError {
    /// The file of the CA.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// The file has a certificate that is no CA's.
    #[error("{}: holds a certificate that cannot be a CA's", .0.display())]
    NotACa(PathBuf),
    /// The certificate is not that of a node.
    #[error(
        "the certificate of --peer-cert names no node: it needs the URI {SCHEME}NAME, as `tunnel-server certs --peer NAME` makes it"
    )]
    NoNode,
    /// The certificate is that of another node.
    #[error("the certificate of --peer-cert is that of the node {0}, and --node is {1}")]
    OtherNode(NodeName, NodeName),
}

impl PeerIdentityError {
    /// The file at fault, if it is one.
    pub(crate) fn file(&self) -> Option<FaultyFile<'_>> {
        match self {
            Self::Tls(error) => error.file(),
            Self::NotACa(path) => Some(path.as_path().into()),
            Self::NoNode | Self::OtherNode(..) => None,
        }
    }
}

/// The URI in the certificate of a node.
#[must_use]
pub fn node_uri(node: &NodeName) -> String {
    format!("{SCHEME}{node}")
}

/// The node that a certificate names; `None` if it names none, or several.
pub(crate) fn node_of(certificate: &CertificateDer<'_>) -> Option<NodeName> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    let uris = names.value.general_names.iter();
    let mut nodes = uris.filter_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(SCHEME),
        _ => None,
    });
    let node = nodes.next()?.parse().ok()?;
    nodes.next().is_none().then_some(node)
}

impl PeerCa {
    /// Reads the CA's certificates.
    ///
    /// # Errors
    /// When the file cannot be read or has none.
    pub fn load(path: &Path) -> Result<Self, PeerIdentityError> {
        let roots = Roots::load_only(path)?;
        let text = fs::read(path).map_err(|source| TlsFilesError::Unreadable {
            origin: path.to_owned(),
            source,
        })?;
        Self::of(path, &text, roots)
    }

    /// The CA of this PEM text.
    ///
    /// # Errors
    /// When it has no certificate.
    pub fn from_pem(pem: &str) -> Result<Self, PeerIdentityError> {
        Self::of(Path::new("peer CA"), pem.as_bytes(), Roots::from_pem(pem)?)
    }

    fn of(origin: &Path, pem: &[u8], roots: Roots) -> Result<Self, PeerIdentityError> {
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem).flatten() {
            let added = store.add(certificate);
            added.map_err(|_| PeerIdentityError::NotACa(origin.to_owned()))?;
        }
        Ok(Self {
            store: Arc::new(store),
            roots,
        })
    }

    /// Checks that a certificate is the one of this node.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_own(&self, certificate: &Path, node: &NodeName) -> Result<(), PeerIdentityError> {
        let text = fs::read(certificate).map_err(|source| TlsFilesError::Unreadable {
            origin: certificate.to_owned(),
            source,
        })?;
        let first = CertificateDer::pem_slice_iter(&text).flatten().next();
        match first.as_ref().and_then(node_of) {
            Some(named) if named == *node => Ok(()),
            Some(named) => Err(PeerIdentityError::OtherNode(named, node.clone())),
            None => Err(PeerIdentityError::NoNode),
        }
    }

    /// How the peer listener checks who dials.
    pub(crate) fn client_auth(&self) -> ClientAuth {
        ClientAuth {
            roots: self.roots.clone(),
            revocation_lists: None,
            is_required: true,
        }
    }

    /// The configuration for a link to the node of this name.
    fn client(
        &self,
        own: &Identity,
        node: &NodeName,
    ) -> Result<Arc<ClientConfig>, PeerIdentityError> {
        let check = |provider: &CryptoProvider| -> Arc<dyn ServerCertVerifier> {
            Arc::new(NodeVerifier {
                store: self.store.clone(),
                algorithms: provider.signature_verification_algorithms,
                node: node.clone(),
            })
        };
        Ok(tls_files::client_config_with(Some(own), &[ALPN], check)?)
    }
}

impl PeerTls {
    /// The configuration for a link to the node of this name.
    pub(crate) fn client(&self, node: &NodeName) -> Result<Arc<ClientConfig>, PeerIdentityError> {
        self.ca.client(&self.identity, node)
    }
}

/// Accepts the certificate of one node.
#[derive(Debug)]
struct NodeVerifier {
    store: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    node: NodeName,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.store, issuers, now, algorithms)?;
        match node_of(certificate) {
            Some(node) if node == self.node => Ok(ServerCertVerified::assertion()),
            _ => Err(CertificateError::NotValidForName.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
