//! Certificates and keys in PEM files, and the TLS configurations made from them.
//!
//! In: paths or PEM text. Out: an [`Identity`] (a certificate chain and its key), [`Roots`] (trusted
//! certificates), [`ClientAuth`] (which clients a listener accepts), and rustls configurations with an
//! explicit crypto provider instead of the process's default. With a [`LiveServerConfig`] a listener's
//! files can be replaced at run time. Errors name the file and the remedy; no error, log or `Debug` output
//! contains a byte of a key.

mod client_auth;
mod client_check;
mod live;
mod validity;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{ProducesTickets, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use crate::byte_order_mark::bytes_without_mark;
use crate::faults::FaultyFile;

pub use self::client_auth::{ClientAuth, RevocationLists};
pub use self::client_check::ClientCheck;
pub use self::live::{LiveServerConfig, NextServerConfig, ServerCertificate};
pub use self::validity::not_after;
use self::validity::version_and_end;

/// The version of X.509 that has extensions, which name the server (RFC 9525 section 2).
const VERSION: u32 = 3;

/// Why TLS cannot be set up. `origin` is the file at fault, or a description of a value in memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFilesError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", .origin.display())]
    Unreadable {
        /// The file.
        origin: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file contains no certificate.
    #[error("{}: holds no certificate: give a PEM file with `-----BEGIN CERTIFICATE-----`", .origin.display())]
    NoCertificate {
        /// The file.
        origin: PathBuf,
    },
    /// A certificate cannot be parsed.
    #[error("{}: holds a damaged certificate: make or copy the file again", .origin.display())]
    DamagedCertificate {
        /// The file.
        origin: PathBuf,
    },
    /// A program's own certificate is of a version that TLS does not take.
    #[error(
        "{}: holds a certificate of X.509 version {version}, which is not supported: make it again with the extension \
         subjectAltName, which gives it version 3 (`openssl x509 -req` with -extfile, `openssl req -x509` with -addext)",
        .origin.display()
    )]
    OldCertificate {
        /// The file.
        origin: PathBuf,
        /// The version of X.509.
        version: u32,
    },
    /// The file contains no usable key.
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
    /// The certificate has expired.
    #[error("the certificate {fingerprint} expired on {}: give a valid one", humantime::format_rfc3339_seconds(*.ended))]
    Expired {
        /// The fingerprint of the certificate.
        fingerprint: String,
        /// When it expired.
        ended: SystemTime,
    },
    /// The file contains no revocation list.
    #[error("{}: holds no revocation list: give a PEM file with `-----BEGIN X509 CRL-----`", .origin.display())]
    NoRevocationList {
        /// The file.
        origin: PathBuf,
    },
    /// A revocation list cannot be parsed.
    #[error("{}: holds a damaged or unusual revocation list: {reason}", .origin.display())]
    DamagedRevocationList {
        /// The file.
        origin: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system has no trusted roots, and no CA file was given.
    #[error(
        "there are no trusted root certificates: install them in this system, or name a CA file"
    )]
    NoRoots,
    /// A listener that needs a certificate has none.
    #[error("the listener has no certificate: give its chain and key")]
    NoIdentity,
    /// The TLS library refuses the configuration.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

impl TlsFilesError {
    /// The file at fault, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<FaultyFile<'_>> {
        let (path, key_end) = match self {
            Self::Unreadable { origin, .. } => (origin, ""),
            Self::NoCertificate { origin }
            | Self::DamagedCertificate { origin }
            | Self::OldCertificate { origin, .. } => (origin, "_cert"),
            Self::NoKey { origin } | Self::Mismatch { key: origin, .. } => (origin, "_key"),
            Self::NoRevocationList { origin } | Self::DamagedRevocationList { origin, .. } => {
                (origin, "_crl")
            }
            Self::Expired { .. } | Self::NoRoots | Self::NoIdentity | Self::Setup(_) => {
                return None;
            }
        };
        Some(FaultyFile { path, key_end })
    }
}

/// A checked certificate chain and its key. Identities are equal if their chains are, since a certificate
/// determines its key.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    not_after: SystemTime,
}

/// The trusted root certificates at which a peer's chain may end.
#[derive(Clone)]
pub struct Roots {
    store: Arc<RootCertStore>,
}

