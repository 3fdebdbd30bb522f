//! The routes of the admin API: which there are, who may use them, what they answer.
//!
//! In comes a request whose `Host` the listener has checked and whose body it has read; out comes the
//! answer. Reading is free on this machine, but for the configuration; from elsewhere, and for whatever changes
//! something, the admin token is needed. `ROUTES` is all there is, and `openapi.json` describes the same.

use std::{fmt::Display, sync::Arc};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use serde::{Deserialize, Serialize};
use tunnel_ops::admin::{AdminBody, BearerGuard};

use super::{
    DESCRIPTION, event_stream,
    view::{self, OperationError, RuntimeView, Which},
};
use crate::{
    auth::{Authenticator, CredentialId},
    config::live::LiveConfig,
    events::Events,
    lifecycle::Lifecycle,
    metrics::Metrics,
    registry::Registry,
};

/// Every route lies below this.
pub const ROOT: &str = "/api/v1";

/// Runtimes in a page when it is not said how many.
const PAGE: usize = 100;

/// Most runtimes in a page: about 1 MB.
pub const PAGE_MAX: usize = 1_000;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Runtimes in the order of their labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuntimesPage {
    /// These runtimes.
    pub runtimes: Vec<RuntimeView>,
    /// What `after` is for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What was done to a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationView {
    /// The runtime.
    pub label: String,
    /// How many sessions it was done to; none when the runtime is offline.
    pub sessions: usize,
}

/// Why something is not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminProblem {
    /// Why, as a stable name.
    pub reason: String,
    /// Why, for a person, and what to do about it.
    pub detail: String,
}

/// Answers what is asked below [`ROOT`].
pub(crate) struct Api {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// Without it nothing can be changed, and nothing be read from elsewhere.
    pub(crate) guard: Arc<ArcSwapOption<BearerGuard>>,
    /// Whether only this machine can ask.
    pub(crate) is_local: bool,
}

/// One route.
struct Route {
    method: Method,
    /// Below [`ROOT`]; `{label}` stands for one segment.
    path: &'static str,
    /// Whether even this machine needs the admin token, where there is one, to read it.
    is_private: bool,
    answer: Answer,
}

type Answer = fn(&Api, &Asked<'_>) -> Result<Response<AdminBody>, Refused>;

static ROUTES: [Route; 9] = [
    Route::get("/status", Api::status),
    Route::get_private("/config", Api::config),
    Route::get("/runtimes", Api::runtimes),
    Route::get("/runtimes/{label}", Api::runtime),
    Route::post("/runtimes/{label}/disconnect", Api::disconnect),
    Route::post("/runtimes/{label}/drain", Api::drain),
    Route::post("/runtimes/{label}/revoke", Api::revoke),
    Route::get("/events", Api::events),
    Route::get("/openapi.json", Api::description),
];

/// What a route needs of a request.
struct Asked<'a> {
    /// What stands in the path for `{label}`.
    label: &'a str,
    query: &'a str,
    headers: &'a HeaderMap,
    body: &'a [u8],
}

/// A request that is not answered as it wished.
struct Refused {
    status: StatusCode,
    reason: &'static str,
    detail: String,
    field: Option<(HeaderName, HeaderValue)>,
}

/// Which runtimes are asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted<'a> {
    online: Option<bool>,
    account: Option<&'a str>,
    limit: usize,
    after: Option<&'a str>,
}

/// The body of a revocation: exactly one of these, so that a script with an empty variable never revokes
/// more than it meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RevocationOrder {
    /// Every credential issued before now. Only `true` can be said.
    All(bool),
    /// The credential with this public id.
    Id(String),
}

impl Route {
    const fn get(path: &'static str, answer: Answer) -> Self {
        Self::new(Method::GET, path, false, answer)
    }

    const fn get_private(path: &'static str, answer: Answer) -> Self {
        Self::new(Method::GET, path, true, answer)
    }

    const fn post(path: &'static str, answer: Answer) -> Self {
        Self::new(Method::POST, path, true, answer)
    }

    const fn new(method: Method, path: &'static str, is_private: bool, answer: Answer) -> Self {
        Self {
            method,
            path,
            is_private,
            answer,
        }
    }

    /// What stands for `{label}` if this is the path, nothing when it has none.
    fn label<'a>(&self, path: &'a str) -> Option<&'a str> {
        let Some((before, after)) = self.path.split_once("{label}") else {
            return (self.path == path).then_some("");
        };
        let label = path.strip_prefix(before)?.strip_suffix(after)?;
        (!label.is_empty() && !label.contains('/')).then_some(label)
    }

    fn takes(&self, method: &Method) -> bool {
        self.method == *method || (self.method == Method::GET && *method == Method::HEAD)
    }
}

