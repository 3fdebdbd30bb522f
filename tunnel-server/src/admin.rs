//! The admin API: what an operator may see of a running server, and do to it.
//!
//! ```text
//!   admin listener ─▶ api ─▶ view ─▶ registry, sessions
//!   (tunnel-ops)       └──▶ event_stream ◀── events ◀─report─ every part of the server
//! ```
//!
//! In come requests below `/api/v1` that the listener has checked; out go JSON and a stream of events,
//! as `openapi.json` beside this file describes them. It carries no traffic, and nothing that carries
//! traffic waits for it.

pub mod address;
pub mod api;
mod event_stream;
pub mod view;

use std::sync::Arc;

use tunnel_ops::{
    admin::{AdminRoutes, AdminSettings, Readiness},
    signals::Shutdown,
};

use self::api::Api;

/// What `/api/v1/openapi.json` answers.
pub const DESCRIPTION: &str = include_str!("admin/openapi.json");

/// What the admin listener answers with. The server is ready until it is `asked` to stop.
pub(crate) fn routes(api: Api, asked: Shutdown) -> AdminRoutes {
    let ready = move || {
        if asked.is_asked() {
            Readiness::NotReady("the server is stopping".into())
        } else {
            Readiness::Ready
        }
    };
    let hosts = api.config.load();
    let hosts = hosts.settings.admin_host.iter();
    let settings = AdminSettings {
        // Every host is such a name.
        allowed_hosts: hosts
            .filter_map(|host| host.as_str().parse().ok())
            .collect(),
    };
    AdminRoutes::new(api.metrics.registry().clone(), ready, settings)
        .with_api(api::router(Arc::new(api)))
}
