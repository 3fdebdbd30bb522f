//! Places for sessions that only check the way: few for each runtime, not many for each account, and few in
//! all.
//!
//! A check takes neither the runtime nor an exchange, so that no other limit of a runtime counts it. In: the
//! account and the runtime that a credential names. Out: a place, which is given back when it is dropped.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;

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
    in_all: usize,
    by_account: HashMap<AccountName, usize>,
    by_runtime: HashMap<RuntimeLabel, usize>,
}

/// The place of one check.
#[derive(Debug)]
pub(crate) struct CheckPlace {
    checks: Arc<Checks>,
    account: AccountName,
    runtime: RuntimeLabel,
}

impl Checks {
    /// How many there are now.
    pub(crate) fn len(&self) -> usize {
        self.taken.lock().in_all
    }

    /// A place for a check of this runtime, if there is one.
    pub(crate) fn enter(
        self: &Arc<Self>,
        account: &AccountName,
        runtime: &RuntimeLabel,
    ) -> Option<CheckPlace> {
        let mut taken = self.taken.lock();
        let of_account = taken.by_account.get(account).copied().unwrap_or_default();
        let of_runtime = taken.by_runtime.get(runtime).copied().unwrap_or_default();
        let is_full =
            taken.in_all >= IN_ALL || of_account >= OF_AN_ACCOUNT || of_runtime >= OF_A_RUNTIME;
        if is_full {
            return None;
        }
        taken.in_all += 1;
        taken.by_account.insert(account.clone(), of_account + 1);
        taken.by_runtime.insert(runtime.clone(), of_runtime + 1);
        Some(CheckPlace {
            checks: self.clone(),
            account: account.clone(),
            runtime: runtime.clone(),
        })
    }
}

impl Drop for CheckPlace {
    fn drop(&mut self) {
        let mut taken = self.checks.taken.lock();
        taken.in_all -= 1;
        one_less(&mut taken.by_account, &self.account);
        one_less(&mut taken.by_runtime, &self.runtime);
    }
}

fn one_less<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert!(checks.taken.lock().by_runtime.is_empty());
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
        assert!(checks.taken.lock().by_account.is_empty());
    }

    #[test]
    fn all_together_have_a_bound_too() {
        let checks = Arc::new(Checks::default());
        let all: Vec<_> = (0..IN_ALL)
            .map(|number| enter(&checks, number, 1).unwrap())
            .collect();
        assert!(enter(&checks, IN_ALL, 1).is_none());
        drop(all);
        assert_eq!(checks.taken.lock().in_all, 0);
    }
}
