//! The request routing service: from a request to the route that takes it, and to what answers it.
//!
//! ```text
//!   request ─▶ matcher ─▶ route ─▶ rewrite ─▶ upstream, or an answer of its own
//!                 ▲
//!   configuration ┴─ a table, replaced as a whole when the file changes
//! ```
//!
//! In: requests, checked by the tunnel server; and the table, checked by [`crate::config`]. Out: the
//! one route that says most about a request, by the rule in docs/reference/routes.md, or the problem that
//! there is none. A request decides only between what the table says: it never names an upstream.
//!
//! An exchange holds its route, so that one that began before a reload goes on by the old one. What is
//! done for upstreams beside exchanges, such as checks, is done for those of the table alone.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Method};
use tunnel_http::check::Checker;
use tunnel_proto::control::RoutesSummary;
use tunnel_proto::exchange::Protocol;
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::config::{RouteList, RoutesDifference};
use crate::leads::LeadParts;
use crate::matcher::{FirstLine, Matcher, NoRoute};
use crate::metrics::RoutingMetrics;
use crate::route::{Earlier, InForce, Route};
use crate::upstream::UpstreamError;

/// What a request has to be where no tunnel server has checked it.
pub const CHECKER: Checker = Checker {
    hop: Hop::Client,
    // Most routes name no host.
    needs_host: false,
};

/// All routes of a client.
pub struct Routes {
    table: ArcSwap<Table>,
    leads: LeadParts,
    metrics: Arc<RoutingMetrics>,
}

/// The routes that are in force.
struct Table {
    matcher: Matcher,
    routes: Vec<InForce>,
}

impl Routes {
    /// Routes as the configuration says. Must be called within a runtime.
    ///
    /// # Errors
    /// When upstreams cannot be as it says.
    pub fn new(
        list: &RouteList,
        leads: LeadParts,
        metrics: Arc<RoutingMetrics>,
    ) -> Result<Self, UpstreamError> {
        let none = Table {
            matcher: Matcher::default(),
            routes: Vec::new(),
        };
        let routes = Self {
            table: ArcSwap::from_pointee(none),
            leads,
            metrics,
        };
        routes.replace(list)?;
        Ok(routes)
    }

    /// Puts these routes in the place of those that are there, and says what is new about them. What leads to
    /// the same is taken over. Must be called within a runtime.
    ///
    /// # Errors
    /// When upstreams cannot be as it says; then nothing has changed.
    pub fn replace(&self, list: &RouteList) -> Result<RoutesDifference, UpstreamError> {
        let before = self.table.load_full();
        let configs = before.routes.iter().map(|one| one.route.config());
        let difference = RoutesDifference::between(configs, list);
        let mut earlier = Earlier::of(&before.routes);
        let mut routes = Vec::with_capacity(list.len());
        for config in list {
            let metrics = self.metrics.route(&config.name);
            let route = InForce::new(config.clone(), &mut earlier, &self.leads, metrics)?;
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
    /// When none does.
    pub fn route(&self, head: &Parts) -> Result<Arc<Route>, Problem> {
        let table = self.table.load();
        let found = table.matcher.find(&first_line(head));
        let found = found.and_then(|place| table.routes.get(place).ok_or(NoRoute::Unknown));
        match found {
            Ok(InForce { route, .. }) => Ok(Arc::clone(route)),
            Err(none) => Err(table.problem(none, head)),
        }
    }

    /// What the server is told of them, for people to look at, with or without their upstreams.
    pub fn summary(&self, with_upstreams: bool) -> RoutesSummary {
        let table = self.table.load();
        let routes = table.routes.iter();
        RoutesSummary::new(
            routes
                .map(|one| one.route.summary(with_upstreams))
                .collect(),
        )
    }
}

impl Table {
    fn problem(&self, none: NoRoute, head: &Parts) -> Problem {
        let route = match none {
            NoRoute::OddPath(place) => self.routes.get(place).map(|one| one.route.config()),
            NoRoute::Unknown => None,
        };
        let detail = match route {
            Some(route) => {
                let parts = route.conditions.refused_parts(head.uri.path().as_bytes());
                format!("route `{}` does not take a path with {parts}", route.name)
            }
            None => "no route of this client takes the request".to_owned(),
        };
        Problem::new(Hop::Client, Reason::RouteUnknown, detail)
    }
}

/// What routes look at.
fn first_line(head: &Parts) -> FirstLine<'_> {
    // As HTTP/1.1 has it, which most who write routes know.
    let is_upgrade = head.method == Method::CONNECT && head.extensions.get::<Protocol>().is_some();
    FirstLine {
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
    use crate::upstream::UpstreamShared;

    #[tokio::test]
    async fn upstreams_are_tended_while_they_are_in_the_table_and_no_longer() {
        let list = |path: &str, upstream: &str| {
            let text =
                format!("[[route]]\nname = \"a\"\npath = \"{path}\"\nupstream = \"{upstream}\"\n");
            RouteList::from_toml("r.toml", &text).unwrap()
        };
        let shared = Arc::new(UpstreamShared::new(
            &[],
            tunnel_proto::memory::MemoryAccount::new(usize::MAX),
        ));
        let metrics = RoutingMetrics::new(&mut Families::new("tunnel_client")).unwrap();
        for (one, other) in [
            ("http://one", "http://two"),
            ("http://{x}.one", "h2c://{x}.one"),
        ] {
            let leads = LeadParts {
                shared: Arc::clone(&shared),
                idle_pool: 1,
            };
            let first = list("/a/{x}", one);
            let routes = Routes::new(&first, leads, Arc::clone(&metrics)).unwrap();
            let tending = routes.table.load().routes[0].tending.clone();
            let tending = Arc::downgrade(&tending.unwrap());
            let (head, ()) = Request::get("/a/b").body(()).unwrap().into_parts();
            let held = routes.route(&head).unwrap();
            // What leads to the same is taken over.
            routes.replace(&list("/{x}", one)).unwrap();
            assert!(tending.upgrade().is_some(), "{one}");
            routes.replace(&list("/a/{x}", other)).unwrap();
            assert!(tending.upgrade().is_none(), "{one}");
            assert_eq!(held.name(), "a");
        }
    }
}
