//! Certificates and keys in PEM files, and the TLS configurations made from them.
//!
//! In come paths or PEM text; out come an [`Identity`] (a chain with the key that matches it),
//! [`Roots`] (whom to trust), and rustls configurations that name their crypto provider, never the
//! process's default. Errors name the file and what to do; no error, log or `Debug` ever shows a
//! byte of a key.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Why TLS cannot be set up. `origin` is the file at fault, or what stands for it in memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFilesError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", .origin.display())]
    Unreadable {
        /// The file.
        origin: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No certificate in the file.
    #[error("{}: holds no certificate: give a PEM file with `-----BEGIN CERTIFICATE-----`", .origin.display())]
    NoCertificate {
        /// The file.
        origin: PathBuf,
    },
    /// A certificate cannot be understood.
    #[error("{}: holds a damaged certificate: make or copy the file again", .origin.display())]
    DamagedCertificate {
        /// The file.
        origin: PathBuf,
    },
    /// No usable key in the file.
    #[error(
        "{}: holds no usable private key: give a PEM file with one unencrypted PKCS#8, PKCS#1 or SEC1 key",
        .origin.display()
    )]
    NoKey {
        /// The file.
        origin: PathBuf,
    },
    /// The key belongs to another certificate.
    #[error(
        "{}: the key does not belong to the first certificate in {}: give the two that were made together, the \
         server's own certificate before those of its issuers",
        .key.display(), .cert.display()
    )]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The machine trusts nobody, and no other file was given.
    #[error("this system has no trusted root certificates: install them, or name a CA file")]
    NoRoots,
    /// The TLS library refuses the set-up.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// A certificate chain and the key that matches it, checked.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
}

/// The certificates that a peer's chain may end at.
#[derive(Clone)]
pub struct Roots {
    store: Arc<RootCertStore>,
}

impl Identity {
    /// Reads a chain and its key, and checks that they belong together.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsFilesError> {
        Self::check(cert, &read(cert)?, key, &read(key)?)
    }

    /// The same from PEM text in memory.
    pub fn from_pem(cert: &str, key: &str) -> Result<Self, TlsFilesError> {
        let (cert_origin, key_origin) = (Path::new("certificate"), Path::new("key"));
        Self::check(cert_origin, cert.as_bytes(), key_origin, key.as_bytes())
    }

    fn check(
        cert: &Path,
        cert_pem: &[u8],
        key: &Path,
        key_pem: &[u8],
    ) -> Result<Self, TlsFilesError> {
        let chain = certificates(cert, cert_pem)?;
        // The parser's own errors quote lines of the file, so they are not passed on for a key.
        let no_key = || TlsFilesError::NoKey {
            origin: key.to_owned(),
        };
        let private = PrivateKeyDer::from_pem_slice(key_pem).map_err(|_| no_key())?;
        let signing = provider()
            .key_provider
            .load_private_key(private)
            .map_err(|_| no_key())?;
        let certified = CertifiedKey::new(chain, signing);
        match certified.keys_match() {
            Ok(()) => Ok(Self {
                certified: Arc::new(certified),
            }),
            Err(rustls::Error::InconsistentKeys(_)) => Err(TlsFilesError::Mismatch {
                cert: cert.to_owned(),
                key: key.to_owned(),
            }),
            Err(_) => Err(TlsFilesError::DamagedCertificate {
                origin: cert.to_owned(),
            }),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificates", &self.certified.cert.len())
            .finish_non_exhaustive()
    }
}

impl Roots {
    /// The system's roots, and those of the CA file when given.
    pub fn load(ca_file: Option<&Path>) -> Result<Self, TlsFilesError> {
        let mut store = RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(%error, "a trusted certificate of this system cannot be read");
        }
        // Old roots in a system's store that the library cannot parse are common, and no reason to
        // stop.
        store.add_parsable_certificates(system.certs);
        if let Some(path) = ca_file {
            add_roots(&mut store, path, &read(path)?)?;
        }
        if store.is_empty() {
            return Err(TlsFilesError::NoRoots);
        }
        Ok(Self {
            store: Arc::new(store),
        })
    }

    /// Only the roots in this PEM text, none of the system's.
    pub fn from_pem(pem: &str) -> Result<Self, TlsFilesError> {
        let mut store = RootCertStore::empty();
        add_roots(&mut store, Path::new("CA certificate"), pem.as_bytes())?;
        Ok(Self {
            store: Arc::new(store),
        })
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots")
            .field("certificates", &self.store.len())
            .finish()
    }
}

