//! `tunnel-client validate`: makes all checks of the start of `run` or `serve`, without dialling.
#![allow(clippy::print_stdout, reason = "the result is the output")]

use tunnel_ops::settings::GivenSettings;
use tunnel_routing::config::RouteList;

use super::Failure;
use super::routes::print_table;
use crate::cli::ValidateArgs;
use crate::config::{Config, ServeConfig, ServerPath};

pub(super) fn validate(args: ValidateArgs) -> Result<(), Failure> {
    let source = args.given.merge().map_err(Failure::configuration)?;
    for warning in source.readable_secrets() {
        eprintln!("warning: {warning}");
    }
    if args.serve {
        let config = ServeConfig::check(&source).map_err(Failure::configuration)?;
        let (listen, routes) = (config.settings.listen, config.routes);
        println!("ok: listen {listen}, routes {}", routes.len());
        print_table(&routes);
        print_warnings(&routes);
        return Ok(());
    }
    let config = Config::check(&source).map_err(Failure::configuration)?;
    let servers: Vec<String> = config.servers.iter().map(shown).collect();
    let servers = servers.join(", server ");
    match &config.settings.upstream {
        Some(upstream) if config.routes.is_empty() => {
            println!("ok: server {servers}, upstream {upstream}");
        }
        _ => {
            let routes = config.all_routes();
            println!("ok: server {servers}, routes {}", routes.len());
            print_table(&routes);
            print_warnings(&routes);
        }
    }
    Ok(())
}

/// A server, and the proxy that it is dialled through.
fn shown(server: &ServerPath) -> String {
    let url = &server.url;
    match (&server.proxy, &server.proxy_passed_over) {
        (Some(proxy), _) => format!("{url}, by the proxy {}", proxy.url),
        (None, Some(passed_over)) => format!("{url} ({passed_over})"),
        (None, None) => url.to_string(),
    }
}

fn print_warnings(routes: &RouteList) {
    for warning in routes.warnings() {
        println!("warning: {warning}");
    }
}
