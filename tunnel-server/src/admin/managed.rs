//! The operations of the admin API on managed runtimes and their tokens.
//!
//! In: the label of the path, and the body. Out: the state after the change, which is durable and in force at this node. A
//! token's secret is in the answer to its making, and nowhere else.

use std::{sync::Arc, time::SystemTime};

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tunnel_directory::RuntimeLabel;

use super::{refusal::ApiError, view::OperationError};
use crate::{
    config::Config,
    managed::{Changed, Managed, ManagedError, NewToken},
    timestamp::Timestamp,
    token::TokenId,
};

/// A token that was made now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTokenView {
    /// Its public id.
    pub id: String,
    /// The token itself, which is not shown again.
    pub token: String,
    /// When it expires; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearedView {
    /// The number of managed runtimes that were there.
    pub removed: usize,
}

/// The body of a removal of all: `true` alone, so that no slip removes them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClearRequest {
    pub(crate) all: bool,
}

/// Makes a runtime, or replaces its definition. Returns the status that says which.
pub(super) async fn define(
    managed: &Arc<Managed>,
    label: &str,
    body: &Bytes,
) -> Result<StatusCode, ApiError> {
    let (status, operation) = match managed.define(label, &parsed(body)?).await? {
        Changed::Made => (StatusCode::CREATED, "make"),
        Changed::Replaced => (StatusCode::OK, "replace"),
    };
    log(label, operation);
    Ok(status)
}

pub(super) async fn remove(managed: &Arc<Managed>, label: &str) -> Result<StatusCode, ApiError> {
    managed.remove(label).await?;
    log(label, "remove");
    Ok(StatusCode::NO_CONTENT)
}

/// Removes all managed runtimes with their tokens.
pub(super) async fn clear(managed: &Arc<Managed>, body: &Bytes) -> Result<ClearedView, ApiError> {
    let request: ClearRequest = parsed(body)?;
    if !request.all {
        let detail = "`all` can only be true".to_owned();
        return Err(ManagedError::Malformed(detail).into());
    }
    let removed = managed.remove_all().await?;
    tracing::info!(removed, "the operator has removed all managed runtimes");
    Ok(ClearedView { removed })
}

pub(super) async fn add_token(
    managed: &Arc<Managed>,
    label: &str,
    body: &Bytes,
) -> Result<NewTokenView, ApiError> {
    let new: NewToken = match body.is_empty() {
        true => NewToken::default(),
        false => parsed(body)?,
    };
    let expires = new.moment()?.map(SystemTime::from);
    let token = managed.add_token(label, &new).await?;
    tracing::info!(runtime = label, token = %token.id(), "the operator has made a token");
    Ok(NewTokenView {
        id: token.id().to_string(),
        token: token.expose().to_owned(),
        expires: expires.map(Timestamp::from),
    })
}

pub(super) async fn revoke_token(
    managed: &Arc<Managed>,
    label: &str,
    id: &str,
) -> Result<StatusCode, ApiError> {
    let Ok(id) = id.parse::<TokenId>() else {
        // It is not repeated, since it may be a whole token.
        let detail = "a token's id is its 16 digits after `tnlrt_`";
        let (status, reason) = (StatusCode::NOT_FOUND, "credential_unknown");
        return Err(ApiError::new(status, reason, detail));
    };
    managed.revoke_token(label, id).await?;
    tracing::info!(runtime = label, token = %id, "the operator has revoked a token");
    Ok(StatusCode::NO_CONTENT)
}

/// The managed runtimes, unless there are none, or the runtimes file has the label.
pub(super) fn changeable<'a>(
    managed: Option<&'a Arc<Managed>>,
    config: &Config,
    label: &str,
) -> Result<&'a Arc<Managed>, ApiError> {
    let managed = managed.ok_or_else(unset)?;
    let label = RuntimeLabel::parse(label).ok();
    match label.filter(|label| config.runtimes.get(label).is_some()) {
        Some(label) => Err(ApiError::new(
            StatusCode::CONFLICT,
            "runtime_listed",
            format_args!("the runtimes file has `{label}`: change it there"),
        )),
        None => Ok(managed),
    }
}

/// There is no place for managed runtimes.
pub(super) fn unset() -> ApiError {
    let detail = "the server was started without --managed-runtimes, where such runtimes are kept";
    ApiError::new(StatusCode::CONFLICT, "managed_unset", detail)
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ManagedError::Malformed(error.to_string()).into())
}

fn log(runtime: &str, operation: &str) {
    tracing::info!(
        runtime,
        operation,
        "the operator has changed a managed runtime"
    );
}

impl From<ManagedError> for ApiError {
    fn from(error: ManagedError) -> Self {
        let (status, reason) = match &error {
            ManagedError::Unknown(label) => {
                return OperationError::RuntimeUnknown(label.clone()).into();
            }
            ManagedError::TokenUnknown { .. } => (StatusCode::NOT_FOUND, "credential_unknown"),
            ManagedError::Malformed(_) => (StatusCode::BAD_REQUEST, "body_malformed"),
            ManagedError::Conflict(_) => (StatusCode::CONFLICT, "runtime_conflict"),
            ManagedError::Faulty(_) => (StatusCode::CONFLICT, "document_faulty"),
            ManagedError::TokensFull(_) => (StatusCode::CONFLICT, "tokens_full"),
            ManagedError::Full => (StatusCode::INSUFFICIENT_STORAGE, "runtimes_full"),
            ManagedError::Unread
            | ManagedError::Store(_)
            | ManagedError::Contended
            | ManagedError::NotInForce
            | ManagedError::Random(_) => (StatusCode::SERVICE_UNAVAILABLE, "managed_unavailable"),
        };
        Self::new(status, reason, error)
    }
}
