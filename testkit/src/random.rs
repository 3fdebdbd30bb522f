//! Numbers that follow from a seed, so that what a test has drawn can be drawn again.

use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

/// A generator of numbers ("splitmix64").
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// One with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The steps of a random test, and their seed: those of `E2E_<test>_STEPS` and `E2E_<test>_SEED`, else this number of
    /// steps and another seed each time. Writes both, so that a run can be repeated.
    ///
    /// # Panics
    /// When a variable is no number.
    pub fn of_test(test: &str, steps: usize) -> (usize, Self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let drawn = u64::from(now.subsec_nanos()) ^ now.as_secs();
        Self::of_test_with(test, steps, drawn)
    }

    /// As [`Random::of_test`], with this seed where there is none of the environment.
    ///
    /// # Panics
    /// When a variable is no number.
    pub fn of_test_with(test: &str, steps: usize, seed: u64) -> (usize, Self) {
        let seed = number(&format!("E2E_{test}_SEED")).unwrap_or(seed);
        let given = number(&format!("E2E_{test}_STEPS"));
        let steps = given.map_or(steps, |steps| usize::try_from(steps).unwrap());
        eprintln!("{steps} steps, E2E_{test}_SEED={seed}");
        (steps, Self(seed))
    }

    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next_number() % u64::try_from(bound).unwrap()).unwrap()
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}
