//! The URL of an upstream.
//!
//! In: text. Out: scheme, host and port, or the path of a Unix socket on the same machine. A path, a query or a
//! password is refused, since it would be ignored. Errors never repeat the URL.

use std::borrow::Cow;
use std::fmt;
use std::os::unix;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tunnel_ops::authority::Authority;
use tunnel_ops::config_value::ValueError;

/// The host and authority of a Unix socket.
const SOCKET_HOST: &str = "localhost";

/// The protocol of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamScheme {
    /// HTTP/1.1 without TLS.
    Http,
    /// HTTP/2 or HTTP/1.1 over TLS, as negotiated.
    Https,
    /// HTTP/2 without TLS.
    H2c,
}

/// The URL of an upstream: `http://`, `https://` or `h2c://` and `host[:port]`, or a Unix socket: `unix:/path`
/// (HTTP/1.1) or `h2c+unix:/path`. `host:port`, and a port alone for this machine, are taken for `http://`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UpstreamUrl {
    scheme: UpstreamScheme,
    address: UpstreamAddress,
}

/// The address part of the URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum UpstreamAddress {
    Network(Authority),
    /// An absolute path that fits into a socket address.
    Socket(PathBuf),
}

impl UpstreamUrl {
    /// The protocol.
    pub fn scheme(&self) -> UpstreamScheme {
        self.scheme
    }

    /// The host name or address, an IPv6 address without brackets; `localhost` for a Unix socket.
    pub fn host(&self) -> &str {
        match &self.address {
            UpstreamAddress::Network(authority) => &authority.host,
            UpstreamAddress::Socket(_) => SOCKET_HOST,
        }
    }

    /// The port, by default that of the scheme; 0 for a Unix socket.
    pub fn port(&self) -> u16 {
        match &self.address {
            UpstreamAddress::Network(authority) => authority.port,
            UpstreamAddress::Socket(_) => 0,
        }
    }

    /// The authority for a `Host` field: with the port only if it is not that of the scheme.
    pub fn authority(&self) -> &str {
        match &self.address {
            UpstreamAddress::Network(authority) => &authority.text,
            UpstreamAddress::Socket(_) => SOCKET_HOST,
        }
    }

    /// The path of the Unix socket, if it is one.
    pub fn socket_path(&self) -> Option<&Path> {
        match &self.address {
            UpstreamAddress::Network(_) => None,
            UpstreamAddress::Socket(path) => Some(path),
        }
    }

    fn of_socket(scheme: UpstreamScheme, path: &str) -> Result<Self, &'static str> {
        if !path.starts_with('/') {
            return Err("a Unix socket's path must be absolute");
        }
        if path.ends_with('/') || path.chars().any(char::is_control) {
            return Err("this is no path of a Unix socket");
        }
        // The length of a socket address is limited, how much depends on the system.
        if unix::net::SocketAddr::from_pathname(path).is_err() {
            return Err("the Unix socket's path is too long for an address");
        }
        let address = UpstreamAddress::Socket(PathBuf::from(path));
        Ok(Self { scheme, address })
    }

    /// This URL with another host, which must be a checked name in lower case. A Unix socket is returned unchanged.
    pub(crate) fn with_host(&self, host: String) -> Self {
        let UpstreamAddress::Network(Authority { port, .. }) = self.address else {
            return self.clone();
        };
        let authority = Authority::new(host, port, self.scheme.default_port());
        Self {
            scheme: self.scheme,
            address: UpstreamAddress::Network(authority),
        }
    }
}

impl UpstreamScheme {
    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http | Self::H2c => 80,
            Self::Https => 443,
        }
    }
}

impl FromStr for UpstreamUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = |reason| error("`http://127.0.0.1:3000`", reason);
        let sockets = [
            ("unix:", UpstreamScheme::Http),
            ("h2c+unix:", UpstreamScheme::H2c),
        ];
        for (prefix, scheme) in sockets {
            if let Some(path) = text.strip_prefix(prefix) {
                return Self::of_socket(scheme, path)
                    .map_err(|reason| error("`unix:/run/app.sock`", reason));
            }
        }
        let schemes = [
            UpstreamScheme::Http,
            UpstreamScheme::Https,
            UpstreamScheme::H2c,
        ];
        let split = text.split_once("://").and_then(|(given, rest)| {
            let scheme = schemes
                .into_iter()
                .find(|scheme| scheme.as_str().eq_ignore_ascii_case(given))?;
            Some((scheme, Cow::Borrowed(rest)))
        });
        let short = || Some((UpstreamScheme::Http, short(text)?));
        let Some((scheme, rest)) = split.or_else(short) else {
            return Err(expected(
                "the scheme must be `http`, `https`, `h2c` or `unix`",
            ));
        };
        let rest = &*rest;
        let authority = Authority::parse(rest, scheme.default_port()).map_err(expected)?;
        let address = UpstreamAddress::Network(authority);
        Ok(Self { scheme, address })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, self.scheme) {
            (UpstreamAddress::Network(authority), scheme) => {
                write!(f, "{}://{}", scheme.as_str(), authority.shown())
            }
            (UpstreamAddress::Socket(path), UpstreamScheme::H2c) => {
                write!(f, "h2c+unix:{}", path.display())
            }
            (UpstreamAddress::Socket(path), _) => write!(f, "unix:{}", path.display()),
        }
    }
}

