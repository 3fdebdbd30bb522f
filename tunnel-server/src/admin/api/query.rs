//! Paths and queries of requests.

use axum::extract::{FromRequestParts, Path, Query, rejection::QueryRejection};
use http::{StatusCode, request::Parts};
use serde::Deserialize;

use crate::admin::refusal::{ApiError, path_unknown};

/// Default number of runtimes in a page.
const PAGE: usize = 100;

/// Most runtimes in a page: about 1 MB.
pub const PAGE_MAX: usize = 1_000;

/// The `{label}` of the path.
pub(super) struct PathLabel(pub(super) String);

/// The `scope` of the query, which has nothing else.
pub(super) struct ScopeOf(pub(super) Scope);

/// The server nodes that are asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Scope {
    /// All of them.
    #[default]
    All,
    /// This one alone.
    Node,
}

/// The query of a request about one runtime.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScopeQuery {
    #[serde(default)]
    scope: Scope,
}

/// The query of the list of runtimes.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuntimesQuery {
    #[serde(default)]
    pub(super) scope: Scope,
    pub(super) online: Option<bool>,
    pub(super) account: Option<String>,
    #[serde(default = "page")]
    pub(super) limit: usize,
    pub(super) after: Option<String>,
}

fn page() -> usize {
    PAGE
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

impl<S: Send + Sync> FromRequestParts<S> for ScopeOf {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<ScopeQuery>::from_request_parts(parts, state).await;
        query
            .map(|Query(query)| Self(query.scope))
            .map_err(|error| query_malformed(&error.body_text()))
    }
}

impl RuntimesQuery {
    /// Checks the query.
    pub(super) fn check(query: Result<Query<Self>, QueryRejection>) -> Result<Self, ApiError> {
        let Query(query) = query.map_err(|error| query_malformed(&error.body_text()))?;
        match query.limit {
            1..=PAGE_MAX => Ok(query),
            _ => Err(query_malformed("`limit` is a number from 1 to 1000")),
        }
    }

    /// The path and query of this list at another node.
    pub(super) fn path(&self) -> String {
        let path = "/runtimes?";
        let mut query = form_urlencoded::Serializer::for_suffix(path.to_owned(), path.len());
        query.append_pair("scope", "node");
        query.append_pair("limit", &self.limit.to_string());
        if let Some(online) = self.online {
            query.append_pair("online", &online.to_string());
        }
        for (name, value) in [("account", &self.account), ("after", &self.after)] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        query.finish()
    }
}

pub(super) fn query_malformed(detail: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "query_malformed", detail)
}
