//! Managed runtimes: those that the admin API makes and removes, beside those of the runtimes file.
//!
//! ```text
//!   admin/managed.rs ─ change ─▶ Managed ─ document.rs ─▶ store.rs ─▶ a folder, or etcd
//!                                   ▲                                   │
//!                                   └───────────── load, follow ────────┘
//!   server/managing.rs ─ merge, commit ─▶ what is in force
//! ```
//!
//! Each is a document of its own, in the form of a runtimes file with one runtime. One that is faulty, or conflicts with the
//! runtimes file or with one before it in the order of labels, is left out and logged; it never stops the others.

mod document;
mod store;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    task::spawn_blocking,
    time::timeout,
};
use tunnel_etcd::{Client, Followed};
use tunnel_ops::faults::LISTED;

pub(crate) use self::document::{Definition, NewToken, TOKENS};
pub use self::store::ManagedStoreError;
use self::{
    document::Document,
    store::{EtcdStore, FolderStore, Store, StoreUpdate, Written},
};
use crate::{
    config::{Config, ManagedPlace},
    runtimes::{Conflict, HostName, Runtimes},
    token::{Token, TokenId},
};

/// Most managed runtimes: a set that every node reads at its start, and holds in memory.
const RUNTIMES: usize = 100_000;

/// How often a change is tried when other nodes change runtimes at the same time.
const TRIES: u32 = 10;

/// Time within which a change of another node has to be known here, and an own one to be in force.
const WAIT: Duration = Duration::from_secs(5);

/// The managed runtimes of this server, and where they are kept.
pub(crate) struct Managed {
    store: Store,
    domain: HostName,
    known: Mutex<Known>,
    /// One change at a time.
    writing: Arc<AsyncMutex<()>>,
    /// Counts the changes of what is known.
    version: watch::Sender<u64>,
    /// The version that is in force.
    applied: watch::Sender<u64>,
    /// The revision of etcd up to which all is known.
    position: watch::Sender<i64>,
}

#[derive(Default)]
struct Known {
    /// By their labels.
    documents: BTreeMap<String, Document>,
    /// Whether all were read once.
    is_read: bool,
    /// What is in force, those of the runtimes file included.
    in_force: Arc<Runtimes>,
    /// The version in which a document has changed that is not in force yet.
    pending: HashMap<String, u64>,
    /// Faults that were logged.
    faults: BTreeMap<String, String>,
}

/// The runtimes to put in force next.
pub(crate) struct Merged {
    /// Those of the runtimes file, and the managed ones.
    pub(crate) runtimes: Arc<Runtimes>,
    version: u64,
    faults: BTreeMap<String, String>,
}

