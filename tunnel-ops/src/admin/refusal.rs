//! Requests that the listener refuses before it calls the program's handler.
//!
//! In: a refusal and the path of the request. Out: the response: JSON with a stable name below `/api`, which programs
//! request, and a line of text elsewhere, for people and probes.

use axum::body::Body;
use axum::response::IntoResponse;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

/// Why a request is refused, and the response's parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    status: StatusCode,
    reason: &'static str,
    detail: &'static str,
    /// In seconds.
    retry_after: Option<&'static str>,
}

impl Refusal {
    /// The request's host is not a name of the listener.
    pub(super) const HOST: Self = Self::new(
        StatusCode::MISDIRECTED_REQUEST,
        "host_unknown",
        "not a host name of this listener: use an IP address or localhost, or allow the name by --admin-host",
    );

    /// The request was made by a web page in a browser.
    pub(super) const ORIGIN: Self = Self::new(
        StatusCode::FORBIDDEN,
        "origin_refused",
        "requests of other web pages are not answered",
    );

    /// The content exceeds the limit.
    pub(super) const TOO_LARGE: Self = Self::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        "the content is larger than 64 KiB",
    );

    /// The content is cut, or breaks the rules of HTTP.
    pub(super) const CUT: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "body_malformed",
        "the content is cut or malformed",
    );

    /// The content does not arrive in time.
    pub(super) const TOO_SLOW: Self = Self::new(
        StatusCode::REQUEST_TIMEOUT,
        "body_too_slow",
        "the content came too slowly",
    );

    /// There is no permit for another event stream.
    pub(super) const STREAMS: Self = Self {
        retry_after: Some("10"),
        ..Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_streams",
            "too many streams are open: close one, or try again later",
        )
    };

    const fn new(status: StatusCode, reason: &'static str, detail: &'static str) -> Self {
        Self {
            status,
            reason,
            detail,
            retry_after: None,
        }
    }

    /// The response to a request for this path.
    pub(super) fn at(self, path: &str) -> Response<Body> {
        let Self { reason, detail, .. } = self;
        let is_api = path == "/api" || path.starts_with("/api/");
        let mut response = match is_api {
            true => {
                let text = serde_json::json!({ "reason": reason, "detail": detail }).to_string();
                ([(CONTENT_TYPE, "application/json")], text).into_response()
            }
            false => format!("{detail}\n").into_response(),
        };
        *response.status_mut() = self.status;
        if let Some(seconds) = self.retry_after {
            let seconds = HeaderValue::from_static(seconds);
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response
    }
}
