//! Places for sessions that only check the way: few for each runtime, and few in all.
//!
//! A check takes neither the runtime nor an exchange, so that no other limit of a runtime counts it. In: the
//! runtime that a credential names. Out: a place, which is given back when it is dropped.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::runtimes::RuntimeLabel;

/// Checks of one runtime at once: one that looks for the idle limit holds a handful side by side.
const OF_A_RUNTIME: usize = 8;

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
    by_runtime: HashMap<RuntimeLabel, usize>,
}

/// The place of one check.
#[derive(Debug)]
pub(crate) struct CheckPlace {
    checks: Arc<Checks>,
    runtime: RuntimeLabel,
}

impl Checks {
    /// A place for a check of this runtime, if there is one.
    pub(crate) fn enter(self: &Arc<Self>, runtime: &RuntimeLabel) -> Option<CheckPlace> {
        let mut taken = self.taken.lock();
        let of_runtime = taken.by_runtime.get(runtime).copied().unwrap_or_default();
        if taken.in_all >= IN_ALL || of_runtime >= OF_A_RUNTIME {
            return None;
        }
        taken.in_all += 1;
        taken.by_runtime.insert(runtime.clone(), of_runtime + 1);
        Some(CheckPlace {
            checks: self.clone(),
            runtime: runtime.clone(),
        })
    }
}

impl Drop for CheckPlace {
    fn drop(&mut self) {
        let mut taken = self.checks.taken.lock();
        taken.in_all -= 1;
        if let Some(of_runtime) = taken.by_runtime.get_mut(&self.runtime) {
            *of_runtime -= 1;
            if *of_runtime == 0 {
                taken.by_runtime.remove(&self.runtime);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(number: usize) -> RuntimeLabel {
        let (account, runtime) = ("acme".parse().unwrap(), format!("r{number}"));
        RuntimeLabel::new(&account, &runtime.parse().unwrap()).unwrap()
    }

    #[test]
    fn one_runtime_leaves_places_for_the_others() {
        let checks = Arc::new(Checks::default());
        let one: Vec<_> = (0..OF_A_RUNTIME)
            .map(|_| checks.enter(&label(1)).unwrap())
            .collect();
        assert!(checks.enter(&label(1)).is_none());
        assert!(checks.enter(&label(2)).is_some());
        drop(one);
        assert!(checks.enter(&label(1)).is_some());
        assert!(checks.taken.lock().by_runtime.is_empty());
    }

    #[test]
    fn all_together_have_a_bound_too() {
        let checks = Arc::new(Checks::default());
        let all: Vec<_> = (0..IN_ALL)
            .map(|number| checks.enter(&label(number)).unwrap())
            .collect();
        assert!(checks.enter(&label(IN_ALL)).is_none());
        drop(all);
        assert_eq!(checks.taken.lock().in_all, 0);
    }
}
