//! The trailer fields that a request may have, over HTTP/1 and HTTP/2 alike.
//!
//! In: a name, or a frame of content. Out: whether the name is allowed, or the frame without forbidden fields. Over HTTP/1
//! the guard refuses a request with a forbidden trailer; over HTTP/2 such fields are dropped, since the content may already
//! have been forwarded.

use http::HeaderName;
use http_body::Frame;

/// Removes the trailer fields that [are not allowed](may_trail) from a frame of a request's content. Returns `None`, which
/// is the content's end, if no field is left.
#[must_use]
pub fn clean_frame<D>(frame: Frame<D>) -> Option<Frame<D>> {
    let mut trailers = match frame.into_trailers() {
        Ok(trailers) => trailers,
        Err(content) => return Some(content),
    };
    let is_bad = |name: &&HeaderName| !may_trail(name.as_str().as_bytes());
    let bad: Vec<_> = trailers.keys().filter(is_bad).cloned().collect();
    for name in bad {
        trailers.remove(name);
    }
    (!trailers.is_empty()).then(|| Frame::trailers(trailers))
}

/// Whether a trailer field of this name may come after the content of a request (RFC 9110, 6.5.1): not when it
/// says where a message ends or goes, who sent it, or how it is to be read, because a program that merges it into
/// the head has decided without it. Nor when some programs read the name as another one.
#[must_use]
pub fn may_trail(name: &[u8]) -> bool {
    const FORBIDDEN: [&str; 37] = [
        "accept-encoding",
        "age",
        "authentication-info",
        "authorization",
        "cache-control",
        "connection",
        "cookie",
        "date",
        "expect",
        "expires",
        "forwarded",
        "host",
        "http2-settings",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "keep-alive",
        "location",
        "max-forwards",
        "origin",
        "pragma",
        "range",
        "retry-after",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "tunnel-via",
        "upgrade",
        "vary",
        "via",
        "warning",
        "www-authenticate",
        "x-http-method-override",
        "x-real-ip",
    ];
    let starts_with = |prefix: &str| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    // A digest of the content can only be known at its end, and has its own RFC (9530) for that.
    if name.eq_ignore_ascii_case(b"content-digest") {
        return true;
    }
    let is_named = FORBIDDEN
        .iter()
        .any(|field| name.eq_ignore_ascii_case(field.as_bytes()));
    let is_ambiguous = name.iter().any(|byte| matches!(byte, b'_' | b'"'));
    !is_named
        && !is_ambiguous
        && !["content-", "proxy-", "sec-", "x-forwarded-"]
            .into_iter()
            .any(starts_with)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn what_says_who_sent_a_request_or_where_it_goes_is_dropped_behind_its_content() {
        let frame = |names: &[&'static str]| {
            let mut trailers = HeaderMap::new();
            for name in names {
                trailers.append(*name, HeaderValue::from_static("1"));
            }
            let clean = clean_frame(Frame::<&[u8]>::trailers(trailers));
            clean.map(|frame| {
                let trailers = frame.into_trailers().unwrap();
                let names = trailers.keys().map(|name| name.as_str().to_owned());
                names.collect::<Vec<_>>()
            })
        };
        for name in [
            "x_forwarded_for",
            "x_forwarded_user",
            "x-forwarded-user",
            "via",
            "origin",
            "sec-fetch-site",
            "x-http-method-override",
            "proxy-status",
            "content-length",
        ] {
            assert_eq!(frame(&[name]), None, "{name}");
            assert_eq!(frame(&[name, "x-checksum"]).unwrap(), ["x-checksum"]);
        }
        let good = ["grpc-status", "content-digest", "x-checksum"];
        assert_eq!(frame(&good).unwrap(), good);
        let data = clean_frame(Frame::data(&b"x"[..])).and_then(|frame| frame.into_data().ok());
        assert_eq!(data, Some(&b"x"[..]));
    }
}
