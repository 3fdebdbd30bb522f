//! Responses of the client itself: configured ones, and problems that a page may read.
//!
//! Without CORS fields a browser hides a response from a page. A route with a [`CorsPolicy`] therefore makes responses
//! of its problems, and grants a preflight that failed only because the upstream is away, so that the page sees the
//! reason with its actual request. Other problems go to the front door, which makes the response.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, VARY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body::{Body, Frame};

use tunnel_http::answer::{ProblemAnswers, ProblemDetail};
use tunnel_proto::problem::Problem;

use crate::upstream::UpstreamBody;

/// The content of a response.
pub enum RoutedBody {
    /// From an upstream.
    Upstream(UpstreamBody),
    /// From the client itself; `None` once it is taken.
    Own(Option<Bytes>),
}

/// A response from the configuration (`respond`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectResponse {
    /// The status.
    pub status: StatusCode,
    /// The `Content-Type`.
    pub content_type: Option<HeaderValue>,
    /// The content.
    pub body: Bytes,
}

/// Which pages may read the client's own responses on a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsPolicy {
    /// The allowed origins; empty for any.
    pub origins: Vec<HeaderValue>,
    /// `Access-Control-Allow-Methods` of a preflight.
    pub methods: HeaderValue,
    /// `Access-Control-Allow-Headers` of a preflight; `None` for none.
    pub headers: Option<HeaderValue>,
    /// Whether requests may carry credentials.
    pub credentials: bool,
    /// `Access-Control-Max-Age` of a preflight.
    pub max_age: Option<Duration>,
}

/// A request of a page that may read the response.
pub(crate) struct CorsRequest<'a> {
    policy: &'a CorsPolicy,
    origin: HeaderValue,
    /// Whether it is a preflight. A plain `OPTIONS` is not.
    is_preflight: bool,
}

impl DirectResponse {
    /// The response to a request with this method.
    pub(crate) fn response(&self, method: &Method) -> Response<RoutedBody> {
        let mut answer = own(self.status, self.body.clone(), method);
        if let Some(content_type) = &self.content_type {
            answer
                .headers_mut()
                .insert(CONTENT_TYPE, content_type.clone());
        }
        answer
    }
}

impl CorsPolicy {
    /// The CORS request, if it comes from a page that may read the response.
    pub(crate) fn page(&self, head: &Parts) -> Option<CorsRequest<'_>> {
        let origin = head.headers.get(ORIGIN)?;
        let is_allowed = self.origins.is_empty() || self.origins.contains(origin);
        is_allowed.then(|| CorsRequest {
            policy: self,
            origin: origin.clone(),
            is_preflight: head.method == Method::OPTIONS
                && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD),
        })
    }
}

impl CorsRequest<'_> {
    /// The response for a problem, with this detail; a preflight is granted.
    pub(crate) fn problem_response(
        &self,
        problem: &Problem,
        detail: ProblemDetail,
        method: &Method,
    ) -> Response<RoutedBody> {
        if self.is_preflight {
            return self.grant();
        }
        // Whether the connection ends is up to the front door.
        let page = ProblemAnswers::for_page(problem, detail);
        let mut answer = own(page.status, page.content.into(), method);
        let headers = answer.headers_mut();
        headers.extend(page.headers);
        self.allow(headers);
        answer
    }

    /// Lets the page read a response that is no problem; a preflight is granted.
    pub(crate) fn allow_response(&self, mut answer: Response<RoutedBody>) -> Response<RoutedBody> {
        if self.is_preflight {
            return self.grant();
        }
        self.allow(answer.headers_mut());
        answer
    }

    fn grant(&self) -> Response<RoutedBody> {
        let mut answer = own(StatusCode::NO_CONTENT, Bytes::new(), &Method::OPTIONS);
        let headers = answer.headers_mut();
        self.allow_origin(headers);
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, self.policy.methods.clone());
        if let Some(names) = &self.policy.headers {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        if let Some(age) = self.policy.max_age {
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(age.as_secs()));
        }
        answer
    }

    fn allow(&self, headers: &mut HeaderMap) {
        self.allow_origin(headers);
        let exposed = HeaderValue::from_static("proxy-status, retry-after, x-request-id");
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }

    fn allow_origin(&self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
        if self.policy.credentials {
            let yes = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
        vary_by_origin(headers);
    }
}

/// Marks a response as dependent on `Origin`, for caches.
pub(crate) fn vary_by_origin(headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("origin"));
}

fn own(status: StatusCode, body: Bytes, method: &Method) -> Response<RoutedBody> {
    let length = HeaderValue::from(body.len());
    let has_content = *method != Method::HEAD && !body.is_empty();
    let mut answer = Response::new(RoutedBody::Own(has_content.then_some(body)));
    *answer.status_mut() = status;
    // These have no content whose length it could be (RFC 9110 section 8.6).
    if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        answer.headers_mut().insert(CONTENT_LENGTH, length);
    }
    answer
}

