//! The public listener: where platform clients come in.
//!
//! It accepts, holds the caps on connections in all and per address, and gives each connection a task
//! of its own (`protocol`). What one platform client does never holds up another, and no error
//! of accepting ends the listener.

pub mod answer;
mod body;
pub mod check;
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

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tunnel_http::listener::{accept, set_options};
use tunnel_ops::tls_files::LiveServerConfig;

use self::places::Place;
pub use self::upgraded::Granted;
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