impl Identity {
    /// Reads a chain and its key, and checks that they belong together.
    ///
    /// # Errors
    /// With the first fault.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsFilesError> {
        Self::check(cert, read_chain(cert)?, key, read_key(key)?)
    }

    /// As [`Identity::load`]; `None` with a fault for each file that cannot be used.
    pub fn load_or_fault<F: From<TlsFilesError>>(
        cert: &Path,
        key: &Path,
        faults: &mut Vec<F>,
    ) -> Option<Self> {
        let (chain, signing) = (read_chain(cert), read_key(key));
        let mut report = |fault: TlsFilesError| faults.push(fault.into());
        let chain = chain.map_err(&mut report).ok();
        let signing = signing.map_err(&mut report).ok();
        Self::check(cert, chain?, key, signing?)
            .map_err(report)
            .ok()
    }

    /// Reads and checks a chain and its key from PEM text.
    pub fn from_pem(cert: &str, key: &str) -> Result<Self, TlsFilesError> {
        let (cert_origin, key_origin) = (Path::new("certificate"), Path::new("key"));
        let chain = chain(cert_origin, cert.as_bytes())?;
        let signing = signing_key(key_origin, key.as_bytes())?;
        Self::check(cert_origin, chain, key_origin, signing)
    }

    fn check(
        cert: &Path,
        (chain, not_after): (Vec<CertificateDer<'static>>, SystemTime),
        key: &Path,
        signing: Arc<dyn SigningKey>,
    ) -> Result<Self, TlsFilesError> {
        let certified = CertifiedKey::new(chain, signing);
        match certified.keys_match() {
            Ok(()) => Ok(Self {
                certified: Arc::new(certified),
                not_after,
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

    /// The first 16 hexadecimal digits of the SHA-256 of the first certificate, as an identifier.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint(self.certified.cert.first().map(AsRef::as_ref))
    }

    /// The chain and its key, for a resolver of rustls.
    #[must_use]
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }

    /// The end of validity of the first certificate, which is the program's own.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Checks that the first certificate has not expired at this moment.
    ///
    /// # Errors
    /// When it has expired.
    pub fn check_end(&self, now: SystemTime) -> Result<(), TlsFilesError> {
        if now < self.not_after {
            return Ok(());
        }
        Err(TlsFilesError::Expired {
            fingerprint: self.fingerprint(),
            ended: self.not_after,
        })
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.certified.cert == other.certified.cert
    }
}

impl Eq for Identity {}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificates", &self.certified.cert.len())
            .finish_non_exhaustive()
    }
}

impl Roots {
    /// The system's roots, and those of the CA file if given.
    pub fn load(ca_file: Option<&Path>) -> Result<Self, TlsFilesError> {
        Self::system().and_files(ca_file)?.checked()
    }

    /// The system's roots, possibly none.
    #[must_use]
    pub fn system() -> Self {
        let mut store = RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(%error, "a trusted certificate of this system cannot be read");
        }
        // System stores often contain old roots that the library cannot parse; these are skipped.
        store.add_parsable_certificates(system.certs);
        Self {
            store: Arc::new(store),
        }
    }

    /// No roots, for adding some.
    #[must_use]
    pub fn none() -> Self {
        Self {
            store: Arc::new(RootCertStore::empty()),
        }
    }

    /// These roots, and those in these CA files.
    pub fn and_files<P: AsRef<Path>>(
        &self,
        ca_files: impl IntoIterator<Item = P>,
    ) -> Result<Self, TlsFilesError> {
        let mut roots = self.clone();
        for path in ca_files {
            let path = path.as_ref();
            add_roots(Arc::make_mut(&mut roots.store), path, &read(path)?)?;
        }
        Ok(roots)
    }

    /// These roots, and those in the PEM text of a CA file.
    pub fn and_pem(&self, origin: &Path, pem: &[u8]) -> Result<Self, TlsFilesError> {
        let mut roots = self.clone();
        add_roots(Arc::make_mut(&mut roots.store), origin, pem)?;
        Ok(roots)
    }

    /// These roots. Fails if there are none.
    pub fn checked(self) -> Result<Self, TlsFilesError> {
        match self.store.is_empty() {
            true => Err(TlsFilesError::NoRoots),
            false => Ok(self),
        }
    }

    /// The verifier that [`client_config`] uses for a server's certificate, for callers that wrap it to
    /// observe the certificate.
    pub fn verifier(&self) -> Result<Arc<dyn ServerCertVerifier>, TlsFilesError> {
        let roots = Arc::clone(&self.store);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        match verifier {
            Ok(verifier) => Ok(verifier),
            // The only possible error without revocation lists.
            Err(_) => Err(TlsFilesError::NoRoots),
        }
    }

    /// Only the roots in this CA file, none of the system's.
    pub fn load_only(ca_file: &Path) -> Result<Self, TlsFilesError> {
        let mut store = RootCertStore::empty();
        add_roots(&mut store, ca_file, &read(ca_file)?)?;
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

    /// The first 16 hexadecimal digits of a SHA-256 of the roots' names and keys, as an identifier.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let roots = self.store.roots.iter();
        fingerprint(roots.flat_map(|root| [root.subject.as_ref(), &root.subject_public_key_info]))
    }
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store) || self.store.roots == other.store.roots
    }
}