impl Body for RoutedBody {
    type Data = Bytes;
    type Error = <UpstreamBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Upstream(body) => Pin::new(body).poll_frame(cx),
            Self::Own(content) => {
                Poll::Ready(content.take().map(|content| Ok(Frame::data(content))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream(body) => body.is_end_stream(),
            Self::Own(content) => content.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tunnel_proto::problem::{Hop, Reason};

    use super::*;

    fn policy() -> CorsPolicy {
        CorsPolicy {
            origins: vec![HeaderValue::from_static("https://g.test")],
            methods: HeaderValue::from_static("GET, POST"),
            headers: Some(HeaderValue::from_static("content-type")),
            credentials: true,
            max_age: Some(Duration::from_secs(3600)),
        }
    }

    fn request(method: Method, origin: &str) -> Parts {
        let is_options = method == Method::OPTIONS;
        let mut request = Request::builder().method(method).header("origin", origin);
        if is_options {
            request = request.header("access-control-request-method", "POST");
        }
        request.body(()).unwrap().into_parts().0
    }

    fn text(answer: &Response<RoutedBody>, name: &str) -> String {
        let value = answer.headers().get(name);
        value.map_or(String::new(), |value| value.to_str().unwrap().to_owned())
    }

    fn content(answer: Response<RoutedBody>) -> Bytes {
        match answer.into_body() {
            RoutedBody::Own(content) => content.unwrap_or_default(),
            RoutedBody::Upstream(_) => panic!("no upstream is involved"),
        }
    }

    #[test]
    fn a_page_reads_what_went_wrong() {
        let (policy, head) = (policy(), request(Method::POST, "https://g.test"));
        let problem = Problem::new(Hop::Client, Reason::ConnectionRefused, "it is starting");
        let answer = policy.page(&head).unwrap().problem_response(
            &problem,
            ProblemDetail::Reason,
            &head.method,
        );
        assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(
            text(&answer, "access-control-allow-origin"),
            "https://g.test"
        );
        assert_eq!(text(&answer, "access-control-allow-credentials"), "true");
        assert_eq!(text(&answer, "vary"), "origin");
        assert!(text(&answer, "proxy-status").contains("connection_refused"));
        assert!(content(answer).starts_with(b"{\"reason\":\"connection_refused\""));
        assert!(
            policy
                .page(&request(Method::POST, "https://evil.test"))
                .is_none()
        );
    }

    #[test]
    fn a_preflight_is_granted_so_that_the_page_sees_the_reason() {
        let (policy, head) = (policy(), request(Method::OPTIONS, "https://g.test"));
        let problem = Problem::new(Hop::Client, Reason::ConnectionRefused, "it is starting");
        let answer = policy.page(&head).unwrap().problem_response(
            &problem,
            ProblemDetail::Reason,
            &head.method,
        );
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(text(&answer, "access-control-allow-methods"), "GET, POST");
        assert_eq!(
            text(&answer, "access-control-allow-headers"),
            "content-type"
        );
        assert_eq!(text(&answer, "access-control-max-age"), "3600");
        assert_eq!(text(&answer, "content-length"), "");
        assert!(content(answer).is_empty());
    }

    #[test]
    fn options_that_ask_for_no_method_are_no_preflight() {
        let policy = policy();
        let mut head = request(Method::OPTIONS, "https://g.test");
        head.headers.remove("access-control-request-method");
        let problem = Problem::new(Hop::Client, Reason::ConnectionRefused, "it is starting");
        let answer = policy.page(&head).unwrap().problem_response(
            &problem,
            ProblemDetail::Reason,
            &head.method,
        );
        assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
        let fixed = own(StatusCode::OK, Bytes::from_static(b"ok"), &head.method);
        let answer = policy.page(&head).unwrap().allow_response(fixed);
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(
            text(&answer, "access-control-allow-origin"),
            "https://g.test"
        );
    }

    #[test]
    fn any_origin_is_any_but_none() {
        let policy = CorsPolicy {
            origins: Vec::new(),
            credentials: false,
            ..policy()
        };
        assert!(
            policy
                .page(&request(Method::GET, "https://any.test"))
                .is_some()
        );
        let (none, ()) = Request::new(()).into_parts();
        assert!(policy.page(&none).is_none());
    }

    #[test]
    fn a_fixed_answer_to_head_has_its_length_and_no_content() {
        let fixed = DirectResponse {
            status: StatusCode::OK,
            content_type: Some(HeaderValue::from_static("text/plain")),
            body: Bytes::from_static(b"ok"),
        };
        let answer = fixed.response(&Method::HEAD);
        assert_eq!(
            (
                text(&answer, "content-length"),
                text(&answer, "content-type")
            ),
            ("2".into(), "text/plain".into())
        );
        assert!(answer.body().is_end_stream());
        assert_eq!(content(fixed.response(&Method::GET)), "ok");
    }
}
