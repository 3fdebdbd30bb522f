//! TLS to upstreams: trusted certificates, the client certificate, the name, the protocols offered.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tunnel_ops::connect::tls;
use tunnel_ops::tls_files::{self, TlsFilesError};

use super::settings::{TlsOptions, UpstreamError};

/// HTTP/2 or HTTP/1.1, as the upstream chooses.
const ANY: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// HTTP/1.1 alone.
const HTTP1: [&[u8]; 1] = [b"http/1.1"];

/// The protocols that a handshake offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// HTTP/2 or HTTP/1.1.
    Any,
    /// HTTP/1.1.
    Http1,
}

/// The TLS setup of a route's upstreams; clones share the sessions that can be resumed.
#[derive(Clone)]
pub(super) struct TlsOffers {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    /// The configured name; `None` for the host of each upstream.
    name: Option<ServerName<'static>>,
}

impl TlsOffers {
    /// The setup for a route.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub(super) fn new(options: &TlsOptions) -> Result<Self, UpstreamError> {
        let name = options.server_name.as_ref().map(|name| {
            tls::server_name(name).map_err(|_| UpstreamError::ServerName(name.to_string()))
        });
        let config = |alpn: &[&[u8]]| match &options.roots {
            _ if options.insecure => {
                tls::config_without_verification(options.identity.as_ref(), alpn)
            }
            Some(roots) => tls_files::client_config(roots, options.identity.as_ref(), alpn),
            None => Err(TlsFilesError::NoRoots),
        };
        Ok(Self {
            any: config(&ANY)?,
            http1: config(&HTTP1)?,
            name: name.transpose()?,
        })
    }

    pub(super) fn config(&self, offer: Offer) -> &Arc<ClientConfig> {
        match offer {
            Offer::Any => &self.any,
            Offer::Http1 => &self.http1,
        }
    }

    /// The name that the certificate of an upstream with this host must have.
    pub(super) fn name(&self, host: &str) -> io::Result<ServerName<'static>> {
        match &self.name {
            Some(name) => Ok(name.clone()),
            None => tls::server_name(host),
        }
    }
}
