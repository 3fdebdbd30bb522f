//! Revocations by the admin API: in force at once, and kept in a file, or in etcd for all nodes.
//!
//! ```text
//!   admin API ─▶ KeptRevocations ─▶ the authenticator: sessions are cut
//!                                ─▶ a file, or `replica.rs` ─▶ etcd ─▶ other nodes
//! ```

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tunnel_directory::managed::{Pair, RevokedCredentials};

use crate::{
    atomic_file::{self, Existing},
    auth::{
        Authenticator,
        revocation::{Revocation, RevocationTarget, RevocationsFull},
    },
    config::{ManagedPlace, Settings},
    replica::{EtcdReplica, wall_ms},
};

/// The file in the folder of managed runtimes, whose names end otherwise.
const FILE: &str = "revocations.json";

/// Time for etcd to have a revocation. It is in force meanwhile, and written when etcd is back.
const WAIT: Duration = Duration::from_secs(2);

/// The operator's revocations, and where they are kept.
pub(crate) struct KeptRevocations {
    authenticator: Arc<Authenticator>,
    store: RevocationStore,
}

enum RevocationStore {
    /// Until the server stops.
    Memory,
    File(Arc<RevocationsFile>),
    Etcd(Arc<EtcdReplica>),
}

/// A file that servers write, one after another.
struct RevocationsFile {
    path: PathBuf,
    writing: Mutex<()>,
}

/// The contents of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    /// By account and runtime.
    #[serde(default)]
    revoked: BTreeMap<String, RevokedCredentials>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("revocations of the admin API: {}: {source}", .path.display())]
pub struct RevocationsFileError {
    path: PathBuf,
    source: io::Error,
}

impl KeptRevocations {
    pub(crate) fn new(
        settings: &Settings,
        replica: Option<&Arc<EtcdReplica>>,
        authenticator: &Arc<Authenticator>,
    ) -> Arc<Self> {
        let path = match &settings.managed_runtimes {
            Some(ManagedPlace::Folder(folder)) => Some(folder.join(FILE)),
            _ => None,
        };
        let path = settings.admin_revocations.clone().or(path);
        let store = match (replica, path) {
            (Some(replica), _) => RevocationStore::Etcd(replica.clone()),
            (None, Some(path)) => RevocationStore::File(Arc::new(RevocationsFile {
                path,
                writing: Mutex::new(()),
            })),
            (None, None) => RevocationStore::Memory,
        };
        Arc::new(Self {
            authenticator: authenticator.clone(),
            store,
        })
    }

    /// Puts what the file has in force. Revocations in etcd come by [`Self::take_over`].
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn load(&self) -> Result<(), RevocationsFileError> {
        if let RevocationStore::File(file) = &self.store {
            let contents = file.read()?;
            let known = contents.revoked.iter();
            let known = known.filter_map(|(pair, them)| Some((pair.parse().ok()?, them)));
            self.put_in_force(known);
        }
        Ok(())
    }

    /// Puts what etcd has told in force.
    pub(crate) fn take_over(&self, revoked: &BTreeMap<Pair, RevokedCredentials>) {
        let known = revoked.iter().map(|(pair, them)| (pair.clone(), them));
        self.put_in_force(known);
    }

    fn put_in_force<'a>(&self, known: impl Iterator<Item = (Pair, &'a RevokedCredentials)>) {
        let all: Vec<Revocation> = known
            .flat_map(|(pair, them)| revocations(&pair, them))
            .collect();
        if !all.is_empty() {
            self.authenticator.add_revoked(&all);
        }
    }

    /// Revokes credentials of a runtime, at once. Returns whether that is kept, so that it outlives this process and holds at
    /// all nodes.
    ///
    /// # Errors
    /// When there are too many revocations already.
    pub(crate) async fn revoke(
        &self,
        pair: Pair,
        more: RevokedCredentials,
    ) -> Result<bool, RevocationsFull> {
        self.authenticator.revoke(&revocations(&pair, &more))?;
        Ok(match &self.store {
            RevocationStore::Memory => false,
            RevocationStore::Etcd(replica) => replica.revoke(pair, more, WAIT).await,
            RevocationStore::File(file) => {
                let file = file.clone();
                // To the end, also if nobody waits for the answer any more.
                let written = spawn_blocking(move || file.add(&pair, &more)).await;
                match written {
                    Ok(Ok(())) => true,
                    Ok(Err(error)) => {
                        tracing::error!(%error, "a revocation is in force, and is not kept");
                        false
                    }
                    Err(error) => {
                        tracing::error!(%error, "a revocation is in force, and is not kept");
                        false
                    }
                }
            }
        })
    }
}

/// The entries that revoke these credentials of a runtime.
fn revocations(pair: &Pair, revoked: &RevokedCredentials) -> Vec<Revocation> {
    let (account, name) = (pair.account(), pair.name());
    let before = revoked.before_ms().map(|before_ms| Revocation {
        target: RevocationTarget::Runtime(account.clone(), name.clone()),
        before: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(before_ms)),
    });
    let ids = revoked.ids().map(|id| Revocation {
        target: RevocationTarget::CredentialOf(account.clone(), name.clone(), id.to_owned()),
        before: None,
    });
    before.into_iter().chain(ids).collect()
}

impl RevocationsFile {
    /// What the file has; nothing if there is none.
    fn read(&self) -> Result<Contents, RevocationsFileError> {
        read(&self.path).map_err(|source| self.error(source))
    }

    /// Adds revocations to those that the file has. It waits for the disk.
    fn add(&self, pair: &Pair, more: &RevokedCredentials) -> Result<(), RevocationsFileError> {
        let _writing = self.writing.lock();
        let mut contents = self.read()?;
        let known = contents.revoked.entry(pair.to_string()).or_default();
        known.join(more);
        known.forget_expired(wall_ms());
        let text = serde_json::to_string_pretty(&contents);
        let text = text.map_err(|error| self.error(error.into()))?;
        let written = atomic_file::write(&self.path, &text, 0o600, Existing::Replace);
        written.map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> RevocationsFileError {
        RevocationsFileError {
            path: self.path.clone(),
            source,
        }
    }
}

fn read(path: &Path) -> io::Result<Contents> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Contents::default()),
        text => text?,
    };
    serde_json::from_str(&text).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_file_keeps_what_several_servers_have_revoked() {
        let folder = TempDir::new().unwrap();
        let file = || RevocationsFile {
            path: folder.path().join(FILE),
            writing: Mutex::new(()),
        };
        let (one, other) = (file(), file());
        assert!(one.read().unwrap().revoked.is_empty());
        let pair: Pair = "acme/prod".parse().unwrap();
        one.add(&pair, &RevokedCredentials::of_id("a", None))
            .unwrap();
        other
            .add(&pair, &RevokedCredentials::before(7_000))
            .unwrap();
        let read = one.read().unwrap();
        let known = &read.revoked["acme/prod"];
        assert_eq!(revocations(&pair, known).len(), 2);
        assert_eq!(known.before_ms(), Some(7_000));
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(one.read().is_err());
        let refused = one.add(&pair, &RevokedCredentials::before(8_000));
        assert!(refused.is_err(), "what is there is not lost");
    }
}
