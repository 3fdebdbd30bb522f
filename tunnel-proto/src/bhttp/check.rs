//! Validation of the bytes of each part of a message. The input comes from an untrusted peer.
//!
//! In: the bytes of one part. Out: the checked type, or the error. Lengths and order are checked by the
//! decoder.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};

use super::DecodeError;
use crate::fields::{
    TUNNEL_VIA, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, X_REQUEST_ID,
};

/// A token of any length (RFC 9110 section 9.1).
pub(super) fn method(bytes: &[u8]) -> Result<Method, DecodeError> {
    Method::from_bytes(bytes).map_err(|_| DecodeError::Method)
}

/// One of the two schemes, as a constant that does not keep the received bytes alive.
pub(super) fn scheme(bytes: &[u8]) -> Result<Bytes, DecodeError> {
    match bytes {
        b"http" => Ok(Bytes::from_static(b"http")),
        b"https" => Ok(Bytes::from_static(b"https")),
        _ => Err(DecodeError::Scheme),
    }
}

/// Visible ASCII, or empty. Routing checks what it names.
pub(super) fn authority(bytes: &[u8]) -> Result<(), DecodeError> {
    if has(bytes, |byte| !byte.is_ascii_graphic()) {
        return Err(DecodeError::Authority);
    }
    Ok(())
}

/// `*`, or visible ASCII that starts with `/` and has no fragment.
pub(super) fn path(bytes: &[u8]) -> Result<(), DecodeError> {
    let starts_well = bytes.starts_with(b"/") || bytes == b"*";
    if !starts_well || has(bytes, |byte| !byte.is_ascii_graphic() || byte == b'#') {
        return Err(DecodeError::Path);
    }
    Ok(())
}

/// 100 to 599 except 101.
pub(super) fn status(value: u64) -> Result<StatusCode, DecodeError> {
    match value {
        101 => Err(DecodeError::SwitchingProtocols),
        100..=599 => u16::try_from(value)
            .ok()
            .and_then(|value| StatusCode::from_u16(value).ok())
            .ok_or(DecodeError::Status(value)),
        _ => Err(DecodeError::Status(value)),
    }
}

/// A token in lower case.
pub(super) fn field_name(bytes: &[u8]) -> Result<HeaderName, DecodeError> {
    if let Some(name) = usual_name(bytes) {
        return Ok(name);
    }
    // Not `from_lowercase`: it lets `"` through, which is no token.
    let name = HeaderName::from_bytes(bytes).map_err(|_| DecodeError::FieldName)?;
    if name.as_str().as_bytes() != bytes {
        return Err(DecodeError::FieldNameCase);
    }
    Ok(name)
}

/// Common names, which need no check of each byte, and no allocation for those that are not constants of
/// `http`.
fn usual_name(bytes: &[u8]) -> Option<HeaderName> {
    Some(match bytes {
        b"accept" => header::ACCEPT,
        b"accept-encoding" => header::ACCEPT_ENCODING,
        b"accept-language" => header::ACCEPT_LANGUAGE,
        b"cache-control" => header::CACHE_CONTROL,
        b"content-encoding" => header::CONTENT_ENCODING,
        b"content-length" => header::CONTENT_LENGTH,
        b"content-type" => header::CONTENT_TYPE,
        b"cookie" => header::COOKIE,
        b"date" => header::DATE,
        b"etag" => header::ETAG,
        b"forwarded" => header::FORWARDED,
        b"last-modified" => header::LAST_MODIFIED,
        b"server" => header::SERVER,
        b"set-cookie" => header::SET_COOKIE,
        b"user-agent" => header::USER_AGENT,
        b"tunnel-via" => TUNNEL_VIA,
        b"vary" => header::VARY,
        b"via" => header::VIA,
        b"x-forwarded-for" => X_FORWARDED_FOR,
        b"x-forwarded-host" => X_FORWARDED_HOST,
        b"x-forwarded-proto" => X_FORWARDED_PROTO,
        b"x-request-id" => X_REQUEST_ID,
        _ => return None,
    })
}

