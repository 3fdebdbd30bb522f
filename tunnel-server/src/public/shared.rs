//! The public listener where tunnel clients connect, too, by the names of `--tunnel-host`.
//!
//! ```text
//!                          ┌─ a tunnel host that is no runtime's ─▶ connect.rs: gate, TLS of tunnel clients
//!   socket ─▶ ClientHello ─┤
//!      │                   └─ any other name ─▶ TLS ─┐
//!      └─ (without TLS) ─────────────────────────────┴─▶ requests: a tunnel client's (dial.rs), or not (serve.rs)
//! ```
//!
//! Until it is known whose it is, a connection holds a permit of its own kind, for as long as a ClientHello may take: so
//! strangers that send none use up neither the places of platform clients nor those of tunnel clients.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{net::TcpStream, time::Instant};
use tokio_rustls::TlsAcceptor;
use tunnel_http::permits::Permit;
use tunnel_ops::tls_files::LiveServerConfig;

use super::{PublicListener, client_hello, protocol};
use crate::{
    arrival::Arrival,
    connect::{self, TunnelListener},
};

/// Whose a connection is.
enum Kind {
    /// A tunnel client's.
    Tunnel,
    /// To be known by its requests; with this TLS, if there is any.
    Requests(Option<TlsAcceptor>),
}

/// Serves a connection until it ends. `unknown` is given back when it is known whose it is.
pub(super) async fn one(
    listener: Arc<PublicListener>,
    tunnel: Arc<TunnelListener>,
    socket: TcpStream,
    peer: SocketAddr,
    mut unknown: Permit,
) {
    let Some(mut arrival) = listener.arrive(socket, peer).await else {
        return;
    };
    let address = (!arrival.is_trusted).then_some(arrival.client.ip());
    if let Some(address) = address
        && unknown.count_for(address).is_err()
    {
        return listener.on_refused("max_connections_per_address");
    }
    let kind = tokio::select! {
        kind = kind(&listener, &tunnel, &mut arrival) => kind,
        () = listener.lifecycle.silent_grace_over() => return listener.on_refused("stopping"),
    };
    match kind {
        Ok(Kind::Tunnel) => {
            if let Some(place) = tunnel.place(address) {
                drop(unknown);
                Box::pin(connect::serve(tunnel, arrival, place, true)).await;
            }
        }
        Ok(Kind::Requests(tls)) => {
            if let Some(place) = listener.place(address) {
                drop(unknown);
                protocol::run(listener, arrival, tls, place).await;
            }
        }
        Err(_) => listener.on_refused("tls"),
    }
}

/// Reads the ClientHello, if there is one, and decides whose a connection is.
async fn kind(
    listener: &PublicListener,
    tunnel: &TunnelListener,
    arrival: &mut Arrival,
) -> io::Result<Kind> {
    let Some(public_tls) = &listener.tls else {
        return Ok(Kind::Requests(None));
    };
    let deadline = Instant::now() + listener.config().settings.tls_handshake_timeout;
    let front = std::mem::take(&mut arrival.front);
    let (hello, front) = client_hello::read(&mut arrival.socket, front, deadline).await?;
    arrival.front = front;
    let name = hello.server_name.unwrap_or_default();
    let tls = match &tunnel.tls {
        Some(tls) if tunnel.is_tunnel_host(&name) => {
            if !listener.router.is_runtime(&name.to_ascii_lowercase()) {
                return Ok(Kind::Tunnel);
            }
            // Tunnel clients offer HTTP/1.1 alone, browsers both; only the former are asked for a certificate.
            if hello.offers_http2 { public_tls } else { tls }
        }
        _ => public_tls,
    };
    Ok(Kind::Requests(Some(LiveServerConfig::acceptor(tls))))
}
