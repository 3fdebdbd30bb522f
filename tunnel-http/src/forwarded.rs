//! What trusted proxies say of a client in the fields of its request: its address, and whether it was encrypted.
//!
//! In: the fields, the peer that sent them, and which addresses are trusted. Each proxy adds the address of its own peer at
//! the end, so the list is read from the end, as long as the next address is that of a trusted proxy: what a client wrote
//! itself stands before that, and is not reached. `X-Forwarded-For` has precedence over `Forwarded` (RFC 7239), since
//! proxies that write the first often let a client's own `Forwarded` pass.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, header};
use tunnel_proto::fields::{X_FORWARDED_FOR, X_FORWARDED_PROTO};

/// The address of a client; without a port if only its address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The address.
    pub ip: IpAddr,
    /// The port.
    pub port: Option<u16>,
}

/// The client of a request with these fields, which a trusted proxy has sent; `None` if they name no client. The last
/// address that is not trusted counts, or the first one if all are.
#[must_use]
pub fn client(headers: &HeaderMap, is_trusted: impl Fn(IpAddr) -> bool) -> Option<Node> {
    let nodes = match headers.contains_key(X_FORWARDED_FOR) {
        true => elements(headers, &X_FORWARDED_FOR),
        false => elements(headers, &header::FORWARDED),
    };
    let is_rfc7239 = !headers.contains_key(X_FORWARDED_FOR);
    let mut client = None;
    for element in nodes.into_iter().rev() {
        let text = match is_rfc7239 {
            true => parameter(element, "for"),
            false => Some(element),
        };
        // What is before an address that is hidden or malformed was not written by a proxy that is known.
        let Some(node) = text.and_then(node) else {
            break;
        };
        client = Some(node);
        if !is_trusted(node.ip) {
            break;
        }
    }
    client
}

/// Whether these fields, which a trusted proxy has sent, say that the client's own connection was not encrypted.
#[must_use]
pub fn is_plain(headers: &HeaderMap) -> bool {
    let scheme = match headers.contains_key(X_FORWARDED_PROTO) {
        true => elements(headers, &X_FORWARDED_PROTO).first().copied(),
        false => elements(headers, &header::FORWARDED)
            .first()
            .and_then(|element| parameter(element, "proto")),
    };
    scheme.is_some_and(|scheme| {
        !["https", "wss"]
            .iter()
            .any(|secure| scheme.eq_ignore_ascii_case(secure))
    })
}

/// The elements of a list field, in order; one that is no text is empty. A line is split before it is read as text: its
/// beginning is the client's, its end that of the last proxy.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    let lines = headers.get_all(name).into_iter();
    let elements = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    elements
        .map(|element| std::str::from_utf8(element).unwrap_or_default().trim())
        .collect()
}

/// The value of a parameter of an element of `Forwarded`, without quotes.
fn parameter<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| found.trim().eq_ignore_ascii_case(name))?;
    let value = value.trim();
    Some(
        value
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'))
            .unwrap_or(value),
    )
}

