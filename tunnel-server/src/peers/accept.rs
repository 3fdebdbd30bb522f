//! The peer listener: where other server nodes connect.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::server::TlsStream;
use tunnel_http::listener::accept;
use tunnel_ops::socket::set_user_timeout;
use tunnel_proto::{
    exchange::serve,
    limits,
    session::{Session, SessionEvent, SessionSettings, Side},
};

use super::{PeerListener, link::PING_INTERVAL};
use crate::{
    directory::NodeName,
    peer_tls::{ALPN, node_of},
};

/// Time for the TLS handshake of another node.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long sent bytes may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections open at once, those before their handshake included: for each shard of more nodes than there will be.
const CONNECTIONS: usize = 4_096;

/// Serves other nodes until it is dropped.
pub(crate) async fn serve_all(shared: Arc<PeerListener>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, peer) = accept(&listener).await;
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS {
            shared.metrics.peers.on_refused();
            continue;
        }
        let shared = shared.clone();
        connections.spawn(async move {
            match timeout(HANDSHAKE, identify(&shared, socket)).await {
                Ok(Some((stream, node))) => serve_node(&shared, stream, node).await,
                _ => {
                    shared.metrics.peers.on_refused();
                    tracing::warn!(%peer, "a connection of the peer listener was refused: it is not from a server node");
                }
            }
        });
    }
}

/// The TLS handshake, and the node at the other end; `None` for anybody else.
async fn identify(
    shared: &PeerListener,
    socket: TcpStream,
) -> Option<(TlsStream<TcpStream>, NodeName)> {
    socket.set_nodelay(true).ok()?;
    set_user_timeout(&socket, Some(USER_TIMEOUT)).ok()?;
    let stream = shared.tls.acceptor().accept(socket).await.ok()?;
    let connection = stream.get_ref().1;
    if connection.alpn_protocol() != Some(ALPN) {
        return None;
    }
    let node = node_of(connection.peer_certificates()?.first()?)?;
    Some((stream, node))
}

/// Serves the exchanges that a node forwards, until its link ends.
async fn serve_node(shared: &Arc<PeerListener>, stream: TlsStream<TcpStream>, node: NodeName) {
    let settings = SessionSettings {
        ping_interval: PING_INTERVAL,
        exchanges: limits::EXCHANGES_MAX,
    };
    let (session, mut events, driver) = Session::new(stream, Bytes::new(), Side::Client, settings);
    tracing::debug!(%node, "another node has linked to this one");
    let exchanges = async {
        let mut streams = JoinSet::new();
        while let Some(event) = events.next(&session).await {
            while streams.try_join_next().is_some() {}
            if let SessionEvent::Exchanges(stream) = event {
                let shared = shared.clone();
                streams.spawn(serve(stream, move |request, informational| {
                    super::relay::relay(shared.clone(), request, informational)
                }));
            }
        }
    };
    tokio::join!(driver, exchanges);
}
