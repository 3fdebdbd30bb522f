//! The admin API: views of a running server, and operations on it.
//!
//! ```text
//!   admin listener ─▶ api ─▶ view ─▶ registry, sessions
//!    │ (tunnel-ops)      ├──▶ event_stream ◀── events ◀─report─ every part of the server
//!    │                   ├──▶ api/exchanges ◀── tail (tunnel-http) ◀─ the access log
//!    │                   └──▶ the APIs of other nodes ─▶ merge, other_tails
//!    └─▶ page
//! ```
//!
//! In: requests below `/api/v1` that the listener has checked. Out: JSON and a stream of events, as described by
//! `openapi.json` beside this file. It carries no traffic, and nothing that carries traffic waits for it. The page at `/` shows
//! this API in a browser.

pub mod api;
mod event_stream;
pub mod managed;
mod merge;
pub mod nodes;
mod other_tails;
mod page;
mod refusal;
pub mod usage;
pub mod view;

use std::sync::Arc;

use tunnel_directory::MoveReason;
use tunnel_ops::{
    admin::{AdminRoutes, AdminSettings, Readiness},
    signals::Shutdown,
};

use self::api::Api;

/// The content of `/api/v1/openapi.json`.
pub const DESCRIPTION: &str = include_str!("admin/openapi.json");

/// The routes of the admin listener. The server is ready until `shutdown` begins, and not before it takes part in a shared
/// directory and has its certificates.
pub(crate) fn routes(api: Api, shutdown: Shutdown) -> AdminRoutes {
    let (registry, lifecycle) = (api.registry.clone(), api.lifecycle.clone());
    let (acme, managed) = (api.acme.clone(), api.managed.clone());
    let ready = move || {
        let directory = registry.directory().shared();
        if shutdown.is_requested() || lifecycle.is_leaving() {
            Readiness::NotReady("the server is stopping".into())
        } else if directory.is_some_and(|directory| !directory.is_ready()) {
            Readiness::NotReady("the server waits for the directory in etcd".into())
        } else if let Some(reason) = directory.and_then(|it| it.standing().reason_to_leave()) {
            Readiness::NotReady(match reason {
                MoveReason::Directory => "the server is cut off from etcd".into(),
                MoveReason::Links => {
                    "the server has no link to other nodes, which have links".into()
                }
            })
        } else if directory.is_some_and(|directory| !directory.is_linked()) {
            Readiness::NotReady("the server waits for its links to other nodes".into())
        } else if managed.as_ref().is_some_and(|it| !it.is_ready()) {
            Readiness::NotReady("the server waits for its managed runtimes".into())
        } else if let Some(name) = acme.as_ref().and_then(|acme| acme.missing()) {
            Readiness::NotReady(format!(
                "the server waits for the certificate of {name} by ACME"
            ))
        } else {
            Readiness::Ready
        }
    };
    let hosts = api.config.load();
    let hosts = hosts.settings.admin_host.iter();
    let settings = AdminSettings {
        // Every host name is valid here.
        allowed_hosts: hosts
            .filter_map(|host| host.as_str().parse().ok())
            .collect(),
    };
    AdminRoutes::new(api.metrics.registry().clone(), ready, settings)
        .with_page(page::FILES)
        .with_api(router(api))
}

/// The routes below `/api/v1`.
pub(crate) fn router(api: Api) -> axum::Router {
    api::router(Arc::new(api))
}
