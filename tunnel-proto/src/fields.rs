//! Header fields that are connection-specific, forwarding fields, and fields that are forbidden in a
//! trailer section.
//!
//! RFC 9110 section 7.6.1 (connection-specific fields) and section 6.5.1 (trailers). Both ends apply these
//! rules to a received message before they build the one that they forward.

use std::collections::HashSet;

use http::{HeaderMap, HeaderName, header};
use http_body::Frame;

/// Addresses that a request has passed, the nearest last.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The host that the platform client requested.
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The scheme of the platform client's request: `http` or `https`.
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Identifies the request in the logs of every program that it passes.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Lists the tunnel's programs that a request has passed, in order to detect loops. Not `Via`, because
/// upstreams such as nginx do not compress responses to requests that have it.
pub const TUNNEL_VIA: HeaderName = HeaderName::from_static("tunnel-via");

/// Most options in all `Connection` fields of one request together. Real requests have one to three, and
/// each costs a lookup.
pub const CONNECTION_OPTIONS: usize = 64;

/// Number of options in all `Connection` fields, including empty ones.
#[must_use]
pub fn connection_options(headers: &HeaderMap) -> usize {
    let lines = headers.get_all(header::CONNECTION).iter();
    let options = lines.map(|value| value.as_bytes().split(|byte| *byte == b',').count());
    options.sum()
}

/// The fields of a head that its `Connection` fields nominate as connection-specific, except those that
/// always are.
///
/// All lines of the field count, not only the first. Options that name no field of the head are skipped, so
/// the result is no larger than the head.
#[must_use]
pub fn nominated(headers: &HeaderMap) -> HashSet<HeaderName> {
    const USUAL: [&[u8]; 6] = [
        b"",
        b"close",
        b"keep-alive",
        b"te",
        b"upgrade",
        b"transfer-encoding",
    ];
    let mut nominated = HashSet::new();
    let lines = headers.get_all(header::CONNECTION).iter();
    let options = lines.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    for option in options.map(<[u8]>::trim_ascii) {
        if USUAL.iter().any(|usual| option.eq_ignore_ascii_case(usual)) {
            continue;
        }
        let is_there = str::from_utf8(option).is_ok_and(|option| headers.contains_key(option));
        if is_there && let Ok(name) = HeaderName::from_bytes(option) {
            nominated.insert(name);
        }
    }
    nominated
}

