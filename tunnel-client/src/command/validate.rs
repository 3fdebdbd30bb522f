//! `tunnel-client validate`: checks everything `run` would check, and dials nobody.
#![allow(clippy::print_stdout, reason = "the result is for whoever asked")]

use super::Failure;
use super::routes::print_table;
use crate::config::{Config, Given};

pub(super) fn validate(given: Given) -> Result<(), Failure> {
    let source = given.merge().map_err(Failure::configuration)?;
    let config = Config::check(source).map_err(Failure::configuration)?;
    let proxy = config.proxy.as_ref();
    let proxy = proxy.map_or_else(String::new, |proxy| format!(", by the proxy {}", proxy.url));
    let server = &config.server;
    match &config.upstream {
        Some(upstream) if config.routes.is_empty() => {
            println!("ok: server {server}{proxy}, upstream {upstream}");
        }
        _ => {
            let routes = config.all_routes();
            println!("ok: server {server}{proxy}, routes {}", routes.len());
            print_table(&routes);
        }
    }
    Ok(())
}
