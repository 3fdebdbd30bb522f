//! `tunnel-client validate`: makes all checks of the start of `run` or `serve`, without dialling.

use tunnel_ops::settings::GivenSettings;
use tunnel_routing::config::RouteList;

use super::routes::table;
use super::{Failure, print};
use crate::cli::ValidateArgs;
use crate::config::{Config, ServeConfig, ServerPath};

pub(super) fn validate(args: ValidateArgs) -> Result<(), Failure> {
    let source = args.given.merge().map_err(Failure::configuration)?;
    for warning in source.readable_secrets() {
        tunnel_ops::print_note!("warning: {warning}");
    }
    if args.serve {
        let config = ServeConfig::check(&source).map_err(Failure::configuration)?;
        let (listen, routes) = (config.settings.listen, config.routes);
        let count = routes.len();
        return print(&format!(
            "ok: listen {listen}, routes {count}\n{}",
            listed(&routes)
        ));
    }
    let config = Config::check(&source).map_err(Failure::configuration)?;
    let servers: Vec<String> = config.servers.iter().map(shown).collect();
    let servers = servers.join(", server ");
    match &config.settings.upstream {
        Some(upstream) if config.routes.is_empty() => {
            print(&format!("ok: server {servers}, upstream {upstream}\n"))
        }
        _ => {
            let routes = config.all_routes();
            let count = routes.len();
            print(&format!(
                "ok: server {servers}, routes {count}\n{}",
                listed(&routes)
            ))
        }
    }
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

/// The routes, and what is to be said against them.
fn listed(routes: &RouteList) -> String {
    let warnings = routes.warnings().into_iter();
    let warnings = warnings.map(|warning| format!("warning: {warning}\n"));
    table(routes) + &warnings.collect::<String>()
}
