//! Random runs, and those that have found faults.

use super::*;

/// Steps of one run.
const STEPS: usize = 300;

/// `E2E_MANAGED_STEPS` runs of each mix, from `E2E_MANAGED_SEED` on.
#[test]
fn what_was_answered_outlives_etcd() {
    let (runs, mut random) = Random::of_test_with("MANAGED", 150, 1);
    for _ in 0..runs {
        let seed = random.next_number();
        for mix in [Mix::Current, Mix::Mixed] {
            if let Err(fault) = run(seed, STEPS, mix) {
                panic!("{fault}");
            }
        }
    }
}
