//! The URL of the server.
//!
//! In: text. Out: host and port, see [`Authority`].

use std::fmt;
use std::str::FromStr;

use tunnel_ops::authority::Authority;
use tunnel_ops::config_value::ValueError;

/// The server that is dialled: `wss://host[:port]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    authority: Authority,
}

impl ServerUrl {
    /// The host's name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.authority.host
    }

    /// The port; 443 by default.
    pub fn port(&self) -> u16 {
        self.authority.port
    }

    /// The value of `Host`: with the port unless it is 443.
    pub fn authority(&self) -> &str {
        &self.authority.text
    }
}

impl FromStr for ServerUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = |reason| {
            ValueError::new(format!(
                "expected a URL such as `wss://tunnel.example.com`: {reason}"
            ))
        };
        match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => {
                let authority = Authority::parse(rest, 443).map_err(expected)?;
                Ok(Self { authority })
            }
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("ws") => Err(expected(
                "`ws://` has no TLS, so that any program in between could read the token",
            )),
            _ => Err(expected("the scheme must be `wss`")),
        }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wss://{}", self.authority.shown())
    }
}

tunnel_ops::text_value!(ServerUrl);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_server_is_dialled_over_tls_only() {
        let url: ServerUrl = "wss://Tunnel.Example.com/".parse().unwrap();
        assert_eq!(
            (url.host(), url.port(), url.authority()),
            ("tunnel.example.com", 443, "tunnel.example.com")
        );
        let url: ServerUrl = "wss://localhost:8443".parse().unwrap();
        assert_eq!(
            (url.port(), url.authority(), url.to_string().as_str()),
            (8443, "localhost:8443", "wss://localhost:8443")
        );
        for bad in [
            "ws://localhost",
            "https://localhost",
            "localhost",
            "wss:localhost",
            "wss://",
            "wss://a/connect",
            "",
        ] {
            assert!(bad.parse::<ServerUrl>().is_err(), "{bad}");
        }
        assert!(
            "ws://localhost"
                .parse::<ServerUrl>()
                .unwrap_err()
                .to_string()
                .contains("no TLS")
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(wss://)?\\PC{0,40}") {
            let _ = text.parse::<ServerUrl>();
        }
    }
}
