//! The public listener: where platform clients come in.
//!
//! It accepts, holds the caps on connections in all and per address, and gives each connection a task
//! of its own (`protocol`). What one platform client does never holds up another, and no error
//! of accepting ends the listener.

pub mod answer;
mod body;
pub mod check;
mod connection;
mod cookies;
mod ends;
mod exchange;
mod observe;
mod pace;
pub mod places;
mod protocol;
pub mod proxy_protocol;
mod serve;
mod upgraded;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tunnel_http::listener::accept;
use tunnel_ops::tls_files::LiveServerConfig;

use self::places::Place;
use crate::node::Node;

/// Accepts platform clients until the node stops, then waits for those that are there.
pub async fn serve_all(node: Arc<Node>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = node.draining() => break,
        };
        while connections.try_join_next().is_some() {}
        let address = peer.ip().to_canonical();
        // A trusted proxy speaks for many: its connections count only in all, until it says for whom.
        let counted = (!node.is_trusted(address)).then_some(address);
        match node.places.enter(counted) {
            Ok(place) => {
                let tls = node.tls.public.as_ref().map(LiveServerConfig::acceptor);
                connections.spawn(one(node.clone(), socket, peer, tls, place));
            }
            Err(full) => {
                let labels = ["public", full.name()];
                node.metrics
                    .connections_refused
                    .with_label_values(&labels)
                    .inc();
            }
        }
    }
    // Whoever comes now is to be refused at once, not to wait for what is never accepted.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn one(
    node: Arc<Node>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    place: Place,
) {
    let _open = node.metrics.connection("public");
    let _public = node.life.public.token();
    if let Err(error) = set_options(&socket, node.config().settings.body_idle_timeout) {
        tracing::debug!(%peer, %error, "cannot set the options of a public connection");
    }
    protocol::run(node, socket, peer, tls, place).await;
}

/// `idle` bounds how long a platform client may take no byte of its answer, gone or not: the kernel
/// counts the time in which sent bytes stay unacknowledged, and that in which its window is closed.
fn set_options(socket: &TcpStream, idle: Duration) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_user_timeout(Some(idle))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle))
}
