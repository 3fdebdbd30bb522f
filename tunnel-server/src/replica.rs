//! Runs what nodes keep in etcd together: managed runtimes and revocations. `tunnel-directory/src/managed.rs` decides.
//!
//! ```text
//!   etcd ─ listing, events ─▶ Replica ─ changes ─▶ deliver
//!        ◀──── writes ───────    ▲
//!                                └ changes by the admin API
//! ```
//!
//! The replica is used on blocking threads alone: a listing is long, and the thread of the control tasks answers health checks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::{JoinError, spawn_blocking},
    time::{Instant, sleep, sleep_until, timeout},
};
pub(crate) use tunnel_directory::managed::CHANGES;
use tunnel_directory::managed::{
    Changes, DocumentChange, Merge, Next, Pair, Replica, RevokedCredentials,
};
use tunnel_etcd::{Client, EtcdError, Followed, TxnRequest};
use tunnel_proto::control::millis;

/// Pause before etcd is read again.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes over changes of what is known, on a blocking thread; `true` for those of a listing.
pub(crate) type Deliver = Arc<dyn Fn(Changes, bool) + Send + Sync>;

/// What this node keeps in etcd with others.
pub(crate) struct EtcdReplica {
    client: Client,
    prefix: String,
    /// The range of its keys.
    range: (Bytes, Bytes),
    state: Mutex<State>,
    told: watch::Sender<DeliveredPosition>,
    /// Something is to be written.
    has_input: Notify,
}

struct State {
    replica: Replica,
    /// Counts what etcd has told.
    applied: u64,
}

/// Up to where the changes of etcd have been delivered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeliveredPosition {
    /// Counts what etcd has told.
    pub(crate) applied: u64,
    position: i64,
    listings: u64,
}

/// A change of a document by the admin API.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) label: String,
    pub(crate) next: NextDocument,
    /// Credentials that have made room.
    pub(crate) revoked: Option<(Pair, RevokedCredentials)>,
}

/// What a document becomes.
#[derive(Debug, Clone)]
pub(crate) enum NextDocument {
    /// This text.
    Text(String),
    /// Nothing.
    Removed {
        /// The wall clock in milliseconds until which it is kept that it was removed.
        until_ms: u64,
    },
}

/// What came of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was made in this revision.
    At(i64),
    /// It was not: etcd has told, or will tell, what was not known.
    Behind,
}

