//! `GET /api/v1/exchanges`: the live tail of this client's exchanges, for this machine only, as all of the [API](super::api).

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use tunnel_http::tail::Tails;
use tunnel_http::tail::stream::{self, TailRefusal};
use tunnel_ops::admin::AdminPeer;

use super::api::address_refused;

/// The path of the tail.
pub(super) const PATH: &str = "/api/v1/exchanges";

/// Answers with the exchanges of these tails.
pub(super) fn methods(tails: Arc<Tails>) -> MethodRouter {
    get(
        async move |Extension(peer): Extension<AdminPeer>, RawQuery(query)| {
            answer(&tails, peer, query.as_deref())
        },
    )
}

fn answer(tails: &Arc<Tails>, peer: AdminPeer, query: Option<&str>) -> Response {
    match peer.is_this_machine() {
        true => open(tails, query).into_response(),
        false => address_refused(),
    }
}

fn open(tails: &Arc<Tails>, query: Option<&str>) -> Result<Response, TailRefusal> {
    let filter = stream::filter_of(query.unwrap_or_default())?;
    let tail = tails.open(None, filter)?;
    Ok(stream::response(stream::events(tail)))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[tokio::test]
    async fn only_this_machine_is_answered() {
        let tails = Arc::new(Tails::default());
        let answer = |peer: &str, query| answer(&tails, AdminPeer(peer.parse().unwrap()), query);
        let refused = answer("192.0.2.1", None);
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert!(!tails.is_read());
        let answered = answer("127.0.0.1", Some("status=5xx"));
        assert!(answered.status() == StatusCode::OK && tails.is_read());
        drop(answered);
        assert!(!tails.is_read());
        let malformed = answer("127.0.0.1", Some("runtime=x"));
        assert_eq!(malformed.status(), StatusCode::BAD_REQUEST);
    }
}
