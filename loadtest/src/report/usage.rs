//! What programs used, by role: which roles there are, sums, and the cost of a request.

use std::collections::BTreeMap;

use crate::report::Usage;

/// The role of this program itself.
pub const GENERATOR: &str = "load generator";

/// The role of the sample upstream.
pub const UPSTREAM: &str = "upstream";

/// The role of the tunnel server that this program started.
pub const TUNNEL_SERVER: &str = "tunnel server";

/// The role of the tunnel client that this program started.
pub const TUNNEL_CLIENT: &str = "tunnel client";

/// The role of many simulated tunnel clients.
pub const FLEET: &str = "fleet";

/// The role of a slow link between two programs.
pub const RELAY: &str = "relay";

/// Whether this role's processor time belongs to what is measured.
pub fn is_target(role: &str) -> bool {
    ![GENERATOR, UPSTREAM, FLEET, RELAY].contains(&role)
}

/// Adds what roles used at another time: processor time adds up, and of memory the most
/// and the latest count.
pub fn add(sum: &mut BTreeMap<String, Usage>, more: &BTreeMap<String, Usage>) {
    for (role, used) in more {
        match sum.get_mut(role) {
            None => {
                sum.insert(role.clone(), used.clone());
            }
            Some(sum) => {
                sum.processes = used.processes;
                sum.cpu_seconds += used.cpu_seconds;
                sum.peak_rss = sum.peak_rss.max(used.peak_rss);
                sum.rss = used.rss;
            }
        }
    }
}

/// Processor time of the target's roles for each completed request, microseconds.
pub fn cpu_us_per_request(usage: &BTreeMap<String, Usage>, completed: u64) -> Option<f64> {
    let target = || usage.iter().filter(|(role, _)| is_target(role));
    if completed == 0 || target().next().is_none() {
        return None;
    }
    let seconds: f64 = target().map(|(_, usage)| usage.cpu_seconds).sum();
    Some(seconds * 1e6 / completed as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_request_is_that_of_the_target() {
        let used = |cpu_seconds| Usage {
            processes: 1,
            cpu_seconds,
            peak_rss: 0,
            rss: 0,
        };
        let mut usage = BTreeMap::from([
            (GENERATOR.to_owned(), used(5.0)),
            (UPSTREAM.to_owned(), used(3.0)),
            (FLEET.to_owned(), used(2.0)),
            (RELAY.to_owned(), used(1.0)),
        ]);
        assert_eq!(cpu_us_per_request(&usage, 1000), None);
        usage.insert(TUNNEL_SERVER.to_owned(), used(0.02));
        usage.insert(TUNNEL_CLIENT.to_owned(), used(0.01));
        let cost = cpu_us_per_request(&usage, 1000).unwrap();
        assert!((cost - 30.0).abs() < 1e-6, "{cost}");
    }
}
