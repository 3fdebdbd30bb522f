//! Searches for faults of several nodes: runs plan after plan, and shows the first that fails, with the faults that it needs.
//!
//! ```text
//!   simulation [--steps 1e8] [--seed 1]
//! ```

#![allow(clippy::print_stdout, reason = "what it finds is for a person")]

use std::process::ExitCode;

use clap::Parser;
use simulation::{Plan, run, shrink};

/// Searches for faults of several server nodes in simulated time.
#[derive(Parser)]
struct Arguments {
    /// Events of all runs together, such as 1e9.
    #[arg(long, default_value = "1e7")]
    steps: f64,
    /// Seed of the first plan; the next ones follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Go on after a violation.
    #[arg(long)]
    keep_going: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (mut steps, mut seed, mut failed) = (0, arguments.seed, 0);
    while (steps as f64) < arguments.steps {
        let plan = Plan::draw(seed);
        let outcome = run(&plan);
        steps += outcome.steps;
        if let Some(violation) = outcome.violation {
            failed += 1;
            println!("seed {seed}: {}: {}", violation.rule, violation.detail);
            if !arguments.keep_going {
                let smallest = shrink(&plan);
                if let Some(violation) = run(&smallest).violation {
                    for line in &violation.trace {
                        println!("  {line}");
                    }
                    println!("{:.3} s: {}", violation.at.as_secs_f64(), violation.detail);
                }
                println!("{smallest:#?}");
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
    }
    let plans = seed - arguments.seed;
    println!("{plans} plans, {steps} steps: {failed} failed");
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