/// Whether a field is connection-specific (hop-by-hop), and so never forwarded.
///
/// Without those that `Connection` lists: a caller removes them too, with [`nominated`]. Includes `te`: the
/// caller adds `te: trailers` again to the outgoing message.
#[must_use]
pub fn is_connection_specific(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Whether a field states the origin of a request, which only trusted proxies may set. Matches by prefix,
/// since there is no list of the fields that upstreams trust.
#[must_use]
pub fn is_forwarded(name: &HeaderName) -> bool {
    let name = name.as_str();
    name == "forwarded" || name == "x-real-ip" || name.starts_with("x-forwarded-")
}

/// Whether a field may never be sent as a trailer: framing, routing, authentication, request
/// modifiers, response control, and how content is processed (RFC 9110 section 6.5.1).
#[must_use]
fn is_forbidden_trailer(name: &HeaderName) -> bool {
    is_connection_specific(name)
        || is_forwarded(name)
        // A digest of the content is known only at its end (RFC 9530).
        || (name.as_str().starts_with("content-") && name.as_str() != "content-digest")
        || [
            header::ACCEPT_ENCODING,
            header::AGE,
            header::AUTHORIZATION,
            header::CACHE_CONTROL,
            header::COOKIE,
            header::DATE,
            header::EXPECT,
            header::EXPIRES,
            header::HOST,
            header::IF_MATCH,
            header::IF_MODIFIED_SINCE,
            header::IF_NONE_MATCH,
            header::IF_RANGE,
            header::IF_UNMODIFIED_SINCE,
            header::LOCATION,
            header::MAX_FORWARDS,
            header::PRAGMA,
            header::RANGE,
            header::RETRY_AFTER,
            header::SET_COOKIE,
            header::TRAILER,
            header::VARY,
            header::WARNING,
            header::WWW_AUTHENTICATE,
        ]
        .contains(name)
}

/// Removes all fields that are forbidden in a trailer section.
#[must_use]
pub fn clean_trailers(trailers: HeaderMap) -> HeaderMap {
    if !trailers.keys().any(is_forbidden_trailer) {
        return trailers;
    }
    let mut clean = HeaderMap::with_capacity(trailers.len());
    for (name, value) in &trailers {
        if !is_forbidden_trailer(name) {
            clean.append(name.clone(), value.clone());
        }
    }
    clean
}

/// Removes all forbidden fields from a frame of trailers; `None`, the end of the body, if no field remains.
/// Other frames are returned unchanged.
#[must_use]
pub fn clean_frame<D>(frame: Frame<D>) -> Option<Frame<D>> {
    match frame.into_trailers() {
        Ok(trailers) => {
            let clean = clean_trailers(trailers);
            (!clean.is_empty()).then(|| Frame::trailers(clean))
        }
        Err(content) => Some(content),
    }
}

/// The `Content-Length` is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("content-length is repeated or is not a number of bytes")]
pub struct BadLength;

/// The declared length, if there is one.
///
/// # Errors
/// When the field is repeated, empty, signed, a list, or beyond 64 bits (RFC 9112 section 6.3).
pub fn content_length(headers: &HeaderMap) -> Result<Option<u64>, BadLength> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let digits = value.as_bytes();
    if values.next().is_some() || digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(BadLength);
    }
    let text = value.to_str().map_err(|_| BadLength)?;
    text.parse().map(Some).map_err(|_| BadLength)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn head(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn every_connection_line_nominates_fields_of_the_head() {
        let headers = head(&[
            ("connection", "close, X-One, not a name"),
            ("connection", " x-two ,,x-three, x-two"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-four", "4"),
        ]);
        let names = nominated(&headers);
        let expected = ["x-one", "x-two"].map(HeaderName::from_static);
        assert_eq!(names, expected.into());
        assert_eq!(connection_options(&headers), 7);
        assert_eq!(connection_options(&head(&[])), 0);
    }

    #[test]
    fn nominated_fields_are_limited_to_those_of_the_head() {
        let mut headers = head(&[("aa", "1"), ("keep-alive", "timeout=5")]);
        let options = "aa,ab,keep-alive,".repeat(10_000);
        let options = HeaderValue::from_str(&options).unwrap();
        headers.insert(header::CONNECTION, options);
        let names = nominated(&headers);
        assert_eq!(names, [HeaderName::from_static("aa")].into());
        assert!(names.capacity() < 8, "{}", names.capacity());
    }

    #[test]
    fn content_length_is_one_plain_number() {
        let length = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(
                    header::CONTENT_LENGTH,
                    HeaderValue::from_str(value).unwrap(),
                );
            }
            content_length(&headers)
        };
        assert_eq!(length(&[]), Ok(None));
        assert_eq!(length(&["010"]), Ok(Some(10)));
        for bad in ["", "+1", "-1", "0x1", "1,1", "1 ", "18446744073709551616"] {
            assert_eq!(length(&[bad]), Err(BadLength), "{bad:?}");
        }
        assert_eq!(length(&["1", "1"]), Err(BadLength));
    }

    #[test]
    fn forbidden_trailers_are_removed() {
        let mut trailers = HeaderMap::new();
        for name in [
            "grpc-status",
            "host",
            "content-length",
            "set-cookie",
            "x-forwarded-user",
            "x-checksum",
        ] {
            trailers.append(HeaderName::from_static(name), HeaderValue::from_static("0"));
        }
        let clean = clean_trailers(trailers);
        let names: Vec<_> = clean.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["grpc-status", "x-checksum"]);
    }

    #[test]
    fn a_frame_of_only_forbidden_trailers_is_the_end() {
        let with = |name: &'static str| {
            let mut trailers = HeaderMap::new();
            trailers.append(name, HeaderValue::from_static("0"));
            clean_frame(Frame::<&[u8]>::trailers(trailers))
        };
        assert!(with("transfer-encoding").is_none());
        assert!(with("grpc-status").is_some_and(|frame| frame.is_trailers()));
        let data = clean_frame(Frame::data(&b"x"[..])).and_then(|frame| frame.into_data().ok());
        assert_eq!(data, Some(&b"x"[..]));
    }
}
