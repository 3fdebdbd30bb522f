//! The peer listener: where other server nodes connect.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::server::TlsStream;
use tunnel_directory::NodeName;
use tunnel_http::listener::accept;
use tunnel_ops::read_ahead::ReadAhead;
use tunnel_proto::{
    close::CloseReason,
    control::Control,
    exchange::serve,
    limits,
    session::{Session, SessionEvent, SessionSettings, Side, SilenceLimits},
};

use super::{
    PeerListener,
    link::{PING_INTERVAL, link_socket},
};
use crate::{
    directory::ReceivedReports,
    peer_tls::{ALPN, node_of},
};

/// Time for the TLS handshake of another node.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Time in which the links end after the last client has ended.
const LINKS_END: Duration = Duration::from_secs(2);

/// How long a link has to be at rest to be closed: another node may have sent a last request before it received the drain.
/// Nodes are near each other.
const QUIET: Duration = Duration::from_millis(100);

/// Connections open at once, those before their handshake included: for each shard of more nodes than there will be.
const CONNECTIONS: usize = 4_096;

/// Serves other nodes until this node has no clients any more, then drains their links; closes them when what is still
/// open has to end.
pub(crate) async fn serve_all(shared: Arc<PeerListener>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = shared.lifecycle.serving_clients.wait() => break,
            () = shared.lifecycle.ending().requested() => break,
        };
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
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Cuts what is left by dropping it.
    let _ = timeout(LINKS_END, ended).await;
}

/// The TLS handshake, and the node at the other end; `None` for anybody else.
async fn identify(
    shared: &PeerListener,
    socket: TcpStream,
) -> Option<(TlsStream<ReadAhead<TcpStream>>, NodeName)> {
    let socket = link_socket(socket).ok()?;
    let mut stream = shared.tls.acceptor().accept(socket).await.ok()?;
    let connection = stream.get_mut().1;
    connection.set_buffer_limit(Some(limits::TLS_BYTES));
    if connection.alpn_protocol() != Some(ALPN) {
        return None;
    }
    let node = node_of(connection.peer_certificates()?.first()?)?;
    Some((stream, node))
}

/// Serves the exchanges that a node forwards, until its link ends.
async fn serve_node(
    shared: &Arc<PeerListener>,
    stream: TlsStream<ReadAhead<TcpStream>>,
    node: NodeName,
) {
    let settings = SessionSettings {
        ping_interval: PING_INTERVAL,
        exchanges: limits::EXCHANGES_MAX,
        silence: SilenceLimits::DATA_CENTRE,
    };
    let (session, mut events, driver) = Session::new(stream, Bytes::new(), Side::Client, settings);
    session.set_account(shared.registry.link_memory());
    tracing::debug!(%node, "another node has linked to this one");
    let directory = shared.registry.directory().shared();
    let mut received = directory.map(|directory| ReceivedReports::new(directory.clone(), node));
    let exchanges = async {
        let mut streams = JoinSet::new();
        while let Some(event) = events.next(&session).await {
            while streams.try_join_next().is_some() {}
            match event {
                SessionEvent::Stream(stream) => {
                    let shared = shared.clone();
                    streams.spawn(serve(stream, move |request, informational| {
                        super::relay::relay(shared.clone(), request, informational)
                    }));
                }
                SessionEvent::Control(Control::Node { report }) => {
                    if let Some(received) = &mut received {
                        received.on_report(&report);
                    }
                }
                SessionEvent::Control(_) => {}
            }
        }
    };
    let rest = async {
        shared.lifecycle.serving_clients.wait().await;
        let _ = session.send(Control::Drain { spread_ms: None });
        loop {
            session.at_rest().await;
            sleep(QUIET).await;
            if session.outstanding() == 0 {
                return;
            }
        }
    };
    let drain = async {
        tokio::select! {
            () = rest => {}
            // Long streams: by this reason the other node ends them as their protocol knows.
            () = shared.lifecycle.ending().requested() => {}
        }
        session.close(CloseReason::Drained);
        pending().await
    };
    tokio::select! {
        _ = async { tokio::join!(driver, exchanges) } => {}
        () = drain => {}
    }
}
