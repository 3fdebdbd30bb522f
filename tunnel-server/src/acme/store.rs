//! Where account, certificates and the times of orders are kept: a folder, or etcd for several nodes.
//!
//! ```text
//!   <folder>/<acme server>/          account.json   NAME.pem           NAME.orders     lock
//!   <prefix>acme/<acme server>/      account        certificate/NAME   orders/NAME     lock   challenge/HOST
//! ```
//!
//! One holder of the lock orders at a time, of the processes that share the folder as of the nodes.

mod etcd;
mod folder;

use std::{io, path::PathBuf, time::Duration};

use tunnel_etcd::EtcdError;

pub(super) use self::etcd::{Change, EtcdStore};
pub(super) use self::folder::FolderStore;
use self::{etcd::EtcdLock, folder::FolderLock};
use super::resolver::Digest;
use crate::config::AcmeName;

/// Where it is kept.
pub(super) enum Store {
    Folder(FolderStore),
    Etcd(EtcdStore),
}

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key<'a> {
    /// The account with its key, JSON.
    Account,
    /// The chain of a name and its key, PEM.
    Certificate(&'a AcmeName),
    /// The times of the last orders of a name, in seconds since 1970, one in a line.
    Orders(&'a AcmeName),
}

/// The right to order, until it is released or lost.
pub(super) enum Lock {
    Folder(FolderLock),
    Etcd(EtcdLock),
}

/// Why it cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("{}: {source} (--acme-dir)", .path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("etcd: {0}")]
    Etcd(#[from] EtcdError),
    #[error("{0}: holds no text: remove it")]
    NoText(String),
}

impl Store {
    /// The stored text; `None` if there is none.
    pub(super) async fn get(&self, key: Key<'_>) -> Result<Option<String>, StoreError> {
        match self {
            Self::Folder(folder) => folder.get(key),
            Self::Etcd(etcd) => etcd.get(key).await,
        }
    }

    /// Stores a text as a whole or not at all.
    pub(super) async fn put(&self, key: Key<'_>, text: String) -> Result<(), StoreError> {
        match self {
            Self::Folder(folder) => folder.put(key, text).await,
            Self::Etcd(etcd) => etcd.put(key, text).await,
        }
    }

    /// The right to order; `None` while another node or process has it.
    pub(super) async fn lock(&self) -> Result<Option<Lock>, StoreError> {
        Ok(match self {
            Self::Folder(folder) => folder.lock()?.map(Lock::Folder),
            Self::Etcd(etcd) => etcd.lock().await?.map(Lock::Etcd),
        })
    }

    /// What other nodes have changed; `None` if there are none.
    pub(super) fn etcd(&self) -> Option<&EtcdStore> {
        match self {
            Self::Folder(_) => None,
            Self::Etcd(etcd) => Some(etcd),
        }
    }
}

impl Lock {
    /// Resolves when another node may have the right.
    pub(super) async fn lost(&self) {
        match self {
            Self::Folder(_) => std::future::pending().await,
            Self::Etcd(lock) => lock.lost().await,
        }
    }

    /// Has all nodes answer the ACME server's handshake for a host, while the lock is held. Returns the time that they need
    /// to hear of it.
    pub(super) async fn share_challenge(
        &self,
        host: &str,
        digest: &Digest,
    ) -> Result<Duration, StoreError> {
        match self {
            Self::Folder(_) => Ok(Duration::ZERO),
            Self::Etcd(lock) => Ok(lock.share_challenge(host, digest).await?),
        }
    }

    pub(super) async fn release(self) {
        match self {
            Self::Folder(lock) => drop(lock),
            Self::Etcd(lock) => lock.release().await,
        }
    }
}
