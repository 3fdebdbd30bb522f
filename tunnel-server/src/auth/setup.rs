//! Makes an [`Authenticator`] from the configuration, and replaces its configuration at a reload. Reads files, sends
//! nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;
use tunnel_ops::byte_order_mark::without_mark;
use tunnel_ops::faults::FaultyFile;
use tunnel_ops::tls_files::{ClientAuth, ClientCheck, RevocationLists, Roots, TlsFilesError};

use super::Authenticator;
use super::jwks::{Jwks, JwksError};
use super::jwt::JwtVerifier;
use super::platform::{PlatformToken, PlatformVerifier};
use super::revocation::Revocations;
use crate::config::effective::Contents;
use crate::config::{CertificateSettings, Config, Credentials, JwksSource};
use crate::runtimes::{Moment, Runtimes, RuntimesError};
use tunnel_ops::https::HttpsClient;

/// Why the configuration of credentials cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthSetupError {
    /// The file of keys for JSON Web Tokens cannot be used.
    #[error("{}: {source}", .path.display())]
    Jwks {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: JwksError,
    },
    /// The file of this server's token for the platform cannot be used.
    #[error("{}: {problem}", .path.display())]
    PlatformToken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The revocation list cannot be used.
    #[error(transparent)]
    Revocations(#[from] RuntimesError),
    /// The roots for requests to a URL, or for client certificates, cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
}

impl AuthSetupError {
    /// The file at fault, if it is one and the text does not say where in it.
    pub(crate) fn file(&self) -> Option<FaultyFile<'_>> {
        match self {
            Self::Jwks { path, .. } | Self::PlatformToken { path, .. } => {
                Some(path.as_path().into())
            }
            Self::Revocations(error) => error.file().map(FaultyFile::from),
            Self::Tls(error) => error.file(),
        }
    }
}

/// The contents of the credential files that a configuration names: read and checked, but not in use yet.
pub(crate) struct PreparedCredentials {
    runtimes: Arc<Runtimes>,
    revocations: Revocations,
    jwks: Option<Jwks>,
    platform_token: Option<PlatformToken>,
    clients: Option<ClientCheck>,
}

impl PreparedCredentials {
    /// Whether the revocation list has an entry.
    pub(crate) fn has_revocations(&self) -> bool {
        !self.revocations.is_empty()
    }

    /// Keeps the entries that are in force in `authenticator` and that the list has no more. Returns the fingerprint of the
    /// list if there are any.
    pub(crate) fn keep_revocations(&mut self, authenticator: &Authenticator) -> Option<String> {
        let in_force = authenticator.revocations.load();
        if self.revocations.includes(&in_force) {
            return None;
        }
        let read = std::mem::take(&mut self.revocations);
        let fingerprint = read.fingerprint().to_owned();
        self.revocations = read.with_all(&in_force);
        Some(fingerprint)
    }

    /// The fingerprint of the revocation list.
    pub(crate) fn revocations_fingerprint(&self) -> &str {
        self.revocations.fingerprint()
    }

    /// Reads the files. The runtimes were read before.
    ///
    /// # Errors
    /// When one cannot be read or is invalid.
    pub(crate) fn read(config: &Config, runtimes: Arc<Runtimes>) -> Result<Self, AuthSetupError> {
        let credentials = &config.credentials();
        let revocations = credentials.revocations.as_deref().map(Revocations::load);
        let jwks = match credentials.jwt.as_ref().map(|jwt| &jwt.keys) {
            Some(JwksSource::File(path)) => Some(load_jwks(path)?),
            _ => None,
        };
        let platform = credentials.platform.as_ref();
        let token_file = platform.and_then(|platform| platform.token_file.as_deref());
        let clients = credentials.certificates.as_ref().map(load_clients);
        Ok(Self {
            runtimes,
            revocations: revocations.transpose()?.unwrap_or_default(),
            jwks,
            platform_token: token_file.map(load_platform_token).transpose()?,
            clients: clients.transpose()?,
        })
    }

    /// The issuers of client certificates; `None` if they are not accepted.
    pub(crate) fn client_auth(&self) -> Option<ClientAuth> {
        self.clients.as_ref().map(|clients| clients.auth().clone())
    }

    /// A summary of each file.
    pub(crate) fn contents(&self) -> Contents {
        contents(self.jwks.as_ref(), &self.revocations, self.clients.as_ref())
    }
}

/// A fault of each file of these credentials that cannot be used. Reads them all, so that they can be mended at once.
pub(crate) fn faulty_files(credentials: &Credentials) -> Vec<AuthSetupError> {
    let revocations = credentials.revocations.as_deref();
    let jwks = match credentials.jwt.as_ref().map(|jwt| &jwt.keys) {
        Some(JwksSource::File(path)) => Some(path),
        _ => None,
    };
    let token_file =
        (credentials.platform.as_ref()).and_then(|platform| platform.token_file.as_deref());
    let certificates = credentials.certificates.as_ref();
    let crl = certificates.and_then(|certificates| certificates.crl.as_deref());
    let results = [
        client(credentials).err(),
        revocations.and_then(|path| Revocations::load(path).err().map(Into::into)),
        jwks.and_then(|path| load_jwks(path).err()),
        token_file.and_then(|path| load_platform_token(path).err()),
        certificates.and_then(|files| Roots::load_only(&files.ca).err().map(Into::into)),
        crl.and_then(|path| RevocationLists::load(path).err().map(Into::into)),
    ];
    results.into_iter().flatten().collect()
}

