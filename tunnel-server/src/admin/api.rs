//! The routes of the admin API, their access rules, and their responses.
//!
//! In: a request whose `Host` the listener has checked and whose body it has read. Out: the response. Reading needs no
//! token on the local machine, except the configuration and exchanges; from other machines, and for changes, the admin token is
//! required. `routes` is the complete list, and `openapi.json` describes it.

mod exchanges;
mod operations;
mod query;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::{
    Json, Router,
    extract::{
        Path, Query, Request, State,
        rejection::{PathRejection, QueryRejection},
    },
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post, put},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, StatusCode, header::CONTENT_TYPE};
use serde::de::DeserializeOwned;
use tunnel_directory::RuntimeLabel;
use tunnel_http::tail::Tails;
/// The prefix of all routes.
pub use tunnel_ops::admin::API_ROOT as ROOT;
pub use tunnel_ops::admin::AdminProblem;
use tunnel_ops::admin::BearerGuard;

pub use self::{
    operations::{OperationView, RevocationRequest},
    query::PAGE_MAX,
};
use self::{
    operations::{disconnect, drain, revoke},
    query::{PathLabel, RuntimesQuery, Scope, ScopeOf, query_malformed},
};
use super::{
    DESCRIPTION, event_stream,
    managed::{self, ClearedView, NewTokenView},
    merge, nodes,
    refusal::{ApiError, path_unknown},
    usage::ReadLimits,
    view::{
        self, ConfigView, OperationError, ReadCertificates, RuntimeView, RuntimesPage, ServerView,
    },
};
use crate::{
    acme::Acme,
    auth::Authenticator,
    config::live::LiveConfig,
    events::Events,
    kept_revocations::KeptRevocations,
    lifecycle::Lifecycle,
    managed::Managed,
    metrics::Metrics,
    peers::{Answers, Peers},
    registry::Registry,
};

/// The number of routes.
const ROUTES: usize = 15;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The parts of the server that the admin API uses.
pub(crate) struct Api {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    pub(crate) tails: Arc<Tails>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// The certificates by ACME, if there are any.
    pub(crate) acme: Option<Arc<Acme>>,
    /// Reads the listeners' certificates in files.
    pub(crate) certificates: ReadCertificates,
    /// Reads the limits of the whole server.
    pub(crate) limits: ReadLimits,
    /// The runtimes that it makes and removes, if it may.
    pub(crate) managed: Option<Arc<Managed>>,
    /// Keeps the operator's revocations.
    pub(crate) revocations: Arc<KeptRevocations>,
    /// Checks the admin token. Without it nothing can be changed, or read from other machines.
    pub(crate) guard: Arc<ArcSwapOption<BearerGuard>>,
    /// From where it can be reached.
    pub(crate) reach: Reach,
    /// The links to other nodes, which are asked too.
    pub(crate) peers: Option<Arc<Peers>>,
}

/// From where an API can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// From this machine only.
    Local,
    /// From other machines too.
    Network,
    /// From other server nodes only, which have checked the operator.
    Nodes,
}

/// The access rule of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Open to the local machine, and to requests with the admin token.
    Read,
    /// Open to requests with the admin token, and to the local machine if there is no token.
    ReadPrivate,
    /// Open to requests with the admin token only.
    Change,
}

/// The router of the requests below [`ROOT`].
pub(super) fn router(api: Arc<Api>) -> Router {
    let routes = routes(&api).into_iter();
    routes
        .fold(Router::new(), |router, (path, methods)| {
            router.route(&format!("{ROOT}{path}"), methods)
        })
        .fallback(path_unknown)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(api)
}

