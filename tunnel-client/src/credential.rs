//! The credential of a client: a token, a certificate, or both, in files that may change while it runs.
//!
//! In: the files' paths, read at each dial, when a file has changed, and when the credential expires. Out: the current
//! [`Credential`], and a notice of each new one. No error, log or `Debug` contains a part of a token or a key.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;
use tunnel_ops::tls_files::{Identity, TlsFilesError};
use tunnel_ops::watch::FileWatch;

use crate::config::CertificateFiles;
use crate::step::Step;
use crate::token_file::{self, TokenFileError};

/// The content of the files at one moment.
pub(crate) struct Credential {
    token: Option<SecretString>,
    identity: Option<Identity>,
}

/// The files of the credential.
#[derive(Debug, Clone)]
pub(crate) struct CredentialFiles {
    /// The file of the token.
    pub(crate) token: Option<PathBuf>,
    /// The files of the certificate and its key.
    pub(crate) certificate: Option<CertificateFiles>,
}

/// Reads the files, and keeps the last credential.
#[derive(Debug)]
pub(crate) struct Credentials {
    files: CredentialFiles,
    /// `None` before the first successful read.
    last: watch::Sender<Option<Arc<Credential>>>,
}

/// Why there is no credential.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialError {
    /// The token file.
    #[error(transparent)]
    Token(#[from] TokenFileError),
    /// The certificate or its key.
    #[error(transparent)]
    Certificate(#[from] TlsFilesError),
}

/// The paths, separated by commas.
impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.paths();
        let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
        f.write_str(&paths.join(", "))
    }
}

impl Credentials {
    /// No file is read yet.
    pub(crate) fn new(files: CredentialFiles) -> Self {
        let (last, _) = watch::channel(None);
        Self { files, last }
    }

    /// The paths of all files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let certificate = self.files.certificate.iter();
        let certificate = certificate.flat_map(|files| [files.cert.clone(), files.key.clone()]);
        self.files
            .token
            .iter()
            .cloned()
            .chain(certificate)
            .collect()
    }

    /// Reads the files, and announces the credential to all subscribers if it is new.
    ///
    /// # Errors
    /// When a file cannot be read or is not valid; the last credential stays in use.
    pub(crate) fn read(&self) -> Result<Arc<Credential>, CredentialError> {
        let token = self.files.token.as_deref().map(token_file::read);
        let token = token.transpose()?;
        let certificate = self.files.certificate.as_ref();
        let identity = certificate.map(|files| Identity::load(&files.cert, &files.key));
        let identity = identity.transpose()?;
        if let Some(last) = &*self.last.borrow()
            && last.identity == identity
            && last.has_token(token.as_ref())
        {
            return Ok(Arc::clone(last));
        }
        let read = Arc::new(Credential { token, identity });
        self.last.send_replace(Some(Arc::clone(&read)));
        Ok(read)
    }

    /// A receiver of each credential that is announced.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Credential>>> {
        self.last.subscribe()
    }

    /// Waits until another credential than `read` is announced, or `read` is announced again.
    pub(crate) async fn other_than(&self, read: &Arc<Credential>) {
        let is_other = |last: &Option<Arc<Credential>>| {
            last.as_ref().is_some_and(|last| !Arc::ptr_eq(last, read))
        };
        // Cannot fail: `self` owns the sender.
        let _ = self.subscribe().wait_for(is_other).await;
    }

    /// Announces the current credential to all subscribers again, so that a refused one is sent to the server again.
    fn announce_again(&self) {
        let copy = |last: &Arc<Credential>| {
            Arc::new(Credential {
                token: last.token.clone(),
                identity: last.identity.clone(),
            })
        };
        self.last
            .send_modify(|last| *last = last.as_ref().map(copy));
    }

    /// Reads the files after a change or a request (SIGHUP). A request without a new credential announces the current one
    /// again.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_again(&self, is_requested: bool) -> Result<Arc<Credential>, CredentialError> {
        let before = self.last.borrow().clone();
        let read = self.read()?;
        // `read` has announced nothing if the credential is old, or a dial has read the new one before.
        if is_requested && before.is_some_and(|before| Arc::ptr_eq(&before, &read)) {
            self.announce_again();
        }
        Ok(read)
    }

    /// Reads the files whenever one of them has changed, and on SIGHUP.
    pub(crate) async fn follow(&self, mut files: FileWatch) {
        // A dial reads the files too, perhaps before this task is notified of a change.
        let mut reported = self.read().ok();
        loop {
            let change = files.changed().await;
            match self.read_again(change.is_requested) {
                Ok(read) => {
                    let changed = read.changes_since(reported.as_deref());
                    tracing::info!(changed, "the files of the credential have been read again");
                    reported = Some(read);
                }
                // Often temporary: two files are rarely replaced at once.
                Err(error) => tracing::warn!(
                    %error,
                    "the credential cannot be read from its files, the previous one stays in use"
                ),
            }
        }
    }
}

