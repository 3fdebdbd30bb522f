//! From an upstream's name to its addresses, as the name servers have them now.
//!
//! ```text
//!   dial, tend ─▶ look_up ─▶ known ── fresh ──────────────▶ addresses
//!                              └──── else ─▶ stub ─▶ name servers, /etc/hosts
//! ```
//!
//! An answer is used for as long as its records say, within bounds; that a name is not there is
//! believed for a moment; and when no name server answers, the last good addresses go on for a while.
//! Each name is asked for once, whoever waits for it. What may be dialled of the answer is decided
//! elsewhere, see [`super::destination`].

mod known;
mod stub;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use self::known::Known;
use self::stub::Stub;
use super::destination::is_localhost;

/// Most names that are known at once. The one unused for the longest goes when there are more.
const NAMES: usize = 1024;
/// How long an answer is waited for where old addresses would do.
const PATIENCE: Duration = Duration::from_secs(2);

/// Looks up names, and remembers.
pub(crate) struct Resolver {
    stub: Stub,
    names: Mutex<HashMap<Box<str>, Arc<Entry>>>,
    /// Look-ups so far, to tell which name was used last.
    used: AtomicU64,
}

/// One name.
#[derive(Default)]
struct Entry {
    known: Mutex<Known>,
    /// Held by the one who asks for all.
    asking: tokio::sync::Mutex<()>,
    used: AtomicU64,
}

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Never empty. The same as long as nothing changes.
    pub(crate) addresses: Arc<[IpAddr]>,
    /// When to ask again.
    pub(crate) until: Instant,
}

/// What a look-up found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    /// Not empty.
    addresses: Vec<IpAddr>,
    /// How long that holds.
    ttl: Duration,
    /// Addresses of the other kind may be there as well: nobody could tell.
    is_half: bool,
}

/// Why a name has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LookUpError {
    /// The name servers say that there is none.
    #[error("no such name, or one without an address")]
    NotFound,
    /// No name server answered in time.
    #[error("no name server answered in time")]
    TimedOut,
    /// They could not be asked, or could not tell.
    #[error("{0}")]
    Failed(Arc<str>),
}

impl Resolver {
    /// Asks these name servers, or the system's if there are none. Nothing is read or asked yet.
    pub(crate) fn new(dns_servers: &[SocketAddr]) -> Self {
        Self {
            stub: Stub::new(dns_servers),
            names: Mutex::default(),
            used: AtomicU64::new(0),
        }
    }

    /// The addresses of a name, which must be none itself.
    ///
    /// # Errors
    /// See [`LookUpError`].
    pub(crate) async fn look_up(&self, name: &str) -> Result<Answer, LookUpError> {
        let entry = self.entry(name);
        if let Some(known) = entry.known.lock().at(Instant::now()) {
            return known;
        }
        let _asking = entry.asking.lock().await;
        // Perhaps the one before has asked.
        if let Some(known) = entry.known.lock().at(Instant::now()) {
            return known;
        }
        let has_good = entry.known.lock().has_good(Instant::now());
        let asked = if has_good {
            let asking = timeout(PATIENCE, self.ask(name));
            asking.await.unwrap_or(Err(LookUpError::TimedOut))
        } else {
            self.ask(name).await
        };
        let mut known = entry.known.lock();
        let was_stale = known.is_stale();
        let answer = known.on_asked(asked, Instant::now());
        if let Some(error) = known.why_stale().filter(|_| !was_stale) {
            tracing::warn!(
                name,
                %error,
                "a name cannot be looked up, its last known addresses are used"
            );
        }
        answer
    }

    async fn ask(&self, name: &str) -> Result<Found, LookUpError> {
        if !is_localhost(name) {
            return self.stub.ask(name).await;
        }
        // Never a question for name servers (RFC 6761 section 6.3).
        let known = self.stub.in_hosts(name);
        Ok(known.unwrap_or_else(|| Found {
            addresses: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            ttl: known::LONGEST,
            is_half: false,
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

/// Forgets a name: one without addresses if there is any, else the one that was not used for the
/// longest. Whoever is about to ask for it goes on.
fn make_room(names: &mut HashMap<Box<str>, Arc<Entry>>) {
    let worth = |entry: &Entry| {
        let has_good = entry.known.lock().has_good(Instant::now());
        (has_good, entry.used.load(Ordering::Relaxed))
    };
    let least = names.iter().min_by_key(|(_, entry)| worth(entry));
    if let Some(name) = least.map(|(name, _)| name.clone()) {
        names.remove(&name);
    }
}

impl From<LookUpError> for io::Error {
    fn from(error: LookUpError) -> Self {
        let kind = match error {
            LookUpError::NotFound => io::ErrorKind::NotFound,
            LookUpError::TimedOut => io::ErrorKind::TimedOut,
            LookUpError::Failed(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
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
        let found = Found {
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            ttl: Duration::from_secs(1),
            is_half: false,
        };
        let good = resolver.entry("good");
        let _ = good.known.lock().on_asked(Ok(found), Instant::now());
        for number in 0..2 * NAMES {
            resolver.entry(&format!("name-{number}"));
        }
        assert_eq!(resolver.names.lock().len(), NAMES);
        assert!(Arc::ptr_eq(&good, &resolver.entry("good")));
    }
}