/// No control byte except a tab, no white space around it.
pub(super) fn field_value(bytes: Bytes) -> Result<HeaderValue, DecodeError> {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if is_space(bytes.first()) || is_space(bytes.last()) {
        return Err(DecodeError::FieldValueSpace);
    }
    HeaderValue::from_maybe_shared(bytes).map_err(|_| DecodeError::FieldValue)
}

/// Refuses connection-specific fields (RFC 9110 section 7.6.1; RFC 9113 section 8.2.2).
pub(super) fn field(name: &HeaderName, value: &HeaderValue) -> Result<(), DecodeError> {
    let never = match name.as_str() {
        "te" if value != "trailers" => return Err(DecodeError::Te),
        "connection" => "connection",
        "keep-alive" => "keep-alive",
        "proxy-connection" => "proxy-connection",
        "transfer-encoding" => "transfer-encoding",
        "upgrade" => "upgrade",
        _ => return Ok(()),
    };
    Err(DecodeError::ConnectionField(never))
}

/// `:` and a token in lower case, except the names of control data.
pub(super) fn pseudo_name(bytes: &[u8]) -> Result<(), DecodeError> {
    field_name(bytes.get(1..).unwrap_or_default())?;
    match bytes {
        b":method" | b":scheme" | b":authority" | b":path" | b":status" => {
            Err(DecodeError::PseudoFieldOfControl)
        }
        _ => Ok(()),
    }
}

