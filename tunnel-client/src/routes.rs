//! From a request to the upstream that answers it.
//!
//! So far every request has the same one. The table of routes, with hosts, paths and rewriting, will
//! be behind the same call; nothing else knows how many upstreams there are.

use std::sync::Arc;

use http::request::Parts;
use tunnel_proto::control::{RouteState, RouteSummary, RoutesSummary};
use tunnel_proto::problem::Problem;

use crate::upstream::Upstream;

/// All routes of a client.
pub(crate) struct Routes {
    default: Arc<Upstream>,
}

impl Routes {
    /// Sends everything to one upstream.
    pub(crate) fn to(default: Arc<Upstream>) -> Self {
        Self { default }
    }

    /// The upstream for a request.
    ///
    /// # Errors
    /// When no route matches, or the one that does denies the request; neither can be so far.
    pub(crate) fn route(&self, _request: &Parts) -> Result<&Upstream, Problem> {
        Ok(&self.default)
    }

    /// What the server is told of them, for people to look at.
    pub(crate) fn summary(&self) -> RoutesSummary {
        RoutesSummary::new(vec![RouteSummary {
            name: "default".to_owned(),
            matches: "/*".to_owned(),
            to: self.default.url().to_string(),
            state: match self.default.is_reached() {
                None => RouteState::Unknown,
                Some(true) => RouteState::Up,
                Some(false) => RouteState::Down,
            },
        }])
    }
}
