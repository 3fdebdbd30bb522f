//! The access-log line of a request that was refused before there was an exchange.
//!
//! Nobody has checked what it says: so no more than the beginning of each part is told, and never a query, a
//! field's value other than the host and the two ids, or any content.

use std::net::IpAddr;

use http::header::{HOST, HeaderName};
use http::request::Parts;
use http::uri::Authority;

use tunnel_ops::telemetry::{TRACE_PARENT, TraceParent};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How much is told of each part of a request that nobody has checked, in bytes.
const UNCHECKED_BYTES: usize = 256;

/// Tells of a refused request. `head` is what came of it, if that could be read at all; `status`, `end` and
/// `detail` are what it was answered.
pub fn log_refused(head: Option<&Parts>, peer: IpAddr, status: u16, end: &str, detail: &str) {
    if !tracing::enabled!(target: "access", tracing::Level::INFO) {
        return;
    }
    let host = head.and_then(unchecked_host);
    let request_id = head.and_then(|head| head.headers.get(REQUEST_ID));
    let request_id = request_id.and_then(|id| id.to_str().ok());
    let trace = head.and_then(|head| head.headers.get(TRACE_PARENT));
    let trace = trace.and_then(|trace| TraceParent::parse(trace.as_bytes()));
    tracing::info!(
        target: "access",
        method = head.map(|head| beginning(head.method.as_str())),
        host = host.as_deref().map(beginning),
        path = head.map(|head| beginning(head.uri.path())),
        status,
        end,
        detail,
        request_id = request_id.map(beginning),
        trace_id = trace.as_ref().map(TraceParent::trace_id),
        %peer,
        "request refused"
    );
}

/// The host that an unchecked head names, without a name and a password that may stand before it.
fn unchecked_host(head: &Parts) -> Option<String> {
    if let Some(host) = head.uri.host() {
        return Some(host.to_owned());
    }
    let named = Authority::try_from(head.headers.get(HOST)?.as_bytes()).ok()?;
    Some(named.host().to_owned())
}

/// As much of a text as is told.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(UNCHECKED_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn of_an_unchecked_head_neither_a_password_nor_more_than_a_beginning_is_told() {
        let host = |request: http::request::Builder| {
            unchecked_host(&request.body(()).unwrap().into_parts().0)
        };
        let named = |host: &str| Request::get("/").header(HOST, host);
        assert_eq!(
            host(named("user:word@app.example:80")).unwrap(),
            "app.example"
        );
        let absolute = Request::get("http://user:word@app.example/x").header(HOST, "other");
        assert_eq!(host(absolute).unwrap(), "app.example");
        assert_eq!(host(named("user:word@")), None);
        assert_eq!(host(named("user word")), None);
        assert_eq!(host(Request::get("/")), None);
        assert_eq!(beginning("/short"), "/short");
        let long = format!("{}ü", "x".repeat(UNCHECKED_BYTES - 1));
        assert_eq!(beginning(&long), "x".repeat(UNCHECKED_BYTES - 1));
    }
}
