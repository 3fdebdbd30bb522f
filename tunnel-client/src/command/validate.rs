//! `tunnel-client validate`: checks everything `run` would check, and dials nobody.
#![allow(clippy::print_stdout, reason = "the result is for whoever asked")]

use super::Failure;
use crate::config::{Config, Given};

pub(super) fn validate(given: Given) -> Result<(), Failure> {
    let source = given.merge().map_err(Failure::configuration)?;
    let config = Config::check(source).map_err(Failure::configuration)?;
    println!("ok: server {}, upstream {}", config.server, config.upstream);
    Ok(())
}
