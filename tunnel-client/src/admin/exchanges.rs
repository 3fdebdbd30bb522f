//! `GET /api/v1/exchanges`: the live tail of this client's exchanges.
//!
//! It names paths of requests, and a client has no admin token: only this machine is answered.

use std::sync::Arc;

use axum::{
    Extension,
    extract::RawQuery,
    response::Response,
    routing::{MethodRouter, get},
};
use http::StatusCode;
use tunnel_http::tail::{
    Tails,
    stream::{self, TailRefusal},
};
use tunnel_ops::admin::AdminPeer;

/// The path of the tail.
pub(super) const PATH: &str = "/api/v1/exchanges";

/// Answers with the exchanges of these tails.
pub(super) fn methods(tails: Arc<Tails>) -> MethodRouter {
    get(async move |Extension(AdminPeer(peer)), RawQuery(query)| {
        answer(&tails, peer.is_loopback(), query.as_deref())
    })
}

fn answer(
    tails: &Arc<Tails>,
    is_local: bool,
    query: Option<&str>,
) -> Result<Response, TailRefusal> {
    if !is_local {
        return Err(TailRefusal {
            status: StatusCode::FORBIDDEN,
            reason: "address_refused",
            detail: "exchanges are shown on the client's own machine only: run `tunnel-client tail` there"
                .to_owned(),
        });
    }
    let filter = stream::filter_of(query.unwrap_or_default())?;
    let tail = tails.open(None, filter)?;
    Ok(stream::response(stream::events(tail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_answered() {
        let tails = Arc::new(Tails::default());
        let refused = answer(&tails, false, None).unwrap_err();
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
        assert!(!tails.is_read());
        let answered = answer(&tails, true, Some("status=5xx")).unwrap();
        assert!(tails.is_read());
        drop(answered);
        assert!(!tails.is_read());
        let malformed = answer(&tails, true, Some("runtime=x")).unwrap_err();
        assert_eq!(malformed.status, StatusCode::BAD_REQUEST);
    }
}
