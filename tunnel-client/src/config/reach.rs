//! Overrides of parts of the server's URL: the address that is dialled, the name in its certificate, and `Host`.

use std::fmt;
use std::str::FromStr;

use rustls_pki_types::ServerName;
use tunnel_ops::authority::Authority;
use tunnel_ops::config_value::ValueError;

/// The host that is dialled in place of the URL's: a name or an address, with an optional port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTo {
    host: String,
    port: Option<u16>,
}

/// A name or an address that a certificate can be valid for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsName(String);

/// The value of a `Host` field: a name or an address, with an optional port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostField(String);

impl ConnectTo {
    /// The name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; `None` for the URL's.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

impl FromStr for ConnectTo {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        // 0 stands for no port, since a written port cannot be 0.
        let Authority { host, port, .. } = authority(text, 0)?;
        let port = Some(port).filter(|port| *port > 0);
        Ok(Self { host, port })
    }
}

impl TlsName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TlsName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        match ServerName::try_from(name) {
            Ok(_) => Ok(Self(name.to_ascii_lowercase())),
            Err(_) => Err(ValueError::new(
                "expected a name such as `tunnel.example.com`, or an IP address, without a port",
            )),
        }
    }
}

impl HostField {
    /// The value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostField {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        authority(text, 443).map(|authority| Self(authority.text))
    }
}

fn authority(text: &str, default_port: u16) -> Result<Authority, ValueError> {
    Authority::parse(text, default_port).map_err(|reason| {
        ValueError::new(format!(
            "expected a host such as `tunnel.example.com` or `10.0.0.7:8443`: {reason}"
        ))
    })
}

impl fmt::Display for ConnectTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        let is_v6 = host.contains(':');
        match is_v6 {
            true => write!(f, "[{host}]")?,
            false => f.write_str(host)?,
        }
        port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Display for TlsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for HostField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

tunnel_ops::text_value!(ConnectTo);
tunnel_ops::text_value!(TlsName);
tunnel_ops::text_value!(HostField);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dialled_instead_has_a_host_and_perhaps_a_port() {
        let place = |text: &str| {
            let place: ConnectTo = text.parse().unwrap();
            (place.host, place.port)
        };
        assert_eq!(place("10.0.0.7"), ("10.0.0.7".to_owned(), None));
        assert_eq!(place("[fd00::1]:8443"), ("fd00::1".to_owned(), Some(8443)));
        assert_eq!(place("Private.example:1").0, "private.example");
        for bad in ["", "a:0", "https://a", "a/b", "me@a"] {
            assert!(bad.parse::<ConnectTo>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_to_check_has_no_port_and_a_host_to_name_may() {
        let name: TlsName = "Tunnel.example.com.".parse().unwrap();
        assert_eq!(name.as_str(), "tunnel.example.com");
        assert!("10.0.0.7".parse::<TlsName>().is_ok());
        for bad in ["", "a b", "a:443", "*.example.com"] {
            assert!(bad.parse::<TlsName>().is_err(), "{bad}");
        }
        let host = |text: &str| text.parse::<HostField>().map(|host| host.0);
        assert_eq!(
            host("tunnel.example.com:443").unwrap(),
            "tunnel.example.com"
        );
        assert_eq!(host("[::1]:8443").unwrap(), "[::1]:8443");
        assert!(host("a\r\nb").is_err());
    }
}
