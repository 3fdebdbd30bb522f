//! The character classes and small grammars of an HTTP/1.1 head.
//!
//! In: slices of a head. Out: whether they are valid. It never changes, copies or decodes them.

use std::net::Ipv6Addr;

/// May be part of a token (RFC 9110, 5.6.2).
const TOKEN: u8 = 1;
/// May be part of a field name here: a token without `_`, which some upstreams read as `-`, so that two different names
/// become one.
const NAME: u8 = 1 << 1;
/// May be part of the path of a target.
const PATH: u8 = 1 << 2;
/// May be part of the query of a target.
const QUERY: u8 = 1 << 3;
/// May be part of a registered name or an IPv4 address.
const HOST: u8 = 1 << 4;

/// Longest host: that of a domain name.
const HOST_BYTES: usize = 255;

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0u8;
    while byte < 0x7f {
        let mut class = 0;
        if byte.is_ascii_alphanumeric() {
            class |= TOKEN | NAME | PATH | QUERY | HOST;
        }
        if matches!(byte, b'-' | b'.') {
            class |= TOKEN | NAME | HOST;
        }
        if byte == b'_' {
            class |= TOKEN | HOST;
        }
        if matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'^' | b'`' | b'|' | b'~'
        ) {
            class |= TOKEN | NAME;
        }
        // All visible characters except those that the `http` crate refuses in a path or query, later and with a less
        // specific error.
        if byte > b' ' && !matches!(byte, b'#' | b'<' | b'>' | b'`' | b'?') {
            class |= PATH;
        }
        if byte > b' ' && !matches!(byte, b'#' | b'<' | b'>' | b'"') {
            class |= QUERY;
        }
        table[byte as usize] = class;
        byte += 1;
    }
    table
}

const fn is(byte: u8, class: u8) -> bool {
    CLASSES[byte as usize] & class != 0
}

/// Whether `byte` may be in a token.
pub(super) fn is_token_byte(byte: u8) -> bool {
    is(byte, TOKEN)
}

/// Whether `bytes` are a token.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is(byte, TOKEN))
}

/// How many bytes at the front of `line` may be part of a field name.
pub(super) fn name_len(line: &[u8]) -> usize {
    line.iter()
        .position(|&byte| !is(byte, NAME))
        .unwrap_or(line.len())
}

/// Whether `bytes` may be a field value: no control character but the tab.
pub(super) fn is_field_value(bytes: &[u8]) -> bool {
    // Without a branch in the loop, so that the compiler checks many bytes at once: most bytes of a head are those of
    // cookies.
    bytes.iter().fold(true, |good, &byte| {
        good & ((byte >= b' ') & (byte != 0x7f) | (byte == b'\t'))
    })
}

/// `bytes` without white space around them.
pub(super) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The members of a comma-separated list, including empty ones.
pub(super) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// Whether every byte may stand in a path and query. The caller distinguishes `#` from other
/// characters that may not.
pub(super) fn is_path_and_query(bytes: &[u8]) -> bool {
    let path = bytes
        .iter()
        .position(|&byte| !is(byte, PATH))
        .unwrap_or(bytes.len());
    match bytes.get(path..) {
        Some([b'?', query @ ..]) => query.iter().all(|&byte| is(byte, QUERY)),
        rest => rest.is_none_or(<[u8]>::is_empty),
    }
}

/// Whether `bytes` are a host and perhaps a port: `name`, `name:8080`, `192.0.2.1`, `[2001:db8::1]:80`.
///
/// Stricter than RFC 3986: no percent-encoding and no ``!$&'()*+,;=~``, which the host of a runtime cannot contain and which
/// two parsers may read as different hosts; no empty port.
#[must_use]
pub(super) fn is_host_and_port(bytes: &[u8]) -> bool {
    host_length(bytes).is_some()
}

/// The length of the host in what [is a host and perhaps a port](is_host_and_port).
#[must_use]
pub(crate) fn host_length(bytes: &[u8]) -> Option<usize> {
    let length = if let [b'[', rest @ ..] = bytes {
        let end = rest.iter().position(|&byte| byte == b']')?;
        let address = std::str::from_utf8(&rest[..end]).ok()?;
        address.parse::<Ipv6Addr>().ok()?;
        end + 2
    } else {
        let end = bytes
            .iter()
            .position(|&byte| !is(byte, HOST))
            .unwrap_or(bytes.len());
        (end > 0 && end <= HOST_BYTES).then_some(end)?
    };
    let is_good = match &bytes[length..] {
        [] => true,
        [b':', digits @ ..] => number(digits).is_some_and(|port| port <= u64::from(u16::MAX)),
        _ => false,
    };
    is_good.then_some(length)
}

/// Parses a decimal number: at least one digit, nothing else, within 64 bits.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for good in [
            "a",
            "A.example",
            "a-b.tunnels.localhost:8080",
            "a_b",
            "192.0.2.1",
            "192.0.2.1:0",
            "a.",
            "[::1]",
            "[2001:db8::1]:443",
            "[::ffff:192.0.2.1]",
            "a:65535",
            "a:00080",
        ] {
            assert!(is_host_and_port(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            ":80",
            "a b",
            "a,b",
            "a@b",
            "a/b",
            "a\\b",
            "0.0.0.0=5000",
            "a:",
            "a:b",
            "a:-1",
            "a:65536",
            "a:1:2",
            "[::1",
            "::1",
            "[::1]x",
            "[fe80::1%25eth0]",
            "[v1.a]",
            "[]",
            "a%2e",
            "a?b",
            "a#b",
            "ä",
            "a;b",
            "a\tb",
            "*",
            "a:80 ",
        ] {
            assert!(!is_host_and_port(bad.as_bytes()), "{bad}");
        }
        assert!(is_host_and_port("x".repeat(255).as_bytes()));
        assert!(!is_host_and_port("x".repeat(256).as_bytes()));
    }

    #[test]
    fn numbers() {
        assert_eq!(number(b"0"), Some(0));
        assert_eq!(number(b"010"), Some(10));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for bad in [
            "",
            "18446744073709551616",
            "+1",
            "-1",
            "0x1",
            "1 ",
            "1,1",
            "١",
        ] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn every_byte_of_a_value() {
        for byte in 0..=u8::MAX {
            let good = byte == b'\t' || (byte >= 0x20 && byte != 0x7f);
            assert_eq!(is_field_value(&[b'a', byte, b'a']), good, "{byte:#x}");
        }
    }

    #[test]
    fn every_target_byte_is_one_that_the_http_crate_holds() {
        for byte in 0..=u8::MAX {
            for prefix in ["/a", "/a?b"] {
                let mut target = prefix.as_bytes().to_vec();
                target.push(byte);
                target.extend_from_slice(b"z");
                if is_path_and_query(&target) {
                    let uri = http::Uri::try_from(&target[..]).unwrap();
                    assert_eq!(uri.to_string().as_bytes(), target);
                } else {
                    assert!(
                        byte == b'#' || byte >= 0x80 || http::Uri::try_from(&target[..]).is_err(),
                        "{byte:#x} is refused without need"
                    );
                }
            }
        }
    }
}
