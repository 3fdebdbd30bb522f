//! What hostile peers do stays with them: memory within what is documented, and neighbours that do not notice.
//!
//! `e2e/run-sweep` runs all of it, and writes the table of `docs/sweep.md`.
//!
//! A test program of its own, since it takes all processors: it runs when the others have ended.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation ends the test, with its reason"
)]

use std::{env, fs, time::Duration};

use e2e::sweep::{
    Place, Protocol, Stage,
    bounds::BOUNDS,
    cell::{Cell, Plan},
    neighbour::{Seen, p99},
    shapes::SHAPES,
    stand::{Grown, Stand},
    table::{Table, share_of_bound},
};

/// The longest p99 of neighbours, with programs built for debugging on a busy machine.
const P99: Duration = Duration::from_secs(2);

/// Names a file for the table.
const TABLE: &str = "E2E_SWEEP_TABLE";

/// Parts of the rows' names, with semicolons between: only these are run.
const ONLY: &str = "E2E_SWEEP_ONLY";

/// Phases that are long enough to fill what has no bound.
const QUICK: Plan = Plan {
    rounds: 1,
    quiet: Duration::ZERO,
    flood: Duration::from_millis(200),
    beside: Duration::from_millis(200),
    per_second: 20,
};

/// Every n-th cell of a place that needs nothing of its own.
fn cells(place: Place, nth: usize) -> impl Iterator<Item = Cell> {
    let shapes = SHAPES.iter().enumerate();
    let all = shapes.flat_map(move |(number, shape)| {
        let protocols = Protocol::ALL.into_iter().enumerate();
        protocols.filter_map(move |(other, protocol)| {
            let is_chosen = (number + other) % nth == 0;
            is_chosen.then(|| Cell::new(shape, place, protocol))?
        })
    });
    all.filter(|cell| cell.attack().stage == Stage::Plain)
}

/// Runs every third cell of a place, one after the other beside the same programs.
async fn third(place: Place) {
    let stand = Stand::start(place, Stage::Plain, QUICK.per_second).await;
    let rest = stand.rest();
    for cell in cells(place, 3) {
        cell.run(&stand, QUICK).await;
        let errors = stand.neighbours().take_errors();
        assert!(errors.is_empty(), "beside {}: {errors:?}", cell.name());
        assert_within(&cell.name(), stand.grown(rest), place);
    }
    assert_served("the end", &stand.finish().await);
}

fn assert_within(name: &str, grown: Grown, place: Place) {
    let share = share_of_bound(grown, place);
    assert!(share <= 2.0, "beside {name}: {grown:?}");
}

fn assert_served(name: &str, seen: &Seen) {
    assert!(seen.errors.is_empty(), "beside {name}: {:?}", seen.errors);
    let slowest = p99(&seen.beside).unwrap();
    assert!(slowest < P99, "beside {name}: {slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hostile_peers_do_stays_with_them() {
    for place in [
        Place::Public,
        Place::Serve,
        Place::Upstream,
        Place::TunnelClient,
    ] {
        Box::pin(third(place)).await;
    }
    // Each needs a client of its own, which dials the hostile server.
    for cell in cells(Place::TunnelServer, 12) {
        let outcome = Box::pin(cell.measure(Place::TunnelServer, QUICK)).await;
        assert_within(&cell.name(), outcome.grown, Place::TunnelServer);
        assert_served(&cell.name(), &outcome.seen);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: e2e/run-sweep"]
async fn bounds() {
    let only = env::var(ONLY).unwrap_or_default();
    for bound in BOUNDS {
        if !only.split(';').any(|only| bound.name.contains(only)) {
            continue;
        }
        let grown = Box::pin(bound.measure()).await;
        let mib = |bytes: u64| bytes >> 20;
        let (server, client) = (grown.server.map(mib), grown.client.map(mib));
        let documented = mib(bound.documented);
        eprintln!(
            "{}: server {server:?}, client {client:?} MiB, documented {documented}",
            bound.name
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half an hour: e2e/run-sweep"]
async fn whole() {
    let plan = Plan {
        rounds: 1,
        quiet: Duration::from_millis(1_500),
        flood: Duration::from_secs(2),
        beside: Duration::from_secs(2),
        per_second: 100,
    };
    let only = env::var(ONLY).unwrap_or_default();
    let mut table = Table::default();
    for shape in &SHAPES {
        for place in Place::ALL {
            let mut outcomes = [const { None }; 4];
            for (protocol, outcome) in Protocol::ALL.into_iter().zip(&mut outcomes) {
                let name = format!("{}, {}, {}", shape.name, place.name(), protocol.name());
                let is_chosen = only.split(';').any(|only| name.contains(only));
                let cell = Cell::new(shape, place, protocol);
                let Some(cell) = cell.filter(|_| is_chosen) else {
                    continue;
                };
                let measured = Box::pin(cell.measure(place, plan)).await;
                let share = share_of_bound(measured.grown, place);
                let received = measured.received >> 10;
                eprintln!("{name}: {measured}; {share:.2} of the bound, {received} KiB received");
                let errors = measured.seen.errors.iter().take(5);
                errors.for_each(|error| eprintln!("    {error}"));
                *outcome = Some(measured);
            }
            table.add(shape.name, place, outcomes);
            if let Ok(file) = env::var(TABLE) {
                fs::write(file, table.to_string()).unwrap();
            }
        }
    }
}
