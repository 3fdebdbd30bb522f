//! Permits for sessions that only check the path: few for each runtime, not many for each account, and few in
//! all.
//!
//! A check takes neither the runtime nor an exchange, so that no other limit of a runtime counts it. In: the
//! account and the runtime that a credential names. Out: a permit. When all are in use, the account with the
//! most loses its oldest to one with fewer.

use std::{collections::HashMap, sync::Arc};

use tunnel_directory::{AccountName, RuntimeLabel};
use tunnel_ops::evicting::{EvictingPermit, EvictingPermits, Holders};

/// Most concurrent checks of one runtime. A client that measures the idle limit opens several at once.
const MAX_OF_RUNTIME: usize = 8;

/// Most concurrent checks of one account, so that an account with many runtimes leaves permits for the others.
const MAX_OF_ACCOUNT: usize = 32;

/// Most concurrent checks in all. Each may last for an hour.
const MAX_CHECKS: usize = 256;

/// The permits of all checks.
#[derive(Debug, Default)]
pub(crate) struct Checks(Arc<EvictingPermits<(AccountName, RuntimeLabel)>>);

/// The permit of one check.
pub(crate) type CheckPermit = EvictingPermit<(AccountName, RuntimeLabel)>;

impl Checks {
    /// The number of checks now.
    pub(crate) fn len(&self) -> usize {
        self.0.held()
    }

    /// Acquires a permit for a check of this runtime; `None` if the runtime or the account has too many, or none is left.
    pub(crate) fn enter(
        &self,
        account: &AccountName,
        runtime: &RuntimeLabel,
    ) -> Option<CheckPermit> {
        let key = (account.clone(), runtime.clone());
        self.0.enter(key, |holders| {
            let of_account = holders.keys().filter(|(other, _)| other == account).count();
            let of_runtime = holders.keys().filter(|(_, other)| other == runtime).count();
            let fits = of_account < MAX_OF_ACCOUNT && of_runtime < MAX_OF_RUNTIME;
            fits && (holders.keys().count() < MAX_CHECKS || make_room(holders, of_account))
        })
    }
}

/// Evicts the oldest check of the account that has the most, if that still has as many afterwards as the newcomer,
/// which has `fewer` now and gets one.
fn make_room(holders: &mut Holders<(AccountName, RuntimeLabel)>, fewer: usize) -> bool {
    let mut counts = HashMap::<_, usize>::new();
    for (account, _) in holders.keys() {
        *counts.entry(account).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let most = most.filter(|(_, count)| *count > fewer + 1);
    let most = most.map(|(account, _)| account.clone());
    most.is_some_and(|most| holders.evict_oldest(|(account, _)| *account == most))
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    fn enter(checks: &Checks, account: usize, runtime: usize) -> Option<CheckPermit> {
        let account: AccountName = format!("a{account}").parse().unwrap();
        let runtime = format!("r{runtime}").parse().unwrap();
        let label = RuntimeLabel::new(&account, &runtime).unwrap();
        checks.enter(&account, &label)
    }

    #[test]
    fn one_runtime_leaves_permits_for_the_others() {
        let checks = Checks::default();
        let one: Vec<_> = (0..MAX_OF_RUNTIME)
            .map(|_| enter(&checks, 1, 1).unwrap())
            .collect();
        assert!(enter(&checks, 1, 1).is_none());
        assert!(enter(&checks, 1, 2).is_some());
        drop(one);
        assert!(enter(&checks, 1, 1).is_some());
        assert_eq!(checks.len(), 0);
    }

    #[test]
    fn one_account_with_many_runtimes_leaves_permits_for_the_others() {
        let checks = Checks::default();
        let one: Vec<_> = (0..MAX_OF_ACCOUNT)
            .map(|number| enter(&checks, 1, number).unwrap())
            .collect();
        assert!(enter(&checks, 1, MAX_OF_ACCOUNT).is_none());
        assert!(enter(&checks, 2, 1).is_some());
        drop(one);
        assert!(enter(&checks, 1, MAX_OF_ACCOUNT).is_some());
        assert_eq!(checks.len(), 0);
    }

    #[test]
    fn all_together_have_a_bound_too() {
        let checks = Checks::default();
        let all: Vec<_> = (0..MAX_CHECKS)
            .map(|number| enter(&checks, number, 1).unwrap())
            .collect();
        assert!(enter(&checks, MAX_CHECKS, 1).is_none());
        drop(all);
        assert_eq!(checks.len(), 0);
    }

    #[test]
    fn a_few_accounts_do_not_keep_another_out() {
        let checks = Checks::default();
        let held: Vec<_> = (0..MAX_CHECKS)
            .map(|number| enter(&checks, number / MAX_OF_ACCOUNT, number).unwrap())
            .collect();
        let is_evicted = |permit: &CheckPermit| {
            let mut cx = Context::from_waker(Waker::noop());
            pin!(permit.evicted()).poll(&mut cx).is_ready()
        };
        let newcomer = enter(&checks, MAX_CHECKS, 1).unwrap();
        assert_eq!(checks.len(), MAX_CHECKS);
        let numbers = 0..held.len();
        let evicted: Vec<_> = numbers
            .filter(|number| is_evicted(&held[*number]))
            .collect();
        assert_eq!(evicted.len(), 1);
        assert_eq!(evicted[0] % MAX_OF_ACCOUNT, 0, "an oldest one");
        drop((held, newcomer));
        assert_eq!(checks.len(), 0);
    }
}
