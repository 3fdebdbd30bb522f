//! The URL of an admin listener, as given by an operator.

use std::{fmt, str::FromStr};

use http::uri::{Authority, Scheme, Uri};

/// The port of an `http` URL without one.
const HTTP_PORT: u16 = 80;

/// The URL of an admin listener: `http`, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminUrl(Authority);

/// The text is not the URL of an admin listener. The error does not repeat it, since it may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAnAdminUrl {
    /// Not a URL, or one with more than a host and a port.
    #[error("expected a URL without path such as `http://127.0.0.1:9090`")]
    Form,
    /// Another scheme.
    #[error(
        "the admin listener speaks plain `http`; from another machine, reach it through an SSH tunnel"
    )]
    Scheme,
}

impl AdminUrl {
    /// Host and port, as the `Host` field names them.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.0.as_str()
    }

    /// The host, an IPv6 address without its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.0.host().trim_matches(['[', ']'])
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or(HTTP_PORT)
    }
}

impl FromStr for AdminUrl {
    type Err = NotAnAdminUrl;

    fn from_str(text: &str) -> Result<Self, NotAnAdminUrl> {
        let url: Uri = text.parse().map_err(|_| NotAnAdminUrl::Form)?;
        let parts = url.into_parts();
        let scheme = parts.scheme.ok_or(NotAnAdminUrl::Form)?;
        if scheme != Scheme::HTTP {
            return Err(NotAnAdminUrl::Scheme);
        }
        let authority = parts.authority.ok_or(NotAnAdminUrl::Form)?;
        let is_bare = parts.path_and_query.is_none_or(|path| path == "/");
        let has_user = authority.as_str().contains('@');
        if !is_bare || has_user || authority.host().is_empty() {
            return Err(NotAnAdminUrl::Form);
        }
        Ok(Self(authority))
    }
}

impl fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, host: &str, port: u16) {
        let url: AdminUrl = text.parse().unwrap();
        assert_eq!((url.host(), url.port()), (host, port), "{text}");
        assert_eq!(url.to_string(), text.trim_end_matches('/'));
    }

    #[test]
    fn host_and_port_are_read() {
        check("http://127.0.0.1:9090", "127.0.0.1", 9090);
        check("http://tunnels.example.com/", "tunnels.example.com", 80);
        check("http://[::1]:9090", "::1", 9090);
    }

    #[test]
    fn other_forms_are_refused() {
        use NotAnAdminUrl::{Form, Scheme};
        for (text, error) in [
            ("https://a:1", Scheme),
            ("127.0.0.1:9090", Form),
            ("localhost", Form),
            ("http://", Form),
            ("http://a/b", Form),
            ("http://a/?b", Form),
            ("http://user:password@a", Form),
            ("", Form),
        ] {
            assert_eq!(text.parse::<AdminUrl>(), Err(error), "{text}");
        }
    }
}
