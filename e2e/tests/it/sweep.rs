//! What hostile peers do stays with them: memory within what is documented, and neighbours that do not notice.
//!
//! `e2e/run-sweep` runs all of it, and writes the table of `docs/sweep.md`.

use std::{env, fs, time::Duration};

use e2e::sweep::{
    Place, Protocol, Stage,
    cell::{Cell, Plan},
    neighbour::p99,
    shapes::SHAPES,
    stand::Stand,
    table::{Table, share_of_bound},
};

/// The longest p99 of neighbours, with programs built for debugging on a busy machine.
const P99: Duration = Duration::from_secs(2);

/// Names a file for the table.
const TABLE: &str = "E2E_SWEEP_TABLE";

/// Parts of the rows' names, with semicolons between: only these are run.
const ONLY: &str = "E2E_SWEEP_ONLY";

/// Runs every second cell of a place, one after the other beside the same programs.
async fn half(place: Place) {
    let plan = Plan {
        rounds: 1,
        quiet: Duration::ZERO,
        flood: Duration::from_millis(200),
        beside: Duration::from_millis(200),
        per_second: 20,
    };
    let stand = Stand::start(place, Stage::Plain, plan.per_second).await;
    let rest = stand.rest();
    for (number, shape) in SHAPES.iter().enumerate() {
        for (other, protocol) in Protocol::ALL.into_iter().enumerate() {
            let cell = Cell::new(shape, place, protocol);
            let cell = cell.filter(|cell| cell.attack().stage == Stage::Plain);
            let Some(cell) = cell.filter(|_| (number + other) % 2 == 0) else {
                continue;
            };
            cell.run(&stand, plan).await;
            let errors = stand.neighbours().take_errors();
            assert!(errors.is_empty(), "beside {}: {errors:?}", cell.name());
            let grown = stand.grown(rest);
            let share = share_of_bound(grown, place);
            assert!(share <= 2.0, "{}: {grown:?}", cell.name());
        }
    }
    let seen = stand.finish().await;
    assert!(seen.errors.is_empty(), "{:?}", seen.errors);
    let slowest = p99(&seen.beside).unwrap();
    assert!(slowest < P99, "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn platform_clients_at_the_public_listener() {
    half(Place::Public).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn platform_clients_at_serve() {
    half(Place::Serve).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstreams() {
    half(Place::Upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnel_clients() {
    half(Place::TunnelClient).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnel_servers() {
    half(Place::TunnelServer).await;
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
                eprintln!("{name}: {measured}; {share:.2} of the bound");
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
