//! `tunnel-client validate`: makes all checks of the start of `run` or `serve`, without dialling.
#![allow(clippy::print_stdout, reason = "the result is the output")]

use tunnel_routing::config::RouteList;

use super::Failure;
use super::routes::print_table;
use crate::cli::ValidateArgs;
use crate::config::{Config, ServeConfig};

pub(super) fn validate(args: ValidateArgs) -> Result<(), Failure> {
    let source = args.given.merge().map_err(Failure::configuration)?;
    if args.serve {
        let config = ServeConfig::check(&source).map_err(Failure::configuration)?;
        let (listen, routes) = (config.settings.listen, config.routes);
        println!("ok: listen {listen}, routes {}", routes.len());
        print_table(&routes);
        print_warnings(&routes);
        return Ok(());
    }
    let config = Config::check(&source).map_err(Failure::configuration)?;
    let proxy = match (&config.proxy, &config.proxy_passed_over) {
        (Some(proxy), _) => format!(", by the proxy {}", proxy.url),
        (None, Some(passed_over)) => format!(" ({passed_over})"),
        (None, None) => String::new(),
    };
    let server = &config.server;
    match &config.settings.upstream {
        Some(upstream) if config.routes.is_empty() => {
            println!("ok: server {server}{proxy}, upstream {upstream}");
        }
        _ => {
            let routes = config.all_routes();
            println!("ok: server {server}{proxy}, routes {}", routes.len());
            print_table(&routes);
            print_warnings(&routes);
        }
    }
    Ok(())
}

fn print_warnings(routes: &RouteList) {
    for warning in routes.warnings() {
        println!("warning: {warning}");
    }
}
