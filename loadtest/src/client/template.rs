//! A request that is sent many times.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};

use crate::client::body::Outgoing;

/// What all requests of a kind have in common.
#[derive(Clone, Debug)]
pub struct Template {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    /// Sent with each request.
    pub headers: HeaderMap,
}

impl Template {
    /// The method of each.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// What each asks for: the path alone with HTTP/1.1.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The next request.
    pub fn request(&self, content: Outgoing) -> Request<Outgoing> {
        let mut request = Request::new(content);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        request.headers_mut().clone_from(&self.headers);
        request
    }

    /// The next request, with content that is there already.
    pub fn with(&self, content: &Bytes) -> Request<Outgoing> {
        self.request(Outgoing::full(content.clone()))
    }
}
