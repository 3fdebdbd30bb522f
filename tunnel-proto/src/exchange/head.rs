//! A request's head in the form in which it is sent, made part by part from whatever holds it.
//!
//! In: the parts of a checked request. Out: the bytes of the wire. Nobody builds a map of fields only
//! for it to be walked over once.

use bytes::BytesMut;
use http::{HeaderName, Method, Request, header};

use super::{CONTENT, PROTOCOL, Protocol, UNKNOWN};
use crate::bhttp::encode;

/// Room for a usual head, in bytes.
const HEAD_BYTES: usize = 768;

/// What follows the head of a request without content: the end of content, and of trailers.
const END_BYTES: usize = 2;

/// A head that is being encoded.
pub struct HeadEncoder {
    out: BytesMut,
    /// Where the fields begin.
    fields_at: usize,
    /// The head says how long the content is, or that there is some.
    tells_content: bool,
    is_head: bool,
}

/// A head that is ready to be sent, and to be sent again.
pub struct EncodedHead {
    /// The head and, behind it, the end of a message that has nothing else.
    out: BytesMut,
    fields_at: usize,
    tells_content: bool,
    /// The method is HEAD, so that the response has no content.
    pub(super) is_head: bool,
}

impl HeadEncoder {
    /// A head without fields. `protocol` is that of an upgrade, whose method is `CONNECT`.
    #[must_use]
    pub fn new(
        method: &Method,
        scheme: &str,
        authority: &str,
        path: &str,
        protocol: Option<Protocol>,
    ) -> Self {
        let mut out = BytesMut::with_capacity(HEAD_BYTES);
        let (authority, path) = (authority.as_bytes(), path.as_bytes());
        encode::request_head(&mut out, method.as_str(), scheme, authority, path);
        if let Some(protocol) = protocol {
            encode::field(&mut out, PROTOCOL.as_bytes(), protocol.as_str().as_bytes());
        }
        Self {
            fields_at: out.len(),
            tells_content: protocol.is_some(),
            out,
            is_head: method == Method::HEAD,
        }
    }

    /// Adds a field line. The caller leaves out what may not travel.
    pub fn field(&mut self, name: &HeaderName, value: &[u8]) {
        self.tells_content |= *name == header::CONTENT_LENGTH;
        encode::field(&mut self.out, name.as_str().as_bytes(), value);
    }

    /// Adds a field line whose value is these parts one after another, without white space around.
    pub fn field_of(&mut self, name: &HeaderName, parts: &[&[u8]]) {
        encode::field_of(&mut self.out, name.as_str().as_bytes(), parts);
    }

    /// Ends the head.
    #[must_use]
    pub fn finish(mut self) -> EncodedHead {
        encode::end_fields(&mut self.out);
        encode::end_content(&mut self.out);
        encode::end_fields(&mut self.out);
        EncodedHead {
            out: self.out,
            fields_at: self.fields_at,
            tells_content: self.tells_content,
            is_head: self.is_head,
        }
    }
}

impl std::fmt::Debug for EncodedHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What stands in it may be secret.
        f.debug_struct("EncodedHead")
            .field("bytes", &self.out.len())
            .finish_non_exhaustive()
    }
}

impl EncodedHead {
    /// The head of a request, with all its fields.
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> Self {
        let uri = request.uri();
        let mut head = HeadEncoder::new(
            request.method(),
            uri.scheme_str().unwrap_or("http"),
            uri.authority().map_or("", |authority| authority.as_str()),
            uri.path_and_query().map_or("/", |path| path.as_str()),
            request.extensions().get().copied(),
        );
        for (name, value) in request.headers() {
            head.field(name, value.as_bytes());
        }
        head.finish()
    }

    /// Its length, as it is kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// What stands before content.
    #[must_use]
    pub fn start(&self) -> BytesMut {
        let head = &self.out[..self.out.len() - END_BYTES];
        let mut start = BytesMut::with_capacity(head.len() + HEAD_BYTES);
        let (control, fields) = head.split_at(self.fields_at);
        start.extend_from_slice(control);
        if !self.tells_content {
            encode::field(&mut start, CONTENT.as_bytes(), UNKNOWN.as_bytes());
        }
        start.extend_from_slice(fields);
        start
    }

    /// The whole message, when there is no content.
    #[must_use]
    pub fn alone(&self) -> &[u8] {
        &self.out
    }
}
