//! `GET /runtimes/{label}/exchanges`: the live tail of one runtime, on this node and on the others.

use std::sync::Arc;

use axum::{
    extract::{RawQuery, State},
    response::Response,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Method;
use tunnel_http::tail::{
    TailFilter,
    stream::{self as tail_stream, TailRefusal},
};

use super::{Api, ApiError, PathLabel, ROOT, Reach, Scope, given, query_malformed};
use crate::admin::{
    event_stream::of_process,
    other_tails,
    view::{self, RuntimeView},
};

pub(super) async fn exchanges(
    State(api): State<Arc<Api>>,
    PathLabel(label): PathLabel,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let (scope, filter) = read(query.as_deref().unwrap_or_default())?;
    // Another node asks each node, of which few have the runtime now.
    if api.reach != Reach::Nodes {
        is_known(&api, &label, scope).await?;
    }
    let tail = api.tails.open(Some(&label), filter.clone());
    let tail = tail.map_err(TailRefusal::from)?;
    let own = tail_stream::events(tail);
    let events = match (scope, &api.peers) {
        (Scope::All, Some(peers)) => {
            let path = path_at_other(&label, &filter);
            let others = other_tails::events(peers.clone(), path);
            stream::select(own, others).boxed()
        }
        _ => own.boxed(),
    };
    let lifecycle = api.lifecycle.clone();
    if api.reach != Reach::Nodes {
        return Ok(tail_stream::response(of_process(events, lifecycle)));
    }
    // A link is at rest before it ends.
    let ends = Box::pin(async move { lifecycle.stopping().requested().await });
    Ok(tail_stream::response(events.take_until(ends)))
}

/// The scope and the filter of a query.
fn read(query: &str) -> Result<(Scope, TailFilter), ApiError> {
    let mut scope = Scope::All;
    let mut others = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("scope", "all") => scope = Scope::All,
            ("scope", "node") => scope = Scope::Node,
            ("scope", _) => return Err(query_malformed("`scope` is `all` or `node`")),
            _ => others.push((name, value)),
        }
    }
    Ok((scope, tail_stream::filter(others)?))
}

impl From<TailRefusal> for ApiError {
    fn from(refusal: TailRefusal) -> Self {
        Self::new(refusal.status, refusal.reason, refusal.detail)
    }
}

/// Whether this node knows the runtime, or another one does.
async fn is_known(api: &Api, label: &str, scope: Scope) -> Result<(), ApiError> {
    let Err(unknown) = view::runtime_entry(&api.registry, label) else {
        return Ok(());
    };
    let nothing = Bytes::new();
    let answers = api.ask_about(scope, &Method::GET, label, "", &nothing);
    let views: Vec<RuntimeView> = given(&answers.await);
    match views.is_empty() {
        true => Err(unknown.into()),
        false => Ok(()),
    }
}

fn path_at_other(label: &str, filter: &TailFilter) -> String {
    let path = format!("{ROOT}/runtimes/{label}/exchanges?");
    let length = path.len();
    let mut query = form_urlencoded::Serializer::for_suffix(path, length);
    query.append_pair("scope", "node");
    filter.append_to(&mut query);
    query.finish()
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn a_query_has_a_scope_and_a_filter() {
        let (scope, filter) = read("").unwrap();
        assert_eq!((scope, &filter), (Scope::All, &TailFilter::default()));
        let (scope, filter) = read("status=5xx&path=%2Fapi&scope=node&end=session_lost").unwrap();
        assert_eq!(scope, Scope::Node);
        let path = path_at_other("acme-prod", &filter);
        assert_eq!(
            path,
            "/api/v1/runtimes/acme-prod/exchanges?scope=node&status=5xx&path=%2Fapi&end=session_lost"
        );
        for query in ["scope=all-of-them", "status=6xx", "stauts=503", "status"] {
            let error = read(query).unwrap_err();
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{query}");
            assert_eq!(error.reason, "query_malformed");
        }
    }
}
