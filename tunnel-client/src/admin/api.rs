//! The API of the client's admin listener: `GET /api/v1/status`, for its page and for scripts.
//!
//! The listener has no token. It is often reachable from elsewhere, for probes and metrics, while the status names upstreams and
//! servers: so only this machine gets it, a port forwarded to it included.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Extension, Json};
use http::StatusCode;
use serde::Serialize;
use tunnel_ops::admin::AdminPeer;
use tunnel_ops::timestamp::Timestamp;
use tunnel_routing::Routes;
use tunnel_routing::summary::RouteStatus;

use crate::metrics::Metrics;
use crate::recent_problems::ProblemView;
use crate::status::{TunnelStatus, TunnelView};

/// The path of the status.
pub(super) const STATUS: &str = "/api/v1/status";

/// The parts of the client that the API reads.
pub(crate) struct Api {
    /// The metrics of the client.
    pub(crate) metrics: Arc<Metrics>,
    /// The routes in force.
    pub(crate) routes: Arc<Routes>,
    /// The tunnel; `None` for `serve`.
    pub(crate) tunnel: Option<Arc<TunnelStatus>>,
    /// When the program was started.
    pub(crate) started: Timestamp,
}

/// The client as it is now. It has no secrets.
#[derive(Debug, Serialize)]
struct ClientView {
    /// Version of the program.
    version: &'static str,
    /// When it was started.
    started: Timestamp,
    /// Seconds since then.
    uptime_seconds: u64,
    /// Open exchanges.
    open_exchanges: i64,
    /// Ended exchanges since the start.
    requests: u64,
    /// The tunnel; absent for `serve`.
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel: Option<TunnelView>,
    /// Whether connections are accepted; absent but for `serve`.
    #[serde(skip_serializing_if = "Option::is_none")]
    listening: Option<bool>,
    /// The routes in force.
    routes: Vec<RouteStatus>,
    /// The last problems that requests were answered with, the latest first.
    problems: Vec<ProblemView>,
}

/// The handler of [`STATUS`].
pub(super) fn status(api: Arc<Api>) -> MethodRouter {
    get(
        async move |Extension(peer): Extension<AdminPeer>| match peer.is_this_machine() {
            true => Json(api.view()).into_response(),
            false => address_refused(),
        },
    )
}

fn address_refused() -> Response {
    let detail = "this is for the machine that the client runs on: open it there by 127.0.0.1, or forward the port to it \
                  (`ssh -L`, `kubectl port-forward`)";
    let problem = serde_json::json!({ "reason": "address_refused", "detail": detail });
    (StatusCode::FORBIDDEN, Json(problem)).into_response()
}

impl Api {
    fn view(&self) -> ClientView {
        let Self {
            metrics,
            routes,
            tunnel,
            started,
        } = self;
        ClientView {
            version: env!("CARGO_PKG_VERSION"),
            started: *started,
            uptime_seconds: started.age().as_secs(),
            open_exchanges: metrics.open.get(),
            requests: metrics.ended(),
            tunnel: tunnel.as_ref().map(|tunnel| tunnel.view()),
            listening: tunnel.is_none().then(|| metrics.listening.get() > 0),
            routes: routes.status(),
            problems: metrics.recent_problems.views(),
        }
    }
}
