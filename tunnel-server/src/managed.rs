//! Managed runtimes: those that the admin API makes and removes, beside those of the runtimes file.
//!
//! ```text
//!   admin/managed.rs ─ change ─▶ Managed ─ document.rs ─▶ store.rs ─▶ a folder, or etcd (`replica.rs`)
//!                                   ▲                                   │
//!                                   └─────────── load, take_over ───────┘
//!   server/managing.rs ─ merge, commit ─▶ what is in force
//! ```
//!
//! Each is a document of its own, in the form of a runtimes file with one runtime. One that is faulty, or conflicts with the
//! runtimes file or with one before it in the order of labels, is left out and logged; it never stops the others.

mod document;
mod merge;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch},
    task::spawn_blocking,
    time::timeout,
};
use tunnel_directory::managed::{Pair, RevokedCredentials};
use tunnel_ops::faults::LISTED;

pub use self::store::ManagedStoreError;
use self::{
    document::Document,
    store::{FolderStore, Store},
};
pub(crate) use self::{
    document::{Definition, NewToken, TOKENS},
    merge::merge,
};
use crate::{
    config::{Config, ManagedPlace},
    replica::{CHANGES, Change, DeliveredPosition, EtcdReplica, NextDocument, Written, wall_ms},
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

/// Revocations of the runtime of a document, if there are any.
fn of_runtime(
    runtimes: &Runtimes,
    revoked: RevokedCredentials,
) -> Option<(Pair, RevokedCredentials)> {
    let entry = runtimes.iter().next().filter(|_| !revoked.is_empty())?;
    Some((Pair::new(&entry.account, &entry.name), revoked))
}

impl Managed {
    /// The managed runtimes of this configuration; `None` if it has none. Reads nothing yet.
    pub(crate) fn new(config: &Config, etcd: Option<&Arc<EtcdReplica>>) -> Option<Arc<Self>> {
        let settings = &config.settings;
        let store = match (settings.managed_runtimes.as_ref()?, etcd) {
            (ManagedPlace::Folder(path), _) => Store::Folder(FolderStore::new(path)),
            (ManagedPlace::Etcd, etcd) => Store::Etcd(etcd?.clone()),
        };
        Some(Arc::new(Self {
            store,
            domain: settings.domain.clone(),
            known: Mutex::default(),
            writing: Arc::default(),
            version: watch::Sender::new(0),
            applied: watch::Sender::new(0),
        }))
    }

    /// Whether all were read, and are in force.
    pub(crate) fn is_ready(&self) -> bool {
        *self.applied.borrow() > 0
    }

    /// Reads all of the folder. Those in etcd come by [`Self::take_over`].
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn load(&self) -> Result<(), ManagedStoreError> {
        if let Store::Folder(folder) = &self.store {
            let texts = folder.list()?;
            let listed: BTreeSet<&String> = texts.iter().map(|(label, _)| label).collect();
            let labels: Vec<String> = self.known.lock().documents.keys().cloned().collect();
            let gone = labels.into_iter().filter(|label| !listed.contains(label));
            let gone: Vec<_> = gone.map(|label| (label, None)).collect();
            let there = texts.into_iter().map(|(label, text)| (label, Some(text)));
            self.take_over(there.chain(gone).collect(), true);
        }
        Ok(())
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
            Ok((Change::new(label, NextDocument::Text(next)), changed))
        })
        .await
    }

    /// Removes a runtime with its tokens.
    ///
    /// # Errors
    /// See [`ManagedError`].
    pub(crate) async fn remove(self: &Arc<Self>, label: &str) -> Result<(), ManagedError> {
        self.change(label, |before| match before {
            Some(document) => {
                let runtimes = document.runtimes.as_ref().ok();
                let until_ms = document::removed_until(runtimes, wall_ms());
                let removed = NextDocument::Removed { until_ms };
                Ok((Change::new(label, removed), ()))
            }
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
            let (text, revoked) = document::add_token(text, entry, new, &token)?;
            let change = Change {
                revoked: of_runtime(entry, revoked),
                ..Change::new(label, NextDocument::Text(text))
            };
            Ok((change, ()))
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
            let next = document::revoke_token(text, entry, id)?;
            Ok((Change::new(label, NextDocument::Text(next)), ()))
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

    /// Removes all runtimes with their tokens, and waits until that is in force. Returns how many there were. May be repeated, if
    /// it has failed in between.
    ///
    /// # Errors
    /// See [`ManagedError`].
    pub(crate) async fn remove_all(self: &Arc<Self>) -> Result<usize, ManagedError> {
        let mut writing = self.writing.clone().lock_owned().await;
        let mut removed = 0;
        let mut tries = 0;
        loop {
            let told = self.told();
            let changes = self.next_removals()?;
            if changes.is_empty() {
                break;
            }
            let count = changes.len();
            match self.write(told, changes, writing).await? {
                (true, given_back) => {
                    (writing, tries) = (given_back, 0);
                    removed += count;
                }
                (false, given_back) => {
                    (writing, tries) = (given_back, tries + 1);
                    if tries >= TRIES {
                        return Err(ManagedError::Contended);
                    }
                }
            }
        }
        let version = *self.version.borrow();
        drop(writing);
        self.in_force(version).await?;
        Ok(removed)
    }

    /// Removals of the first runtimes; none if there are no runtimes.
    fn next_removals(&self) -> Result<Vec<Change>, ManagedError> {
        let known = self.known.lock();
        if !known.is_read {
            return Err(ManagedError::Unread);
        }
        let now_ms = wall_ms();
        let first = known.documents.iter().take(CHANGES);
        let removals = first.map(|(label, document)| {
            let runtimes = document.runtimes.as_ref().ok();
            let until_ms = document::removed_until(runtimes, now_ms);
            Change::new(label, NextDocument::Removed { until_ms })
        });
        Ok(removals.collect())
    }

    /// Changes a document to what `edit` makes of it, and waits until that is in force.
    async fn change<T>(
        self: &Arc<Self>,
        label: &str,
        edit: impl Fn(Option<&Document>) -> Result<(Change, T), ManagedError>,
    ) -> Result<T, ManagedError> {
        let mut writing = self.writing.clone().lock_owned().await;
        for _ in 0..TRIES {
            // Before what is known is looked at: what is told meanwhile has the change fail, and be tried again.
            let told = self.told();
            let (change, result) = {
                let known = self.known.lock();
                let (change, result) = edit(known.documents.get(label))?;
                self.check(&known, label, change.text())?;
                (change, result)
            };
            let (is_made, given_back) = self.write(told, vec![change], writing).await?;
            if !is_made {
                writing = given_back;
                continue;
            }
            let version = *self.version.borrow();
            drop(given_back);
            self.in_force(version).await?;
            return Ok(result);
        }
        Err(ManagedError::Contended)
    }

    /// Writes changes that were checked when all of `told` was known, and waits until they are known here. Returns whether they
    /// were made, and the lock.
    async fn write(
        self: &Arc<Self>,
        told: DeliveredPosition,
        changes: Vec<Change>,
        writing: OwnedMutexGuard<()>,
    ) -> Result<(bool, OwnedMutexGuard<()>), ManagedError> {
        let etcd = match &self.store {
            Store::Etcd(etcd) => etcd,
            // To the end, also if nobody waits for the answer any more.
            Store::Folder(_) => {
                let own = self.clone();
                let write = spawn_blocking(move || (own.write_files(&changes), writing));
                let (written, writing) = write.await.map_err(ManagedStoreError::from)?;
                written?;
                return Ok((true, writing));
            }
        };
        let written = etcd.change(told, changes).await;
        match written.map_err(ManagedStoreError::from)? {
            // Told by etcd in order, as what other nodes write is.
            Written::At(revision) if etcd.known_at(revision, told, WAIT).await => {
                Ok((true, writing))
            }
            Written::At(_) => Err(ManagedError::NotInForce),
            Written::Behind if etcd.newer_than(told, WAIT).await => Ok((false, writing)),
            Written::Behind => Err(ManagedError::Contended),
        }
    }

    fn told(&self) -> DeliveredPosition {
        match &self.store {
            Store::Folder(_) => DeliveredPosition::default(),
            Store::Etcd(etcd) => etcd.told(),
        }
    }

    fn write_files(&self, changes: &[Change]) -> Result<(), ManagedStoreError> {
        for change in changes {
            if let Store::Folder(folder) = &self.store {
                folder.write(&change.label, change.text())?;
            }
            let text = change.text().map(str::to_owned);
            self.take_over(vec![(change.label.clone(), text)], false);
        }
        Ok(())
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

    /// Takes over changes of documents; `None` is a removal. Those of a listing are all there are. Reads them without the lock,
    /// for which other threads would wait.
    pub(crate) fn take_over(&self, changes: Vec<(String, Option<String>)>, is_listing: bool) {
        // The last one of each counts.
        let changes: BTreeMap<String, Option<String>> = changes.into_iter().collect();
        let news = changes
            .into_iter()
            .filter(|(label, text)| !self.is_known(label, text.as_ref()));
        let read = |(label, text): (String, Option<String>)| {
            let document = text.map(|text| self.read(&label, text));
            (label, document)
        };
        let news: Vec<_> = news.map(read).collect();
        if news.is_empty() && !is_listing {
            return;
        }
        let mut known = self.known.lock();
        let version = *self.version.borrow() + 1;
        let mut left_out = 0;
        for (label, document) in news {
            let is_full =
                known.documents.len() >= RUNTIMES && !known.documents.contains_key(&label);
            match document {
                Some(_) if is_full => {
                    left_out += 1;
                    continue;
                }
                Some(document) => drop(known.documents.insert(label.clone(), document)),
                None => drop(known.documents.remove(&label)),
            }
            known.pending.insert(label, version);
        }
        if left_out > 0 {
            tracing::error!(
                most = RUNTIMES,
                left_out,
                "there are more managed runtimes than there may be: the others are left out"
            );
        }
        if is_listing {
            known.is_read = true;
            tracing::info!(count = known.documents.len(), "managed runtimes were read");
        }
        self.version.send_replace(version);
    }

    /// Whether this is the text of the document, or there is none.
    fn is_known(&self, label: &str, text: Option<&String>) -> bool {
        let known = self.known.lock();
        known.documents.get(label).map(|it| &it.text) == text
    }

    fn read(&self, label: &str, text: String) -> Document {
        Document {
            runtimes: Document::parse(label, &text, &self.domain),
            text,
        }
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