/// Reads an address, with or without a port, with or without the brackets of IPv6.
fn node(text: &str) -> Option<Node> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(Node {
            ip: address.ip().to_canonical(),
            port: Some(address.port()),
        });
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let ip: IpAddr = bare.parse().ok()?;
    Some(Node {
        ip: ip.to_canonical(),
        port: None,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter().map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (HeaderName::from_static(name), value)
        });
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value);
        }
        headers
    }

    fn is_internal(address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if address.octets()[0] == 10)
    }

    /// The client as text.
    fn named(fields: &[(&'static str, &str)]) -> Option<String> {
        let node = client(&headers(fields), is_internal)?;
        Some(match node.port {
            Some(port) => SocketAddr::new(node.ip, port).to_string(),
            None => node.ip.to_string(),
        })
    }

    #[test]
    fn the_last_address_that_is_not_trusted_is_the_clients() {
        for (name, value, client) in [
            ("x-forwarded-for", "192.0.2.1", Some("192.0.2.1")),
            ("x-forwarded-for", "6.6.6.6, 192.0.2.1", Some("192.0.2.1")),
            (
                "x-forwarded-for",
                "6.6.6.6, 192.0.2.1, 10.0.0.2",
                Some("192.0.2.1"),
            ),
            ("x-forwarded-for", "10.0.0.3,10.0.0.2", Some("10.0.0.3")),
            ("x-forwarded-for", "192.0.2.1:4711", Some("192.0.2.1:4711")),
            ("x-forwarded-for", "2001:db8::1", Some("2001:db8::1")),
            (
                "x-forwarded-for",
                "[2001:db8::1]:4711",
                Some("[2001:db8::1]:4711"),
            ),
            ("x-forwarded-for", "::ffff:192.0.2.1", Some("192.0.2.1")),
            ("x-forwarded-for", "192.0.2.1, unknown", None),
            (
                "x-forwarded-for",
                "192.0.2.1, x, 10.0.0.2",
                Some("10.0.0.2"),
            ),
            ("x-forwarded-for", "", None),
            ("forwarded", "for=192.0.2.1;proto=https", Some("192.0.2.1")),
            (
                "forwarded",
                "for=6.6.6.6, proto=https; For=\"[2001:db8::1]:80\"",
                Some("[2001:db8::1]:80"),
            ),
            ("forwarded", "for=192.0.2.1, for=_hidden", None),
            ("forwarded", "proto=https", None),
        ] {
            assert_eq!(named(&[(name, value)]).as_deref(), client, "{value}");
        }
        assert_eq!(named(&[]), None);
        let lines = [
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-for", "192.0.2.1"),
        ];
        assert_eq!(named(&lines).as_deref(), Some("192.0.2.1"));
    }

    #[test]
    fn bytes_of_the_client_do_not_hide_what_a_proxy_has_added() {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_bytes(b"\xff, 192.0.2.1, 10.0.0.2").unwrap();
        headers.insert(X_FORWARDED_FOR, value);
        let node = client(&headers, is_internal).unwrap();
        assert_eq!(node.ip.to_string(), "192.0.2.1");
    }

    #[test]
    fn a_clients_own_forwarded_does_not_count_beside_x_forwarded_for() {
        let both = [
            ("forwarded", "for=6.6.6.6"),
            ("x-forwarded-for", "192.0.2.1"),
        ];
        assert_eq!(named(&both).as_deref(), Some("192.0.2.1"));
    }

    #[test]
    fn only_the_clients_own_scheme_counts() {
        for (name, value, plain) in [
            ("x-forwarded-proto", "https", false),
            ("x-forwarded-proto", "WSS", false),
            ("x-forwarded-proto", "http", true),
            ("x-forwarded-proto", "https, http", false),
            ("x-forwarded-proto", "http, https", true),
            ("x-forwarded-proto", "", true),
            ("forwarded", "for=192.0.2.1;proto=http", true),
            ("forwarded", "proto=\"https\";for=192.0.2.1", false),
            ("forwarded", "for=192.0.2.1", false),
        ] {
            assert_eq!(is_plain(&headers(&[(name, value)])), plain, "{value}");
        }
        assert!(!is_plain(&HeaderMap::new()));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[\\x20-\\x7e]{0,60}") {
            let _ = named(&[("x-forwarded-for", &text)]);
            let _ = named(&[("forwarded", &text)]);
            let _ = is_plain(&headers(&[("forwarded", &text)]));
        }

        #[test]
        fn what_stands_before_an_untrusted_address_changes_nothing(text in "[\\x20-\\x7e]{0,40}") {
            let value = format!("{text}, 192.0.2.1, 10.0.0.2");
            let client = named(&[("x-forwarded-for", &value)]);
            prop_assert_eq!(client.as_deref(), Some("192.0.2.1"));
        }
    }
}
