//! The routes of the admin API, their access rules, and their responses.
//!
//! In: a request whose `Host` the listener has checked and whose body it has read. Out: the response. Reading needs no
//! token on the local machine, except the configuration; from other machines, and for changes, the admin token is
//! required. `routes` is the complete list, and `openapi.json` describes it.

use std::{fmt::Display, sync::Arc};

use arc_swap::ArcSwapOption;
use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, Query, Request, State, rejection::QueryRejection},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CONTENT_TYPE, WWW_AUTHENTICATE},
    request::Parts,
};
use serde::{Deserialize, Serialize};
use tunnel_ops::admin::BearerGuard;

use super::{
    DESCRIPTION, event_stream,
    view::{self, ConfigView, OperationError, RevocationScope, RuntimeView, ServerView},
};
use crate::{
    auth::{Authenticator, CredentialId},
    config::live::LiveConfig,
    events::Events,
    lifecycle::Lifecycle,
    metrics::Metrics,
    registry::Registry,
};

/// The prefix of all routes.
pub const ROOT: &str = "/api/v1";

/// The number of routes.
const ROUTES: usize = 10;

/// Default number of runtimes in a page.
const PAGE: usize = 100;

/// Most runtimes in a page: about 1 MB.
pub const PAGE_MAX: usize = 1_000;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Runtimes in the order of their labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuntimesPage {
    /// These runtimes.
    pub runtimes: Vec<RuntimeView>,
    /// The value of `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The result of an operation on a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationView {
    /// The runtime.
    pub label: String,
    /// The number of affected sessions; 0 if the runtime is offline.
    pub sessions: usize,
}

/// The body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminProblem {
    /// The reason, as a stable name.
    pub reason: String,
    /// The reason for people, and what to do about it.
    pub detail: String,
}

/// The parts of the server that the admin API uses.
pub(crate) struct Api {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// Checks the admin token. Without it nothing can be changed, or read from other machines.
    pub(crate) guard: Arc<ArcSwapOption<BearerGuard>>,
    /// Whether only the local machine can reach the listener.
    pub(crate) is_local: bool,
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

/// The `{label}` of the path.
struct PathLabel(String);

/// A request that is refused.
#[derive(Debug)]
struct ApiError {
    status: StatusCode,
    reason: &'static str,
    detail: String,
    challenge: Option<HeaderValue>,
}

/// The query of the list of runtimes.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuntimesQuery {
    online: Option<bool>,
    account: Option<String>,
    #[serde(default = "page")]
    limit: usize,
    after: Option<String>,
}

fn page() -> usize {
    PAGE
}

/// The body of a revocation: exactly one of these, so that a script with an empty variable does not revoke more than
/// intended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RevocationRequest {
    /// Every credential issued before now. Only `true` is allowed.
    All(bool),
    /// The credential with this public id.
    Id(String),
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
        ("/runtimes", get(runtimes).route_layer(read())),
        ("/runtimes/{label}", get(runtime).route_layer(read())),
        (
            "/runtimes/{label}/disconnect",
            post(disconnect).route_layer(change()),
        ),
        ("/runtimes/{label}/drain", post(drain).route_layer(change())),
        (
            "/runtimes/{label}/revoke",
            post(revoke).route_layer(change()),
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

async fn path_unknown() -> ApiError {
    let detail = format!("no such path: try /metrics, /healthz, /readyz or {ROOT}/openapi.json");
    ApiError::new(StatusCode::NOT_FOUND, "path_unknown", detail)
}

async fn method_not_allowed() -> ApiError {
    let detail = "this path has no such method: see the Allow field";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

async fn status(State(api): State<Arc<Api>>) -> Json<ServerView> {
    let view = view::server_view(&api.registry, &api.metrics, &api.config, &api.lifecycle);
    Json(view)
}

/// Stops the server as a signal does. The response is the state before.
async fn drain_server(state: State<Arc<Api>>) -> Json<ServerView> {
    tracing::info!("the operator stops this server");
    state.lifecycle.request_shutdown();
    status(state).await
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
    let config = api.config.load();
    let entries = view::runtime_entries(&api.registry);
    let (after, account) = (query.after.as_deref(), query.account.as_deref());
    let mut runtimes: Vec<_> = entries
        .iter()
        .filter(|entry| after.is_none_or(|after| entry.label.as_str() > after))
        .filter(|entry| account.is_none_or(|name| entry.account.as_str() == name))
        .map(|entry| view::runtime_view(&api.registry, &config, entry))
        .filter(|view| query.online.is_none_or(|online| view.online == online))
        // One more than the limit, to know whether there is another page.
        .take(query.limit + 1)
        .collect();
    let is_last = runtimes.len() <= query.limit;
    runtimes.truncate(query.limit);
    let last = runtimes.last().filter(|_| !is_last);
    let next = last.map(|view| view.label.clone());
    Ok(Json(RuntimesPage { runtimes, next }))
}

async fn runtime(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
) -> Result<Json<RuntimeView>, ApiError> {
    let entry = view::runtime_entry(&api.registry, &label)?;
    let view = view::runtime_with_routes(&api.registry, &api.config.load(), &entry);
    Ok(Json(view))
}

async fn disconnect(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
) -> Result<Json<OperationView>, ApiError> {
    let sessions = view::disconnect(&api.registry, &label)?;
    Ok(done("disconnect", label, sessions))
}

async fn drain(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
) -> Result<Json<OperationView>, ApiError> {
    let sessions = view::drain(&api.registry, &label)?;
    Ok(done("drain", label, sessions))
}

async fn revoke(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
    body: Bytes,
) -> Result<Json<OperationView>, ApiError> {
    let malformed =
        |detail: &dyn Display| ApiError::new(StatusCode::BAD_REQUEST, "body_malformed", detail);
    let request = serde_json::from_slice(&body).map_err(|error| {
        malformed(&format_args!(
            "expected either {{\"id\": \"…\"}} or {{\"all\": true}}: {error}"
        ))
    })?;
    let scope = RevocationRequest::scope(request).map_err(|detail| malformed(&detail))?;
    let (registry, authenticator) = (&api.registry, &api.authenticator);
    let sessions = view::revoke(registry, authenticator, &api.config.load(), &label, &scope)?;
    Ok(done("revoke", label, sessions))
}

async fn events(State(api): State<Arc<Api>>, headers: HeaderMap) -> Response {
    let reader = match headers.get(LAST_EVENT_ID) {
        // An id that is not text was never issued.
        Some(id) => api.events.read_after(id.to_str().unwrap_or_default()),
        None => api.events.read(),
    };
    event_stream::response(reader).into_response()
}

async fn description() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION)
}

