//! A host and a port as written in a URL: `host`, `host:port`, `[address]:port`.
//!
//! Anything else (a path, a query, a password) is refused, since it would be ignored. Errors never repeat the text.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

/// Longest DNS name, in bytes.
pub const HOST_OCTETS: usize = 253;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authority {
    /// A name or an address, without brackets, in lower case.
    pub host: String,
    /// Not zero.
    pub port: u16,
    /// The form for a `Host` field: with brackets, with the port if it is not the default, and without the last dot,
    /// which only concerns the resolver.
    pub text: String,
}

impl Authority {
    /// Reads `text`; a last slash is allowed, and `default_port` counts where no port is given.
    ///
    /// # Errors
    /// When it is not a host with at most a port: why, without the text itself.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, &'static str> {
        let text = text.strip_suffix('/').unwrap_or(text);
        if text.contains(['/', '?', '#']) {
            return Err("leave out path, query and fragment");
        }
        if text.contains('@') {
            return Err("leave out user name and password");
        }
        let (host, port) = match text.rsplit_once(':') {
            // The colons within brackets are the address's own.
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port {
            Some(port) => parse_port(port).ok_or("the port must be a number from 1 to 65535")?,
            None => default_port,
        };
        let host =
            parse_host(host).ok_or("the host must be a name or an IP address, IPv6 in brackets")?;
        Ok(Self::new(host, port, default_port))
    }

    /// `host` is a checked name in lower case, or an address without brackets.
    pub fn new(host: String, port: u16, default_port: u16) -> Self {
        let mut text = match host.strip_suffix('.') {
            Some(name) => name.to_owned(),
            None if host.contains(':') => format!("[{host}]"),
            None => host.clone(),
        };
        if port != default_port {
            // Writing to memory does not fail.
            let _ = write!(text, ":{port}");
        }
        Self { host, port, text }
    }

    /// The text as written: with the last dot, if there was one.
    pub fn shown(&self) -> String {
        match self.host.strip_suffix('.') {
            Some(name) => self.text.replacen(name, &self.host, 1),
            None => self.text.clone(),
        }
    }
}

/// Whether this can be the name of a host, without a last dot. Underscores are allowed: services in container networks
/// often have one.
pub fn is_host_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(known);
    name.len() <= HOST_OCTETS && name.split('.').all(label)
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

fn parse_host(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('[') {
        let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
        return Some(address.to_string());
    }
    // A last dot keeps the resolver from trying search domains; TLS names have none.
    let name = text.strip_suffix('.').unwrap_or(text);
    is_host_name(name).then(|| text.to_ascii_lowercase())
}
