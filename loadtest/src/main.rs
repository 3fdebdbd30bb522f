//! The program `loadtest`: parses the command line, measures, and ends with an exit code.

use std::process::ExitCode;

use loadtest::run;

// The load generator shares the machine with what it measures, so it must be light.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    run::execute()
}
