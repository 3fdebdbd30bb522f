//! `tunnel-client validate`: checks everything `run` would check, and dials nobody.
#![allow(clippy::print_stdout, reason = "the result is for whoever asked")]

use super::Failure;
use super::routes::print_table;
use crate::config::{Config, Given};

pub(super) fn validate(given: Given) -> Result<(), Failure> {
    let source = given.merge().map_err(Failure::configuration)?;
    let config = Config::check(source).map_err(Failure::configuration)?;
    match &config.upstream {
        Some(upstream) if config.routes.is_empty() => {
            println!("ok: server {}, upstream {upstream}", config.server);
        }
        _ => {
            let routes = config.all_routes();
            println!("ok: server {}, routes {}", config.server, routes.len());
            print_table(&routes);
        }
    }
    Ok(())
}
