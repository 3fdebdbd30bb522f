//! Where the documents are: files of a folder, or keys of etcd that all nodes watch.
//!
//! ```text
//!   <folder>/LABEL.toml
//!   <prefix>runtime/LABEL     <prefix>runtime/     the last one is written with each change
//! ```
//!
//! A write to etcd is made only if nobody has written since all that is known, so that two nodes never give one host to two
//! runtimes.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind, Read},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use tokio::{task::JoinError, time::sleep};
use tunnel_etcd::{
    Client, Compare, EtcdError, Followed, KeyValue, RequestOp, TxnRequest, prefix_end,
};

use super::document::BYTES;
use crate::atomic_file::{self, Existing};

/// Pause before etcd is read again.
const PAUSE: Duration = Duration::from_secs(1);

const ENDING: &str = ".toml";

pub(super) enum Store {
    Folder(FolderStore),
    Etcd(EtcdStore),
}

/// A folder that this server alone changes.
pub(super) struct FolderStore(PathBuf);

/// The keys of managed runtimes.
pub(super) struct EtcdStore {
    client: Client,
    prefix: String,
}

/// How a write went.
pub(super) enum Written {
    /// It was made, in this revision.
    At(i64),
    /// It was not: somebody has written in this revision, which is not known here.
    Behind(i64),
}

/// What etcd tells up to a revision. A document is its label and its text.
pub(super) enum StoreUpdate {
    All(Vec<(String, String)>, i64),
    Changes(Vec<(String, Option<String>)>, Option<i64>),
}

/// Why documents cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagedStoreError {
    /// A file or the folder.
    #[error("{}: {source} (--managed-runtimes)", .path.display())]
    Folder {
        /// Which one.
        path: PathBuf,
        /// What has failed.
        source: io::Error,
    },
    /// etcd.
    #[error("etcd: {0}; the change may have been made: look, and ask again")]
    Etcd(#[from] EtcdError),
    /// The write of a file ended by a fault of ours.
    #[error("the write has failed: {0}")]
    Ended(#[from] JoinError),
}

impl Store {
    /// Where a document is, for people.
    pub(super) fn place(&self, label: &str) -> String {
        match self {
            Self::Folder(folder) => folder.path(label).display().to_string(),
            Self::Etcd(etcd) => etcd.key(label),
        }
    }
}

impl FolderStore {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    fn path(&self, label: &str) -> PathBuf {
        self.0.join(format!("{label}{ENDING}"))
    }

    /// The label and the text of each document. Makes the folder if there is none.
    pub(super) fn list(&self) -> Result<Vec<(String, String)>, ManagedStoreError> {
        let failed = |source| ManagedStoreError::Folder {
            path: self.0.clone(),
            source,
        };
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0);
        made.map_err(failed)?;
        let mut documents = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(label) = name.and_then(|name| name.strip_suffix(ENDING)) else {
                continue;
            };
            let text = read(&path).map_err(|source| ManagedStoreError::Folder {
                path: path.clone(),
                source,
            })?;
            documents.push((label.to_owned(), text));
        }
        Ok(documents)
    }

    /// Writes a document, or removes it. It waits for the disk.
    pub(super) fn write(&self, label: &str, text: Option<&str>) -> Result<(), ManagedStoreError> {
        let path = self.path(label);
        let written = match text {
            Some(text) => atomic_file::write(&path, text, 0o600, Existing::Replace),
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                // As a rename, it must survive a power cut.
                _ => File::open(&self.0).and_then(|folder| folder.sync_all()),
            },
        };
        written.map_err(|source| ManagedStoreError::Folder { path, source })
    }
}

/// The text of a document. Bytes that are no text become characters that no document has, which makes it faulty.
fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    // One byte more than there may be, which makes it faulty.
    let most = u64::try_from(BYTES).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl EtcdStore {
    pub(super) fn new(client: Client, prefix: &str) -> Self {
        let prefix = format!("{prefix}runtime/");
        Self { client, prefix }
    }

    fn key(&self, label: &str) -> String {
        format!("{}{label}", self.prefix)
    }

    /// Writes a document, or removes it, if nothing was written after `position`.
    pub(super) async fn write(
        &self,
        label: &str,
        text: Option<&str>,
        position: i64,
    ) -> Result<Written, ManagedStoreError> {
        let (key, all) = (self.key(label), self.prefix.clone());
        let write = match text {
            Some(text) => RequestOp::put(key, text.to_owned(), 0),
            None => RequestOp::delete(key),
        };
        let txn = TxnRequest {
            compare: vec![Compare::unchanged_since(all.clone(), position)],
            success: vec![write, RequestOp::put(all.clone(), Bytes::new(), 0)],
            failure: vec![RequestOp::get(all)],
        };
        let answer = self.client.txn(txn).await?;
        let revision = answer.revision();
        Ok(match answer.succeeded {
            true => Written::At(revision),
            false => Written::Behind(answer.first_read().map_or(revision, |kv| kv.mod_revision)),
        })
    }

    /// Tells all documents and then each change, and begins again when etcd was away, until it is dropped. The next is told
    /// when the future of the one before has ended. See [`Self::update`].
    pub(super) async fn follow<F: Future<Output = ()>>(
        &self,
        mut on_told: impl FnMut(Followed) -> F,
    ) {
        let prefix = Bytes::from(self.prefix.clone());
        let range = (prefix, prefix_end(self.prefix.as_bytes()));
        let mut is_lost = false;
        loop {
            let mut was_read = false;
            let tell = |followed| {
                was_read = true;
                on_told(followed)
            };
            let ended = self.client.follow(range.clone(), tell).await;
            is_lost &= !was_read;
            if let Err(error) = ended
                && !is_lost
            {
                tracing::warn!(%error, "managed runtimes in etcd cannot be followed: those known last stay, trying again");
                is_lost = true;
            }
            sleep(PAUSE).await;
        }
    }

    /// The documents in what was told. Takes time that grows with their length.
    pub(super) fn update(&self, followed: Followed) -> StoreUpdate {
        match followed {
            Followed::Listed { keys, revision } => {
                let documents = keys.iter().filter_map(|kv| self.document(kv));
                StoreUpdate::All(documents.collect(), revision)
            }
            Followed::Changed { events, up_to } => {
                let changes = events.iter().filter_map(|event| {
                    let (label, text) = self.document(event.kv.as_ref()?)?;
                    Some((label, Some(text).filter(|_| !event.is_delete())))
                });
                StoreUpdate::Changes(changes.collect(), up_to)
            }
        }
    }

    /// A document; `None` for the key that is written with each.
    fn document(&self, kv: &KeyValue) -> Option<(String, String)> {
        let label = std::str::from_utf8(&kv.key).ok()?;
        let label = label.strip_prefix(&self.prefix)?;
        // As of a file.
        let text = String::from_utf8_lossy(&kv.value).into_owned();
        (!label.is_empty()).then(|| (label.to_owned(), text))
    }
}
