//! `tunnel-server validate`: checks everything `run` would check, and serves nothing.
#![allow(clippy::print_stdout, reason = "the result is for whoever asked")]

use super::Failure;
use crate::config::{Config, Given};

pub(super) fn validate(given: Given) -> Result<(), Failure> {
    let source = given.merge().map_err(Failure::configuration)?;
    let config = Config::check(source).map_err(Failure::configuration)?;
    let (runtimes, tokens) = (config.runtimes.iter().len(), config.runtimes.token_count());
    println!("ok: runtimes {runtimes}, tokens {tokens}");
    Ok(())
}
