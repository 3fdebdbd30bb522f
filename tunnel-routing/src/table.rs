//! The table of routes in force: from a request to the route that takes it.
//!
//! In: requests that the front door has checked, and checked configurations. Out: the most specific route that matches
//! (the order is in docs/reference/routes.md), or the problem that there is none. A request only chooses between routes
//! of the table; nothing in it names an upstream that the configuration does not name.
//!
//! A reload replaces the table as a whole. An exchange holds its route, so a reload does not change open
//! exchanges; upstreams are supervised only while a route of the table leads to them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Method};
use tunnel_http::answer::ProblemDetail;
use tunnel_http::check::Checker;
use tunnel_proto::control::RoutesSummary;
use tunnel_proto::exchange::Protocol;
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::config::{RouteList, RoutesDifference};
use crate::matcher::{Matcher, NoRoute, RouteKey};
use crate::metrics::RoutingMetrics;
use crate::route::{Previous, Route, TableEntry};
use crate::summary::RouteStatus;
use crate::upstream::{UpstreamError, UpstreamShared};

/// The check for requests that no tunnel server has checked.
pub const CHECKER: Checker = Checker {
    hop: Hop::Client,
    // Most routes name no host.
    needs_host: false,
};

/// The routes of a client, and the upstreams that they lead to.
pub struct Routes {
    table: ArcSwap<Table>,
    shared: Arc<UpstreamShared>,
    problem_detail: ProblemDetail,
    metrics: Arc<RoutingMetrics>,
}

/// The routes in force.
struct Table {
    matcher: Matcher,
    routes: Vec<TableEntry>,
}

impl Routes {
    /// A table of these routes. A page that may read the response to a problem learns `problem_detail`. Must be called
    /// within a runtime.
    ///
    /// # Errors
    /// When upstreams cannot be made as configured.
    pub fn new(
        list: &RouteList,
        shared: Arc<UpstreamShared>,
        problem_detail: ProblemDetail,
        metrics: Arc<RoutingMetrics>,
    ) -> Result<Self, UpstreamError> {
        let none = Table {
            matcher: Matcher::default(),
            routes: Vec::new(),
        };
        let routes = Self {
            table: ArcSwap::from_pointee(none),
            shared,
            problem_detail,
            metrics,
        };
        routes.replace(list)?;
        Ok(routes)
    }

    /// Replaces the table, and returns what differs. Targets whose configuration has not changed are taken over with
    /// their connections. Must be called within a runtime.
    ///
    /// # Errors
    /// When upstreams cannot be made as configured; then nothing has changed.
    pub fn replace(&self, list: &RouteList) -> Result<RoutesDifference, UpstreamError> {
        let before = self.table.load_full();
        let configs = before.routes.iter().map(|one| one.route.config());
        let difference = RoutesDifference::between(configs, list);
        let mut previous = Previous::new(&before.routes);
        let mut routes = Vec::with_capacity(list.len());
        for config in list {
            let metrics = self.metrics.route(&config.name);
            let route = TableEntry::new(
                config.clone(),
                &mut previous,
                &self.shared,
                self.problem_detail,
                metrics,
            )?;
            routes.push(route);
        }
        // Those that overlap are refused when the configuration is checked.
        let (matcher, _) = Matcher::new(list.iter().map(|config| &config.conditions));
        self.table.store(Arc::new(Table { matcher, routes }));
        Ok(difference)
    }

    /// The route that takes a request.
    ///
    /// # Errors
    /// When none does: `route_unknown`.
    pub fn route(&self, head: &Parts) -> Result<Arc<Route>, Problem> {
        let table = self.table.load();
        let found = table.matcher.find(&route_key(head));
        let found = found.and_then(|index| table.routes.get(index).ok_or(NoRoute::Unknown));
        match found {
            Ok(TableEntry { route, .. }) => Ok(Arc::clone(route)),
            Err(none) => Err(table.problem(none, head)),
        }
    }

    /// The summary that the tunnel server shows its operator, with or without the URLs of upstreams.
    pub fn summary(&self, with_upstreams: bool) -> RoutesSummary {
        let table = self.table.load();
        let routes = table.routes.iter();
        RoutesSummary::new(
            routes
                .map(|one| one.route.summary(with_upstreams))
                .collect(),
        )
    }

    /// The routes and their upstreams as they are now, in the order of the configuration.
    pub fn status(&self) -> Vec<RouteStatus> {
        let table = self.table.load();
        let routes = table.routes.iter();
        routes.map(|one| one.route.status()).collect()
    }
}

impl Table {
    fn problem(&self, none: NoRoute, head: &Parts) -> Problem {
        let config = |index: usize| self.routes.get(index).map(|one| one.route.config());
        let detail = match none {
            NoRoute::OddPath(index) => config(index).map(|route| {
                let parts = route.conditions.refused_parts(head.uri.path().as_bytes());
                format!("route `{}` does not take a path with {parts}", route.name)
            }),
            NoRoute::TooManyReadings(index) => config(index).map(|route| {
                format!(
                    "route `{}` does not take a path that upstreams may read in so many ways",
                    route.name
                )
            }),
            NoRoute::Unknown => None,
        };
        let detail =
            detail.unwrap_or_else(|| "no route of this client takes the request".to_owned());
        Problem::new(Hop::Client, Reason::RouteUnknown, detail)
    }
}

/// The parts of a request that routes match.
fn route_key(head: &Parts) -> RouteKey<'_> {
    // Routes name the method that an upgrade has over HTTP/1.1.
    let is_upgrade = head.method == Method::CONNECT && head.extensions.get::<Protocol>().is_some();
    RouteKey {
        host: head.headers.get(HOST).map(HeaderValue::as_bytes),
        method: if is_upgrade {
            &Method::GET
        } else {
            &head.method
        },
        path: head.uri.path().as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tunnel_ops::metrics::Families;

    use super::*;

    #[tokio::test]
    async fn upstreams_are_supervised_while_they_are_in_the_table_and_no_longer() {
        let list = |path: &str, upstream: &str| {
            let text =
                format!("[[route]]\nname = \"a\"\npath = \"{path}\"\nupstream = \"{upstream}\"\n");
            RouteList::from_toml("r.toml", &text).unwrap()
        };
        let shared = Arc::new(UpstreamShared::new(
            &[],
            tunnel_proto::memory::MemoryAccount::new(usize::MAX),
            1,
        ));
        let metrics = RoutingMetrics::new(&mut Families::new("tunnel_client")).unwrap();
        for (one, other) in [
            ("http://one", "http://two"),
            ("http://{x}.one", "h2c://{x}.one"),
        ] {
            let first = list("/a/{x}", one);
            let routes = Routes::new(
                &first,
                Arc::clone(&shared),
                ProblemDetail::Reason,
                Arc::clone(&metrics),
            )
            .unwrap();
            let supervision = routes.table.load().routes[0].supervision.clone();
            let supervision = Arc::downgrade(&supervision.unwrap());
            let (head, ()) = Request::get("/a/b").body(()).unwrap().into_parts();
            let held = routes.route(&head).unwrap();
            // The target is unchanged, and so taken over.
            routes.replace(&list("/{x}", one)).unwrap();
            assert!(supervision.upgrade().is_some(), "{one}");
            routes.replace(&list("/a/{x}", other)).unwrap();
            assert!(supervision.upgrade().is_none(), "{one}");
            assert_eq!(held.name(), "a");
        }
    }
}
