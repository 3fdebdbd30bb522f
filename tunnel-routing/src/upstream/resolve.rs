//! From an upstream's name to its current addresses.
//!
//! ```text
//!   dial, supervise ─▶ look_up ─▶ cached ── fresh ───────────▶ addresses
//!                                   └────── expired ─▶ stub ─▶ name servers, /etc/hosts
//! ```
//!
//! An answer is used for as long as its records say, within bounds; a missing name is cached for a few seconds; while
//! no name server answers, the last good addresses are used for up to an hour. Each name is queried once at a time,
//! for all that wait. Which addresses may be dialled is decided in [`super::destination`].

mod answer;
mod cached;
mod silent;
mod stub;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

pub(super) use self::answer::Resolution;
use self::answer::{DnsAnswer, LookUpError};
use self::cached::CachedName;
use self::stub::Stub;
use super::destination::is_localhost;

/// Most names that are cached. Beyond that the least recently used goes.
const NAMES: usize = 1024;
/// How long to wait for an answer when stale addresses would do.
const STALE_WAIT: Duration = Duration::from_secs(2);

/// Looks up names and caches the answers.
pub(crate) struct Resolver {
    stub: Stub,
    names: Mutex<HashMap<Box<str>, Arc<Entry>>>,
    /// Number of look-ups so far, which orders names by their last use.
    used: AtomicU64,
}

/// One name.
#[derive(Default)]
struct Entry {
    cached: Mutex<CachedName>,
    /// Held during a query, which is for all that wait.
    querying: tokio::sync::Mutex<()>,
    used: AtomicU64,
}

impl Resolver {
    /// A resolver that queries these name servers, or the system's if there are none. Reads no file yet.
    pub(crate) fn new(dns_servers: &[SocketAddr]) -> Self {
        Self {
            stub: Stub::new(dns_servers),
            names: Mutex::default(),
            used: AtomicU64::new(0),
        }
    }

    /// The addresses of a name, which must not be an address itself.
    ///
    /// # Errors
    /// See [`LookUpError`].
    pub(crate) async fn look_up(&self, name: &str) -> Result<Resolution, LookUpError> {
        let entry = self.entry(name);
        if let Some(cached) = entry.cached.lock().at(Instant::now()) {
            return cached;
        }
        let _asking = entry.querying.lock().await;
        // The holder before may have got the answer.
        if let Some(cached) = entry.cached.lock().at(Instant::now()) {
            return cached;
        }
        let has_good = entry.cached.lock().has_good(Instant::now());
        let answer = if has_good {
            let querying = timeout(STALE_WAIT, self.query(name));
            querying.await.unwrap_or(Err(LookUpError::TimedOut))
        } else {
            self.query(name).await
        };
        let mut cached = entry.cached.lock();
        let was_stale = cached.is_stale();
        let answer = cached.on_answer(answer, Instant::now());
        if let Some(error) = cached.why_stale().filter(|_| !was_stale) {
            tracing::warn!(
                name,
                %error,
                "a name cannot be looked up, its last known addresses are used"
            );
        }
        answer
    }

    /// The last answer for a name, even if it has expired; `None` if that was none.
    pub(crate) fn last_answer(&self, name: &str) -> Option<Arc<[IpAddr]>> {
        let entry = self.names.lock().get(name).cloned()?;
        entry.cached.lock().last_answer()
    }

    async fn query(&self, name: &str) -> Result<DnsAnswer, LookUpError> {
        if !is_localhost(name) {
            return self.stub.query(name).await;
        }
        // `localhost` is never a question for name servers (RFC 6761 section 6.3).
        let cached = self.stub.in_hosts(name);
        Ok(cached.unwrap_or_else(|| DnsAnswer {
            addresses: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            ttl: cached::LONGEST,
            is_partial: false,
        }))
    }

    fn entry(&self, name: &str) -> Arc<Entry> {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        let mut names = self.names.lock();
        if let Some(entry) = names.get(name) {
            entry.used.store(used, Ordering::Relaxed);
            return Arc::clone(entry);
        }
        if names.len() >= NAMES {
            make_room(&mut names);
        }
        let entry = Arc::new(Entry {
            used: AtomicU64::new(used),
            ..Entry::default()
        });
        names.insert(name.into(), Arc::clone(&entry));
        entry
    }
}

/// Removes a name: one without addresses if there is any, else the least recently used. A query under way continues.
fn make_room(names: &mut HashMap<Box<str>, Arc<Entry>>) {
    let worth = |entry: &Entry| {
        let has_good = entry.cached.lock().has_good(Instant::now());
        (has_good, entry.used.load(Ordering::Relaxed))
    };
    let least = names.iter().min_by_key(|(_, entry)| worth(entry));
    if let Some(name) = least.map(|(name, _)| name.clone()) {
        names.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn localhost_is_known_without_asking_anybody() {
        // Nobody answers there.
        let resolver = Resolver::new(&["127.0.0.1:1".parse().unwrap()]);
        for name in ["localhost", "localhost."] {
            let answer = resolver.look_up(name).await.unwrap();
            assert!(
                answer.addresses.iter().all(IpAddr::is_loopback),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn names_are_bounded_and_those_with_addresses_stay() {
        let resolver = Resolver::new(&[]);
        let found = DnsAnswer {
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            ttl: Duration::from_secs(1),
            is_partial: false,
        };
        let good = resolver.entry("good");
        let _ = good.cached.lock().on_answer(Ok(found), Instant::now());
        for number in 0..2 * NAMES {
            resolver.entry(&format!("name-{number}"));
        }
        assert_eq!(resolver.names.lock().len(), NAMES);
        assert!(Arc::ptr_eq(&good, &resolver.entry("good")));
    }
}
