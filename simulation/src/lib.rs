//! Server nodes, etcd and clients in simulated time.
//!
//! ```text
//!   seed ─▶ plan: faults and when they happen ─▶ world: what happens next ─▶ nodes: the rules of `tunnel-directory`
//!                                                        │                  etcd: a model with the faults of real clusters
//!                                                        ▼                  clients: two sessions each, and dials
//!                                                     check: what must always hold
//! ```
//!
//! Nothing here has a clock, a socket or a task: a run follows from its plan alone, and a plan from its seed. A plan that fails
//! is shrunk to the faults that it needs.
#![allow(
    clippy::panic,
    reason = "names that the simulation makes are good, or the simulation is wrong"
)]

pub mod etcd;
pub mod managed;
pub mod plan;
mod world;

#[cfg(test)]
mod tests;

use self::world::World;
pub use self::{
    plan::{Fault, Plan},
    world::{Outcome, Violation},
};

/// Runs a plan to its end, or to the first violation.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    World::new(plan).run()
}

/// The plan with as few faults as still show a violation of the same kind.
#[must_use]
pub fn shrink(plan: &Plan) -> Plan {
    let kind = |plan: &Plan| run(plan).violation.map(|violation| violation.rule);
    let wanted = kind(plan);
    let mut smallest = plan.clone();
    let mut at = 0;
    while at < smallest.faults.len() {
        let mut smaller = smallest.clone();
        smaller.faults.remove(at);
        match kind(&smaller) == wanted {
            true => smallest = smaller,
            false => at += 1,
        }
    }
    smallest
}