impl Api {
    /// The answer to a request.
    pub(crate) fn answer(&self, request: &Request<Bytes>) -> Response<AdminBody> {
        self.find(request)
            .unwrap_or_else(|refused| refused.response())
    }

    fn find(&self, request: &Request<Bytes>) -> Result<Response<AdminBody>, Refused> {
        let uri = request.uri();
        let path = uri.path().strip_prefix(ROOT).unwrap_or_default();
        let mut there = ROUTES
            .iter()
            .filter_map(|route| Some((route, route.label(path)?)))
            .peekable();
        if there.peek().is_none() {
            return Err(Refused::new(
                StatusCode::NOT_FOUND,
                "path_unknown",
                format_args!(
                    "there is nothing here: try /metrics, /healthz, /readyz or {ROOT}/openapi.json"
                ),
            ));
        }
        let mut allowed = Vec::new();
        for (route, label) in there {
            if !route.takes(request.method()) {
                allowed.push(&route.method);
                continue;
            }
            self.authorize(route, request.headers())?;
            let asked = Asked {
                label,
                query: uri.query().unwrap_or_default(),
                headers: request.headers(),
                body: request.body(),
            };
            return (route.answer)(self, &asked);
        }
        Err(Refused::method(&allowed))
    }

    /// Who may read what, and change what.
    fn authorize(&self, route: &Route, headers: &HeaderMap) -> Result<(), Refused> {
        let guard = self.guard.load();
        let is_free = !route.is_private || guard.is_none();
        if self.is_local && route.method == Method::GET && is_free {
            return Ok(());
        }
        let Some(guard) = &*guard else {
            return Err(Refused::new(
                StatusCode::FORBIDDEN,
                "admin_token_unset",
                "this needs the admin token, and the server was started without --admin-token-file",
            ));
        };
        guard.check(headers).map_err(|error| Refused {
            field: Some((WWW_AUTHENTICATE, error.challenge())),
            ..Refused::new(StatusCode::UNAUTHORIZED, "admin_token_refused", error)
        })
    }

    fn status(&self, _: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        Ok(json(
            StatusCode::OK,
            &view::server_view(&self.registry, &self.metrics, &self.config, &self.lifecycle),
        ))
    }

    fn config(&self, _: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        Ok(json(
            StatusCode::OK,
            &view::config_view(&self.config, &self.authenticator, &self.metrics),
        ))
    }

    fn runtimes(&self, asked: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        let wanted = Wanted::parse(asked.query)?;
        let config = self.config.load();
        let entries = view::runtime_entries(&self.registry);
        let mut runtimes: Vec<_> = entries
            .iter()
            .filter(|entry| {
                wanted
                    .after
                    .is_none_or(|after| entry.label.as_str() > after)
            })
            .filter(|entry| {
                wanted
                    .account
                    .is_none_or(|name| entry.account.as_str() == name)
            })
            .map(|entry| view::runtime_view(&self.registry, &config, entry))
            .filter(|view| wanted.online.is_none_or(|online| view.online == online))
            // One more, to see whether there is another page.
            .take(wanted.limit + 1)
            .collect();
        let is_last = runtimes.len() <= wanted.limit;
        runtimes.truncate(wanted.limit);
        let last = runtimes.last().filter(|_| !is_last);
        let next = last.map(|view| view.label.clone());
        Ok(json(StatusCode::OK, &RuntimesPage { runtimes, next }))
    }

    fn runtime(&self, asked: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        let entry = view::runtime_entry(&self.registry, asked.label)
            .ok_or_else(|| OperationError::RuntimeUnknown(asked.label.to_owned()))?;
        let view = view::runtime_with_routes(&self.registry, &self.config.load(), &entry);
        Ok(json(StatusCode::OK, &view))
    }

    fn disconnect(&self, asked: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        let sessions = view::disconnect(&self.registry, asked.label)?;
        Ok(done("disconnect", asked.label, sessions))
    }

    fn drain(&self, asked: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        let sessions = view::drain(&self.registry, asked.label)?;
        Ok(done("drain", asked.label, sessions))
    }

