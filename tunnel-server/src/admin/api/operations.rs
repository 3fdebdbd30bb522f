//! Operations on a runtime: disconnect, drain, revoke. They are done at this node and at all others.

use std::{fmt::Display, future::ready, sync::Arc};

use axum::{Json, extract::State};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};

use super::{
    Api, ApiError, given, names,
    query::{PathLabel, Scope, ScopeOf},
};
use crate::{
    admin::view::{self, Operated, OperationError, RevocationScope},
    auth::CredentialId,
    timestamp::Timestamp,
};

/// The result of an operation on a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationView {
    /// The runtime.
    pub label: String,
    /// The number of affected sessions; 0 if the runtime is offline.
    pub sessions: usize,
    /// Of a revocation of all credentials: those that were issued before this moment are refused, a whole second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_before: Option<Timestamp>,
    /// Of a revocation: whether it is kept, so that it holds at all nodes, those in `unanswered` included, and after restarts. Else
    /// it is in force at the nodes that have answered, until each is restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
    /// The server nodes that did not answer, so that it may not be done there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<String>,
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

pub(super) async fn disconnect(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
    ScopeOf(scope): ScopeOf,
) -> Result<Json<OperationView>, ApiError> {
    let own = ready(view::disconnect(&api.registry, &label).map(Operated::from));
    api.operate("disconnect", label, scope, own, &Bytes::new())
        .await
}

pub(super) async fn drain(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
    ScopeOf(scope): ScopeOf,
) -> Result<Json<OperationView>, ApiError> {
    let own = ready(view::drain(&api.registry, &label).map(Operated::from));
    api.operate("drain", label, scope, own, &Bytes::new()).await
}

pub(super) async fn revoke(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
    ScopeOf(scope): ScopeOf,
    body: Bytes,
) -> Result<Json<OperationView>, ApiError> {
    let malformed =
        |detail: &dyn Display| ApiError::new(StatusCode::BAD_REQUEST, "body_malformed", detail);
    let request = serde_json::from_slice(&body).map_err(|error| {
        malformed(&format_args!(
            "expected either {{\"id\": \"…\"}} or {{\"all\": true}}: {error}"
        ))
    })?;
    let what = RevocationRequest::scope(request).map_err(|detail| malformed(&detail))?;
    let own = api.revoke(label.clone(), what);
    api.operate("revoke", label, scope, own, &body).await
}

impl Api {
    /// Revokes at this node, and keeps that where revocations are kept.
    async fn revoke(
        &self,
        label: String,
        what: RevocationScope,
    ) -> Result<Operated, OperationError> {
        let revocation = view::revocation(&self.registry, &self.authenticator, &label, &what);
        let (operated, pair, revoked) = revocation?;
        // The sessions notice the change themselves, and report it.
        let durable = self.revocations.revoke(pair, revoked).await?;
        Ok(Operated {
            durable: Some(durable),
            ..operated
        })
    }

    /// Has the other nodes do what this one does.
    async fn operate(
        &self,
        operation: &'static str,
        label: String,
        scope: Scope,
        own: impl Future<Output = Result<Operated, OperationError>>,
        content: &Bytes,
    ) -> Result<Json<OperationView>, ApiError> {
        let path = format!("/{operation}");
        let answers = self.ask_about(scope, &Method::POST, &label, &path, content);
        let (own, answers) = tokio::join!(own, answers);
        let others: Vec<OperationView> = given(&answers);
        if others.is_empty() || !matches!(own, Err(OperationError::RuntimeUnknown(_))) {
            own.as_ref().map_err(Clone::clone)?;
        }
        let Operated {
            sessions,
            issued_before: own_before,
            durable: own_durable,
        } = own.unwrap_or_default();
        let sessions = others
            .iter()
            .fold(sessions, |sum, view| sum + view.sessions);
        // The nodes were asked one after the other.
        let issued_before = others.iter().map(|view| view.issued_before);
        let issued_before = issued_before.fold(own_before, Option::max);
        let durable = others.iter().filter_map(|view| view.durable);
        let durable = own_durable.into_iter().chain(durable).max();
        tracing::info!(
            runtime = label,
            operation,
            sessions,
            "the operator has changed a runtime"
        );
        Ok(Json(OperationView {
            label,
            sessions,
            issued_before,
            durable,
            unanswered: names(&answers),
        }))
    }
}

impl RevocationRequest {
    /// The scope of the revocation, or the fault of the body.
    pub(super) fn scope(self) -> Result<RevocationScope, &'static str> {
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
