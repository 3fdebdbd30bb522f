//! The encoded head of a request, built field by field.
//!
//! In: the parts of a checked request. Out: its encoded bytes, without a header map in between.

use bytes::BytesMut;
use http::{HeaderName, Method, Request, header};

use super::{CONTENT, FORWARD, FORWARD_HINTS, PROTOCOL, Protocol, UNKNOWN};
use crate::bhttp::encode;

/// Room for a usual head, in bytes.
const HEAD_CAPACITY: usize = 768;

/// Bytes that follow the head of a request without content: the end of the content and of the trailers.
const END_BYTES: usize = 2;

/// A head that is being encoded.
pub struct HeadEncoder {
    out: BytesMut,
    /// Offset of the first field line.
    fields_at: usize,
    /// Whether the head declares content: its length, or an upgrade.
    declares_content: bool,
    is_upgrade: bool,
    is_head: bool,
}

/// An encoded head, which can be sent any number of times.
pub struct EncodedHead {
    /// The head, followed by the end of a message without content.
    out: BytesMut,
    fields_at: usize,
    declares_content: bool,
    /// It asks for an upgrade.
    pub(super) is_upgrade: bool,
    /// The method is HEAD, so that the response has no content.
    pub(super) is_head: bool,
    /// It is for another server node, which names its own failures.
    pub(super) is_forwarded: bool,
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
        let mut out = BytesMut::with_capacity(HEAD_CAPACITY);
        let (authority, path) = (authority.as_bytes(), path.as_bytes());
        encode::request_head(&mut out, method.as_str(), scheme, authority, path);
        if let Some(protocol) = protocol {
            encode::field(&mut out, PROTOCOL.as_bytes(), protocol.as_str().as_bytes());
        }
        Self {
            fields_at: out.len(),
            declares_content: protocol.is_some(),
            is_upgrade: protocol.is_some(),
            out,
            is_head: method == Method::HEAD,
        }
    }

    /// Adds a field line. The caller leaves out connection-specific fields.
    pub fn field(&mut self, name: &HeaderName, value: &[u8]) {
        self.declares_content |= *name == header::CONTENT_LENGTH;
        encode::field(&mut self.out, name.as_str().as_bytes(), value);
    }

    /// Adds a field line whose value is the concatenation of `parts`, without white space around it.
    pub fn field_from_parts(&mut self, name: &HeaderName, parts: &[&[u8]]) {
        encode::field_from_parts(&mut self.out, name.as_str().as_bytes(), parts);
    }

    /// Ends the head.
    #[must_use]
    pub fn finish(mut self) -> EncodedHead {
        encode::end_fields(&mut self.out);
        encode::end_content(&mut self.out);
        encode::end_fields(&mut self.out);
        if self.out.len() > HEAD_CAPACITY {
            // It may be kept for long, and has grown by doubling.
            self.out = BytesMut::from(&self.out[..]);
        }
        EncodedHead {
            out: self.out,
            fields_at: self.fields_at,
            declares_content: self.declares_content,
            is_upgrade: self.is_upgrade,
            is_head: self.is_head,
            is_forwarded: false,
        }
    }
}

impl std::fmt::Debug for EncodedHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The head may contain secrets.
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

    /// This head for another server node, with a note that it finds as [`ForwardNote`](super::ForwardNote), and hints,
    /// unless they are empty, as [`ForwardHints`](super::ForwardHints). Both are visible ASCII.
    #[must_use]
    pub fn forwarded(&self, note: &str, hints: &str) -> Self {
        let (control, rest) = self.out.split_at(self.fields_at);
        let added = note.len() + FORWARD.len() + hints.len() + FORWARD_HINTS.len();
        let mut out = BytesMut::with_capacity(self.out.len() + added + 16);
        out.extend_from_slice(control);
        encode::field(&mut out, FORWARD.as_bytes(), note.as_bytes());
        if !hints.is_empty() {
            encode::field(&mut out, FORWARD_HINTS.as_bytes(), hints.as_bytes());
        }
        let fields_at = out.len();
        out.extend_from_slice(rest);
        Self {
            out,
            fields_at,
            declares_content: self.declares_content,
            is_upgrade: self.is_upgrade,
            is_head: self.is_head,
            is_forwarded: true,
        }
    }

    /// Its length in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// The bytes that precede content: with `CONTENT` if no length is declared.
    #[must_use]
    pub fn start(&self) -> BytesMut {
        let head = &self.out[..self.out.len() - END_BYTES];
        let mut start = BytesMut::with_capacity(head.len() + HEAD_CAPACITY);
        let (control, fields) = head.split_at(self.fields_at);
        start.extend_from_slice(control);
        if !self.declares_content {
            encode::field(&mut start, CONTENT.as_bytes(), UNKNOWN.as_bytes());
        }
        start.extend_from_slice(fields);
        start
    }

    /// The whole message of a request without content.
    #[must_use]
    pub fn alone(&self) -> &[u8] {
        &self.out
    }
}
