//! Keys behind a URL: fetched in the background, and again when a token names one that is not known.
//!
//! One task fetches, so that never two questions run at once: every quarter of an hour, and when it is
//! asked to, yet no sooner than 10 s after the last time. What was good last is kept until there is
//! something better. When a key is gone that was there before, all sessions check their grants again.
//!
//! The task ends with what started it, and is begun anew if its runtime ended before.

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
use crate::auth::https::HttpsClient;
use crate::config::HttpUrl;

/// How often the keys are fetched without being asked for.
const INTERVAL: Duration = Duration::from_secs(15 * 60);

/// How soon again after a failure.
const RETRY: Duration = Duration::from_secs(30);

/// How soon again at most, however many tokens name keys that are not known.
const PAUSE: Duration = Duration::from_secs(10);

/// Keys behind a URL.
pub(in crate::auth) struct RemoteJwks {
    shared: Arc<Shared>,
    /// Begins when asked to, or with the first question, since there may be no runtime before.
    fetching: Mutex<Option<Owned<()>>>,
}

struct Shared {
    url: HttpUrl,
    client: HttpsClient,
    keys: ArcSwapOption<Jwks>,
    changes: watch::Sender<u64>,
    wanted: Notify,
    /// When the last fetch ended, good or bad.
    fetched: watch::Sender<Option<Instant>>,
    patience: Duration,
}

impl RemoteJwks {
    pub(in crate::auth) fn new(
        url: HttpUrl,
        client: HttpsClient,
        changes: watch::Sender<u64>,
    ) -> Self {
        let patience = client.deadline() + Duration::from_secs(1);
        Self {
            shared: Arc::new(Shared {
                url,
                client,
                keys: ArcSwapOption::empty(),
                changes,
                wanted: Notify::new(),
                fetched: watch::Sender::new(None),
                patience,
            }),
            fetching: Mutex::new(None),
        }
    }

    /// The keys that were fetched last.
    pub(in crate::auth) fn get(&self) -> Option<Arc<Jwks>> {
        self.shared.keys.load_full()
    }

    /// Begins to fetch, on the runtime that this is called in, unless that has begun.
    pub(in crate::auth) fn start(&self) {
        let mut fetching = self.fetching.lock();
        if fetching.as_ref().is_none_or(Owned::is_finished) {
            *fetching = Some(Owned::spawn("jwks", fetch_forever(self.shared.clone())));
        }
    }

    /// The keys after another fetch, unless the last is too recent or the answer takes too long.
    pub(in crate::auth) async fn again(&self) -> Option<Arc<Jwks>> {
        let mut fetched = self.shared.fetched.subscribe();
        self.start();
        let last = *fetched.borrow_and_update();
        match last {
            Some(last) if last.elapsed() < PAUSE => return self.get(),
            // Never kept for later: if one fetch is under way, its answer is the one to wait for.
            Some(_) => self.shared.wanted.notify_waiters(),
            // The first fetch has begun already.
            None => {}
        }
        let _ = timeout(self.shared.patience, fetched.changed()).await;
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
            // No request is heard before the pause is over.
            () = shared.wanted.notified() => {}
        }
    }
}

async fn fetch(shared: &Shared) -> bool {
    let request = Request::get(shared.url.uri()).header("accept", "application/json");
    let Ok(request) = request.body(Full::default()) else {
        return false;
    };
    let fault = match shared.client.ask(request, MOST_BYTES).await {
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