/// All routes, relative to [`ROOT`].
fn routes(api: &Arc<Api>) -> [(&'static str, MethodRouter<Arc<Api>>); ROUTES] {
    let only = |access| from_fn_with_state((api.clone(), access), authorize);
    let read = || only(Access::Read);
    let change = || only(Access::Change);
    [
        ("/status", get(status).route_layer(read())),
        (
            "/config",
            get(config).route_layer(only(Access::ReadPrivate)),
        ),
        ("/drain", post(drain_server).route_layer(change())),
        ("/upgrade", post(upgrade_server).route_layer(change())),
        ("/runtimes", get(runtimes).route_layer(read())),
        ("/runtimes/clear", post(clear).route_layer(change())),
        (
            "/runtimes/{label}",
            put(define)
                .delete(remove)
                .route_layer(change())
                .merge(get(runtime).route_layer(read())),
        ),
        (
            "/runtimes/{label}/tokens",
            post(add_token).route_layer(change()),
        ),
        (
            "/runtimes/{label}/tokens/{id}",
            delete(revoke_token).route_layer(change()),
        ),
        (
            "/runtimes/{label}/disconnect",
            post(disconnect).route_layer(change()),
        ),
        ("/runtimes/{label}/drain", post(drain).route_layer(change())),
        (
            "/runtimes/{label}/revoke",
            post(revoke).route_layer(change()),
        ),
        (
            "/runtimes/{label}/exchanges",
            get(exchanges::exchanges).route_layer(only(Access::ReadPrivate)),
        ),
        ("/events", get(events).route_layer(read())),
        ("/openapi.json", get(description).route_layer(read())),
    ]
}

async fn authorize(
    State((api, access)): State<(Arc<Api>, Access)>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    api.check_access(access, request.headers())?;
    Ok(next.run(request).await)
}

async fn method_not_allowed() -> ApiError {
    let detail = "this path has no such method: see the Allow field";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

async fn status(State(api): State<Arc<Api>>) -> Json<ServerView> {
    let mut certificates = (api.certificates)();
    certificates.extend(api.acme.iter().flat_map(|acme| view::certificates(acme)));
    Json(view::server_view(
        &api.registry,
        &api.metrics,
        &api.config,
        &api.lifecycle,
        certificates,
        (api.limits)(),
    ))
}

/// Stops the server as a signal does. The response is the state before.
async fn drain_server(state: State<Arc<Api>>) -> Json<ServerView> {
    tracing::info!("the operator stops this server");
    state.lifecycle.request_shutdown();
    status(state).await
}

/// Has a new process take over. The response is the state before; `/status` shows what follows.
async fn upgrade_server(state: State<Arc<Api>>) -> Result<Json<ServerView>, ApiError> {
    let view = status(state.clone()).await;
    state.lifecycle.upgrades.request()?;
    Ok(view)
}

async fn config(State(api): State<Arc<Api>>) -> Json<ConfigView> {
    let view = view::config_view(&api.config, &api.authenticator, &api.metrics);
    Json(view)
}

async fn runtimes(
    State(api): State<Arc<Api>>,
    query: Result<Query<RuntimesQuery>, QueryRejection>,
) -> Result<Json<RuntimesPage>, ApiError> {
    let query = RuntimesQuery::check(query)?;
    let own = own_page(&api, &query);
    let (path, nothing) = (query.path(), Bytes::new());
    let answers = api.ask(query.scope, &Method::GET, &path, &nothing).await;
    let mut pages: Vec<RuntimesPage> = given(&answers);
    pages.push(own);
    let mut page = merge::page(pages, query.limit);
    page.unanswered = names(&answers);
    Ok(Json(page))
}

fn own_page(api: &Api, query: &RuntimesQuery) -> RuntimesPage {
    let (config, listed) = (api.config.load(), api.authenticator.runtimes());
    let entries = view::runtime_entries(&api.registry);
    let (after, account) = (query.after.as_deref(), query.account.as_deref());
    let mut runtimes: Vec<_> = entries
        .iter()
        .filter(|entry| after.is_none_or(|after| entry.label.as_str() > after))
        .filter(|entry| account.is_none_or(|name| entry.account.as_str() == name))
        .map(|entry| view::runtime_view(&api.registry, &config, &listed, entry))
        .filter(|view| query.online.is_none_or(|online| view.online == online))
        // One more than the limit, to know whether there is another page.
        .take(query.limit + 1)
        .collect();
    let is_last = runtimes.len() <= query.limit;
    runtimes.truncate(query.limit);
    let last = runtimes.last().filter(|_| !is_last);
    let next = last.map(|view| view.label.clone());
    RuntimesPage {
        runtimes,
        next,
        unanswered: Vec::new(),
    }
}

async fn runtime(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
    ScopeOf(scope): ScopeOf,
) -> Result<Json<RuntimeView>, ApiError> {
    let own = api.own_view(&label);
    let nothing = Bytes::new();
    let answers = api.ask_about(scope, &Method::GET, &label, "", &nothing);
    let answers = answers.await;
    let mut views: Vec<RuntimeView> = given(&answers);
    let unknown = own.map(|own| views.push(own)).err();
    merge::runtime(views).map(Json).ok_or_else(|| {
        unknown
            .unwrap_or(OperationError::RuntimeUnknown(label))
            .into()
    })
}

async fn define(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
    body: Bytes,
) -> Result<(StatusCode, Json<RuntimeView>), ApiError> {
    let managed = api.managed_for(&label)?;
    let status = managed::define(managed, &label, &body).await?;
    Ok((status, Json(api.own_view(&label)?)))
}

async fn remove(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
) -> Result<StatusCode, ApiError> {
    // A document may go, even where it is left out because the runtimes file has the label.
    let managed = match api.managed.as_ref().filter(|it| it.has(&label)) {
        Some(managed) => managed,
        None => api.managed_for(&label)?,
    };
    managed::remove(managed, &label).await
}

/// Removes all managed runtimes.
async fn clear(State(api): State<Arc<Api>>, body: Bytes) -> Result<Json<ClearedView>, ApiError> {
    let managed = api.managed.as_ref().ok_or_else(managed::unset)?;
    managed::clear(managed, &body).await.map(Json)
}

async fn add_token(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
    body: Bytes,
) -> Result<(StatusCode, Json<NewTokenView>), ApiError> {
    let made = managed::add_token(api.managed_for(&label)?, &label, &body).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

async fn revoke_token(
    State(api): State<Arc<Api>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    // Else the percent-decoded bytes are not UTF-8.
    let Ok(Path((label, id))) = path else {
        return Err(path_unknown().await);
    };
    managed::revoke_token(api.managed_for(&label)?, &label, &id).await
}

async fn events(State(api): State<Arc<Api>>, headers: HeaderMap) -> Response {
    let reader = match headers.get(LAST_EVENT_ID) {
        // An id that is not text was never issued.
        Some(id) => api.events.read_after(id.to_str().unwrap_or_default()),
        None => api.events.read(),
    };
    event_stream::response(reader, api.lifecycle.clone())
}

async fn description() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION)
}

/// The contents of answers that are of this type; the others have none to give.
fn given<T: DeserializeOwned>(answers: &Answers) -> Vec<T> {
    let good = answers
        .given
        .iter()
        .filter(|(status, _)| status.is_success());
    good.filter_map(|(_, content)| serde_json::from_slice(content).ok())
        .collect()
}

/// The names of the nodes that did not answer.
fn names(answers: &Answers) -> Vec<String> {
    answers.missing.iter().map(ToString::to_string).collect()
}

impl Api {
    /// A runtime as it is at this node.
    pub(super) fn own_view(&self, label: &str) -> Result<RuntimeView, OperationError> {
        let entry = view::runtime_entry(&self.registry, label)?;
        let (config, listed) = (self.config.load(), self.authenticator.runtimes());
        let view = view::runtime_in_full(&self.registry, &config, &listed, &entry);
        Ok(view)
    }

    /// The managed runtimes, to change the one with this label.
    fn managed_for(&self, label: &str) -> Result<&Arc<Managed>, ApiError> {
        managed::changeable(self.managed.as_ref(), &self.config.load(), label)
    }

    /// Asks the other nodes, if they are asked at all. `path` is relative to [`ROOT`].
    async fn ask(&self, scope: Scope, method: &Method, path: &str, content: &Bytes) -> Answers {
        match (scope, &self.peers) {
            (Scope::Node, _) => Answers::default(),
            (Scope::All, Some(peers)) => {
                let path = format!("{ROOT}{path}");
                peers.ask_all(method, &path, content).await
            }
            // There are no links, by which to ask them.
            (Scope::All, None) => Answers {
                given: Vec::new(),
                missing: nodes::others(self.registry.directory()),
            },
        }
    }

    /// Asks the other nodes about one runtime, at this path behind that of the runtime.
    async fn ask_about(
        &self,
        scope: Scope,
        method: &Method,
        label: &str,
        path: &str,
        content: &Bytes,
    ) -> Answers {
        match RuntimeLabel::parse(label) {
            Ok(label) => {
                let path = format!("/runtimes/{label}{path}?scope=node");
                self.ask(scope, method, &path, content).await
            }
            // No runtime has it, and it may be no valid part of a path.
            Err(_) => Answers::default(),
        }
    }

    fn check_access(&self, access: Access, headers: &HeaderMap) -> Result<(), ApiError> {
        let guard = self.guard.load();
        let is_open = match (self.reach, access) {
            (Reach::Nodes, _) | (Reach::Local, Access::Read) => true,
            (Reach::Local, Access::ReadPrivate) => guard.is_none(),
            (Reach::Local, Access::Change) | (Reach::Network, _) => false,
        };
        if is_open {
            return Ok(());
        }
        let Some(guard) = &*guard else {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "admin_token_unset",
                "this needs the admin token, and the server has none: set admin_token_file (--admin-token-file, \
                 TUNNEL_SERVER_ADMIN_TOKEN_FILE) to a file with a token that you choose, and give it to this command, too",
            ));
        };
        guard.check(headers).map_err(|error| ApiError {
            challenge: Some(error.challenge()),
            ..ApiError::new(StatusCode::UNAUTHORIZED, "admin_token_refused", error)
        })
    }
}

#[cfg(test)]
mod tests;
