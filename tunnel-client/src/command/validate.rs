//! `tunnel-client validate`: checks everything `run` would check, and dials nobody.
#![allow(clippy::print_stdout, reason = "the result is for whoever asked")]

use super::Failure;
use crate::config::{Config, Given};

pub(super) fn validate(given: Given) -> Result<(), Failure> {
    let source = given.merge().map_err(Failure::configuration)?;
    let config = Config::check(source).map_err(Failure::configuration)?;
    let proxy = config.proxy.as_ref();
    let proxy = proxy.map_or_else(String::new, |proxy| format!(", by the proxy {}", proxy.url));
    println!(
        "ok: server {}{proxy}, upstream {}",
        config.server, config.upstream
    );
    Ok(())
}