tunnel_ops::text_value!(UpstreamUrl);

/// The authority of a URL without a scheme: `localhost:3000`, or `3000` for that port of this machine.
fn short(text: &str) -> Option<Cow<'_, str>> {
    let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if !is_port || text.contains('/') {
        return None;
    }
    Some(match port.len() == text.len() {
        true => Cow::Owned(format!("127.0.0.1:{port}")),
        false => Cow::Borrowed(text),
    })
}

fn error(example: &str, reason: &str) -> ValueError {
    ValueError::new(format!("expected a URL such as {example}: {reason}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_upstream_has_a_scheme_a_host_and_a_port() {
        let check = |text: &str, scheme, host: &str, port, authority: &str| {
            let url: UpstreamUrl = text.parse().unwrap();
            assert_eq!(
                (url.scheme(), url.host(), url.port(), url.authority()),
                (scheme, host, port, authority)
            );
        };
        check(
            "http://127.0.0.1:3000",
            UpstreamScheme::Http,
            "127.0.0.1",
            3000,
            "127.0.0.1:3000",
        );
        check(
            "https://argo-server/",
            UpstreamScheme::Https,
            "argo-server",
            443,
            "argo-server",
        );
        check(
            "h2c://my_service:80",
            UpstreamScheme::H2c,
            "my_service",
            80,
            "my_service",
        );
        check(
            "HTTP://[::1]:8080",
            UpstreamScheme::Http,
            "::1",
            8080,
            "[::1]:8080",
        );
        check(
            "http://app.svc.cluster.local.:1",
            UpstreamScheme::Http,
            "app.svc.cluster.local.",
            1,
            "app.svc.cluster.local:1",
        );
        check(
            "3000",
            UpstreamScheme::Http,
            "127.0.0.1",
            3000,
            "127.0.0.1:3000",
        );
        check(
            "localhost:3000",
            UpstreamScheme::Http,
            "localhost",
            3000,
            "localhost:3000",
        );
        let url: UpstreamUrl = "http://app.svc.:1".parse().unwrap();
        assert_eq!(url.to_string(), "http://app.svc.:1");
        let other = url.with_host("other.svc.".to_owned());
        assert_eq!(other.authority(), "other.svc:1");
        assert_eq!(other.to_string(), "http://other.svc.:1");
    }

    #[test]
    fn an_upstream_may_be_a_unix_socket() {
        for (text, scheme) in [
            ("unix:/run/app.sock", UpstreamScheme::Http),
            ("h2c+unix:/run/my app/x", UpstreamScheme::H2c),
        ] {
            let url: UpstreamUrl = text.parse().unwrap();
            assert_eq!((url.scheme(), url.to_string().as_str()), (scheme, text));
            assert_eq!((url.host(), url.authority()), ("localhost", "localhost"));
            let path = text.split_once(':').unwrap().1;
            assert_eq!(url.socket_path(), Some(Path::new(path)));
        }
        let long = format!("unix:/{}", "x".repeat(200));
        for bad in [
            "unix:",
            "unix:run/app.sock",
            "unix:/run/",
            "unix:/a\0b",
            "unix:/a\nb",
            "https+unix:/run/a",
            "wss+unix:/run/a",
            &long,
        ] {
            assert!(bad.parse::<UpstreamUrl>().is_err(), "{bad:?}");
        }
        let network: UpstreamUrl = "http://app".parse().unwrap();
        assert_eq!(network.socket_path(), None);
    }

    #[test]
    fn anything_more_than_that_is_refused_and_not_repeated() {
        for bad in [
            "http://me:secret@host",
            "http://host/secret",
            "http://host?secret",
            "http://host#secret",
            "http://",
            "http://host:0",
            "http://host:99999",
            "http://host:+1",
            "http://host:",
            "http://ho st",
            "http://::1",
            "http://[::1",
            "http://[secret]",
            "http://a..b",
            "ftp://host",
            "host",
            "ftp://host:80",
            "99999",
            "http://host//",
        ] {
            let error = bad.parse::<UpstreamUrl>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_url_reads_back_as_written(
            scheme in "(http|https|h2c)", host in "([a-z][a-z0-9-]{0,9}|\\[::1\\])", port in 1u16..
        ) {
            let url: UpstreamUrl = format!("{scheme}://{host}:{port}").parse().unwrap();
            prop_assert_eq!(url.to_string().parse::<UpstreamUrl>().unwrap(), url);
        }

        #[test]
        fn no_text_makes_it_panic(text in "(http://|unix:/?)?\\PC{0,40}") {
            let _ = text.parse::<UpstreamUrl>();
        }
    }
}
