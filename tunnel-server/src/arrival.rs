//! An accepted connection: whose it is, by its peer and by the PROXY header of a trusted proxy.

use std::net::SocketAddr;

use bytes::Bytes;
use tokio::{net::TcpStream, time::Instant};
use tunnel_http::{permits::Exhausted, prefixed::Prefixed, proxy_protocol};

use crate::{config::live::LiveConfig, lifecycle::Lifecycle};

/// A connection whose client is known as well as it can be before its first byte.
pub(crate) struct Arrival {
    /// The address of the client: that of the peer, or the one in the PROXY header.
    pub(crate) client: SocketAddr,
    /// Whether the client is a trusted proxy, whose forwarding fields are believed.
    pub(crate) is_trusted: bool,
    /// Whether the peer is a trusted proxy, whoever its client is.
    pub(crate) has_trusted_peer: bool,
    /// What was read of the connection after the header.
    pub(crate) front: Bytes,
    pub(crate) socket: TcpStream,
}

/// Why a connection ended before its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotArrived {
    #[error("the PROXY header is missing or wrong")]
    Proxy,
    #[error("the server stops")]
    Stopping,
}

/// Reads the PROXY header of a connection whose peer is a trusted proxy, if its listener `expects_header`.
///
/// # Errors
/// When the header does not come in time or is malformed.
pub(crate) async fn arrive(
    config: &LiveConfig,
    lifecycle: &Lifecycle,
    mut socket: TcpStream,
    peer: SocketAddr,
    expects_header: bool,
) -> Result<Arrival, NotArrived> {
    let has_trusted_peer = config.is_trusted(peer.ip());
    let (mut client, mut is_trusted, mut front) = (peer, has_trusted_peer, Bytes::new());
    if expects_header && has_trusted_peer {
        let deadline = Instant::now() + config.load().settings.first_byte_timeout;
        let header;
        (header, front) = tokio::select! {
            read = proxy_protocol::read(&mut socket, deadline) => read.map_err(|_| NotArrived::Proxy)?,
            () = lifecycle.silent_grace_over() => return Err(NotArrived::Stopping),
        };
        is_trusted = match header {
            proxy_protocol::Header::Local => true,
            // The address that the proxy names, not one in the client's fields.
            proxy_protocol::Header::Proxied { source, .. } => {
                client = source;
                config.is_trusted(source.ip())
            }
            proxy_protocol::Header::Unknown => false,
        };
    }
    Ok(Arrival {
        client,
        is_trusted,
        has_trusted_peer,
        front,
        socket,
    })
}

impl Arrival {
    /// Whether what is sent in plain HTTP is read by nobody else: the peer is a trusted proxy, or on this machine.
    pub(crate) fn is_private(&self) -> bool {
        self.has_trusted_peer || self.client.ip().to_canonical().is_loopback()
    }

    /// The connection, which begins with what was read of it.
    pub(crate) fn into_io(self) -> Prefixed<TcpStream> {
        Prefixed::new(self.front, self.socket)
    }
}

/// The cause in the metric of refused connections: the name of the setting.
pub(crate) fn exhausted_cause(exhausted: Exhausted) -> &'static str {
    match exhausted {
        Exhausted::Total => "max_connections",
        Exhausted::Address => "max_connections_per_address",
    }
}