/// The configuration of a TLS listener that offers `alpn`, the preferred protocol first.
pub fn server_config(
    identity: &Identity,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsFilesError> {
    let resolver: Arc<dyn ResolvesServerCert> =
        Arc::new(SingleCertAndKey::from(Arc::clone(&identity.certified)));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    // A client that comes back saves a signature and a chain; the keys turn over every six hours.
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    Ok(Arc::new(config))
}

/// The configuration of a TLS client that trusts `roots` and offers `alpn`, the preferred protocol
/// first.
pub fn client_config(roots: &Roots, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsFilesError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_root_certificates(Arc::clone(&roots.store))
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFilesError> {
    fs::read(path).map_err(|source| TlsFilesError::Unreadable {
        origin: path.to_owned(),
        source,
    })
}

fn certificates(origin: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFilesError> {
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(TlsFilesError::NoCertificate {
            origin: origin.to_owned(),
        }),
        Ok(chain) => Ok(chain),
        Err(_) => Err(TlsFilesError::DamagedCertificate {
            origin: origin.to_owned(),
        }),
    }
}

fn add_roots(store: &mut RootCertStore, origin: &Path, pem: &[u8]) -> Result<(), TlsFilesError> {
    for certificate in certificates(origin, pem)? {
        store
            .add(certificate)
            .map_err(|_| TlsFilesError::DamagedCertificate {
                origin: origin.to_owned(),
            })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;

    use rcgen::{CertifiedKey as Made, generate_simple_self_signed};
    use rustls::pki_types::ServerName;

    use super::*;

    struct Pair {
        cert: String,
        key: String,
    }

    fn pair() -> Pair {
        let Made { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Pair {
            cert: cert.pem(),
            key: signing_key.serialize_pem(),
        }
    }

    #[track_caller]
    fn refused(cert: &str, key: &str) -> String {
        Identity::from_pem(cert, key).unwrap_err().to_string()
    }

    #[test]
    fn both_ends_agree_on_a_protocol_and_on_trust() {
        let Pair { cert, key } = pair();
        let identity = Identity::from_pem(&cert, &key).unwrap();
        let roots = Roots::from_pem(&cert).unwrap();
        let server = server_config(&identity, &[b"h2", b"http/1.1"]).unwrap();
        let client = client_config(&roots, &[b"http/1.1"]).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut server = rustls::ServerConnection::new(server).unwrap();
        let mut client = rustls::ClientConnection::new(client, name).unwrap();
        exchange_flights(&mut client, &mut server).unwrap();
        assert_eq!(server.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(
            client.protocol_version(),
            Some(rustls::ProtocolVersion::TLSv1_3)
        );
    }

    #[test]
    fn a_stranger_is_not_trusted() {
        let (ours, other) = (pair(), pair());
        let identity = Identity::from_pem(&ours.cert, &ours.key).unwrap();
        let roots = Roots::from_pem(&other.cert).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut server =
            rustls::ServerConnection::new(server_config(&identity, &[]).unwrap()).unwrap();
        let mut client =
            rustls::ClientConnection::new(client_config(&roots, &[]).unwrap(), name).unwrap();
        assert!(exchange_flights(&mut client, &mut server).is_err());
    }

    fn exchange_flights(
        client: &mut rustls::ClientConnection,
        server: &mut rustls::ServerConnection,
    ) -> io::Result<()> {
        while client.is_handshaking() || server.is_handshaking() {
            let mut flight = Vec::new();
            client.write_tls(&mut flight)?;
            server.read_tls(&mut &flight[..])?;
            server.process_new_packets().map_err(io::Error::other)?;
            let mut flight = Vec::new();
            server.write_tls(&mut flight)?;
            client.read_tls(&mut &flight[..])?;
            client.process_new_packets().map_err(io::Error::other)?;
        }
        Ok(())
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let error = refused(&pair().cert, &pair().key);
        assert!(
            error.starts_with(
                "key: the key does not belong to the first certificate in certificate"
            ),
            "{error}"
        );
    }

    #[test]
    fn files_that_hold_something_else_are_refused_without_quoting_them() {
        let Pair { cert, key } = pair();
        assert!(refused(&key, &key).starts_with("certificate: holds no certificate"));
        assert!(refused(&cert, &cert).starts_with("key: holds no usable private key"));
        let damaged = key.replacen("\nM", "\n!", 1);
        let error = refused(&cert, &damaged);
        assert!(
            error.starts_with("key: holds no usable private key"),
            "{error}"
        );
        assert!(!error.contains("BEGIN PRIVATE"), "{error}");
        let cut = "-----BEGIN CERTIFICATE-----\nMIIB\n";
        assert!(refused(cut, &key).starts_with("certificate: holds a damaged certificate"));
        let hollow = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(refused(hollow, &key).starts_with("certificate: holds a damaged certificate"));
        assert!(
            Roots::from_pem(hollow)
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let error =
            Identity::load(Path::new("/nowhere/a.pem"), Path::new("/nowhere/a.key")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("/nowhere/a.pem: cannot be read"),
            "{error}"
        );
    }

    #[test]
    fn a_ca_file_adds_to_the_systems_roots() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        fs::write(&file, pair().cert).unwrap();
        assert!(!Roots::load(Some(&file)).unwrap().store.is_empty());
    }

    #[test]
    fn debug_shows_no_key() {
        let Pair { cert, key } = pair();
        let identity = Identity::from_pem(&cert, &key).unwrap();
        assert_eq!(format!("{identity:?}"), "Identity { certificates: 1, .. }");
    }
}
