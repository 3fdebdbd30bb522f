//! The upstreams of one template, each made when a request first leads to it.
//!
//! In: a URL that a request has filled in and the route has checked. Out: its upstream, one for all requests with that
//! URL. Number and idle time are bounded; open exchanges go on when their upstream leaves the cache.

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

/// Most upstreams that are kept for one template. Beyond that one that was never reached goes first, else the least
/// recently used: requests can name many hosts that do not exist.
const UPSTREAMS: usize = 256;
/// Time between two sweeps, and sweeps without a use after which an upstream goes.
const SWEEP: Duration = Duration::from_secs(30);
const SWEEPS: u32 = 10;

/// The upstreams of one template.
pub(crate) struct UpstreamCache {
    scheme: UpstreamScheme,
    options: UpstreamOptions,
    /// The TLS setup that all share.
    tls: Option<TlsOffers>,
    shared: Arc<UpstreamShared>,
    cached: Mutex<CachedUpstreams>,
}

#[derive(Default)]
struct CachedUpstreams {
    upstreams: HashMap<UpstreamUrl, Entry>,
    /// Number of uses so far, which orders upstreams by their last use.
    uses: u64,
    sweeps: u32,
    /// Set when supervision has ended.
    is_closed: bool,
}

struct Entry {
    upstream: Arc<Upstream>,
    used: u64,
    /// The sweep count at its last use.
    sweeps: u32,
    /// Ends with the entry. Exchanges that still use the upstream do not need it.
    _supervision: Owned<()>,
}

/// Empties and closes a cache when dropped.
struct Retiring<'a>(&'a UpstreamCache);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        let mut cached = self.0.cached.lock();
        cached.is_closed = true;
        let all = std::mem::take(&mut cached.upstreams);
        drop(cached);
        drop(all);
    }
}

impl UpstreamCache {
    /// A cache for a template with this scheme.
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
            scheme,
            options: options.clone(),
            shared: Arc::clone(shared),
            cached: Mutex::default(),
        })
    }

    /// Whether a cache made from these would be like this one.
    pub(crate) fn is_from(&self, scheme: UpstreamScheme, options: &UpstreamOptions) -> bool {
        self.scheme == scheme && self.options == *options
    }

    /// The upstream at this URL. Must be called within a runtime.
    pub(crate) fn get(&self, url: UpstreamUrl) -> Arc<Upstream> {
        let mut cached = self.cached.lock();
        cached.uses += 1;
        let (used, sweeps) = (cached.uses, cached.sweeps);
        if let Some(entry) = cached.upstreams.get_mut(&url) {
            (entry.used, entry.sweeps) = (used, sweeps);
            return Arc::clone(&entry.upstream);
        }
        if cached.upstreams.len() >= UPSTREAMS {
            let worth = |entry: &Entry| (entry.upstream.was_reached(), entry.used);
            let least = cached.upstreams.iter();
            let least = least.min_by_key(|(_, entry)| worth(entry));
            if let Some(url) = least.map(|(url, _)| url.clone()) {
                cached.upstreams.remove(&url);
            }
        }
        let destination = Destination::of_template(url.clone());
        let tls = self.tls.clone();
        let upstream = Upstream::with_tls(destination, tls, &self.options, &self.shared);
        let upstream = Arc::new(upstream);
        if cached.is_closed {
            return upstream;
        }
        let supervised = Arc::clone(&upstream);
        let entry = Entry {
            upstream: Arc::clone(&upstream),
            used,
            sweeps,
            _supervision: Owned::spawn("upstream", async move { supervised.supervise().await }),
        };
        cached.upstreams.insert(url, entry);
        upstream
    }

    /// How many upstreams are cached.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.cached.lock().upstreams.len()
    }

    /// Removes upstreams without a use for a while, for as long as it is polled. Dropping it empties the cache and
    /// keeps no new ones: open exchanges end, and no more are to come.
    pub(crate) async fn supervise(&self) {
        let _retiring = Retiring(self);
        let mut ticks = interval(SWEEP);
        loop {
            ticks.tick().await;
            self.sweep();
        }
    }

    fn sweep(&self) {
        let mut cached = self.cached.lock();
        cached.sweeps = cached.sweeps.wrapping_add(1);
        let now = cached.sweeps;
        cached
            .upstreams
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
            http: super::super::UpstreamHttp::Auto,
            tls: None,
            connect_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(5),
            idle_timeout: None,
            max_body: None,
        };
        let shared = Arc::new(UpstreamShared::new(
            &[],
            tunnel_proto::memory::MemoryAccount::new(usize::MAX),
            4,
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
        let supervision = async {
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
            () = cache.supervise() => {}
            () = supervision => {}
        }
        assert_eq!(cache.len(), 0);
        // Nobody else has it, not even a task.
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn one_that_is_not_supervised_any_more_keeps_none() {
        let cache = Arc::new(cache());
        let held = cache.get(url(1));
        let supervised = Arc::clone(&cache);
        let supervision = Owned::spawn("cache", async move { supervised.supervise().await });
        tokio::task::yield_now().await;
        assert_eq!(cache.len(), 1);
        supervision.abort();
        let _ = supervision.await;
        assert_eq!(cache.len(), 0);
        cache.get(url(2));
        assert_eq!(cache.len(), 0);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
