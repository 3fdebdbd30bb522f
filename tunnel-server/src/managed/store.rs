//! Where the documents are: the files `LABEL.toml` of a folder, or keys of etcd that all nodes follow (`replica.rs`).

use std::{
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind, Read},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::task::JoinError;
use tunnel_etcd::EtcdError;

use super::document::BYTES;
use crate::{
    atomic_file::{self, Existing},
    replica::{EtcdReplica, ReplicaError},
};

const ENDING: &str = ".toml";

pub(super) enum Store {
    Folder(FolderStore),
    Etcd(Arc<EtcdReplica>),
}

/// A folder that this server alone changes.
pub(super) struct FolderStore(PathBuf);

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
    /// The write ended by a fault of ours.
    #[error("the write has failed: {0}")]
    Ended(#[from] JoinError),
    /// The operating system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

impl From<ReplicaError> for ManagedStoreError {
    fn from(error: ReplicaError) -> Self {
        match error {
            ReplicaError::Etcd(error) => error.into(),
            ReplicaError::Ended(error) => error.into(),
            ReplicaError::Random(error) => error.into(),
        }
    }
}

impl Store {
    /// Where a document is, for people.
    pub(super) fn place(&self, label: &str) -> String {
        match self {
            Self::Folder(folder) => folder.path(label).display().to_string(),
            Self::Etcd(etcd) => etcd.place(label),
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
