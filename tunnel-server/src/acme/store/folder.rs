//! Files in a folder that only the server's user can read.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use tokio::task::spawn_blocking;

use super::{Key, StoreError};
use crate::atomic_file::{self, Existing};

/// The folder of one ACME server.
#[derive(Debug)]
pub(in super::super) struct FolderStore {
    folder: PathBuf,
}

/// The file that is locked.
#[derive(Debug)]
pub(in super::super) struct FolderLock {
    _file: File,
}

impl FolderStore {
    /// The folder of this ACME server below `parent`. Nothing is made before it is needed.
    pub(in super::super) fn new(parent: &Path, server: &str) -> Self {
        Self {
            folder: parent.join(server),
        }
    }

    fn path(&self, key: Key<'_>) -> PathBuf {
        // An underscore is no part of a host.
        let plain = |name: &dyn ToString| name.to_string().replace('*', "_");
        self.folder.join(match key {
            Key::Account => "account.json".to_owned(),
            Key::Certificate(name) => plain(name) + ".pem",
            Key::Orders(name) => plain(name) + ".orders",
        })
    }

    pub(super) fn get(&self, key: Key<'_>) -> Result<Option<String>, StoreError> {
        let path = self.path(key);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Folder { path, source }),
        }
    }

    pub(super) async fn put(&self, key: Key<'_>, text: String) -> Result<(), StoreError> {
        self.make()?;
        let path = self.path(key);
        let written = path.clone();
        // It waits for the disk.
        let write = move || atomic_file::write(&written, &text, 0o600, Existing::Replace);
        let result = spawn_blocking(write).await;
        let result = result.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        result.map_err(|source| StoreError::Folder { path, source })
    }

    pub(super) fn lock(&self) -> Result<Option<FolderLock>, StoreError> {
        self.make()?;
        let path = self.folder.join("lock");
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path);
        let failed = |source| StoreError::Folder {
            path: path.clone(),
            source,
        };
        let file = opened.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(FolderLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    fn make(&self) -> Result<(), StoreError> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder);
        made.map_err(|source| StoreError::Folder {
            path: self.folder.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn only_the_servers_user_can_read_what_is_stored() {
        let parent = tempfile::tempdir().unwrap();
        let store = FolderStore::new(parent.path(), "ca.example");
        let name = "*.t.example".parse().unwrap();
        let key = Key::Certificate(&name);
        assert_eq!(store.get(key).unwrap(), None);
        for text in ["one", "two"] {
            store.put(key, text.to_owned()).await.unwrap();
            assert_eq!(store.get(key).unwrap().as_deref(), Some(text));
        }
        store.put(Key::Account, "{}".to_owned()).await.unwrap();
        drop(store.lock().unwrap().unwrap());
        let folder = parent.path().join("ca.example");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(mode(&entry.path()), 0o600, "{entry:?}");
            names.push(entry.file_name().into_string().unwrap());
        }
        names.sort_unstable();
        assert_eq!(names, ["_.t.example.pem", "account.json", "lock"]);
    }

    #[test]
    fn one_process_orders_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| FolderStore::new(parent.path(), "ca.example"));
        let lock = one.lock().unwrap().unwrap();
        assert!(other.lock().unwrap().is_none());
        drop(lock);
        assert!(other.lock().unwrap().is_some());
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_named() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        let store = FolderStore::new(&file, "ca.example");
        let error = store.put(Key::Account, String::new()).await.unwrap_err();
        assert!(error.to_string().contains("/file/ca.example: "), "{error}");
    }
}