/// Why a change was not made, or may not have been.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplicaError {
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(transparent)]
    Ended(#[from] JoinError),
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

impl EtcdReplica {
    /// Reads nothing yet. `has_documents` if managed runtimes are kept here, too.
    pub(crate) fn new(
        client: Client,
        prefix: &str,
        has_documents: bool,
        merge: Merge,
    ) -> Arc<Self> {
        // The seed decides an order only.
        let seed = getrandom::u64().unwrap_or_default();
        let replica = Replica::new(prefix, has_documents, seed, merge);
        Arc::new(Self {
            client,
            prefix: prefix.to_owned(),
            range: replica.range(),
            state: Mutex::new(State {
                replica,
                applied: 0,
            }),
            told: watch::Sender::default(),
            has_input: Notify::new(),
        })
    }

    /// Where a document is, for people.
    pub(crate) fn place(&self, label: &str) -> String {
        format!("{}runtime/{label}", self.prefix)
    }

    /// Follows etcd, and writes what it has lost, until it is dropped.
    pub(crate) async fn run(self: Arc<Self>, deliver: Deliver) {
        tokio::join!(self.follow(deliver), self.write());
    }

    async fn follow(self: &Arc<Self>, deliver: Deliver) {
        let mut is_lost = false;
        loop {
            let mut was_read = false;
            let tell = |followed| {
                was_read = true;
                self.clone().take_over(followed, deliver.clone())
            };
            let ended = self.client.follow(self.range.clone(), tell).await;
            is_lost &= !was_read;
            if let Err(error) = ended
                && !is_lost
            {
                tracing::warn!(%error, "managed runtimes and revocations in etcd cannot be followed: those known last stay, trying again");
                is_lost = true;
            }
            sleep(PAUSE).await;
        }
    }

    /// Takes over what etcd tells.
    pub(crate) async fn take_over(self: Arc<Self>, followed: Followed, deliver: Deliver) {
        let taking = spawn_blocking(move || self.take_over_now(&followed, &deliver));
        if let Err(error) = taking.await {
            tracing::error!(%error, "managed runtimes and revocations were not taken over");
        }
    }

    fn take_over_now(&self, followed: &Followed, deliver: &Deliver) {
        let now_ms = wall_ms();
        let mut state = self.state.lock();
        let State { replica, applied } = &mut *state;
        *applied += 1;
        let (changes, is_listing) = match followed {
            Followed::Listed { keys, revision } => {
                (replica.on_listed(keys, *revision, now_ms), true)
            }
            Followed::Changed { events, up_to } => {
                (replica.on_changed(events, *up_to, now_ms), false)
            }
        };
        let told = DeliveredPosition {
            applied: *applied,
            position: replica.position(),
            listings: replica.listings(),
        };
        let has_lost = is_listing && told.listings > 1 && !replica.is_written();
        // Others need not wait for what is done with the changes.
        drop(state);
        if has_lost {
            tracing::warn!(
                "etcd has lost managed runtimes or revocations that this node knows, or has some that were removed: \
                 what is known is written again"
            );
        }
        deliver(changes, is_listing);
        self.told.send_replace(told);
    }

    async fn write(self: &Arc<Self>) {
        let mut told = self.told.subscribe();
        let mut answer = None;
        loop {
            let own = self.clone();
            let next = spawn_blocking(move || {
                let replica = &mut own.state.lock().replica;
                if let Some(made) = answer {
                    replica.on_written(made, now());
                }
                (replica.next_write(now()), replica.deadline())
            });
            let (txn, deadline) = next.await.unwrap_or_default();
            answer = match txn {
                Some(txn) => Some(self.commit(txn).await),
                None => None,
            };
            if answer.is_some() {
                continue;
            }
            let deadline = deadline.map(Instant::from_std);
            tokio::select! {
                // The sender is in `self`.
                _ = told.changed() => {}
                () = self.has_input.notified() => {}
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
            }
        }
    }

    async fn commit(&self, txn: TxnRequest) -> Option<i64> {
        match self.client.txn(txn).await {
            Ok(answer) => answer.succeeded.then(|| answer.revision()),
            Err(error) => {
                tracing::debug!(%error, "etcd has not written what is known");
                None
            }
        }
    }

    /// Up to where the changes of etcd have been delivered.
    pub(crate) fn told(&self) -> DeliveredPosition {
        *self.told.borrow()
    }

    /// Resolves once all was read and delivered.
    pub(crate) async fn ready(&self) {
        let mut told = self.told.subscribe();
        // The sender is in `self`.
        let _ = told.wait_for(|told| told.listings > 0).await;
    }

    /// Whether what was written in this revision, after `known` was delivered, is delivered within this time.
    pub(crate) async fn known_at(
        &self,
        revision: i64,
        known: DeliveredPosition,
        within: Duration,
    ) -> bool {
        let mut told = self.told.subscribe();
        let reached = told.wait_for(|told| {
            // A position of before etcd was emptied or restored says nothing.
            let is_of_now = revision > known.position || told.listings > known.listings;
            is_of_now && told.position >= revision
        });
        timeout(within, reached).await.is_ok()
    }

    /// Whether something is delivered within this time after `known`.
    pub(crate) async fn newer_than(&self, known: DeliveredPosition, within: Duration) -> bool {
        let mut told = self.told.subscribe();
        let newer = told.wait_for(|told| told.applied > known.applied);
        timeout(within, newer).await.is_ok()
    }

    /// Revokes credentials at all nodes. Returns whether etcd has that within this time.
    pub(crate) async fn revoke(
        self: &Arc<Self>,
        pair: Pair,
        more: RevokedCredentials,
        within: Duration,
    ) -> bool {
        let (own, revoked) = (self.clone(), pair.clone());
        let revoking = spawn_blocking(move || own.state.lock().replica.revoke(&revoked, &more));
        if revoking.await.is_err() {
            return false;
        }
        self.has_input.notify_one();
        let mut told = self.told.subscribe();
        let written = async {
            loop {
                let (own, pair) = (self.clone(), pair.clone());
                let look =
                    spawn_blocking(move || own.state.lock().replica.is_revoked_durably(&pair));
                // The sender is in `self`.
                if look.await.unwrap_or(false) || told.changed().await.is_err() {
                    return;
                }
            }
        };
        timeout(within, written).await.is_ok()
    }

    /// What is revoked of these runtimes.
    pub(crate) fn revoked(&self, pairs: &BTreeSet<Pair>) -> BTreeMap<Pair, RevokedCredentials> {
        let state = self.state.lock();
        let known = pairs.iter().filter_map(|pair| {
            let known = state.replica.revoked(pair)?;
            Some((pair.clone(), known.clone()))
        });
        known.collect()
    }

    /// Changes documents, up to [`CHANGES`], if etcd has all that was delivered when the change was checked, and nothing else.
    ///
    /// # Errors
    /// When etcd does not answer; the change may have been made.
    pub(crate) async fn change(
        self: &Arc<Self>,
        known: DeliveredPosition,
        changes: Vec<Change>,
    ) -> Result<Written, ReplicaError> {
        let nonce = getrandom::u64()?;
        let own = self.clone();
        let txn = spawn_blocking(move || {
            let now_ms = wall_ms();
            let changes: Vec<_> = changes.iter().map(|it| it.at(now_ms, nonce)).collect();
            let state = own.state.lock();
            (state.applied == known.applied).then(|| state.replica.change(&changes))
        });
        let Some(txn) = txn.await? else {
            return Ok(Written::Behind);
        };
        let answer = self.client.txn(txn).await?;
        Ok(match answer.succeeded {
            true => Written::At(answer.revision()),
            false => Written::Behind,
        })
    }
}

impl Change {
    pub(crate) fn new(label: &str, next: NextDocument) -> Self {
        Self {
            label: label.to_owned(),
            next,
            revoked: None,
        }
    }

    /// The next text, if there is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.next {
            NextDocument::Text(text) => Some(text),
            NextDocument::Removed { .. } => None,
        }
    }

    fn at(&self, now_ms: u64, nonce: u64) -> DocumentChange<'_> {
        DocumentChange {
            label: &self.label,
            next: match &self.next {
                NextDocument::Text(text) => Next::Text(text),
                NextDocument::Removed { until_ms } => Next::Removed {
                    until_ms: *until_ms,
                },
            },
            revoked: self.revoked.as_ref().map(|(pair, more)| (pair, more)),
            now_ms,
            nonce,
        }
    }
}

