//! Upstreams that are made when a template first leads to them.
//!
//! In: a URL, filled in by a request and checked by the route. Out: its upstream, the same for all
//! who ask for it at once. There is a limit to how many are kept, and to how long without a use;
//! exchanges that are under way go on whatever becomes of theirs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::interval;
use tunnel_ops::task::Owned;

use super::destination::Destination;
use super::settings::{UpstreamError, UpstreamOptions, UpstreamShared};
use super::tls::TlsOffers;
use super::{Upstream, tls_for};
use crate::url::{UpstreamScheme, UpstreamUrl};

/// Most upstreams that are kept for one template. When there are more, one that was never reached goes,
/// and only if there is none the one unused for the longest: requests can name many that do not exist.
const UPSTREAMS: usize = 256;
/// How often unused ones are looked for, and after how many such looks without a use one goes.
const SWEEP: Duration = Duration::from_secs(30);
const SWEEPS: u32 = 10;

/// The upstreams of one template.
pub(crate) struct UpstreamCache {
    options: UpstreamOptions,
    /// That of all of them.
    tls: Option<TlsOffers>,
    shared: Arc<UpstreamShared>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    upstreams: HashMap<UpstreamUrl, Entry>,
    /// Uses so far, to tell which upstream was used last.
    uses: u64,
    sweeps: u32,
    /// None is kept any more.
    is_closed: bool,
}

struct Entry {
    upstream: Arc<Upstream>,
    used: u64,
    /// Sweeps before its last use.
    sweeps: u32,
    /// Ends with the entry. Who still uses the upstream does not need it.
    _tending: Owned<()>,
}

/// Lets all upstreams of a cache go when it is dropped.
struct Retiring<'a>(&'a UpstreamCache);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        let mut kept = self.0.kept.lock();
        kept.is_closed = true;
        let all = std::mem::take(&mut kept.upstreams);
        drop(kept);
        drop(all);
    }
}

