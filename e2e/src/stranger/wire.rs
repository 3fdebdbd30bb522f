//! The exchanges' messages, from `docs/protocol.md` and the two
//! specifications that it names. Bytes in, bytes out; nothing is checked that is sent.

use bytes::{Buf, Bytes, BytesMut};
pub use testkit::bhttp::string;
use testkit::bhttp::{self, field, number};
pub use testkit::yamux::{ACK, DATA, FIN, Frame, GO_AWAY, PING, RST, SYN, WINDOW};

use crate::http1::Fields;

/// A whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrangerRequest {
    /// The stream it came on, and its answer goes to.
    pub stream: u32,
    /// The method; `CONNECT` for an upgrade.
    pub method: String,
    /// `http` or `https`.
    pub scheme: String,
    /// What the platform client asked for.
    pub authority: String,
    /// Path and query, byte for byte.
    pub path: String,
    /// The fields, pseudo-fields first.
    pub fields: Fields,
    /// The content.
    pub content: Bytes,
    /// The trailer section.
    pub trailers: Fields,
}

impl StrangerRequest {
    /// Takes a request from the front of `received`, once all of it is there.
    pub(super) fn take(stream: u32, received: &mut BytesMut) -> Option<Self> {
        let mut rest: &[u8] = received;
        let request = Self::parse(stream, &mut rest)?;
        let taken = received.len() - rest.len();
        received.advance(taken);
        Some(request)
    }

    fn parse(stream: u32, rest: &mut &[u8]) -> Option<Self> {
        assert_eq!(take_number(rest)?, 2, "a request in another form");
        let [method, scheme, authority, path] = [
            take_text(rest)?,
            take_text(rest)?,
            take_text(rest)?,
            take_text(rest)?,
        ];
        let fields = take_fields(rest)?;
        let mut content = BytesMut::new();
        loop {
            let chunk = take_string(rest)?;
            if chunk.is_empty() {
                break;
            }
            content.extend_from_slice(chunk);
        }
        let (content, trailers) = (content.freeze(), take_fields(rest)?);
        Some(Self {
            stream,
            method,
            scheme,
            authority,
            path,
            fields,
            content,
            trailers,
        })
    }
}

/// A whole response.
pub fn response(status: u64, fields: &[(&str, &str)], content: &[u8]) -> Vec<u8> {
    let mut bytes = response_head(status, fields);
    if !content.is_empty() {
        bytes.extend(string(content));
    }
    // The end of the content, and an empty trailer section.
    bytes.extend([0, 0]);
    bytes
}

/// The head of a response: what starts it, status and fields.
pub fn response_head(status: u64, fields: &[(&str, &str)]) -> Vec<u8> {
    bhttp::response(&[&section(status, fields)])
}

/// A status with its fields: an informational response, or the final one's head.
pub fn section(status: u64, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = number(status);
    for (name, value) in fields {
        bytes.extend(field(name.as_bytes(), value.as_bytes()));
    }
    bytes.push(0);
    bytes
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let first = *rest.first()?;
    let length = 1 << (first >> 6);
    let (bytes, later) = rest.split_at_checked(length)?;
    *rest = later;
    let number = bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte));
    Some(number & (u64::MAX >> (64 - 8 * length + 2)))
}

fn take_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_number(rest)?).unwrap();
    let (string, later) = rest.split_at_checked(length)?;
    *rest = later;
    Some(string)
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    take_string(rest).map(|text| String::from_utf8_lossy(text).into_owned())
}

/// Fields up to the zero that ends their section.
fn take_fields(rest: &mut &[u8]) -> Option<Fields> {
    let mut fields = Fields::new();
    loop {
        let name = take_text(rest)?;
        if name.is_empty() {
            return Some(fields);
        }
        fields.push((name, take_text(rest)?));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_specification() {
        // The examples of RFC 9000 appendix A.1.
        for (number, wire) in [
            (
                151_288_809_941_952_652,
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
            ),
            (494_878_333, &[0x9d, 0x7f, 0x3e, 0x7d]),
            (15_293, &[0x7b, 0xbd]),
            (37, &[0x25]),
        ] {
            let bytes = bhttp::number(number);
            assert_eq!(bytes, wire);
            assert_eq!(take_number(&mut &bytes[..]), Some(number));
            assert_eq!(take_number(&mut &bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn a_request_is_taken_once_it_is_whole() {
        let mut wire = vec![2];
        for part in ["POST", "http", "a.test", "/x"] {
            wire.extend(string(part.as_bytes()));
        }
        wire.extend(b"\x01a\x01b\0\x02hi\0\0");
        for length in 0..wire.len() {
            assert!(StrangerRequest::take(1, &mut wire[..length].into()).is_none());
        }
        let request = StrangerRequest::take(1, &mut wire[..].into()).unwrap();
        assert_eq!(
            (request.path.as_str(), &request.content[..]),
            ("/x", &b"hi"[..])
        );
        assert_eq!(request.fields, [("a".to_owned(), "b".to_owned())]);
    }
}