impl Credential {
    /// The bearer token.
    pub(crate) fn token(&self) -> Option<&SecretString> {
        self.token.as_ref()
    }

    /// The certificate and its key.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Whether both have equal certificates, or none.
    pub(crate) fn has_identity_of(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Whether both have equal tokens, or none.
    pub(crate) fn has_token_of(&self, other: &Self) -> bool {
        self.has_token(other.token())
    }

    /// Whether both hold equal tokens and certificates.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.has_identity_of(other) && self.has_token_of(other)
    }

    /// Names the parts that have changed, for the log.
    fn changes_since(&self, before: Option<&Self>) -> &'static str {
        let Some(before) = before else {
            return "all";
        };
        match (self.has_token_of(before), self.has_identity_of(before)) {
            (true, true) => "nothing",
            (false, true) => "token",
            (true, false) => "certificate",
            (false, false) => "token, certificate",
        }
    }

    fn has_token(&self, other: Option<&SecretString>) -> bool {
        match (&self.token, other) {
            (Some(one), Some(other)) => one.expose_secret() == other.expose_secret(),
            (None, None) => true,
            _ => false,
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("has_token", &self.token.is_some())
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl CredentialError {
    /// The step that failed.
    pub(crate) fn step(&self) -> Step {
        match self {
            Self::Token(_) => Step::Token,
            Self::Certificate(_) => Step::Certificate,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder with all that can be a credential.
    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            let folder = Self(tempfile::tempdir().unwrap());
            folder.write("token", "tnlrt_1_secret\n");
            folder.renew_certificate();
            folder
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.path().join(name), text).unwrap();
        }

        fn renew_certificate(&self) {
            let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
            self.write("cert.pem", &made.cert.pem());
            self.write("key.pem", &made.signing_key.serialize_pem());
        }

        fn credentials(&self) -> Credentials {
            let path = |name| self.0.path().join(name);
            let files = CredentialFiles {
                token: Some(path("token")),
                certificate: Some(CertificateFiles {
                    cert: path("cert.pem"),
                    key: path("key.pem"),
                }),
            };
            Credentials::new(files)
        }
    }

    #[test]
    fn only_a_new_credential_is_announced() {
        let folder = Folder::new();
        let credentials = folder.credentials();
        let mut heard = credentials.subscribe();
        let first = credentials.read().unwrap();
        assert!(heard.has_changed().unwrap());
        heard.mark_unchanged();
        folder.write("token", " tnlrt_1_secret ");
        assert!(Arc::ptr_eq(&first, &credentials.read().unwrap()));
        assert!(!heard.has_changed().unwrap());
        folder.write("token", "tnlrt_2_secret");
        let second = credentials.read().unwrap();
        assert!(heard.has_changed().unwrap());
        assert!(!second.has_token_of(&first) && second.has_identity_of(&first));
    }

    /// As SIGHUP asks for it: what a refused place or session waits for.
    #[tokio::test]
    async fn a_request_announces_the_credential_again_whoever_read_it_first() {
        let folder = Folder::new();
        let credentials = folder.credentials();
        let first = credentials.read().unwrap();
        let mut heard = credentials.subscribe();
        credentials.read_again(false).unwrap();
        assert!(!heard.has_changed().unwrap());
        credentials.read_again(true).unwrap();
        assert!(heard.has_changed().unwrap());
        let again = heard.borrow_and_update().clone().unwrap();
        credentials.other_than(&first).await;
        assert!(again.is_same(&first));
        assert!(Arc::ptr_eq(&again, &credentials.read().unwrap()));
    }

    #[test]
    fn a_new_certificate_is_another_credential() {
        let folder = Folder::new();
        let credentials = folder.credentials();
        let first = credentials.read().unwrap();
        folder.renew_certificate();
        let second = credentials.read().unwrap();
        assert!(second.has_token_of(&first) && !second.has_identity_of(&first));
    }

    #[test]
    fn what_is_not_good_leaves_the_last_in_use() {
        let folder = Folder::new();
        let credentials = folder.credentials();
        credentials.read().unwrap();
        let heard = credentials.subscribe();
        folder.write("token", "");
        assert_eq!(credentials.read().unwrap_err().step(), Step::Token);
        folder.write("token", "tnlrt_2_secret");
        folder.write("key.pem", "nothing");
        assert_eq!(credentials.read().unwrap_err().step(), Step::Certificate);
        assert!(!heard.has_changed().unwrap());
    }

    #[test]
    fn debug_shows_no_token() {
        let folder = Folder::new();
        let credentials = folder.credentials();
        let read = credentials.read().unwrap();
        assert!(!format!("{read:?} {credentials:?}").contains("secret"));
    }
}
