//! A problem as a response, in the format and with the detail that its request and the configuration ask for.

use std::str;

use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tunnel_proto::problem::{Fault, Problem, Reason};

use super::{OwnResponse, ProblemPage, accept::prefers_html};
use crate::long_streams::is_grpc;

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// What a platform client learns of a failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProblemDetail {
    /// The reason; details that tell of the inside are in logs only.
    #[default]
    Reason,
    /// Everything that the program knows, such as the addresses of upstreams.
    Full,
}

tunnel_ops::word_value!(ProblemDetail {
    "reason" => Self::Reason,
    "full" => Self::Full,
});

impl ProblemDetail {
    /// The part of a problem that is shown.
    #[must_use]
    pub fn of(self, problem: &Problem) -> Problem {
        match self {
            Self::Reason => problem.clone().without_inside(),
            Self::Full => problem.clone(),
        }
    }
}

/// What the response to a problem depends on in its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemRequest {
    is_http1: bool,
    is_head: bool,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Html,
    Grpc,
}

impl ProblemRequest {
    /// Reads what matters of a received head.
    #[must_use]
    pub fn new(parts: &Parts, is_http2: bool) -> Self {
        Self {
            is_http1: !is_http2,
            is_head: parts.method == Method::HEAD,
            // gRPC needs HTTP/2. Over HTTP/1 the connection may have to be closed after a refusal.
            format: if is_http2 && is_grpc(&parts.headers) {
                Format::Grpc
            } else if prefers_html(&parts.headers) {
                Format::Html
            } else {
                Format::Json
            },
        }
    }

    /// Whether it is a gRPC call.
    #[must_use]
    pub fn is_grpc(self) -> bool {
        self.format == Format::Grpc
    }
}

/// How problems are answered.
#[derive(Debug, Clone, Copy)]
pub struct ProblemAnswers<'a> {
    /// What platform clients learn.
    pub detail: ProblemDetail,
    /// The page for browsers.
    pub page: &'a ProblemPage,
}

impl ProblemAnswers<'_> {
    /// The response to a request with this id. A HEAD has no content, but the length of the content of a GET. After a
    /// malformed request an HTTP/1 connection closes.
    #[must_use]
    pub fn response(
        &self,
        problem: &Problem,
        request: ProblemRequest,
        request_id: Option<&HeaderValue>,
    ) -> OwnResponse {
        let problem = self.detail.of(problem);
        let id = request_id.and_then(|id| id.to_str().ok());
        let mut response = match request.format {
            Format::Grpc => return grpc(&problem),
            Format::Json => json(&problem, id),
            Format::Html => self.html(&problem, id),
        };
        let headers = &mut response.headers;
        headers.insert(VARY, HeaderValue::from_static("accept"));
        if request.is_http1 && is_unusable(problem.reason()) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if request.is_head {
            let content = std::mem::take(&mut response.content);
            headers.insert(CONTENT_LENGTH, HeaderValue::from(content.len()));
        }
        response
    }

    /// The response to a request that the guard of an HTTP/1 connection has refused before its head was read.
    #[must_use]
    pub fn unread(problem: &Problem) -> OwnResponse {
        json(&ProblemDetail::Reason.of(problem), None)
    }

    /// The response on a route whose pages may read it.
    #[must_use]
    pub fn for_page(problem: &Problem, detail: ProblemDetail) -> OwnResponse {
        json(&detail.of(problem), None)
    }

    fn html(&self, problem: &Problem, id: Option<&str>) -> OwnResponse {
        let content = self.page.render(problem, id);
        let kind = HeaderValue::from_static("text/html; charset=utf-8");
        let mut response = response(problem, kind, content);
        let headers = &mut response.headers;
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(policy) = self.page.policy() {
            headers.insert(CONTENT_SECURITY_POLICY, policy);
        }
        response
    }
}

/// Whether nothing more can be read from an HTTP/1 connection after this problem.
fn is_unusable(reason: Reason) -> bool {
    reason.fault() == Fault::PlatformClient && reason != Reason::RuntimeUnknown
}

fn json(problem: &Problem, id: Option<&str>) -> OwnResponse {
    let kind = HeaderValue::from_static("application/json");
    response(problem, kind, problem.json(id))
}

fn response(problem: &Problem, content_type: HeaderValue, content: String) -> OwnResponse {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(PROXY_STATUS, problem.proxy_status());
    if let Some(after) = problem.retry_after_value() {
        headers.insert(RETRY_AFTER, after);
    }
    if problem.reason() == Reason::MethodNotAllowed {
        headers.insert(
            ALLOW,
            HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH"),
        );
    }
    OwnResponse {
        status: problem.status(),
        headers,
        content,
    }
}

