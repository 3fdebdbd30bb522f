//! Writes binary HTTP messages, part by part, to the end of a buffer.
//!
//! In: the parts of a message, in the order of the format (see [`crate::bhttp`]). Out: bytes. Keeps no
//! state, so the caller ensures the order. Checks nothing: names and values come from `http` types or from
//! this crate, and the caller has removed connection-specific fields.
//!
//! ```text
//! request    request_head  field*  end_fields  chunk*  end_content  field*  end_fields
//! response   response_start  ( informational  field*  end_fields )*
//!            final_status    field*  end_fields  chunk*  end_content  field*  end_fields
//! ```

use bytes::BytesMut;
use http::HeaderMap;

use super::varint;
use crate::fields;

/// Framing indicator of a request of indeterminate length.
pub(super) const REQUEST: u64 = 2;

/// Framing indicator of a response of indeterminate length.
pub(super) const RESPONSE: u64 = 3;

/// Starts a request: framing indicator and control data. The header section follows.
pub fn request_head(out: &mut BytesMut, method: &str, scheme: &str, authority: &[u8], path: &[u8]) {
    varint::write(out, REQUEST);
    string(out, method.as_bytes());
    string(out, scheme.as_bytes());
    string(out, authority);
    string(out, path);
}

/// Starts a response message. One or more statuses follow, the last of them final.
pub fn response_start(out: &mut BytesMut) {
    varint::write(out, RESPONSE);
}

/// Starts an informational response. Its header section follows, then the next status.
pub fn informational(out: &mut BytesMut, status: u16) {
    debug_assert!(
        matches!(status, 100 | 102..=199),
        "{status} is not informational"
    );
    varint::write(out, status.into());
}

/// Starts the final response. Its header section follows, then content and trailers.
pub fn final_status(out: &mut BytesMut, status: u16) {
    debug_assert!(matches!(status, 200..=599), "{status} is not final");
    varint::write(out, status.into());
}

/// Writes one field line. Pseudo-fields, names that start with `:`, come before all others.
pub fn field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    debug_assert!(!name.is_empty(), "an empty name would end the section");
    string(out, name);
    // Some HTTP implementations leave white space around a value. It is not part of the value (RFC 9110
    // section 5.5), and the decoder refuses it.
    string(out, trim(value));
}

/// Writes one field line whose value is the concatenation of `parts`, which has no white space around it.
pub fn field_from_parts(out: &mut BytesMut, name: &[u8], parts: &[&[u8]]) {
    string(out, name);
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.reserve(varint::MAX_LENGTH + length);
    varint::write(out, length as u64);
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Writes a field line for every value of the map.
pub fn fields(out: &mut BytesMut, map: &HeaderMap) {
    for (name, value) in map {
        field(out, name.as_str().as_bytes(), value.as_bytes());
    }
}

/// Writes a field line for every value of the map, except connection-specific fields, which the decoder
/// refuses.
pub fn end_to_end_fields(out: &mut BytesMut, map: &HeaderMap) {
    for (name, value) in map {
        if !fields::is_connection_specific(name) {
            field(out, name.as_str().as_bytes(), value.as_bytes());
        }
    }
}

/// Ends a header or trailer section. After a trailer section the message is complete.
pub fn end_fields(out: &mut BytesMut) {
    varint::write(out, 0);
}

/// Writes a piece of content. Nothing is written for an empty one: it would end the content.
pub fn chunk(out: &mut BytesMut, data: &[u8]) {
    chunk_header(out, data.len());
    out.extend_from_slice(data);
}

/// Writes the length prefix of a chunk, whose `length` bytes the caller sends itself.
///
/// `length` is not 0: that would end the content, so nothing is written for it.
pub fn chunk_header(out: &mut BytesMut, length: usize) {
    debug_assert!(length > 0, "an empty chunk would end the content");
    if length > 0 {
        varint::write(out, length as u64);
    }
}

/// Ends the content. The trailer section follows.
pub fn end_content(out: &mut BytesMut) {
    varint::write(out, 0);
}

fn string(out: &mut BytesMut, bytes: &[u8]) {
    // Reserved at once for both parts, so that the buffer grows at most once.
    out.reserve(varint::MAX_LENGTH + bytes.len());
    varint::write(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn trim(value: &[u8]) -> &[u8] {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let mut rest = value;
    while is_space(rest.first()) {
        rest = &rest[1..];
    }
    while is_space(rest.last()) {
        rest = &rest[..rest.len() - 1];
    }
    rest
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn a_request_has_the_format_of_the_rfc() {
        let mut out = BytesMut::new();
        request_head(&mut out, "GET", "https", b"", b"/hello.txt");
        field(&mut out, b":protocol", b"websocket");
        field(&mut out, b"host", b"a.example");
        end_fields(&mut out);
        chunk(&mut out, b"content");
        end_content(&mut out);
        end_fields(&mut out);
        let expected = b"\x02\x03GET\x05https\x00\x0a/hello.txt\
            \x09:protocol\x09websocket\x04host\x09a.example\x00\x07content\x00\x00";
        assert_eq!(out, &expected[..]);
    }

    #[test]
    fn a_response_has_the_format_of_the_rfc() {
        let mut out = BytesMut::new();
        response_start(&mut out);
        informational(&mut out, 103);
        field(&mut out, b"link", b"</a>");
        end_fields(&mut out);
        final_status(&mut out, 200);
        end_fields(&mut out);
        chunk_header(&mut out, 70);
        out.extend_from_slice(&[b'x'; 70]);
        end_content(&mut out);
        field(&mut out, b"etag", b"");
        end_fields(&mut out);
        let start = b"\x03\x40\x67\x04link\x04</a>\x00\x40\xc8\x00\x40\x46";
        assert_eq!(out[..start.len()], start[..]);
        assert_eq!(out[start.len() + 70..], b"\x00\x04etag\x00\x00"[..]);
    }

    #[test]
    fn every_value_of_a_name_is_written_in_order() {
        let mut map = HeaderMap::new();
        map.append(header::SET_COOKIE, HeaderValue::from_static("a=1"));
        map.append(header::DATE, HeaderValue::from_static("now"));
        map.append(header::SET_COOKIE, HeaderValue::from_static("b=2"));
        let mut out = BytesMut::new();
        fields(&mut out, &map);
        assert_eq!(
            out,
            &b"\x0aset-cookie\x03a=1\x0aset-cookie\x03b=2\x04date\x03now"[..]
        );
    }

    #[test]
    fn white_space_around_a_value_is_not_sent() {
        let values: [(&[u8], &[u8]); 5] = [
            (b"", b""),
            (b" \t ", b""),
            (b" a", b"a"),
            (b"a\t", b"a"),
            (b"\t a b ", b"a b"),
        ];
        for (value, sent) in values {
            let mut out = BytesMut::new();
            field(&mut out, b"n", value);
            assert_eq!(out[3..], *sent);
            assert_eq!(usize::from(out[2]), sent.len());
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "end the content")]
    fn an_empty_chunk_panics_in_debug_builds() {
        chunk(&mut BytesMut::new(), b"");
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn an_empty_chunk_is_not_written() {
        let mut out = BytesMut::new();
        chunk(&mut out, b"");
        assert!(out.is_empty());
    }
}
