//! What hostile peers do stays with them: memory within what is documented, and neighbours that do not notice.
//!
//! `e2e/run-sweep` runs all of it, and writes the table of `docs/sweep.md`.

use std::{env, fmt::Write, fs, time::Duration};

use e2e::sweep::{
    Place, Protocol,
    cell::{Plan, measure},
    shapes::SHAPES,
    table::{HEAD, Row},
};

/// Names a file for the table.
const TABLE: &str = "E2E_SWEEP_TABLE";

/// A part of the rows' names: only these are run.
const ONLY: &str = "E2E_SWEEP_ONLY";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes an hour: e2e/run-sweep"]
async fn whole() {
    let plan = Plan {
        rounds: 2,
        quiet: Duration::from_millis(1_500),
        hostile: Duration::from_millis(2_500),
        per_second: 100,
    };
    let only = env::var(ONLY).unwrap_or_default();
    let mut table = HEAD.to_owned();
    for shape in &SHAPES {
        for place in Place::ALL {
            for protocol in Protocol::ALL {
                let name = format!("{}, {}, {}", shape.name, place.name(), protocol.name());
                if !only.split(';').any(|only| name.contains(only)) {
                    continue;
                }
                let outcome = measure(shape, place, protocol, plan).await;
                if let Some(outcome) = &outcome {
                    let errors = &outcome.seen.errors;
                    errors
                        .iter()
                        .take(5)
                        .for_each(|error| eprintln!("  {error}"));
                }
                let row = Row {
                    shape: shape.name,
                    place,
                    protocol,
                    outcome,
                };
                eprintln!("{row}");
                writeln!(table, "{row}").unwrap();
                if let Ok(file) = env::var(TABLE) {
                    fs::write(file, &table).unwrap();
                }
            }
        }
    }
}
