//! Refusals of the admin API, as responses.

use std::fmt::Display;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header::WWW_AUTHENTICATE};
use tunnel_ops::admin::AdminProblem;

use super::view::OperationError;
use crate::upgrades::UpgradeRefusal;

/// A request that is refused.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
    pub(super) detail: String,
    pub(super) challenge: Option<HeaderValue>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, reason: &'static str, detail: impl Display) -> Self {
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
        let mut response = problem.response(self.status);
        let challenge = self.challenge.map(|value| (WWW_AUTHENTICATE, value));
        response.headers_mut().extend(challenge);
        response
    }
}

impl From<UpgradeRefusal> for ApiError {
    fn from(refusal: UpgradeRefusal) -> Self {
        let reason = match refusal {
            UpgradeRefusal::Unavailable => "upgrade_unavailable",
            UpgradeRefusal::UnderWay(_) => "upgrade_under_way",
            UpgradeRefusal::Leaving => "server_stopping",
        };
        Self::new(StatusCode::CONFLICT, reason, refusal)
    }
}

impl From<OperationError> for ApiError {
    fn from(error: OperationError) -> Self {
        let (status, reason) = match &error {
            OperationError::RuntimeUnknown(_) => (StatusCode::NOT_FOUND, "runtime_unknown"),
            OperationError::CredentialUnknown(..) => (StatusCode::NOT_FOUND, "credential_unknown"),
            OperationError::RevocationsFull(_) => {
                (StatusCode::INSUFFICIENT_STORAGE, "revocations_full")
            }
        };
        Self::new(status, reason, error)
    }
}

pub(super) async fn path_unknown() -> ApiError {
    let detail = "no such path: try /metrics, /healthz, /readyz or /api/v1/openapi.json";
    ApiError::new(StatusCode::NOT_FOUND, "path_unknown", detail)
}
