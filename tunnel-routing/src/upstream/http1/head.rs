//! The head of a response, parsed by httparse.
//!
//! In: bytes that were read. Out: the head once it is complete, how its content is framed (RFC 9112 section 6.3), and how
//! long the connection may be idle afterwards (`Keep-Alive: timeout`).
//! What may be forwarded of it is checked in `response.rs`.

use std::mem::MaybeUninit;
use std::time::Duration;

use bytes::Buf;
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tunnel_proto::{fields, limits};

use super::content::{Chunks, Content};
use super::input::{HEAD_BYTES, Input};

/// Fields that fit without an allocation. Almost no head has more.
const USUAL_FIELDS: usize = 32;

/// The field with which a server says how long it keeps an idle connection.
const KEEP_ALIVE: &str = "keep-alive";

/// An idle connection is not used in the last second of the announced time: a request under way when the server closes
/// is lost.
const KEEP_ALIVE_MARGIN: Duration = Duration::from_secs(1);

/// The head of a response.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Whether the upstream keeps the connection open.
    pub(super) is_kept: bool,
    /// How long the connection may be idle, if the upstream says so.
    pub(super) keep_alive: Option<Duration>,
    pub(super) content: Content,
}

/// Why a head cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::upstream) enum HeadError {
    #[error("{0}")]
    Syntax(#[from] httparse::Error),
    #[error("its head is too large")]
    TooLarge,
    #[error("a transfer-encoding in HTTP/1.0")]
    OldTransferEncoding,
    #[error("{0}")]
    Http(#[from] http::Error),
}

/// Takes the next head, if all of it was read. `is_head` says that the request was a `HEAD`.
pub(super) fn next(input: &mut Input, is_head: bool) -> Result<Option<Head>, HeadError> {
    // Empty lines are tolerated before a head, as RFC 9112 section 2.2 allows for requests.
    while let [b'\r' | b'\n', ..] = input.bytes()[..] {
        input.bytes().advance(1);
    }
    // Parsed at once the first time, since a head rarely comes in pieces; then only when its empty line is there, so
    // that one that trickles in is not parsed for each piece.
    if input.is_scanned() && input.empty_line().is_none() {
        return partial(input);
    }
    let mut usual = [FieldSpan::default(); USUAL_FIELDS];
    let read = match parse(input.bytes(), &mut usual) {
        Err(HeadError::Syntax(httparse::Error::TooManyHeaders)) => {
            let mut all = vec![FieldSpan::default(); limits::FIELDS];
            parse(input.bytes(), &mut all)?.map(|layout| head(input, &layout, &all, is_head))
        }
        read => read?.map(|layout| head(input, &layout, &usual, is_head)),
    };
    match read {
        Some(head) => head.map(Some),
        // The parser wants more, although the empty line that ends a head is there: more bytes would not complete it.
        // httparse has no error for that; any of them says that the head is malformed.
        None if input.empty_line().is_some() => Err(HeadError::Syntax(httparse::Error::Status)),
        None => partial(input),
    }
}

/// More has to be read; an error if the head is too large already.
fn partial(input: &mut Input) -> Result<Option<Head>, HeadError> {
    if input.bytes().len() > HEAD_BYTES {
        return Err(HeadError::TooLarge);
    }
    Ok(None)
}

/// Start and end of a field's name and value in a head.
#[derive(Clone, Copy, Default)]
struct FieldSpan {
    name: (u32, u32),
    value: (u32, u32),
}

/// The status line and size of a head.
struct HeadLayout {
    status: StatusCode,
    is_http11: bool,
    /// Bytes of the whole head.
    bytes: usize,
    fields: usize,
}

/// Locates the fields of a head, so that they are taken without a copy. `None` when more has to be read.
fn parse(bytes: &[u8], spans: &mut [FieldSpan]) -> Result<Option<HeadLayout>, HeadError> {
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_FIELDS];
    let mut all = Vec::new();
    let space = match usual.get_mut(..spans.len()) {
        Some(usual) => usual,
        None => {
            all.resize(spans.len(), MaybeUninit::uninit());
            &mut all[..]
        }
    };
    let mut response = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let parsed = parser.parse_response_with_uninit_headers(&mut response, bytes, space)?;
    let httparse::Status::Complete(end) = parsed else {
        return Ok(None);
    };
    if end > HEAD_BYTES {
        return Err(HeadError::TooLarge);
    }
    let start = bytes.as_ptr().addr();
    let span = |part: &[u8]| {
        let at = part.as_ptr().addr() - start;
        (at as u32, (at + part.len()) as u32)
    };
    for (found, field) in spans.iter_mut().zip(response.headers.iter()) {
        found.name = span(field.name.as_bytes());
        found.value = span(field.value);
    }
    let status = response.code.unwrap_or_default();
    Ok(Some(HeadLayout {
        status: StatusCode::from_u16(status).map_err(http::Error::from)?,
        is_http11: response.version == Some(1),
        bytes: end,
        fields: response.headers.len(),
    }))
}