impl UpstreamCache {
    /// For a template with this scheme.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub(crate) fn new(
        scheme: UpstreamScheme,
        options: &UpstreamOptions,
        shared: &Arc<UpstreamShared>,
    ) -> Result<Self, UpstreamError> {
        Ok(Self {
            tls: tls_for(scheme, &"of a template", options)?,
            options: options.clone(),
            shared: Arc::clone(shared),
            kept: Mutex::default(),
        })
    }

    /// The upstream at this URL. Must be called within a runtime.
    pub(crate) fn get(&self, url: UpstreamUrl) -> Arc<Upstream> {
        let mut kept = self.kept.lock();
        kept.uses += 1;
        let (used, sweeps) = (kept.uses, kept.sweeps);
        if let Some(entry) = kept.upstreams.get_mut(&url) {
            (entry.used, entry.sweeps) = (used, sweeps);
            return Arc::clone(&entry.upstream);
        }
        if kept.upstreams.len() >= UPSTREAMS {
            let worth = |entry: &Entry| (entry.upstream.was_reached(), entry.used);
            let least = kept.upstreams.iter();
            let least = least.min_by_key(|(_, entry)| worth(entry));
            if let Some(url) = least.map(|(url, _)| url.clone()) {
                kept.upstreams.remove(&url);
            }
        }
        let destination = Destination::of_template(url.clone());
        let tls = self.tls.clone();
        let upstream = Upstream::with_tls(destination, tls, &self.options, &self.shared);
        let upstream = Arc::new(upstream);
        if kept.is_closed {
            return upstream;
        }
        let tended = Arc::clone(&upstream);
        let entry = Entry {
            upstream: Arc::clone(&upstream),
            used,
            sweeps,
            _tending: Owned::spawn("upstream", async move { tended.tend().await }),
        };
        kept.upstreams.insert(url, entry);
        upstream
    }

    /// How many upstreams are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.kept.lock().upstreams.len()
    }

    /// Lets those go that nobody has used for long, for as long as it is polled. Dropped, it lets all go
    /// and has no others kept: exchanges that are under way end, but no request is to come any more.
    pub(crate) async fn tend(&self) {
        let _retiring = Retiring(self);
        let mut ticks = interval(SWEEP);
        loop {
            ticks.tick().await;
            self.sweep();
        }
    }

    fn sweep(&self) {
        let mut kept = self.kept.lock();
        kept.sweeps = kept.sweeps.wrapping_add(1);
        let now = kept.sweeps;
        kept.upstreams
            .retain(|_, entry| now.wrapping_sub(entry.sweeps) <= SWEEPS);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;

    fn cache() -> UpstreamCache {
        let options = UpstreamOptions {
            tls: super::super::UpstreamTls::default(),
            connect_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(5),
            idle_timeout: None,
            max_body: None,
            idle_pool: 4,
        };
        let shared = Arc::new(UpstreamShared::new(
            &[],
            tunnel_proto::memory::MemoryAccount::new(usize::MAX),
        ));
        UpstreamCache::new(UpstreamScheme::Http, &options, &shared).unwrap()
    }

    fn url(number: usize) -> UpstreamUrl {
        format!("http://app-{number}.ns.svc").parse().unwrap()
    }

    #[tokio::test]
    async fn one_url_is_one_upstream() {
        let cache = cache();
        assert!(Arc::ptr_eq(&cache.get(url(1)), &cache.get(url(1))));
        assert!(!Arc::ptr_eq(&cache.get(url(1)), &cache.get(url(2))));
        assert_eq!(cache.len(), 2);
    }

    #[tokio::test]
    async fn the_one_unused_for_the_longest_goes_and_stays_with_who_has_it() {
        let cache = cache();
        let (first, second) = (cache.get(url(0)), cache.get(url(1)));
        for number in 2..UPSTREAMS {
            cache.get(url(number));
        }
        cache.get(url(0));
        cache.get(url(UPSTREAMS));
        assert_eq!(cache.len(), UPSTREAMS);
        assert!(Arc::ptr_eq(&first, &cache.get(url(0))));
        assert!(!Arc::ptr_eq(&second, &cache.get(url(1))));
        assert_eq!(second.url(), &url(1));
    }

    #[tokio::test]
    async fn one_that_was_reached_outlasts_all_that_were_not() {
        let cache = cache();
        let reached = cache.get(url(0));
        reached.was_reached.store(true, Ordering::Relaxed);
        for number in 1..3 * UPSTREAMS {
            cache.get(url(number));
        }
        assert_eq!(cache.len(), UPSTREAMS);
        assert!(Arc::ptr_eq(&reached, &cache.get(url(0))));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_uses_goes_after_some_minutes() {
        let cache = cache();
        let held = cache.get(url(1));
        let tending = async {
            let minute = Duration::from_secs(60);
            for _ in 0..4 {
                cache.get(url(2));
                tokio::time::sleep(minute).await;
            }
            assert_eq!(cache.len(), 2);
            cache.get(url(2));
            tokio::time::sleep(2 * minute).await;
            assert_eq!(cache.len(), 1);
            tokio::time::sleep(6 * minute).await;
        };
        tokio::select! {
            () = cache.tend() => {}
            () = tending => {}
        }
        assert_eq!(cache.len(), 0);
        // Nobody else has it, not even a task.
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn one_that_is_not_tended_any_more_keeps_none() {
        let cache = Arc::new(cache());
        let held = cache.get(url(1));
        let tended = Arc::clone(&cache);
        let tending = Owned::spawn("cache", async move { tended.tend().await });
        tokio::task::yield_now().await;
        assert_eq!(cache.len(), 1);
        tending.abort();
        let _ = tending.await;
        assert_eq!(cache.len(), 0);
        cache.get(url(2));
        assert_eq!(cache.len(), 0);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