/// Whether any byte is bad. Checks every byte, because the compiler does not vectorise a loop with an early
/// exit.
fn has(bytes: &[u8], bad: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(false, |found, byte| found | bad(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bytes that `good` accepts between the two texts.
    fn allowed(good: impl Fn(&[u8]) -> bool, around: (&str, &str)) -> Vec<u8> {
        (0..=255)
            .filter(|byte| good(&[around.0.as_bytes(), &[*byte], around.1.as_bytes()].concat()))
            .collect()
    }

    fn tokens(letters: impl Iterator<Item = u8>) -> Vec<u8> {
        let mut bytes: Vec<u8> = letters
            .chain(b'0'..=b'9')
            .chain(*b"!#$%&'*+-.^_`|~")
            .collect();
        bytes.sort_unstable();
        bytes
    }

    #[test]
    fn methods_are_tokens() {
        let expected = tokens((b'a'..=b'z').chain(b'A'..=b'Z'));
        for around in [("", ""), ("GE", "T"), ("A-METHOD-OF-MORE-THAN", "FIFTEEN")] {
            assert_eq!(allowed(|bytes| method(bytes).is_ok(), around), expected);
        }
        assert_eq!(method(b""), Err(DecodeError::Method));
        assert_eq!(method(b"get").unwrap().as_str(), "get");
    }

    #[test]
    fn only_two_schemes_are_accepted() {
        assert_eq!(scheme(b"https").unwrap(), "https");
        assert_eq!(scheme(b"http").unwrap(), "http");
        for bad in [&b""[..], b"HTTP", b"ws", b"httpss", b"http:"] {
            assert_eq!(scheme(bad), Err(DecodeError::Scheme));
        }
    }

    #[test]
    fn authority_and_path_are_visible_ascii() {
        let visible: Vec<u8> = (0x21..=0x7e).collect();
        assert_eq!(
            allowed(|bytes| authority(bytes).is_ok(), ("a", "b")),
            visible
        );
        assert_eq!(authority(b""), Ok(()));

        let no_fragment: Vec<u8> = visible.into_iter().filter(|byte| *byte != b'#').collect();
        assert_eq!(
            allowed(|bytes| path(bytes).is_ok(), ("/", "b")),
            no_fragment
        );
        assert_eq!(allowed(|bytes| path(bytes).is_ok(), ("", "")), b"*/");
        for good in ["/a//b/%2e%2e/;x?y=%zz", "/?", "//", "/*"] {
            assert_eq!(path(good.as_bytes()), Ok(()));
        }
        for bad in ["", "a", "**", "*?", "http://a/", "?a", "/\u{e9}"] {
            assert_eq!(path(bad.as_bytes()), Err(DecodeError::Path), "{bad:?}");
        }
    }

    #[test]
    fn statuses_are_100_to_599_without_101() {
        for good in [100, 102, 103, 199, 200, 304, 599] {
            assert_eq!(u64::from(status(good).unwrap().as_u16()), good);
        }
        for bad in [0, 99, 600, 999, 65_636, u64::MAX] {
            assert_eq!(status(bad), Err(DecodeError::Status(bad)));
        }
        assert_eq!(status(101), Err(DecodeError::SwitchingProtocols));
    }

    #[test]
    fn field_names_are_lower_case_tokens() {
        let long = "x".repeat(100);
        for around in [("", ""), ("cook", "e"), (&long, "")] {
            let good = |bytes: &[u8]| field_name(bytes).is_ok();
            assert_eq!(allowed(good, around), tokens(b'a'..=b'z'));
        }
        assert_eq!(field_name(b""), Err(DecodeError::FieldName));
        assert_eq!(field_name(b"a\"b"), Err(DecodeError::FieldName));
        for upper in ["Host", "x-Custom", "hosT"] {
            assert_eq!(
                field_name(upper.as_bytes()),
                Err(DecodeError::FieldNameCase)
            );
        }
        assert_eq!(
            field_name(&vec![b'x'; 1 << 16]),
            Err(DecodeError::FieldName)
        );
    }

    #[test]
    fn field_values_have_no_control_bytes_and_no_surrounding_space() {
        let good = |bytes: &[u8]| field_value(Bytes::copy_from_slice(bytes)).is_ok();
        let inside: Vec<u8> = [b'\t']
            .into_iter()
            .chain(0x20..=0x7e)
            .chain(0x80..=0xff)
            .collect();
        assert_eq!(allowed(good, ("a", "b")), inside);
        let around: Vec<u8> = (0x21..=0x7e).chain(0x80..=0xff).collect();
        assert_eq!(allowed(good, ("", "")), around);
        assert_eq!(allowed(good, ("", "b")), around);
        assert_eq!(allowed(good, ("a", "")), around);
        assert!(good(b""));
        assert_eq!(
            field_value(Bytes::from_static(b"a ")),
            Err(DecodeError::FieldValueSpace)
        );
        assert_eq!(
            field_value(Bytes::from_static(b"a\r\nb")),
            Err(DecodeError::FieldValue)
        );
    }

    #[test]
    fn connection_specific_fields_are_refused() {
        let check = |name: &'static str, value: &'static str| {
            field(
                &HeaderName::from_static(name),
                &HeaderValue::from_static(value),
            )
        };
        for name in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "transfer-encoding",
            "upgrade",
        ] {
            assert_eq!(check(name, "x"), Err(DecodeError::ConnectionField(name)));
        }
        assert_eq!(check("te", "trailers"), Ok(()));
        for value in ["", "gzip", "trailers, gzip", "Trailers"] {
            assert_eq!(check("te", value), Err(DecodeError::Te));
        }
        assert_eq!(check("connection-id", "x"), Ok(()));
    }

    #[test]
    fn pseudo_field_names_do_not_repeat_control_data() {
        for good in [":protocol", ":problem", ":detail", ":method-x"] {
            assert_eq!(pseudo_name(good.as_bytes()), Ok(()));
        }
        for control in [":method", ":scheme", ":authority", ":path", ":status"] {
            assert_eq!(
                pseudo_name(control.as_bytes()),
                Err(DecodeError::PseudoFieldOfControl)
            );
        }
        assert_eq!(pseudo_name(b":"), Err(DecodeError::FieldName));
        assert_eq!(pseudo_name(b"::a"), Err(DecodeError::FieldName));
        assert_eq!(pseudo_name(b":A"), Err(DecodeError::FieldNameCase));
    }
}
