//! Responses to platform clients: that of the upstream, or one of the program itself.
//!
//! This module makes the heads, `problem` the responses to what failed, and [`ResponseBody`] is the content.

mod accept;
mod body;
mod page;
mod problem;

use bytes::{BufMut, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, response::Parts};

use tunnel_proto::fields;

pub use self::body::ResponseBody;
pub use self::page::{BadPage, ProblemPage};
pub use self::problem::{ProblemAnswers, ProblemDetail, ProblemRequest};

/// A response of the program itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnResponse {
    /// The status.
    pub status: StatusCode,
    /// The fields, without those that HTTP libraries add.
    pub headers: HeaderMap,
    /// The content.
    pub content: String,
}

/// The content that a response has by its method and status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseContent {
    /// The received content.
    Received,
    /// None.
    None,
    /// None, but a `Content-Length`. Over HTTP/1 hyper keeps that field only if the body does not report its end.
    LengthOnly,
}

/// Converts a received response's head to the one that is forwarded, without connection-specific fields.
///
/// # Errors
/// A description, if the status or the length is not valid.
fn make_response(
    parts: &mut Parts,
    method: &Method,
    is_http1: bool,
) -> Result<ResponseContent, &'static str> {
    let status = parts.status;
    if !(200..=599).contains(&status.as_u16()) {
        return Err("a status that no response has");
    }
    // RFC 9110 section 8.6: no length on 204.
    let length = fields::content_length(&parts.headers)
        .map_err(|_| "a content-length that is no length")?
        .filter(|_| status != StatusCode::NO_CONTENT);
    let content = match status {
        // RFC 9110 section 6.4.1: no content, whatever the fields say.
        StatusCode::NOT_MODIFIED if is_http1 && length.is_some() => ResponseContent::LengthOnly,
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => ResponseContent::None,
        _ if *method == Method::HEAD => ResponseContent::None,
        _ => ResponseContent::Received,
    };
    keep_end_to_end(&mut parts.headers);
    match length {
        Some(length) => set_length(&mut parts.headers, length),
        None => {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
    }
    Ok(content)
}

/// Normalises the length to a plain number, which it mostly is already.
fn set_length(headers: &mut HeaderMap, length: u64) {
    let received = headers
        .get(header::CONTENT_LENGTH)
        .map(HeaderValue::as_bytes);
    if !matches!(received, Some(b"0" | [b'1'..=b'9', ..])) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Keeps only end-to-end fields.
pub fn keep_end_to_end(headers: &mut HeaderMap) {
    // Most heads have no others, since the program that received them first has removed them.
    if !headers.keys().any(fields::is_connection_specific) {
        return;
    }
    let received = std::mem::take(headers);
    let nominated = fields::nominated(&received);
    for (name, value) in &received {
        if !fields::is_connection_specific(name) && !nominated.contains(name) {
            headers.append(name.clone(), value.clone());
        }
    }
}

/// Converts the fields of a granted upgrade to the platform client's protocol: RFC 8441 over HTTP/2, else RFC 6455. Returns
/// the status. `has_key`: the request has a `Sec-WebSocket-Key`.
pub fn switching_protocols(headers: &mut HeaderMap, is_http2: bool, has_key: bool) -> StatusCode {
    keep_end_to_end(headers);
    headers.remove(header::CONTENT_LENGTH);
    if is_http2 {
        // RFC 8441 section 5: there is no key; but Envoy sends on that of its own client, who needs the answer to it.
        if !has_key {
            headers.remove(header::SEC_WEBSOCKET_ACCEPT);
        }
        return StatusCode::OK;
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    StatusCode::SWITCHING_PROTOCOLS
}

/// A response of the program itself as bytes of HTTP/1.1, after which the connection closes. The content is left out for a
/// HEAD request.
#[must_use]
pub fn http1_message(answer: &OwnResponse, is_head: bool, date: &str) -> BytesMut {
    let mut message = http1_head(answer.status, &answer.headers);
    let length = answer.content.len();
    let rest = format!("connection: close\r\ndate: {date}\r\ncontent-length: {length}\r\n\r\n");
    message.put_slice(rest.as_bytes());
    if !is_head {
        message.put_slice(answer.content.as_bytes());
    }
    message
}

/// A head as bytes of HTTP/1.1, without the empty line at its end. For the few heads that hyper does not write:
/// informational ones, and refusals of requests that hyper has not read.
#[must_use]
pub fn http1_head(status: StatusCode, headers: &HeaderMap) -> BytesMut {
    let mut head = BytesMut::with_capacity(256);
    head.put_slice(b"HTTP/1.1 ");
    head.put_slice(status.as_str().as_bytes());
    head.put_u8(b' ');
    head.put_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    head.put_slice(b"\r\n");
    for (name, value) in headers {
        if !fields::is_connection_specific(name) && *name != header::CONTENT_LENGTH {
            head.put_slice(name.as_str().as_bytes());
            head.put_slice(b": ");
            head.put_slice(value.as_bytes());
            head.put_slice(b"\r\n");
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_responses_have_no_content_whatever_follows() {
        let content = |status: u16, method: &Method, is_http1| {
            let response = http::Response::builder()
                .status(status)
                .header("content-length", "007")
                .header("connection", "x-mine")
                .header("x-mine", "1");
            let mut parts = response.body(()).unwrap().into_parts().0;
            let content = make_response(&mut parts, method, is_http1);
            assert!(!parts.headers.contains_key("x-mine"));
            let length = parts.headers.get("content-length").cloned();
            (content.unwrap(), length)
        };
        let seven = Some(HeaderValue::from_static("7"));
        let received = (ResponseContent::Received, seven.clone());
        assert_eq!(content(200, &Method::GET, true), received);
        assert_eq!(
            content(200, &Method::HEAD, true),
            (ResponseContent::None, seven.clone())
        );
        assert_eq!(
            content(204, &Method::GET, true),
            (ResponseContent::None, None)
        );
        let known = (ResponseContent::LengthOnly, seven);
        assert_eq!(content(304, &Method::GET, true), known);
        assert_eq!(content(304, &Method::GET, false).0, ResponseContent::None);
    }
}