/// Takes a complete head.
fn head(
    input: &mut Input,
    layout: &HeadLayout,
    spans: &[FieldSpan],
    is_head: bool,
) -> Result<Head, HeadError> {
    let bytes = input.take_head(layout.bytes);
    let mut headers = HeaderMap::with_capacity(layout.fields);
    let (mut is_kept, mut is_closed, mut has_coding) = (layout.is_http11, false, false);
    let mut keep_alive = None;
    for span in &spans[..layout.fields] {
        let name = &bytes[span.name.0 as usize..span.name.1 as usize];
        let name = HeaderName::from_bytes(name).map_err(http::Error::from)?;
        let value = bytes.slice(span.value.0 as usize..span.value.1 as usize);
        let value = HeaderValue::from_maybe_shared(value).map_err(http::Error::from)?;
        if name == CONNECTION {
            is_closed |= has_option(&value, b"close");
            is_kept |= has_option(&value, b"keep-alive");
        } else if name == TRANSFER_ENCODING {
            has_coding = true;
        } else if name == KEEP_ALIVE {
            keep_alive = idle_limit(&value);
        }
        headers.try_append(name, value).map_err(http::Error::from)?;
    }
    if has_coding && !layout.is_http11 {
        return Err(HeadError::OldTransferEncoding);
    }
    let status = layout.status;
    let has_no_content = is_head
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    let content = if has_no_content {
        Content::Ended
    } else {
        content(&headers, has_coding)
    };
    Ok(Head {
        status,
        headers,
        // Content that ends with its connection leaves no connection to keep.
        is_kept: is_kept && !is_closed && !matches!(content, Content::ToEnd),
        keep_alive,
        content,
    })
}

/// How long an idle connection may be used, from a field such as `Keep-Alive: timeout=5, max=100`: a second less than
/// the server says, or half of a single second. `None` without a time.
fn idle_limit(value: &HeaderValue) -> Option<Duration> {
    let mut parameters = value.to_str().ok()?.split(',');
    let seconds = parameters.find_map(|parameter| {
        let (name, seconds) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| seconds.trim().parse::<u32>().ok())?
    });
    let timeout = Duration::from_secs(seconds?.into());
    Some(
        timeout
            .saturating_sub(KEEP_ALIVE_MARGIN)
            .max(timeout.min(KEEP_ALIVE_MARGIN) / 2),
    )
}

fn has_option(value: &HeaderValue, option: &[u8]) -> bool {
    let mut options = value.as_bytes().split(|byte| *byte == b',');
    options.any(|found| found.trim_ascii().eq_ignore_ascii_case(option))
}

/// The framing of the content after a head that has one. Invalid lengths and codings other than `chunked` are refused
/// in `response.rs`.
fn content(headers: &HeaderMap, has_coding: bool) -> Content {
    if has_coding {
        return Content::Chunked(Chunks::Size);
    }
    match fields::content_length(headers) {
        Ok(Some(length)) => Content::of_length(length),
        Ok(None) | Err(_) => Content::ToEnd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Head>, HeadError> {
        next(&mut Input::of_test(text.as_bytes()), false)
    }

    fn content_of(fields: &str) -> Content {
        let head = read(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
        head.unwrap().unwrap().content
    }

    #[test]
    fn a_head_is_read_once_all_of_it_is_there() {
        let text = "\r\nHTTP/1.1 404 Not Found\r\nA: 1\r\nb:  2 \r\na: 3\r\n\r\n";
        for end in 0..text.len() {
            assert!(read(&text[..end]).unwrap().is_none(), "{end}");
        }
        let head = read(text).unwrap().unwrap();
        assert_eq!(head.status, StatusCode::NOT_FOUND);
        let values: Vec<_> = head.headers.get_all("a").iter().collect();
        assert_eq!(values, ["1", "3"]);
        assert_eq!(head.headers["b"], "2");
    }

    #[test]
    fn what_follows_a_head_stays() {
        for text in ["HTTP/1.1 200 OK\r\n\r\nx\n\n", "HTTP/1.1 200 OK\n\nx\n\n"] {
            let mut input = Input::of_test(text.as_bytes());
            next(&mut input, false).unwrap().unwrap();
            assert_eq!(input.bytes()[..], *b"x\n\n");
        }
    }

    #[test]
    fn the_content_is_framed_as_the_head_says() {
        assert_eq!(content_of(""), Content::ToEnd);
        assert_eq!(content_of("content-length: 0\r\n"), Content::Ended);
        assert_eq!(content_of("content-length: 7\r\n"), Content::Length(7));
        let chunked = Content::Chunked(Chunks::Size);
        assert_eq!(content_of("Transfer-Encoding: chunked\r\n"), chunked);
        for status in [103, 204, 304] {
            let text = format!("HTTP/1.1 {status} X\r\ncontent-length: 7\r\n\r\n");
            assert!(read(&text).unwrap().unwrap().content.has_ended());
        }
        let text = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n";
        let to_head = next(&mut Input::of_test(text), true).unwrap().unwrap();
        assert!(to_head.content.has_ended());
    }

    #[test]
    fn the_connection_is_kept_as_version_and_options_say() {
        for (version, options, is_kept) in [
            (1, "", false),
            (1, "content-length: 0\r\n", true),
            (1, "connection: x, Close\r\n", false),
            (1, "connection: close\r\nconnection: keep-alive\r\n", false),
            (0, "", false),
            (0, "connection: keep-alive\r\ncontent-length: 0\r\n", true),
        ] {
            let text = format!("HTTP/1.{version} 200 OK\r\n{options}\r\n");
            assert_eq!(read(&text).unwrap().unwrap().is_kept, is_kept, "{text:?}");
        }
    }

    #[test]
    fn many_fields_are_read_and_too_many_are_not() {
        let of = |fields| {
            read(&format!(
                "HTTP/1.1 200 OK\r\n{}\r\n",
                "a: b\r\n".repeat(fields)
            ))
        };
        assert_eq!(
            of(limits::FIELDS).unwrap().unwrap().headers.len(),
            limits::FIELDS
        );
        assert!(of(limits::FIELDS + 1).is_err());
    }

    #[test]
    fn what_is_no_http_is_refused_at_once() {
        for text in [
            "\0",
            "SSH-2.0",
            "HTTP/2 200\r\n",
            "HTTP/1.1 200 OK\r\n a: b\r\n\r\n",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
        let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(matches!(read(old), Err(HeadError::OldTransferEncoding)));
    }
}
