//! Requests that the listener refuses before it calls the program's handler.
//!
//! In comes a path; out comes the refusal in the language spoken there: JSON with a stable name below
//! `/api`, where programs ask, and a line of text elsewhere, where people and probes do.

use axum::body::Body;
use axum::response::IntoResponse;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

/// A request that is not answered as it wished.
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
        "not a host name of this listener: ask by IP address or as localhost, or allow the name in its settings",
    );

    /// A browser asks for a page.
    pub(super) const ORIGIN: Self = Self::new(
        StatusCode::FORBIDDEN,
        "origin_refused",
        "not from a web page",
    );

    /// More content than is read.
    pub(super) const TOO_LARGE: Self = Self::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        "at most 64 KiB of content",
    );

    /// Content that ends before its end.
    pub(super) const CUT: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "body_malformed",
        "the content is cut or malformed",
    );

    /// Content that does not come.
    pub(super) const TOO_SLOW: Self = Self::new(
        StatusCode::REQUEST_TIMEOUT,
        "body_too_slow",
        "the content came too slowly",
    );

    /// No place for another stream.
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
