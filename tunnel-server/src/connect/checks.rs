//! Places for sessions that only check the way: few for each runtime, not many for each account, and few in
//! all.
//!
//! A check takes neither the runtime nor an exchange, so that no other limit of a runtime counts it. In: the
//! account and the runtime that a credential names. Out: a place, which is given back when it is dropped. When
//! all are taken, the account with the most loses its oldest to one with fewer.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::runtimes::{AccountName, RuntimeLabel};

/// Checks of one runtime at once: one that looks for the idle limit holds a handful side by side.
const OF_A_RUNTIME: usize = 8;

/// Checks of one account at once, so that one with many runtimes leaves places for the others.
const OF_AN_ACCOUNT: usize = 32;

/// Checks at once in all, each of which may last for an hour.
const IN_ALL: usize = 256;

/// All places.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// The number of the next check.
    next: u64,
    /// In the order in which they began.
    by_number: BTreeMap<u64, Taker>,
}

/// Whose check has a place.
#[derive(Debug)]
struct Taker {
    account: AccountName,
    runtime: RuntimeLabel,
    eviction: Arc<Notify>,
}

/// The place of one check.
#[derive(Debug)]
pub(crate) struct CheckPlace {
    checks: Arc<Checks>,
    number: u64,
    eviction: Arc<Notify>,
}

impl Checks {
    /// How many there are now.
    pub(crate) fn len(&self) -> usize {
        self.taken.lock().by_number.len()
    }

    /// A place for a check of this runtime, if there is one.
    pub(crate) fn enter(
        self: &Arc<Self>,
        account: &AccountName,
        runtime: &RuntimeLabel,
    ) -> Option<CheckPlace> {
        let mut taken = self.taken.lock();
        let of_account = taken.count(|taker| taker.account == *account);
        let of_runtime = taken.count(|taker| taker.runtime == *runtime);
        if of_account >= OF_AN_ACCOUNT || of_runtime >= OF_A_RUNTIME {
            return None;
        }
        if taken.by_number.len() >= IN_ALL && !taken.make_room(of_account) {
            return None;
        }
        let number = taken.next;
        taken.next += 1;
        let eviction = Arc::new(Notify::new());
        let taker = Taker {
            account: account.clone(),
            runtime: runtime.clone(),
            eviction: eviction.clone(),
        };
        taken.by_number.insert(number, taker);
        Some(CheckPlace {
            checks: self.clone(),
            number,
            eviction,
        })
    }
}

impl Taken {
    fn count(&self, is_counted: impl Fn(&Taker) -> bool) -> usize {
        let takers = self.by_number.values();
        takers.filter(|taker| is_counted(taker)).count()
    }

    /// Ends the oldest check of the account that has the most, if it still has as many as another then
    /// that has `fewer` now and gets one.
    fn make_room(&mut self, fewer: usize) -> bool {
        let mut counts = HashMap::<_, (usize, u64)>::new();
        for (number, taker) in &self.by_number {
            counts.entry(&taker.account).or_insert((0, *number)).0 += 1;
        }
        let most = counts.into_values().max_by_key(|(count, _)| *count);
        let Some((_, oldest)) = most.filter(|(count, _)| *count > fewer + 1) else {
            return false;
        };
        if let Some(taker) = self.by_number.remove(&oldest) {
            taker.eviction.notify_one();
        }
        true
    }
}

impl CheckPlace {
    /// Resolves when the check has to end, because another account has none.
    pub(crate) async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

impl Drop for CheckPlace {
    fn drop(&mut self) {
        self.checks.taken.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    fn enter(checks: &Arc<Checks>, account: usize, runtime: usize) -> Option<CheckPlace> {
        let account: AccountName = format!("a{account}").parse().unwrap();
        let runtime = format!("r{runtime}").parse().unwrap();
        let label = RuntimeLabel::new(&account, &runtime).unwrap();
        checks.enter(&account, &label)
    }

    #[test]
    fn one_runtime_leaves_places_for_the_others() {
        let checks = Arc::new(Checks::default());
        let one: Vec<_> = (0..OF_A_RUNTIME)
            .map(|_| enter(&checks, 1, 1).unwrap())
            .collect();
        assert!(enter(&checks, 1, 1).is_none());
        assert!(enter(&checks, 1, 2).is_some());
        drop(one);
        assert!(enter(&checks, 1, 1).is_some());
        assert_eq!(checks.len(), 0);
    }

    #[test]
    fn one_account_with_many_runtimes_leaves_places_for_the_others() {
        let checks = Arc::new(Checks::default());
        let one: Vec<_> = (0..OF_AN_ACCOUNT)
            .map(|number| enter(&checks, 1, number).unwrap())
            .collect();
        assert!(enter(&checks, 1, OF_AN_ACCOUNT).is_none());
        assert!(enter(&checks, 2, 1).is_some());
        drop(one);
        assert!(enter(&checks, 1, OF_AN_ACCOUNT).is_some());
        assert_eq!(checks.len(), 0);
    }

    #[test]
    fn all_together_have_a_bound_too() {
        let checks = Arc::new(Checks::default());
        let all: Vec<_> = (0..IN_ALL)
            .map(|number| enter(&checks, number, 1).unwrap())
            .collect();
        assert!(enter(&checks, IN_ALL, 1).is_none());
        drop(all);
        assert_eq!(checks.len(), 0);
    }

    #[test]
    fn a_few_accounts_do_not_keep_another_out() {
        let checks = Arc::new(Checks::default());
        let held: Vec<_> = (0..IN_ALL)
            .map(|number| enter(&checks, number / OF_AN_ACCOUNT, number).unwrap())
            .collect();
        let is_evicted = |place: &CheckPlace| {
            let mut cx = Context::from_waker(Waker::noop());
            pin!(place.evicted()).poll(&mut cx).is_ready()
        };
        let newcomer = enter(&checks, IN_ALL, 1).unwrap();
        assert_eq!(checks.len(), IN_ALL);
        let evicted: Vec<_> = held.iter().filter(|place| is_evicted(place)).collect();
        assert_eq!(evicted.len(), 1);
        assert_eq!(evicted[0].number % OF_AN_ACCOUNT as u64, 0, "an oldest one");
        drop((held, newcomer));
        assert_eq!(checks.len(), 0);
    }
}
