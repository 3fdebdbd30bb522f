//! Flags of the scenarios that measure a crowd of tunnels. They always start the server.

use std::time::Duration;

use crate::stack::ProgramArgs;

/// The fleet, and the programs that are started.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct FleetArgs {
    /// First dials at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,
    /// Threads of the fleet. A dial costs more than its answer, so with one they would be the limit
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub fleet_threads: u16,
    /// Longest time until all tunnels are connected
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub limit: Duration,
    /// The programs.
    #[command(flatten)]
    pub programs: ProgramArgs,
}