impl Eq for Roots {}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots")
            .field("certificates", &self.store.len())
            .finish()
    }
}

/// The configuration of a TLS listener that offers `alpn`, the preferred protocol first, and requests a
/// client certificate if `client_auth` is set.
pub fn server_config(
    identity: &Identity,
    alpn: &[&[u8]],
    client_auth: Option<&ClientAuth>,
) -> Result<Arc<ServerConfig>, TlsFilesError> {
    let alpn = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let resolver = Arc::new(SingleCertAndKey::from(identity.certified_key()));
    listener_config(resolver, alpn, client_auth, aws_lc_rs::Ticketer::new()?)
}

/// Builds the configuration with a given ticketer. A resumed session needs no signature and no chain, and
/// its client certificate is not verified again. The ticketer rotates its keys every six hours.
fn listener_config(
    resolver: Arc<dyn ResolvesServerCert>,
    alpn: Vec<Vec<u8>>,
    client_auth: Option<&ClientAuth>,
    ticketer: Arc<dyn ProducesTickets>,
) -> Result<Arc<ServerConfig>, TlsFilesError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
    let builder = match client_auth {
        Some(client_auth) => builder.with_client_cert_verifier(client_auth.verifier()?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = alpn;
    config.ticketer = ticketer;
    Ok(Arc::new(config))
}

/// The configuration of a TLS client that trusts `roots`, presents `identity` to servers that request a
/// certificate, and offers `alpn`, the preferred protocol first. TLS sessions are resumed only between
/// connections that share the configuration.
pub fn client_config(
    roots: &Roots,
    identity: Option<&Identity>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsFilesError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_root_certificates(Arc::clone(&roots.store));
    Ok(with_identity(builder, identity, alpn))
}

/// The configuration of a TLS client that verifies the server's certificate with the caller's own verifier
/// instead of roots. `check` creates it from the crypto provider.
pub fn client_config_with(
    identity: Option<&Identity>,
    alpn: &[&[u8]],
    check: impl FnOnce(&CryptoProvider) -> Arc<dyn ServerCertVerifier>,
) -> Result<Arc<ClientConfig>, TlsFilesError> {
    let provider = provider();
    let check = check(&provider);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(check);
    Ok(with_identity(builder, identity, alpn))
}

fn with_identity(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<&Identity>,
    alpn: &[&[u8]],
) -> Arc<ClientConfig> {
    let mut config = match identity {
        Some(identity) => {
            let resolver = SingleCertAndKey::from(Arc::clone(&identity.certified));
            builder.with_client_cert_resolver(Arc::new(resolver))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

/// The first 16 hexadecimal digits of the SHA-256 of the parts.
fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let hash = hash.finalize();
    let digits = hash.iter().take(8).map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// Seeds the random numbers of TLS, which the first handshake of a process else does: some 60 ms of CPU time, which are not
/// the network's. For programs that time a handshake.
pub fn seed_random() {
    // Without random numbers the handshake fails, and says so.
    let _ = provider().secure_random.fill(&mut [0]);
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFilesError> {
    let bytes = fs::read(path).map_err(|source| TlsFilesError::Unreadable {
        origin: path.to_owned(),
        source,
    })?;
    Ok(bytes_without_mark(&bytes).to_vec())
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

/// The chain, and the end of its first certificate.
fn chain(
    origin: &Path,
    pem: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, SystemTime), TlsFilesError> {
    let chain = certificates(origin, pem)?;
    let origin = || origin.to_owned();
    match chain.first().and_then(version_and_end) {
        Some((VERSION, not_after)) => Ok((chain, not_after)),
        Some((version, _)) => Err(TlsFilesError::OldCertificate {
            origin: origin(),
            version,
        }),
        None => Err(TlsFilesError::DamagedCertificate { origin: origin() }),
    }
}

fn read_chain(path: &Path) -> Result<(Vec<CertificateDer<'static>>, SystemTime), TlsFilesError> {
    chain(path, &read(path)?)
}

fn read_key(path: &Path) -> Result<Arc<dyn SigningKey>, TlsFilesError> {
    signing_key(path, &read(path)?)
}

fn signing_key(origin: &Path, pem: &[u8]) -> Result<Arc<dyn SigningKey>, TlsFilesError> {
    // Not the parser's own errors: they quote lines of the file, which contains a key.
    let private = PrivateKeyDer::from_pem_slice(pem).ok();
    let signing =
        private.and_then(|private| provider().key_provider.load_private_key(private).ok());
    signing.ok_or_else(|| TlsFilesError::NoKey {
        origin: origin.to_owned(),
    })
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
mod tests;
