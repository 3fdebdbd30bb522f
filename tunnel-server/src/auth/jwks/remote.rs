//! Fetches keys from a URL: in the background, and again when a token names an unknown key.
//!
//! One task fetches, so that at most one request is open: every 15 minutes and on demand, with a pause of 10 s between two
//! requests. A failed fetch leaves the keys as they are. When a key has been removed, all sessions check their grants.
//!
//! The task ends when [`RemoteJwks`] is dropped, and is spawned again if its tokio runtime has ended.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::Request;
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tunnel_ops::task::Owned;

use super::{Jwks, MOST_BYTES};
use crate::config::HttpUrl;
use tunnel_ops::https::HttpsClient;

/// Time between two fetches without demand.
const INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Time to the next fetch after a failure.
const RETRY: Duration = Duration::from_secs(30);

/// Shortest time between two fetches. Bounds the requests that tokens with unknown keys can cause.
const PAUSE: Duration = Duration::from_secs(10);

/// The keys of a URL.
pub(in crate::auth) struct RemoteJwks {
    shared: Arc<Shared>,
    /// Spawned by `start`, or by the first refetch, since there may be no tokio runtime before.
    fetching: Mutex<Option<Owned<()>>>,
}

struct Shared {
    url: HttpUrl,
    client: HttpsClient,
    keys: ArcSwapOption<Jwks>,
    changes: watch::Sender<u64>,
    requested: Notify,
    /// When the last fetch ended, whether it succeeded or failed.
    fetched: watch::Sender<Option<Instant>>,
    refetch_timeout: Duration,
}

impl RemoteJwks {
    pub(in crate::auth) fn new(
        url: HttpUrl,
        client: HttpsClient,
        changes: watch::Sender<u64>,
    ) -> Self {
        let refetch_timeout = client.deadline() + Duration::from_secs(1);
        Self {
            shared: Arc::new(Shared {
                url,
                client,
                keys: ArcSwapOption::empty(),
                changes,
                requested: Notify::new(),
                fetched: watch::Sender::new(None),
                refetch_timeout,
            }),
            fetching: Mutex::new(None),
        }
    }

    /// The keys that were fetched last.
    pub(in crate::auth) fn get(&self) -> Option<Arc<Jwks>> {
        self.shared.keys.load_full()
    }

    /// When the last fetch ended.
    pub(in crate::auth) fn fetched(&self) -> Option<Instant> {
        *self.shared.fetched.borrow()
    }

    /// Starts to fetch on the current tokio runtime, unless the task is running.
    pub(in crate::auth) fn start(&self) {
        let mut fetching = self.fetching.lock();
        if fetching.as_ref().is_none_or(Owned::is_finished) {
            *fetching = Some(Owned::spawn("jwks", fetch_forever(self.shared.clone())));
        }
    }

    /// Fetches again and returns the keys. Returns the current ones if the last fetch is less than [`PAUSE`] ago or the
    /// fetch takes too long.
    pub(in crate::auth) async fn refetch(&self) -> Option<Arc<Jwks>> {
        let mut fetched = self.shared.fetched.subscribe();
        self.start();
        let last = *fetched.borrow_and_update();
        match last {
            Some(last) if last.elapsed() < PAUSE => return self.get(),
            // Without effect during a fetch, whose result is then awaited.
            Some(_) => self.shared.requested.notify_waiters(),
            // `start` has begun the first fetch.
            None => {}
        }
        let _ = timeout(self.shared.refetch_timeout, fetched.changed()).await;
        self.get()
    }
}

async fn fetch_forever(shared: Arc<Shared>) {
    loop {
        let is_good = fetch(&shared).await;
        let end = Instant::now();
        shared.fetched.send_replace(Some(end));
        let next = end + if is_good { INTERVAL } else { RETRY };
        tokio::select! {
            () = sleep_until(next) => {}
            () = shared.requested.notified() => {}
        }
    }
}

async fn fetch(shared: &Shared) -> bool {
    let request = Request::get(shared.url.uri()).header("accept", "application/json");
    let Ok(request) = request.body(Full::default()) else {
        return false;
    };
    let fault = match shared.client.send(request, MOST_BYTES).await {
        Ok((status, json)) if status == 200 => match Jwks::parse(&json) {
            Ok(keys) => {
                tracing::debug!(url = %shared.url, keys = keys.len(), "keys were fetched");
                let keys = Arc::new(keys);
                let before = shared.keys.swap(Some(keys.clone()));
                if before.is_some_and(|before| !before.is_within(&keys)) {
                    shared.changes.send_modify(|count| *count += 1);
                }
                return true;
            }
            Err(error) => error.to_string(),
        },
        Ok((status, _)) => format!("the answer is {status}"),
        Err(error) => error.to_string(),
    };
    let kept = shared.keys.load().is_some();
    tracing::warn!(url = %shared.url, fault, kept, "the keys of JSON Web Tokens cannot be fetched");
    false
}