/// The wall clock in milliseconds.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    millis(since.unwrap_or(Duration::ZERO))
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tunnel_etcd::{KeyValue, Settings};
    use tunnel_ops::tls_files::{Roots, client_config};

    use super::*;

    fn replica() -> Arc<EtcdReplica> {
        let client = Client::new(Settings {
            members: vec!["http://127.0.0.1:1".parse().unwrap()],
            tls: client_config(&Roots::none(), None, &[]).unwrap(),
            user: None,
            timeout: PAUSE,
        });
        EtcdReplica::new(client, "/t/", true, |newer, _, _| newer.to_owned())
    }

    /// A document may be large, and the thread of the control tasks has others to wake.
    #[test]
    fn what_etcd_tells_is_taken_over_on_a_blocking_thread() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (release, released) = mpsc::channel::<()>();
            let busy = spawn_blocking(move || released.recv());
            let replica = replica();
            let (deliver, delivered) = mpsc::channel();
            let deliver: Deliver =
                Arc::new(move |changes, is_listing| deliver.send((changes, is_listing)).unwrap());
            let text = "[[runtime]]\naccount = \"acme\"\nname = \"prod\"\n";
            let followed = Followed::Listed {
                keys: vec![KeyValue {
                    key: "/t/runtime/acme-prod".into(),
                    value: text.into(),
                    ..KeyValue::default()
                }],
                revision: 7,
            };
            let mut taking = Box::pin(replica.clone().take_over(followed, deliver));
            assert!(futures_util::poll!(&mut taking).is_pending());
            assert!(delivered.try_recv().is_err());
            release.send(()).unwrap();
            busy.await.unwrap().unwrap();
            taking.await;
            let (changes, is_listing) = delivered.recv().unwrap();
            assert!(is_listing);
            let expected = [("acme-prod".to_owned(), Some(text.to_owned()))];
            assert_eq!(changes.documents, expected);
            assert!(
                replica
                    .known_at(7, DeliveredPosition::default(), Duration::ZERO)
                    .await
            );
            assert!(!replica.known_at(7, replica.told(), Duration::ZERO).await);
        });
    }

    /// Etcd is away: the revocation is known, and written later.
    #[tokio::test(start_paused = true)]
    async fn a_revocation_that_etcd_has_not_got_is_not_durable() {
        let replica = replica();
        let pair: Pair = "acme/prod".parse().unwrap();
        let more = RevokedCredentials::before(7);
        assert!(!replica.revoke(pair.clone(), more.clone(), PAUSE).await);
        let known = replica.revoked(&BTreeSet::from([pair.clone()]));
        assert_eq!(known, BTreeMap::from([(pair, more)]));
    }
}
