//! Binary HTTP messages (RFC 9292): the encoding of requests and responses on a session.
//!
//! In: the bytes of a stream, in any pieces. Out: heads, pieces of content and trailers ([`decode`]);
//! [`encode`] does the reverse. No I/O, no clock, no state that outlives a message. No input is trusted:
//! what [`decode`] yields is well-formed.
//!
//! Only the indeterminate-length form is used, and `i` below is a variable-length integer of
//! RFC 9000 section 16:
//!
//! ```text
//! request   = 2(i) string(method) string(scheme) string(authority) string(path)
//!             fields content fields
//! response  = 3(i) *( 100..199(i) fields ) 200..599(i)
//!             fields content fields
//! string    = length(i) bytes
//! fields    = *( string(name) string(value) ) 0(i)      a name is at least one byte
//! content   = *( length(i) bytes ) 0(i)                 a chunk is at least one byte
//! ```
//!
//! Every part is prefixed with its length, so messages are self-delimiting and may follow each other on one
//! stream. This is stricter than the RFC, whose messages stand alone: the known-length form, padding after
//! a message and the omission of empty last parts are refused. Connection-specific fields are refused too
//! (the RFC only advises to remove them), and status 101 does not occur, since an upgrade is a `CONNECT`
//! here.
//!
//! In one point it is more permissive: pseudo-fields (names that start with `:`) are also allowed in a
//! trailer section, where they name a problem that occurred after the head. No HTTP peer can forge them,
//! because `:` is not legal in a field name. They are stored separately from regular fields.

mod check;
mod error;
mod input;
mod varint;

pub mod decode;
pub mod encode;

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

pub use self::{decode::Decoder, error::DecodeError};
use crate::limits;

/// What a [`Decoder`] found next in a message.
#[derive(Clone, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "an event lives on the stack between decoder and caller; a box would cost each message an allocation"
)]
pub enum Event {
    /// The head of a request: its first event.
    Request(RequestHead),
    /// The head of an informational (1xx) response; a final one follows.
    Informational(ResponseHead),
    /// The head of the final response.
    Response(ResponseHead),
    /// Content as it arrived: never empty, and not aligned to the sender's chunks.
    Content(Bytes),
    /// The message is complete; holds its trailers, which may be empty.
    End(Fields),
}

/// Control data and header section of a request.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// A token (RFC 9110 section 5.6.2).
    pub method: Method,
    /// `http` or `https`.
    pub scheme: Bytes,
    /// Visible ASCII; may be empty.
    pub authority: Bytes,
    /// Path and query as they were sent: visible ASCII without `#` that starts with `/`, or `*`.
    pub path: Bytes,
    /// The header section.
    pub fields: Fields,
}

/// Status and header section of a response.
#[derive(Clone, PartialEq, Eq)]
pub struct ResponseHead {
    /// 100 to 199 except 101 when informational, 200 to 599 when final.
    pub status: StatusCode,
    /// The header section.
    pub fields: Fields,
}

/// A header or trailer section.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fields {
    /// The regular fields. Lines of one name keep their number and order.
    pub map: HeaderMap,
    pub(super) pseudo: Vec<(Bytes, Bytes)>,
}

impl Fields {
    /// The value of a pseudo-field. `name` includes the colon.
    #[must_use]
    pub fn pseudo(&self, name: &str) -> Option<&Bytes> {
        let same = |(own, _): &&(Bytes, Bytes)| own == name.as_bytes();
        self.pseudo.iter().find(same).map(|(_, value)| value)
    }

    /// All pseudo-fields in their order. Names include the colon.
    #[must_use]
    pub fn pseudo_fields(&self) -> &[(Bytes, Bytes)] {
        &self.pseudo
    }

    /// Whether the section has no field at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pseudo.is_empty() && self.map.is_empty()
    }
}

/// Limits on what a decoder has to buffer. Checked when a length is read, before anything of that length is
/// buffered. Content has no limit here, since it is never gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one head (control data and header section with its end), and of a trailer section,
    /// as encoded.
    pub head_bytes: usize,
    /// Field lines in one section.
    pub fields: usize,
    /// Informational responses before the final one.
    pub informational: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: limits::HEAD_BYTES,
            fields: limits::FIELDS,
            informational: limits::INFORMATIONAL,
        }
    }
}

// Values of fields, queries and content may be secrets, so `Debug` shows none of them.

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(head) => f.debug_tuple("Request").field(head).finish(),
            Self::Informational(head) => f.debug_tuple("Informational").field(head).finish(),
            Self::Response(head) => f.debug_tuple("Response").field(head).finish(),
            Self::Content(data) => write!(f, "Content({} bytes)", data.len()),
            Self::End(trailers) => f.debug_tuple("End").field(trailers).finish(),
        }
    }
}

impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self
            .path
            .split(|byte| *byte == b'?')
            .next()
            .unwrap_or_default();
        f.debug_struct("RequestHead")
            .field("method", &self.method)
            .field("scheme", &self.scheme)
            .field("authority", &self.authority)
            .field("path", &path.escape_ascii().to_string())
            .field("fields", &self.fields)
            .finish()
    }
}

impl fmt::Debug for ResponseHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseHead")
            .field("status", &self.status.as_u16())
            .field("fields", &self.fields)
            .finish()
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.pseudo.iter().map(|(name, _)| name))
            .entries(self.map.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    fn secret_fields() -> Fields {
        let mut fields = Fields::default();
        fields.map.insert(
            header::AUTHORIZATION,
            HeaderValue::from_static("Bearer hunter2"),
        );
        fields.pseudo.push((":detail".into(), "hunter2".into()));
        fields
    }

    #[test]
    fn debug_shows_no_value_query_or_content() {
        let head = RequestHead {
            method: Method::GET,
            scheme: "https".into(),
            authority: "a.example".into(),
            path: "/page?token=hunter2".into(),
            fields: secret_fields(),
        };
        let response = ResponseHead {
            status: StatusCode::OK,
            fields: secret_fields(),
        };
        let events = [
            Event::Request(head),
            Event::Response(response),
            Event::Content("hunter2".into()),
            Event::End(secret_fields()),
        ];
        let shown = format!("{events:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        for part in ["/page", "authorization", ":detail", "7 bytes", "200"] {
            assert!(shown.contains(part), "{part} is missing in {shown}");
        }
    }

    #[test]
    fn pseudo_fields_are_found_by_their_whole_name() {
        let fields = secret_fields();
        assert_eq!(
            fields.pseudo(":detail").map(|value| &value[..]),
            Some(&b"hunter2"[..])
        );
        assert_eq!(fields.pseudo("detail"), None);
        assert!(!fields.is_empty());
        assert!(Fields::default().is_empty());
    }
}
