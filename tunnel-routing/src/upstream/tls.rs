//! TLS to upstreams: trusted certificates, the client certificate, the name, the protocols offered.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tunnel_ops::connect::tls;
use tunnel_ops::tls_files::{self, TlsFilesError};

use super::settings::{TlsOptions, UpstreamError};

const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The versions of HTTP that a connection may have, which TLS offers to the upstream (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2 or else HTTP/1.1.
    Any,
}

/// The TLS setup of a route's upstreams; clones share the sessions that can be resumed.
#[derive(Clone)]
pub(super) struct TlsOffers {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    any: Arc<ClientConfig>,
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
            http1: config(&[HTTP1])?,
            http2: config(&[H2])?,
            any: config(&[H2, HTTP1])?,
            name: name.transpose()?,
        })
    }

    pub(super) fn config(&self, offer: Offer) -> &Arc<ClientConfig> {
        match offer {
            Offer::Http1 => &self.http1,
            Offer::Http2 => &self.http2,
            Offer::Any => &self.any,
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