/// A problem as a response without messages ("Trailers-Only" of the gRPC protocol). The code is the one that the gRPC
/// protocol assigns to the HTTP status of the problem.
fn grpc(problem: &Problem) -> OwnResponse {
    let code = match problem.status().as_u16() {
        400 => "13",
        403 => "7",
        404 => "12",
        429 | 502..=504 => "14",
        _ => "2",
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(code));
    headers.insert(PROXY_STATUS, problem.proxy_status());
    // The field is percent-encoded; details contain no percent sign.
    let message = format!(
        "{}: {}",
        problem.reason().name(),
        problem.detail().replace('%', "")
    );
    if let Ok(message) = HeaderValue::from_str(&message) {
        headers.insert("grpc-message", message);
    }
    OwnResponse {
        status: StatusCode::OK,
        headers,
        content: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Request;
    use http::header::ACCEPT;
    use tunnel_proto::problem::Hop;

    use super::*;

    const INSIDE: &str = "http://10.0.0.7:80: 100% refused";

    fn refused() -> Problem {
        Problem::new(Hop::Client, Reason::ConnectionRefused, INSIDE)
            .retry_after(Duration::from_secs(5))
            .through("n2")
    }

    fn request(method: Method, accept: &str) -> ProblemRequest {
        let request = Request::builder().method(method).header(ACCEPT, accept);
        ProblemRequest::new(&request.body(()).unwrap().into_parts().0, true)
    }

    fn grpc_call() -> ProblemRequest {
        let request = Request::builder().header(CONTENT_TYPE, "application/grpc+proto");
        let request = request.header(ACCEPT, "text/html");
        ProblemRequest::new(&request.body(()).unwrap().into_parts().0, true)
    }

    fn answer(
        problem: &Problem,
        detail: ProblemDetail,
        request: ProblemRequest,
        id: Option<&HeaderValue>,
    ) -> OwnResponse {
        let page = &ProblemPage::default();
        ProblemAnswers { detail, page }.response(problem, request, id)
    }

    fn by_default(request: ProblemRequest) -> OwnResponse {
        answer(&refused(), ProblemDetail::Reason, request, None)
    }

    fn text(response: &OwnResponse) -> String {
        format!("{:?} {}", response.headers, response.content)
    }

    #[test]
    fn no_format_shows_the_inside_unless_it_is_asked_for() {
        let id = HeaderValue::from_static("r-1");
        let formats = [
            request(Method::GET, "*/*"),
            request(Method::GET, "text/html"),
            grpc_call(),
        ];
        for format in formats {
            let response = |detail| text(&answer(&refused(), detail, format, Some(&id)));
            let shown = response(ProblemDetail::Reason);
            assert!(
                !shown.contains("10.0.0.7") && !shown.contains("n2"),
                "{shown}"
            );
            assert!(shown.contains("connection_refused"), "{shown}");
            let full = response(ProblemDetail::Full);
            assert!(full.contains("10.0.0.7") && full.contains("n2"), "{full}");
        }
    }

    #[test]
    fn a_program_gets_json_with_the_request_id() {
        let id = HeaderValue::from_static("r-1");
        let request = request(Method::GET, "*/*");
        let response = answer(&refused(), ProblemDetail::Reason, request, Some(&id));
        assert_eq!(response.status, StatusCode::BAD_GATEWAY);
        assert_eq!(response.headers[RETRY_AFTER], "5");
        assert_eq!(response.headers[VARY], "accept");
        let status = "tunnel-client; error=connection_refused; details=\"the upstream refused the connection\"";
        assert_eq!(response.headers[PROXY_STATUS], status);
        let body: serde_json::Value = serde_json::from_str(&response.content).unwrap();
        let expected = serde_json::json!({
            "reason": "connection_refused",
            "hop": "tunnel-client",
            "detail": "the upstream refused the connection",
            "request_id": "r-1",
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn a_browser_gets_a_page() {
        let response = by_default(request(Method::GET, "text/html"));
        assert_eq!(response.headers[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(response.headers[RETRY_AFTER], "5");
        assert!(response.headers.contains_key(CONTENT_SECURITY_POLICY));
        assert!(response.content.starts_with("<!doctype html>"));
    }

    #[test]
    fn a_head_has_the_length_alone() {
        for accept in ["*/*", "text/html"] {
            let get = by_default(request(Method::GET, accept));
            let head = by_default(request(Method::HEAD, accept));
            assert_eq!(head.content, "");
            let length = get.content.len().to_string();
            assert_eq!(head.headers[CONTENT_LENGTH], length.as_str());
        }
    }

    #[test]
    fn after_a_malformed_request_an_http1_connection_ends() {
        let malformed = Problem::new(Hop::Client, Reason::RequestMalformed, "no host field");
        let closes = |problem: &Problem, is_http1| {
            let request = ProblemRequest {
                is_http1,
                ..request(Method::GET, "*/*")
            };
            let response = answer(problem, ProblemDetail::Reason, request, None);
            response.headers.contains_key(CONNECTION)
        };
        assert!(closes(&malformed, true));
        assert!(!closes(&malformed, false));
        assert!(!closes(&refused(), true));
    }

    #[test]
    fn a_grpc_client_is_told_in_its_own_words() {
        let response = answer(&refused(), ProblemDetail::Full, grpc_call(), None);
        assert_eq!(response.headers["grpc-status"], "14");
        let message = "connection_refused: http://10.0.0.7:80: 100 refused";
        assert_eq!(response.headers["grpc-message"], message);
    }
}
