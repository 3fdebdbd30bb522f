//! Flags of the scenarios that measure a crowd of tunnels. They always start the server.

use std::time::Duration;

use anyhow::bail;
use http::Uri;

use crate::stack::ProgramArgs;

/// The fleet, and the programs that are started.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct CrowdArgs {
    /// First dials at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,
    /// Threads of the fleet. A dial costs more than its answer, so with one they would be the limit
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub fleet_threads: u16,
    /// Longest time until all tunnels are connected
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub limit: Duration,
    /// Taken for likeness with other scenarios: this one always starts the server itself
    #[arg(long, help_heading = "Self-contained")]
    pub self_contained: bool,
    /// Not possible here; known so that it can be said why.
    #[arg(long, hide = true)]
    pub url: Option<Uri>,
    /// The programs.
    #[command(flatten)]
    pub programs: ProgramArgs,
}

impl CrowdArgs {
    /// The flags of the programs, once it is sure that they are what is to be measured.
    ///
    /// # Errors
    /// A target was named.
    pub fn stack(&self, scenario: &str) -> anyhow::Result<ProgramArgs> {
        if let Some(url) = &self.url {
            bail!(
                "{scenario} cannot measure {url}: it needs as many runtimes with tokens as there \
                 are tunnels, so it starts the tunnel server itself; leave out --url"
            );
        }
        Ok(self.programs.clone())
    }
}
