//! Permits that a newcomer may take away from an older holder.
//!
//! ```text
//!   newcomer ──enter──▶ holder ──secure──▶ secure holder
//!                         │ evicted, when the caller's rule says so
//!                         ▼
//!                       evicted: the holder is notified, and its permit counts no more
//! ```
//!
//! In: a key for each holder (an address, an account), and the caller's rule on who has room. Out: a permit, or
//! none. Nothing here ends a holder's work: the holder itself does, when [`EvictingPermit::evicted`] resolves.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// All permits, each held for a key.
#[derive(Debug)]
pub struct EvictingPermits<K> {
    holders: Mutex<Holders<K>>,
    returned: Notify,
}

/// Who holds a permit, the oldest first.
#[derive(Debug)]
pub struct Holders<K> {
    next: u64,
    by_number: BTreeMap<u64, Holder<K>>,
}

#[derive(Debug)]
struct Holder<K> {
    key: K,
    /// Notifies the holder that it is evicted; `None` once it is secure.
    eviction: Option<Arc<Notify>>,
}

/// The right to go on, returned when this is dropped.
#[derive(Debug)]
pub struct EvictingPermit<K> {
    permits: Arc<EvictingPermits<K>>,
    number: u64,
    eviction: Arc<Notify>,
}

impl<K> Default for EvictingPermits<K> {
    fn default() -> Self {
        Self {
            holders: Mutex::new(Holders {
                next: 0,
                by_number: BTreeMap::new(),
            }),
            returned: Notify::new(),
        }
    }
}

impl<K> EvictingPermits<K> {
    /// Gives a permit to `key` if `has_room` returns true; `has_room` may evict holders to make room.
    pub fn enter(
        self: &Arc<Self>,
        key: K,
        has_room: impl FnOnce(&mut Holders<K>) -> bool,
    ) -> Option<EvictingPermit<K>> {
        let mut holders = self.holders.lock();
        if !has_room(&mut holders) {
            return None;
        }
        let number = holders.next;
        holders.next += 1;
        let eviction = Arc::new(Notify::new());
        let holder = Holder {
            key,
            eviction: Some(Arc::clone(&eviction)),
        };
        holders.by_number.insert(number, holder);
        Some(EvictingPermit {
            permits: Arc::clone(self),
            number,
            eviction,
        })
    }

    /// How many permits are held.
    pub fn held(&self) -> usize {
        self.holders.lock().by_number.len()
    }

    /// Resolves once at least one permit was returned since the last call; several are not counted, so the caller looks
    /// whether there is room, and calls this again. For a single task that waits for room.
    pub async fn returned(&self) {
        self.returned.notified().await;
    }
}

impl<K> Holders<K> {
    /// The keys of all holders, the oldest first.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.by_number.values().map(|holder| &holder.key)
    }

    /// Takes the permit of the oldest holder whose key matches and that is not secure. Returns false if there is none.
    pub fn evict_oldest(&mut self, matches: impl Fn(&K) -> bool) -> bool {
        let mut matching = self.by_number.iter().filter(|(_, it)| matches(&it.key));
        let oldest =
            matching.find_map(|(number, holder)| Some((*number, holder.eviction.as_ref()?)));
        let Some((number, eviction)) = oldest else {
            return false;
        };
        eviction.notify_one();
        self.by_number.remove(&number);
        true
    }
}

impl<K> EvictingPermit<K> {
    /// From now on the permit is not taken away.
    pub fn secure(&self) {
        if let Some(holder) = self.permits.holders.lock().by_number.get_mut(&self.number) {
            holder.eviction = None;
        }
    }

    /// Returns the permit while its holder continues.
    pub fn release(&self) {
        let removed = self.permits.holders.lock().by_number.remove(&self.number);
        // An evicted holder's permit is another's by now.
        if removed.is_some() {
            self.permits.returned.notify_one();
        }
    }

    /// Resolves when the permit was taken away.
    pub async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

impl<K> Drop for EvictingPermit<K> {
    fn drop(&mut self) {
        self.release();
    }
}