fn done(operation: &'static str, label: String, sessions: usize) -> Json<OperationView> {
    tracing::info!(
        runtime = label,
        operation,
        sessions,
        "the operator has changed a runtime"
    );
    Json(OperationView { label, sessions })
}

impl Api {
    fn check_access(&self, access: Access, headers: &HeaderMap) -> Result<(), ApiError> {
        let guard = self.guard.load();
        let is_open = match access {
            Access::Read => self.is_local,
            Access::ReadPrivate => self.is_local && guard.is_none(),
            Access::Change => false,
        };
        if is_open {
            return Ok(());
        }
        let Some(guard) = &*guard else {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "admin_token_unset",
                "this needs the admin token, and the server was started without --admin-token-file",
            ));
        };
        guard.check(headers).map_err(|error| ApiError {
            challenge: Some(error.challenge()),
            ..ApiError::new(StatusCode::UNAUTHORIZED, "admin_token_refused", error)
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathLabel {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(label)) => Ok(Self(label)),
            // The percent-decoded bytes are not UTF-8.
            Err(_) => Err(path_unknown().await),
        }
    }
}

impl RevocationRequest {
    /// The scope of the revocation, or the fault of the body.
    fn scope(self) -> Result<RevocationScope, &'static str> {
        match self {
            Self::All(true) => Ok(RevocationScope::All),
            Self::All(false) => {
                Err("`all` can only be true: to revoke one credential, give its `id`")
            }
            // The whole token would disclose its secret, and would match no credential.
            Self::Id(id) if id.starts_with("tnlrt_") => {
                Err("`id` is the token's id, its 16 digits after `tnlrt_`, alone")
            }
            Self::Id(id) if !CredentialId::is_id(&id) => Err(CredentialId::EXPECTED),
            Self::Id(id) => Ok(RevocationScope::Credential(id)),
        }
    }
}

impl RuntimesQuery {
    /// Checks the query.
    fn check(query: Result<Query<Self>, QueryRejection>) -> Result<Self, ApiError> {
        let malformed =
            |detail: &str| ApiError::new(StatusCode::BAD_REQUEST, "query_malformed", detail);
        let Query(query) = query.map_err(|error| malformed(&error.body_text()))?;
        match query.limit {
            1..=PAGE_MAX => Ok(query),
            _ => Err(malformed("`limit` is a number from 1 to 1000")),
        }
    }
}

impl ApiError {
    fn new(status: StatusCode, reason: &'static str, detail: impl Display) -> Self {
        Self {
            status,
            reason,
            detail: detail.to_string(),
            challenge: None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let problem = AdminProblem {
            reason: self.reason.to_owned(),
            detail: self.detail,
        };
        let mut response = (self.status, Json(problem)).into_response();
        let challenge = self.challenge.map(|value| (WWW_AUTHENTICATE, value));
        response.headers_mut().extend(challenge);
        response
    }
}

impl From<OperationError> for ApiError {
    fn from(error: OperationError) -> Self {
        let (status, reason) = match &error {
            OperationError::RuntimeUnknown(_) => (StatusCode::NOT_FOUND, "runtime_unknown"),
            OperationError::RevocationsFull(_) => {
                (StatusCode::INSUFFICIENT_STORAGE, "revocations_full")
            }
        };
        Self::new(status, reason, error)
    }
}

#[cfg(test)]
mod tests;