    fn revoke(&self, asked: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        let order = serde_json::from_slice(asked.body).map_err(|error| {
            let detail = format!("expected either {{\"id\": \"…\"}} or {{\"all\": true}}: {error}");
            Refused::new(StatusCode::BAD_REQUEST, "body_malformed", detail)
        })?;
        let which = RevocationOrder::which(order)
            .map_err(|detail| Refused::new(StatusCode::BAD_REQUEST, "body_malformed", detail))?;
        let sessions = view::revoke(
            &self.registry,
            &self.authenticator,
            &self.config.load(),
            asked.label,
            &which,
        )?;
        Ok(done("revoke", asked.label, sessions))
    }

    fn events(&self, asked: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        let reader = match asked.headers.get(LAST_EVENT_ID) {
            // An id that is not text is none that was ever given.
            Some(id) => self.events.read_after(id.to_str().unwrap_or_default()),
            None => self.events.read(),
        };
        let body = AdminBody::stream(event_stream::body(reader));
        Ok(response(StatusCode::OK, "text/event-stream", body))
    }

    fn description(&self, _: &Asked<'_>) -> Result<Response<AdminBody>, Refused> {
        let body = AdminBody::whole(DESCRIPTION);
        Ok(response(StatusCode::OK, "application/json", body))
    }
}

impl RevocationOrder {
    /// What is meant, or what is wrong with it.
    fn which(self) -> Result<Which, &'static str> {
        match self {
            Self::All(true) => Ok(Which::All),
            Self::All(false) => {
                Err("`all` can only be true: to revoke one credential, give its `id`")
            }
            // Whoever puts the whole token here has given it away, and would cut nobody off.
            Self::Id(id) if id.starts_with("tnlrt_") => {
                Err("`id` is the token's id, its 16 digits after `tnlrt_`, alone")
            }
            Self::Id(id) if !CredentialId::is_id(&id) => Err(CredentialId::EXPECTED),
            Self::Id(id) => Ok(Which::Credential(id)),
        }
    }
}

impl<'a> Wanted<'a> {
    /// Reads a query. Nothing in it needs to be percent-encoded, so that nothing is decoded.
    fn parse(query: &'a str) -> Result<Self, Refused> {
        let mut wanted = Self {
            online: None,
            account: None,
            limit: PAGE,
            after: None,
        };
        let wrong = |detail: &str| {
            let reason = "query_malformed";
            Err(Refused::new(StatusCode::BAD_REQUEST, reason, detail))
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("online", "true") => wanted.online = Some(true),
                ("online", "false") => wanted.online = Some(false),
                ("online", _) => return wrong("`online` is `true` or `false`"),
                ("account", account) => wanted.account = Some(account),
                ("after", label) => wanted.after = Some(label),
                ("limit", limit) => match limit.parse() {
                    Ok(limit @ 1..=PAGE_MAX) => wanted.limit = limit,
                    _ => return wrong("`limit` is a number from 1 to 1000"),
                },
                _ => return wrong("only `online`, `account`, `limit` and `after` can be given"),
            }
        }
        Ok(wanted)
    }
}

impl Refused {
    fn new(status: StatusCode, reason: &'static str, detail: impl Display) -> Self {
        Self {
            status,
            reason,
            detail: detail.to_string(),
            field: None,
        }
    }

    fn method(allowed: &[&Method]) -> Self {
        let mut names: Vec<_> = allowed.iter().map(|method| method.as_str()).collect();
        if names.contains(&"GET") {
            names.push("HEAD");
        }
        let names = names.join(", ");
        Self {
            // Names of methods are always a valid field value.
            field: HeaderValue::from_str(&names)
                .ok()
                .map(|value| (ALLOW, value)),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                format_args!("here can only be asked with {names}"),
            )
        }
    }

    fn response(self) -> Response<AdminBody> {
        let problem = AdminProblem {
            reason: self.reason.to_owned(),
            detail: self.detail,
        };
        let mut response = json(self.status, &problem);
        response.headers_mut().extend(self.field);
        response
    }
}

impl From<OperationError> for Refused {
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

fn done(operation: &'static str, label: &str, sessions: usize) -> Response<AdminBody> {
    tracing::info!(
        runtime = label,
        operation,
        sessions,
        "done for the operator"
    );
    let label = label.to_owned();
    json(StatusCode::OK, &OperationView { label, sessions })
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<AdminBody> {
    // Serialising plain values into memory has no way to fail.
    let text = serde_json::to_vec(value).unwrap_or_default();
    response(status, "application/json", AdminBody::whole(text))
}

fn response(status: StatusCode, kind: &'static str, body: AdminBody) -> Response<AdminBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
