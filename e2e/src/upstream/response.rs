//! Responses of [`super::Upstream`] that are made at once: a status, a text, JSON.

use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full};

use super::Body;

/// A status with a short text, where it may have one.
pub(super) fn status(status: StatusCode) -> Response<Body> {
    let empty = status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    let text = if empty {
        String::new()
    } else {
        format!("status {}\n", status.as_u16())
    };
    let mut response = Response::new(text_body(text));
    *response.status_mut() = status;
    if status == StatusCode::NOT_MODIFIED {
        response
            .headers_mut()
            .insert(header::ETAG, HeaderValue::from_static("\"a\""));
    }
    if status.is_redirection() {
        response
            .headers_mut()
            .insert(header::LOCATION, HeaderValue::from_static("/echo?moved"));
    }
    response
}

pub(super) fn json(value: &impl serde::Serialize) -> Response<Body> {
    let mut response = Response::new(text_body(serde_json::to_string(value).unwrap()));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A whole text as a content.
pub(super) fn text_body(text: String) -> Body {
    if text.is_empty() {
        return Empty::new().map_err(|never| match never {}).boxed_unsync();
    }
    Full::from(text)
        .map_err(|never| match never {})
        .boxed_unsync()
}