impl Authenticator {
    /// Makes one from the configuration. Reads the files that it names; URLs are fetched later, so that the server starts
    /// although they are unreachable.
    ///
    /// # Errors
    /// When a file cannot be read or is invalid.
    pub fn new(config: &Config) -> Result<Arc<Self>, AuthSetupError> {
        let credentials = &config.credentials();
        let client = client(credentials)?;
        let prepared = PreparedCredentials::read(config, Arc::new(config.runtimes.clone()))?;
        let changes = watch::Sender::new(0);
        let jwt = credentials.jwt.as_ref().and_then(|jwt| {
            JwtVerifier::new(jwt.clone(), prepared.jwks, client.as_ref(), &changes)
        });
        let platform = credentials.platform.as_ref().zip(client);
        let platform = platform.map(|(settings, client)| {
            PlatformVerifier::new(settings.clone(), client, prepared.platform_token)
        });
        Ok(Arc::new(Self {
            runtimes: ArcSwap::new(prepared.runtimes),
            revocations: ArcSwap::from_pointee(prepared.revocations),
            revoked: ArcSwap::default(),
            domain: config.settings.domain.clone(),
            jwt,
            platform,
            clients: ArcSwapOption::from_pointee(prepared.clients),
            expiry_grace: credentials.expiry_grace,
            changes,
        }))
    }

    /// Puts the contents in use. The runtimes are last, since they make live sessions check their grants.
    pub(crate) fn replace(&self, prepared: PreparedCredentials) {
        if let (Some(jwt), Some(keys)) = (&self.jwt, prepared.jwks) {
            jwt.replace(keys);
        }
        if let Some(token) = prepared.platform_token {
            self.replace_platform_token(token);
        }
        self.clients.store(prepared.clients.map(Arc::new));
        self.revocations.store(Arc::new(prepared.revocations));
        self.replace_runtimes(prepared.runtimes);
    }

    /// The issuers of client certificates; `None` if they are not accepted.
    pub(crate) fn client_auth(&self) -> Option<ClientAuth> {
        let clients = self.clients.load();
        clients.as_ref().map(|clients| clients.auth().clone())
    }

    /// Adds the entries of a revocation list to those in force. Returns whether there is a new one.
    pub(crate) fn add_revocations(&self, read: Revocations) -> bool {
        let in_force = self.revocations.load();
        let is_new = !in_force.includes(&read);
        if is_new {
            self.replace_revocations(read.with_all(&in_force));
        }
        is_new
    }

    /// Checks client certificates as these settings say from now on.
    pub(crate) fn replace_clients(&self, clients: ClientCheck) {
        self.clients.store(Some(Arc::new(clients)));
        self.changed_now();
    }

    /// A summary of each file that is in use.
    pub(crate) fn contents(&self) -> Contents {
        let jwks = self.jwt.as_ref().and_then(JwtVerifier::of_file);
        let clients = self.clients.load();
        contents(
            jwks.as_deref(),
            &self.revocations.load(),
            clients.as_deref(),
        )
    }
}

fn contents(
    jwks: Option<&Jwks>,
    revocations: &Revocations,
    clients: Option<&ClientCheck>,
) -> Contents {
    let lists = clients.and_then(|clients| clients.auth().revocation_lists.as_ref());
    Contents {
        jwks: jwks.map(|keys| format!("{} keys, {}", keys.len(), keys.fingerprint())),
        revocations: format!(
            "{} entries, {}",
            revocations.len(),
            revocations.fingerprint()
        ),
        client_ca: clients.map(|clients| clients.roots().fingerprint()),
        client_crl: lists.map(|lists| {
            let next = Moment::from(lists.next_update());
            format!("{}, next update {next}", lists.fingerprint())
        }),
    }
}

/// Client certificates are optional in TLS, since a client may authenticate with a token instead.
fn load_clients(certificates: &CertificateSettings) -> Result<ClientCheck, TlsFilesError> {
    let lists = certificates.crl.as_deref().map(RevocationLists::load);
    ClientCheck::new(ClientAuth {
        roots: Roots::load_only(&certificates.ca)?,
        revocation_lists: lists.transpose()?,
        is_required: false,
    })
}

/// Reads this server's token for the platform.
///
/// # Errors
/// When the file cannot be read or holds no token. The error does not contain the token.
pub fn load_platform_token(path: &Path) -> Result<PlatformToken, AuthSetupError> {
    let fault = |problem: String| AuthSetupError::PlatformToken {
        path: path.to_owned(),
        problem,
    };
    let text =
        std::fs::read_to_string(path).map_err(|error| fault(format!("cannot be read: {error}")))?;
    PlatformToken::from_text(without_mark(&text)).ok_or_else(|| {
        fault("holds no token: expected one line of printable characters without spaces".into())
    })
}

fn load_jwks(path: &Path) -> Result<Jwks, AuthSetupError> {
    Jwks::load(path).map_err(|source| AuthSetupError::Jwks {
        path: path.to_owned(),
        source,
    })
}

/// The HTTP client; `None` if the configuration names no URL.
fn client(credentials: &Credentials) -> Result<Option<HttpsClient>, AuthSetupError> {
    let has_url = |jwt: &crate::config::JwtSettings| matches!(jwt.keys, JwksSource::Url(_));
    if credentials.platform.is_none() && !credentials.jwt.as_ref().is_some_and(has_url) {
        return Ok(None);
    }
    let ca_file = credentials.ca_file.as_deref();
    Ok(Some(HttpsClient::new(ca_file, credentials.timeout)?))
}
