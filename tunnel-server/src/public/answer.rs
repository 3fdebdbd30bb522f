//! The content of responses to platform clients, and which pages may read the server's own.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use tunnel_proto::exchange::RecvBody;

use super::{observe::Observation, session_carrier::SessionCarrier};
use crate::budget::pace::Paced;
use crate::config::Origin;

/// The content of a response: what a session carries, or the server's own.
pub(crate) type ResponseBody =
    tunnel_http::answer::ResponseBody<Paced<RecvBody>, SessionCarrier, Observation>;

/// The origins whose pages may read why something failed.
#[derive(Debug, Clone, Default)]
pub struct Cors {
    origins: Arc<[HeaderValue]>,
}

impl Cors {
    /// Allows these serialised origins (RFC 6454 section 6.2).
    #[must_use]
    pub fn new(origins: impl IntoIterator<Item = HeaderValue>) -> Self {
        Self {
            origins: origins.into_iter().collect(),
        }
    }

    /// Allows the origins of the configuration.
    #[must_use]
    pub fn of(origins: &[Origin]) -> Self {
        // An origin that was checked is always a valid field value.
        Self::new(
            origins
                .iter()
                .filter_map(|origin| HeaderValue::from_str(origin.as_str()).ok()),
        )
    }

    /// Lets the page that sent a request with these fields read a response of the server's own. A preflight that would
    /// fail only because the tunnel does is granted, so that the page sees the reason with its real request.
    pub(super) fn apply(
        &self,
        method: &Method,
        request: &HeaderMap,
        response: &mut Response<ResponseBody>,
    ) {
        let Some(origin) = request
            .get(header::ORIGIN)
            .filter(|origin| self.origins.contains(origin))
        else {
            return;
        };
        let is_preflight = method == Method::OPTIONS
            && request.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if is_preflight {
            *response.status_mut() = StatusCode::NO_CONTENT;
            *response.body_mut() = ResponseBody::own(Bytes::new());
            response.headers_mut().remove(header::CONTENT_TYPE);
        }
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
            HeaderValue::from_static("true"),
        );
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        if is_preflight {
            let copies = [
                (
                    header::ACCESS_CONTROL_REQUEST_METHOD,
                    header::ACCESS_CONTROL_ALLOW_METHODS,
                ),
                (
                    header::ACCESS_CONTROL_REQUEST_HEADERS,
                    header::ACCESS_CONTROL_ALLOW_HEADERS,
                ),
            ];
            for (requested, allowed) in copies {
                if let Some(value) = request.get(requested) {
                    headers.insert(allowed, value.clone());
                }
            }
        } else {
            let exposed = HeaderValue::from_static("proxy-status, retry-after, x-request-id");
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tunnel_http::answer::{ProblemAnswers, ProblemDetail, ProblemPage, ProblemRequest};
    use tunnel_proto::problem::{Hop, Problem, Reason};

    use super::*;

    fn offline() -> Response<ResponseBody> {
        let offline = Problem::new(Hop::Server, Reason::RuntimeOffline, "gone");
        let request = ProblemRequest::new(&Request::new(()).into_parts().0, false);
        let (detail, page) = (ProblemDetail::Reason, &ProblemPage::default());
        let own = ProblemAnswers { detail, page }.response(&offline, request, None);
        ResponseBody::own_response(own)
    }

    fn request(origin: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        headers
    }

    fn cors() -> Cors {
        Cors::new([HeaderValue::from_static("https://app.test")])
    }

    #[test]
    fn only_an_allowed_page_may_read_why() {
        let mut answer = offline();
        cors().apply(&Method::GET, &request("https://evil.test"), &mut answer);
        assert!(!answer.headers().contains_key("access-control-allow-origin"));
        cors().apply(&Method::GET, &request("https://app.test"), &mut answer);
        assert_eq!(
            answer.headers()["access-control-allow-origin"],
            "https://app.test"
        );
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn a_preflight_is_granted_so_that_the_request_shows_the_reason() {
        let mut answer = offline();
        let mut request = request("https://app.test");
        let method = HeaderValue::from_static("PUT");
        request.insert(header::ACCESS_CONTROL_REQUEST_METHOD, method);
        cors().apply(&Method::OPTIONS, &request, &mut answer);
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(answer.headers()["access-control-allow-methods"], "PUT");
    }
}