/// Why a managed runtime cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagedError {
    #[error("the managed runtimes were not read yet, or another process has them now: ask again")]
    Unread,
    #[error("no managed runtime has the label `{0}`")]
    Unknown(String),
    #[error("`{label}` has no token with the id `{id}`")]
    TokenUnknown { label: String, id: TokenId },
    #[error("{0}")]
    Malformed(String),
    #[error(transparent)]
    Conflict(#[from] Conflict),
    #[error("its document is faulty, correct or delete it: {0}")]
    Faulty(String),
    #[error("there are {RUNTIMES} managed runtimes, and there may be no more")]
    Full,
    #[error("`{0}` has {TOKENS} tokens that are neither revoked nor expired: revoke one")]
    TokensFull(String),
    #[error(transparent)]
    Store(#[from] ManagedStoreError),
    #[error("other nodes change runtimes at the same time: ask again")]
    Contended,
    #[error("the change is stored, but is not in force here yet")]
    NotInForce,
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// What a change has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    Made,
    Replaced,
}

impl Managed {
    /// The managed runtimes of this configuration; `None` if it has none. Reads nothing yet.
    pub(crate) fn new(config: &Config, etcd: Option<Client>) -> Option<Arc<Self>> {
        let settings = &config.settings;
        let store = match (settings.managed_runtimes.as_ref()?, etcd) {
            (ManagedPlace::Folder(path), _) => Store::Folder(FolderStore::new(path)),
            (ManagedPlace::Etcd, client) => {
                Store::Etcd(EtcdStore::new(client?, &settings.etcd_prefix))
            }
        };
        Some(Arc::new(Self {
            store,
            domain: settings.domain.clone(),
            known: Mutex::default(),
            writing: Arc::default(),
            version: watch::Sender::new(0),
            applied: watch::Sender::new(0),
            position: watch::Sender::new(0),
        }))
    }

    /// Whether all were read, and are in force.
    pub(crate) fn is_ready(&self) -> bool {
        *self.applied.borrow() > 0
    }

    /// Reads all of the folder. In etcd, [`Self::follow`] reads.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn load(&self) -> Result<(), ManagedStoreError> {
        if let Store::Folder(folder) = &self.store {
            let texts = folder.list()?;
            self.replace_all(texts);
        }
        Ok(())
    }

    /// Reads all that is in etcd and takes over what nodes change, until it is dropped. Returns at once for a folder, which
    /// this server alone changes.
    pub(crate) async fn follow(self: &Arc<Self>) {
        if let Store::Etcd(etcd) = &self.store {
            etcd.follow(|followed| self.clone().take_over(followed))
                .await;
        }
    }

    /// Takes over what etcd tells, on a blocking thread: health checks are answered by the thread of the control tasks.
    async fn take_over(self: Arc<Self>, followed: Followed) {
        let taking = spawn_blocking(move || self.take_over_now(followed));
        if let Err(error) = taking.await {
            tracing::error!(%error, "managed runtimes were not taken over");
        }
    }

    fn take_over_now(&self, followed: Followed) {
        let Store::Etcd(etcd) = &self.store else {
            return;
        };
        match etcd.update(followed) {
            StoreUpdate::All(texts, revision) => {
                self.replace_all(texts);
                self.position.send_replace(revision);
            }
            StoreUpdate::Changes(changes, up_to) => {
                for (label, text) in changes {
                    self.take(&label, text);
                }
                if let Some(up_to) = up_to {
                    self.position.send_replace(up_to);
                }
            }
        }
    }

    /// Resolves once all were read, and are in force.
    pub(crate) async fn ready(&self) {
        let mut versions = self.applied.subscribe();
        // The sender is in `self`.
        let _ = versions.wait_for(|applied| *applied > 0).await;
    }

    /// Resolves when more is known than this version. Returns the version that is known then.
    pub(crate) async fn newer_than(&self, version: u64) -> u64 {
        let mut versions = self.version.subscribe();
        let newer = versions.wait_for(|known| *known > version).await;
        // The sender is in `self`.
        newer.map_or(version, |known| *known)
    }

    /// The runtimes of the file, and those of all documents that are good beside them.
    pub(crate) fn merge(&self, listed: &Runtimes) -> Merged {
        let known = self.known.lock();
        let mut runtimes = listed.clone();
        let mut faults = BTreeMap::new();
        for (label, document) in &known.documents {
            let added = match &document.runtimes {
                Ok(one) => runtimes.add(one).map_err(|conflict| conflict.to_string()),
                Err(fault) => Err(fault.clone()),
            };
            if let Err(fault) = added {
                faults.insert(label.clone(), fault);
            }
        }
        Merged {
            runtimes: Arc::new(runtimes),
            version: *self.version.borrow(),
            faults,
        }
    }

    /// Notes that these are in force, and logs the documents that are left out.
    pub(crate) fn commit(&self, merged: Merged) {
        let mut known = self.known.lock();
        let is_new = |(label, fault): &(&String, &String)| known.faults.get(*label) != Some(*fault);
        let new: Vec<_> = merged.faults.iter().filter(is_new).collect();
        for (label, fault) in new.iter().take(LISTED) {
            let place = self.store.place(label);
            tracing::error!(
                place,
                fault,
                "a managed runtime is left out: correct or delete it"
            );
        }
        if let Some(more) = new.len().checked_sub(LISTED).filter(|more| *more > 0) {
            tracing::error!(more, "more managed runtimes are left out");
        }
        known.faults = merged.faults;
        known.in_force = merged.runtimes;
        known.pending.retain(|_, version| *version > merged.version);
        self.applied.send_replace(merged.version);
    }

    /// Makes no more changes, since another process has the folder from now on, and waits until those that were made are in
    /// force, for at most [`WAIT`], so that they are answered.
    pub(crate) async fn stop_changes(&self) {
        let writing = self.writing.lock().await;
        self.known.lock().is_read = false;
        drop(writing);
        let version = *self.version.borrow();
        if let Err(error) = self.in_force(version).await {
            tracing::warn!(%error, "managed runtimes are handed over before all changes are in force here");
        }
    }

    /// Makes changes again after [`Self::stop_changes`], since the other process did not take over.
    pub(crate) fn resume_changes(&self) {
        self.known.lock().is_read = true;
    }

    /// Whether there is a document of this label.
    pub(crate) fn has(&self, label: &str) -> bool {
        self.known.lock().documents.contains_key(label)
    }

    /// Makes a runtime, or replaces its definition; its tokens stay.
    ///
    /// # Errors
    /// See [`ManagedError`].
    pub(crate) async fn define(
        self: &Arc<Self>,
        label: &str,
        definition: &Definition,
    ) -> Result<Changed, ManagedError> {
        self.change(label, |before| {
            let next = document::define(definition, before.map(|it| it.text.as_str()))?;
            let changed = match before {
                Some(_) => Changed::Replaced,
                None => Changed::Made,
            };
            Ok((Some(next), changed))
        })
        .await
    }

    /// Removes a runtime with its tokens.
    ///
    /// # Errors
    /// See [`ManagedError`].
    pub(crate) async fn remove(self: &Arc<Self>, label: &str) -> Result<(), ManagedError> {
        self.change(label, |before| match before {
            Some(_) => Ok((None, ())),
            None => Err(ManagedError::Unknown(label.to_owned())),
        })
        .await
    }

    /// Adds a new token. If the runtime has the most that it may have, those that are revoked or expired make room.
    ///
    /// # Errors
    /// See [`ManagedError`].
    pub(crate) async fn add_token(
        self: &Arc<Self>,
        label: &str,
        new: &NewToken,
    ) -> Result<Token, ManagedError> {
        let token = Token::generate()?;
        self.change(label, |before| {
            let (text, entry) = Self::good(label, before)?;
            Ok((Some(document::add_token(text, entry, new, &token)?), ()))
        })
        .await?;
        Ok(token)
    }

    /// Marks a token as revoked. May be repeated.
    ///
    /// # Errors
    /// See [`ManagedError`].
    pub(crate) async fn revoke_token(
        self: &Arc<Self>,
        label: &str,
        id: TokenId,
    ) -> Result<(), ManagedError> {
        self.change(label, |before| {
            let (text, entry) = Self::good(label, before)?;
            Ok((Some(document::revoke_token(text, entry, id)?), ()))
        })
        .await
    }

    fn good<'a>(
        label: &str,
        before: Option<&'a Document>,
    ) -> Result<(&'a str, &'a Runtimes), ManagedError> {
        let document = before.ok_or_else(|| ManagedError::Unknown(label.to_owned()))?;
        match &document.runtimes {
            Ok(runtimes) => Ok((&document.text, runtimes)),
            Err(fault) => Err(ManagedError::Faulty(fault.clone())),
        }
    }

    /// Changes a document to what `edit` makes of it, `None` for its removal, and waits until that is in force.
    async fn change<T>(
        self: &Arc<Self>,
        label: &str,
        edit: impl Fn(Option<&Document>) -> Result<(Option<String>, T), ManagedError>,
    ) -> Result<T, ManagedError> {
        let mut writing = self.writing.clone().lock_owned().await;
        for _ in 0..TRIES {
            let position = *self.position.borrow();
            let (text, result) = {
                let known = self.known.lock();
                let (text, result) = edit(known.documents.get(label))?;
                self.check(&known, label, text.as_deref())?;
                (text, result)
            };
            let written = match &self.store {
                // To the end, also if nobody waits for the answer any more.
                Store::Folder(_) => {
                    let (own, label) = (self.clone(), label.to_owned());
                    let write = spawn_blocking(move || (own.write_file(&label, text), writing));
                    let (written, given_back) = write.await.map_err(ManagedStoreError::from)?;
                    writing = given_back;
                    written?
                }
                Store::Etcd(etcd) => etcd.write(label, text.as_deref(), position).await?,
            };
            match written {
                Written::At(revision) => {
                    // Told by etcd in order, as what other nodes write is.
                    if !self.known_at(revision).await {
                        return Err(ManagedError::NotInForce);
                    }
                    let version = *self.version.borrow();
                    drop(writing);
                    self.in_force(version).await?;
                    return Ok(result);
                }
                Written::Behind(revision) if self.known_at(revision).await => {}
                Written::Behind(_) => return Err(ManagedError::Contended),
            }
        }
        Err(ManagedError::Contended)
    }

    fn write_file(&self, label: &str, text: Option<String>) -> Result<Written, ManagedStoreError> {
        if let Store::Folder(folder) = &self.store {
            folder.write(label, text.as_deref())?;
        }
        self.take(label, text);
        Ok(Written::At(0))
    }

    /// Checks the next text of a document beside all others.
    fn check(&self, known: &Known, label: &str, text: Option<&str>) -> Result<(), ManagedError> {
        if !known.is_read {
            return Err(ManagedError::Unread);
        }
        let Some(text) = text else {
            return Ok(());
        };
        if known.documents.len() >= RUNTIMES && !known.documents.contains_key(label) {
            return Err(ManagedError::Full);
        }
        let next = Document::parse(label, text, &self.domain).map_err(ManagedError::Malformed)?;
        known.in_force.check_beside(&next)?;
        for other in known.pending.keys().filter(|other| *other != label) {
            let other = known.documents.get(other);
            if let Some(Ok(other)) = other.map(|other| &other.runtimes) {
                other.check_beside(&next)?;
            }
        }
        Ok(())
    }

    /// Takes over all documents. Reads them without the lock, for which other threads would wait.
    fn replace_all(&self, texts: impl IntoIterator<Item = (String, String)>) {
        let mut documents = BTreeMap::new();
        for (label, text) in texts {
            if documents.len() >= RUNTIMES {
                tracing::error!(
                    most = RUNTIMES,
                    "there are more managed runtimes than there may be: the others are left out"
                );
                break;
            }
            let is_known = self.is_known(&label, Some(&text));
            let document = (!is_known).then(|| self.read(&label, text));
            documents.insert(label, document);
        }
        let mut known = self.known.lock();
        let mut before = std::mem::take(&mut known.documents);
        let version = *self.version.borrow() + 1;
        for (label, document) in documents {
            let document = match document {
                Some(document) => {
                    known.pending.insert(label.clone(), version);
                    Some(document)
                }
                None => before.remove(&label),
            };
            known
                .documents
                .extend(document.map(|document| (label, document)));
        }
        known.is_read = true;
        self.version.send_replace(version);
        tracing::info!(count = known.documents.len(), "managed runtimes were read");
    }

    /// Whether this is the text of the document, or there is none.
    fn is_known(&self, label: &str, text: Option<&String>) -> bool {
        let known = self.known.lock();
        known.documents.get(label).map(|it| &it.text) == text
    }

    /// Takes over one document, or its removal.
    fn take(&self, label: &str, text: Option<String>) {
        if self.is_known(label, text.as_ref()) {
            return;
        }
        let document = text.map(|text| self.read(label, text));
        let mut known = self.known.lock();
        let version = *self.version.borrow() + 1;
        match document {
            Some(document) => drop(known.documents.insert(label.to_owned(), document)),
            None => drop(known.documents.remove(label)),
        }
        known.pending.insert(label.to_owned(), version);
        self.version.send_replace(version);
    }

    fn read(&self, label: &str, text: String) -> Document {
        Document {
            runtimes: Document::parse(label, &text, &self.domain),
            text,
        }
    }

    /// Whether all up to this revision becomes known in time.
    async fn known_at(&self, revision: i64) -> bool {
        let mut positions = self.position.subscribe();
        let reached = positions.wait_for(|position| *position >= revision);
        timeout(WAIT, reached).await.is_ok()
    }

    async fn in_force(&self, version: u64) -> Result<(), ManagedError> {
        let mut versions = self.applied.subscribe();
        let applied = versions.wait_for(|applied| *applied >= version);
        match timeout(WAIT, applied).await {
            Ok(_) => Ok(()),
            Err(_) => Err(ManagedError::NotInForce),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tunnel_etcd::{KeyValue, Settings};
    use tunnel_ops::tls_files::{Roots, client_config};

    use super::*;

    fn of_etcd() -> Arc<Managed> {
        let client = Client::new(Settings {
            members: vec!["http://127.0.0.1:1".parse().unwrap()],
            tls: client_config(&Roots::none(), None, &[]).unwrap(),
            user: None,
            timeout: WAIT,
        });
        Arc::new(Managed {
            store: Store::Etcd(EtcdStore::new(client, "/t/")),
            domain: "t.example".parse().unwrap(),
            known: Mutex::default(),
            writing: Arc::default(),
            version: watch::Sender::new(0),
            applied: watch::Sender::new(0),
            position: watch::Sender::new(0),
        })
    }

    /// A document may be large, and the thread of the control tasks has others to wake.
    #[test]
    fn what_etcd_tells_is_read_on_a_blocking_thread() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (release, released) = mpsc::channel::<()>();
            let busy = spawn_blocking(move || released.recv());
            let managed = of_etcd();
            let text = "[[runtime]]\naccount = \"acme\"\nname = \"prod\"\n";
            let followed = Followed::Listed {
                keys: vec![KeyValue {
                    key: "/t/runtime/acme-prod".into(),
                    value: text.into(),
                    ..KeyValue::default()
                }],
                revision: 7,
            };
            let mut taking = Box::pin(managed.clone().take_over(followed));
            assert!(futures_util::poll!(&mut taking).is_pending());
            assert!(!managed.has("acme-prod"));
            release.send(()).unwrap();
            busy.await.unwrap().unwrap();
            taking.await;
            assert!(managed.has("acme-prod"));
            assert_eq!(*managed.position.borrow(), 7);
        });
    }
}
